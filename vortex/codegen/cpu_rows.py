"""How L0 kernels of CPUs address rows of A and C: from few registers, however many rows there are.

A pointer for each row is what LLVM makes of rows `lda` apart: fourteen of them leave no register for the rest, and
those that wait on the stack are loaded again at each step of k, through the ports that the broadcasts need (a tile of
14x1 vectors: 10 cycles a step on Zen 5 where 8 do). A group of rows shares a pointer instead, from which x86 reaches
1, 2, 4 or 8 times a distance in a register: 1, 3 and 5 times `lda` make seven rows. LLVM would take these apart again,
so that the text keeps from it what pointers and distances are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvm import ir, tirx

from vortex.codegen.cpu_steps import FOUR_SYMBOL, NARROW_STEPS, QUAD, SETTLE_SYMBOL, quad_ir, settle_ir
from vortex.codegen.cpu_tile import stream_ir
from vortex.codegen.lower import compile_object, cpu_target, with_body
from vortex.codegen.trees import found, mapped

GROUP = 7
"""Rows from one pointer."""
SCALES = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}
"""What LLVM calls an element of so many bytes."""
STRIDES = {"A": "lda", "B": "ldb", "F": "ldb", "C": "ldc"}
"""What lies between two rows of an operand."""
ADDRESS = ir.Op.get("tirx.address_of")
ZERO, ONE = tirx.const(0, "int64"), tirx.const(1, "int64")


def compile_tiles(
    kernels: Sequence[tirx.PrimFunc], rows: int, lanes: int, llvm_cpu: str, path: Path, clears: bool = True
) -> None:
    """The object file of L0 kernels of at most `rows` rows, vectors of `lanes`; `clears` as in `cpu_target`."""
    text = stream_ir(lanes) + settle_ir(lanes) + quad_ir(lanes) + rows_ir(max(rows, NARROW_STEPS))
    compile_object([*kernels], cpu_target(llvm_cpu, clears), path, llvm_ir=text, share=False, rewrite=by_groups)


def _symbol(kind: str, row: int) -> str:
    return f"vortex_{kind}_{row}"


def rows_ir(rows: int) -> str:
    """LLVM text that a module of kernels of at most `rows` rows needs

    `vortex_place_<row>(first, apart, along)` is where the element `along` of a row is, the first row at `first` and
    each `apart` elements after the one before; `vortex_element_<row>` is what is there, `vortex_four_<row>` with what
    follows.
    """
    return "\n".join(_row_ir(row) for row in range(rows)) + _ATTRIBUTES


_ATTRIBUTES = """
attributes #1 = { alwaysinline nounwind willreturn memory(argmem: read) }
attributes #2 = { nounwind willreturn memory(none) }
"""


def _row_ir(row: int) -> str:
    group, member = divmod(row, GROUP)
    scale = (member & -member) or 1
    odd = member // scale
    pointers = "\n".join(
        f"""  %next{g} = getelementptr float, ptr %group{g - 1}, i64 %rows
  %group{g} = call ptr asm "", "=r,0"(ptr %next{g}) #2"""
        for g in range(1, group + 1)
    )
    return f"""define weak_odr hidden ptr @{_symbol("place", row)}(ptr %first, i64 %apart, i64 %along) #1 {{
  %rows = mul i64 %apart, {GROUP}
  %group0 = call ptr asm "", "=r,0"(ptr %first) #2
{pointers}
  %bytes = mul i64 %apart, {4 * odd}
  %distance = call i64 asm "", "=r,0"(i64 %bytes) #2
  %row = getelementptr {SCALES[scale]}, ptr %group{group}, i64 {"%distance" if odd else "0"}
  %place = getelementptr float, ptr %row, i64 %along
  ret ptr %place
}}
define weak_odr hidden float @{_symbol("element", row)}(ptr %first, i64 %apart, i64 %along) #1 {{
  %place = call ptr @{_symbol("place", row)}(ptr %first, i64 %apart, i64 %along)
  %value = load float, ptr %place, align 4
  ret float %value
}}
define weak_odr hidden <{QUAD} x float> @{FOUR_SYMBOL}_{row}(ptr %first, i64 %apart, i64 %along) #1 {{
  %place = call ptr @{_symbol("place", row)}(ptr %first, i64 %apart, i64 %along)
  %four = load <{QUAD} x float>, ptr %place, align 4
  ret <{QUAD} x float> %four
}}
"""


def in_rows(index: Any, stride: Any) -> tuple[Any, int, Any]:
    """`index` as first + row * stride + along, where `row` and `along` are constants.

    What is no sum, or no multiple of `stride`, stays whole in `first`: TVM's own simplifier and substitution take a
    hundred times as long for each of the thousands of accesses of a library.
    """
    first, row, along = ZERO, 0, 0
    for term in _terms(index):
        factor = _cofactor(term, stride)
        if isinstance(term, tirx.IntImm):
            along += term.value
        elif factor is None:
            first = first + term
        else:
            row += sum(part.value for part in _terms(factor) if isinstance(part, tirx.IntImm))
            for part in _terms(factor):
                first = first if isinstance(part, tirx.IntImm) else first + part * stride
    return first, row, tirx.const(along, "int64")


def _terms(index: Any) -> list[Any]:
    return [*_terms(index.a), *_terms(index.b)] if isinstance(index, tirx.Add) else [index]


def _cofactor(term: Any, stride: Any) -> Any:
    """What `stride` is multiplied by in a term; None where it is no factor."""
    if not isinstance(term, tirx.Mul):
        return ONE if term.same_as(stride) else None
    return next((b for a, b in ((term.a, term.b), (term.b, term.a)) if a.same_as(stride)), None)


def by_groups(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A lowered kernel that reaches its rows of C by groups, and of A where they are many; rows of all
    operands where it settles its sums."""
    strides = {parameter.name: parameter for parameter in function.params if parameter.name in STRIDES.values()}

    def placed(access: Any) -> tuple[int, list[Any]]:
        """The row of an access, counted from a first one, and the arguments of what finds it."""
        stride, (index,) = strides[STRIDES[access.source.name]], access.indices
        first, row, along = in_rows(index.base if isinstance(index, tirx.Ramp) else index, stride)
        return row, [tirx.address_of(tirx.BufferLoad(access.source, [first])), stride, along]

    rows: list[int] = []

    def element(access: Any) -> Any:
        if access.source.name != "A":
            return access
        row, arguments = placed(access)
        rows.append(row)
        if isinstance(access.indices[0], tirx.Ramp):
            return tirx.call_extern(f"float32x{QUAD}", f"{FOUR_SYMBOL}_{row}", *arguments)
        return tirx.call_extern("float32", _symbol("element", row), *arguments)

    def address(call: Any) -> Any:
        if call.op != ADDRESS or call.args[0].source.name not in reached:
            return call
        row, arguments = placed(call.args[0])
        return tirx.call_extern("handle", _symbol("place", row), *arguments)

    grouped = mapped(function.body, (ir.TensorLoad, element))
    settles = bool(found(function.body, ir.StringImm, lambda name: name.value == SETTLE_SYMBOL))
    crowded = settles or max(rows, default=0) >= GROUP
    reached = ("B", "F", "C") if settles else ("C",)
    body = mapped(grouped if crowded else function.body, (ir.Call, address))
    return with_body(function, body)
