"""Stores under a lane mask on x86 without mask registers: a whole vector at once, a part of one in halves.

AVX2 has `vmaskmovps`, which AMD's cores take apart when it stores: 42 micro-operations in 12 cycles for 8 floats on
Zen 3, where a whole vector takes one (uops.info). A load under a mask takes one as well.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx
from tvm.target import Target, codegen

from vortex.codegen.trees import mapped

LLVM_NAMES = {"float32": "float", "int32": "i32"}
"""Element types that `vmaskmovps` would store; LLVM stores others one by one already."""
LANES = (4, 8)
CALL = ir.Op.get("tirx.call_llvm_intrin")


def has_mask_registers(target: Target) -> bool:
    return bool(codegen.llvm_cpu_has_features("avx512vl", target))


def in_parts(body: Any) -> Any:
    """A lowered body whose stores under a mask are those of `parts_ir`; a mask is the first lanes, however many."""
    masked = codegen.llvm_lookup_intrinsic_id("llvm.masked.store")

    def store(call: Any) -> Any:
        if call.op != CALL or int(call.args[0]) != masked:
            return call
        value, place, mask = call.args[1:]
        dtype, _, lanes = str(value.ty.dtype).partition("x")
        if dtype not in LLVM_NAMES or int(lanes or 1) not in LANES:
            return call
        return tirx.call_extern("int32", _symbol(dtype, int(lanes)), place, value, mask)

    return mapped(body, (ir.Call, store))


def parts_ir() -> str:
    """LLVM text of `vortex_first_<dtype>x<lanes>(place, vector, mask)` for each of them."""
    stores = [_store_ir(dtype, lanes) for dtype in LLVM_NAMES for lanes in LANES]
    counts = [f"declare i{lanes} @llvm.ctpop.i{lanes}(i{lanes})" for lanes in LANES]
    return "\n".join([*stores, *counts, "attributes #3 = { alwaysinline nounwind }", ""])


def _symbol(dtype: str, lanes: int) -> str:
    return f"vortex_first_{dtype}x{lanes}"


def _store_ir(dtype: str, lanes: int) -> str:
    kind, half = LLVM_NAMES[dtype], lanes // 2
    rest, block, parts = "%vector", "some", []
    while half:
        parts.append(_half_ir(kind, lanes, half, rest, block))
        rest, block, half = f"%rest{half}", f"after{half}", half // 2
    parameters = f"ptr %place, <{lanes} x {kind}> %vector, <{lanes} x i1> %mask"
    return f"""define linkonce_odr hidden i32 @{_symbol(dtype, lanes)}({parameters}) #3 {{
  %lanes = bitcast <{lanes} x i1> %mask to i{lanes}
  %whole = icmp eq i{lanes} %lanes, -1
  br i1 %whole, label %all, label %some
all:
  store <{lanes} x {kind}> %vector, ptr %place, align 4
  br label %done
some:
  %count = call i{lanes} @llvm.ctpop.i{lanes}(i{lanes} %lanes)
{"".join(parts)}  br label %done
done:
  ret i32 0
}}"""


def _half_ir(kind: str, lanes: int, half: int, vector: str, block: str) -> str:
    """Where `count` has the bit `half`, so many of the first elements of `vector`, which has twice as many, from
    `place` on; then `rest` and `place` are of what is left."""
    whole, part = f"<{2 * half} x {kind}>", f"<{half} x {kind}>"
    of_low, of_high = (", ".join(f"i32 {i}" for i in range(first, first + half)) for first in (0, half))
    place = "%place" if block == "some" else f"%place{2 * half}"
    return f"""  %low{half} = shufflevector {whole} {vector}, {whole} poison, <{half} x i32> <{of_low}>
  %bit{half} = and i{lanes} %count, {half}
  %has{half} = icmp ne i{lanes} %bit{half}, 0
  br i1 %has{half}, label %store{half}, label %after{half}
store{half}:
  store {part} %low{half}, ptr {place}, align 4
  %next{half} = getelementptr {kind}, ptr {place}, i64 {half}
  %high{half} = shufflevector {whole} {vector}, {whole} poison, <{half} x i32> <{of_high}>
  br label %after{half}
after{half}:
  %place{half} = phi ptr [ {place}, %{block} ], [ %next{half}, %store{half} ]
  %rest{half} = phi {part} [ %low{half}, %{block} ], [ %high{half}, %store{half} ]
"""
