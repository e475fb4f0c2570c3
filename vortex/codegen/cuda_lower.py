"""From a scheduled kernel to its CUDA source and the geometry of its launch."""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import ir, s_tir, tirx
from tvm.target import Target

from vortex.codegen import cuda_passes as passes
from vortex.codegen.cuda_pipeline import multistage
from vortex.codegen.trees import found, substitute
from vortex.dtypes import ITEM_BYTES
from vortex.errors import CodegenError
from vortex.gpu_hardware import CP_ASYNC, FULL_RATE

PADDING = 4
"""Elements of four bytes: eight rows then begin on eight different groups of banks, and vectors stay aligned."""
SCALARS = ("M", "N", "K", "lda", "ldb", "ldc", "chunk", "raster")
SUFFIX = {"float32": "f32", "tfloat32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "s32", "int32": "s32"}
STORED = {name: name for name in ("float32", "float16", "bfloat16", "int32")} | {"tfloat32": "float32", "int8": "int32"}
"""What sums are stored as unless an epilogue says otherwise."""


@dataclass(frozen=True)
class KernelSource:
    """One kernel as text, without the functions it calls, and how to launch it."""

    symbol: str
    source: str
    args: tuple[str, ...]
    block: tuple[int, int, int]
    shared_bytes: int


def alone(kernel: KernelSource) -> KernelSource:
    """The same kernel, promised the registers of a block that has an SM to itself."""
    return replace(kernel, source=re.sub(r"__launch_bounds__\((\d+)\)", r"__launch_bounds__(\1, 1)", kernel.source))


def generation(arch: str) -> int:
    return int(re.sub(r"\D", "", arch))


def has_async_copy(arch: str) -> bool:
    """Whether shared memory can be filled past the registers (PTX ISA, cp.async: from sm_80 on)."""
    return generation(arch) >= CP_ASYNC


def has_full_rate(arch: str) -> bool:
    """Whether a warp's float32 multiply-adds issue in every cycle, so that registers must be read as fast."""
    return generation(arch) >= FULL_RATE


def cuda_target(arch: str) -> Target:
    return Target({"kind": "cuda", "arch": arch})


def simple(function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Blocks lowered to loops over buffers of the extent that a thread block needs."""
    s, name = s_tir.transform, str(function.attrs["global_symbol"])
    module = tvm.IRModule({name: function})
    with target:
        module = tvm.ir.transform.Sequential(
            [
                tirx.transform.BindTarget(target.with_host("llvm")),
                s.CanonicalizeLoop(),
                s.LowerCrossThreadReduction(),
                s.LowerInitBlock(),
                s.PlanAndUpdateBufferAllocationLocation(),
                s.ConvertBlocksToOpaque(),
                s.LiftThreadBinding(),
                s.CompactBufferAllocation(),
                s.UnifyThreadBinding(),
                s.LowerMatchBuffer(),
                s.StmtSimplify(),
                s.LowerOpaqueBlock(),
            ]
        )(module)
    return module[name]


class Operand:
    """A buffer parameter [.., row, column] as a bare pointer; offsets are made 64 bits wide where they are computed."""

    def __init__(self, parameter: Any) -> None:
        self.buffer = parameter
        self.pointer = tirx.Var(parameter.name, ir.PointerType(ir.PrimType(str(parameter.dtype))))

    def address(self, indices: list[Any]) -> Any:
        row, column = indices
        return tirx.call_extern("handle", "at", self.pointer, row, self.buffer.strides[0], column)


def element(operand: Operand, row: Any, stride: Any, column: Any) -> Any:
    """The value of one element of a type that sums are kept in."""
    dtype = str(operand.buffer.dtype)
    name = "word_at" if dtype == "int32" else "value_at"
    return tirx.call_extern(dtype, name, operand.pointer, row, stride, column)


def rasterized(body: Any, raster: Any) -> tuple[dict[str, Any], Any]:
    """One axis of blocks instead of rows and columns of them, and the extents by thread tag."""
    threads, inside = passes.innermost(body)
    by_tag = {str(thread.node.thread_tag): thread for thread in threads}
    tall, wide = by_tag["blockIdx.y"].value, by_tag["blockIdx.x"].value
    block = tirx.Var("blockIdx.x", "int32")
    variables = {}
    binds = []
    for name, tag in (("row_of_block", "blockIdx.y"), ("column_of_block", "blockIdx.x")):
        variables[by_tag[tag].node.var] = variable = tirx.Var(name.replace("_of", ""), "int32")
        binds.append(tirx.Bind(variable, tirx.call_extern("int32", name, block, tall, wide, raster)))
    inside = passes.sequence([*binds, substitute(inside, variables)])
    kept = [thread for tag, thread in by_tag.items() if tag not in ("blockIdx.x", "blockIdx.y")]
    axis = tirx.IterVar(ir.Range(0, tall * wide), block, tirx.IterVar.ThreadIndex, "blockIdx.x")
    blocks = tirx.AttrStmt(axis, "thread_extent", tall * wide, passes.wrapped(kept, inside))
    return {tag: thread.value for tag, thread in by_tag.items()}, blocks


_SHARED = re.compile(r"extern __shared__ __align__\(\d+\) ((?:signed )?\w+) (\w+)\[\];")


def placed(text: str, offsets: dict[str, int]) -> str:
    """Declarations of shared buffers, which in CUDA all begin at the same byte, as parts of one."""

    def part(match: re.Match[str]) -> str:
        name = match[2].removesuffix("_ptr")
        return f"{match[1]}* const {match[2]} = ({match[1]}*)(shared_memory + {offsets[name]});"

    # The loop that takes C from shared memory to its place: unrolled whole, it is half of the kernel's code.
    return _SHARED.sub(part, text).replace("__syncwarp();\n  for ", "__syncwarp();\n  #pragma unroll 4\n  for ")


def lowered(
    function: tirx.PrimFunc,
    dtype: str,
    arch: str,
    stages: int,
    swizzles: dict[str, bool],
    quads: Set[str] = frozenset(),
    padded: Set[str] = frozenset(),
) -> KernelSource:
    """CUDA of one scheduled GEMM (see cuda_program.gemm)."""
    target = cuda_target(arch)
    symbol = str(function.attrs["global_symbol"])
    function = simple(function, target)
    a, b, c = (Operand(parameter) for parameter in function.params[:3])
    scalars = {parameter.name: parameter for parameter in function.params[3:]}
    raster = scalars["raster"] = tirx.Var("raster", "int32")
    item = ITEM_BYTES[dtype]
    is_async = has_async_copy(arch)
    body = passes.fragments(multistage(function.body, is_async))
    body = passes.padded(passes.swizzle(body, swizzles, quads), padded, PADDING)
    body = passes.copies(body, {a.buffer: a.address, b.buffer: b.address}, item, is_async and stages > 1)
    split = tirx.LT(scalars["chunk"], scalars["K"])
    rows, leading = scalars["M"], scalars["ldc"]
    body = passes.stores(
        body, c.buffer, lambda at: [c.pointer, split, at[0], rows, at[1], leading, at[2]], SUFFIX[dtype]
    )
    body = passes.called_by_address(passes.moves(body))
    extents, body = rasterized(body, raster)
    offsets, shared_bytes = layout(body)
    block = tuple(int(extents.get(f"threadIdx.{axis}", 1)) for axis in "xyz")
    text = placed(
        printed(body, symbol, [a.pointer, b.pointer, c.pointer, *(scalars[n] for n in SCALARS)], target), offsets
    )
    return KernelSource(symbol, text, ("*A", "*B", "*C", *SCALARS), block, shared_bytes)  # type: ignore[arg-type]


def layout(body: Any) -> tuple[dict[str, int], int]:
    """Where in shared memory each buffer begins: operands one after the other, and C over them when they are done."""
    offsets, end, whole = {}, 0, 0
    for allocation in found(body, tirx.AllocBuffer, lambda x: str(x.buffer.scope()) == passes.SHARED):
        buffer = allocation.buffer
        size = 1
        for extent in passes.extents(buffer):
            size *= extent
        size *= passes.ITEM_BYTES[str(buffer.dtype)]
        if buffer.name.startswith("product"):
            offsets[buffer.name], whole = 0, max(whole, size)
        else:
            offsets[buffer.name], end = end, end + -(-size // 128) * 128
    return offsets, max(end, whole)


def printed(body: Any, symbol: str, parameters: list[Any], target: Target) -> str:
    """The text of a device function."""
    attributes = {
        "global_symbol": symbol,
        "target": target,
        "calling_conv": 2,  # launched by the host
        "tirx.is_global_func": True,
        "tirx.noalias": True,
    }
    function = tirx.PrimFunc(parameters, body)
    for key, value in attributes.items():
        function = function.with_attr(key, value)
    # Loops stay loops under a pragma: a tenth of the text, and less than half of the compiler's time.
    with tvm.transform.PassContext(config={"tirx.UnrollLoop": {"explicit_unroll": False}}), target:
        module = tvm.ir.transform.Sequential(
            [
                tirx.transform.ConvertSSA(),
                tirx.transform.FlattenBuffer(),
                tirx.transform.UnrollLoop(),
                tirx.transform.StmtSimplify(),
                tirx.transform.LowerIntrin(),
            ]
        )(tvm.IRModule({symbol: function}))
        text = str(tvm.get_global_func("target.build.cuda")(module, target).inspect_source("cuda"))
    kernel = text[text.rindex('extern "C" __global__') :]
    if f" {symbol}(" not in kernel.partition("{")[0]:
        raise CodegenError(f"{symbol}: TVM printed no kernel of that name")
    return kernel.strip() + "\n"
