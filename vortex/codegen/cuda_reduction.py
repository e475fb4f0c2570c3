"""Kernels of reductions on a GPU: x[outer, depth, inner] to a result for each chunk of the depth, or for all of it.

The inner axis of x is contiguous, the others lie as they will; where it has one element and accesses are narrow, the
depth does, too.

A thread keeps PIECE accumulators and takes STEPS pieces before it combines them, so that enough of them are under way.
In which order elements are combined follows from the tile and the extents alone: narrow accesses take the same pieces.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from vortex.codegen.cuda_lower import KernelSource, cuda_target, layout, placed, printed
from vortex.codegen.cuda_prelude import PRELUDE
from vortex.gpu_reduction import PARAMETERS, PIECE, STEPS, ReduceBlock
from vortex.reduction_tiles import Family

LANES = 32
COMBINE = {
    "sum": ("0.f", "a + b"),
    "mean": ("0.f", "a + b"),
    "max": ("__uint_as_float(0xff800000u)", "a > b || a != a ? a : b"),  # not-a-number wins, which fmaxf would drop
}
"""What nothing is, and how two partial results become one."""

WIDTHS = (2, 4, 8, 16, 32)
"""Threads of a warp that may share a row."""


def prelude(kind: str) -> str:
    """The device functions of one kind of reduction."""
    nothing, combined = COMBINE[kind]
    by_width = "\n".join(
        f"VORTEX_DEVICE float combine_{width}_lanes(float v) {{ return combine_lanes<{width}>(v); }}"
        for width in WIDTHS
    )
    return f"""{PRELUDE}
VORTEX_DEVICE float nothing() {{ return {nothing}; }}
VORTEX_DEVICE float combine(float a, float b) {{ return {combined}; }}

/* The parts of a row that threads of a warp hold, in one order; the first of them is asked. */
template <int Width> VORTEX_DEVICE float combine_lanes(float value) {{
#pragma unroll
  for (int mask = Width / 2; mask > 0; mask >>= 1) value = combine(value, shuffle_xor(value, mask));
  return value;
}}
{by_width}
/* Blocks of a grid are fewer than 2^31. */
VORTEX_DEVICE long long quotient(long long a, long long b) {{ return (unsigned)a / (unsigned)b; }}
/* What TVM would write out again wherever it is used, a quotient in it too. */
VORTEX_DEVICE long long kept(long long x) {{ return x; }}
/* How far apart the elements of a row are: neighbours where one access takes several. */
VORTEX_DEVICE long long apart_16(long long stride) {{ return 1; }}
VORTEX_DEVICE long long apart_4(long long stride) {{ return stride; }}
/* A piece, and one of which `left` elements are there; its elements are so far apart. */
VORTEX_DEVICE void fetch_16(float* to, const float* x, long long at, long long apart) {{
  *(float4*)to = *(const float4*)(x + at);
}}
VORTEX_DEVICE void fetch_4(float* to, const float* x, long long at, long long apart) {{
#pragma unroll
  for (int i = 0; i < {PIECE}; ++i) to[i] = x[at + i * apart];
}}
VORTEX_DEVICE void take_16(float* to, const float* x, long long at, long long apart, long long left) {{
  if (left > 0) *(float4*)to = *(const float4*)(x + at);
  else to[0] = to[1] = to[2] = to[3] = nothing();
}}
VORTEX_DEVICE void take_4(float* to, const float* x, long long at, long long apart, long long left) {{
#pragma unroll
  for (int i = 0; i < {PIECE}; ++i) to[i] = i < left ? x[at + i * apart] : nothing();
}}
VORTEX_DEVICE void put_16(float* y, long long at, const float* v, float scale, long long left) {{
  if (left > 0) *(float4*)(y + at) = make_float4(v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale);
}}
VORTEX_DEVICE void put_4(float* y, long long at, const float* v, float scale, long long left) {{
#pragma unroll
  for (int i = 0; i < {PIECE}; ++i)
    if (i < left) y[at + i] = v[i] * scale;
}}
"""


@T.inline
def combine_pieces(total: Any, piece: Any) -> None:
    """The pieces of a step, one after the other, with what was there."""
    for u in T.unroll(STEPS):
        for e in T.unroll(PIECE):
            total[e] = T.call_extern("float32", "combine", total[e], piece[u * PIECE + e])


def rows_kernel(block: ReduceBlock, symbol: str, vector: int) -> tirx.PrimFunc:
    """The reduced axis is the innermost: `along` threads take pieces of a row, and meet."""
    rows, along, step = block.rows, block.along, block.step
    fetch, take, spread, lanes = f"fetch_{vector}", f"take_{vector}", f"apart_{vector}", min(along, LANES)
    across_lanes, warps = f"combine_{lanes}_lanes", along // LANES

    @T.prim_func(s_tir=True)
    def program(
        X: T.handle("float32", "global"),  # type: ignore[valid-type]
        Y: T.handle("float32", "global"),  # type: ignore[valid-type]
        outer: T.int64,
        depth: T.int64,
        inner: T.int64,
        outer_stride: T.int64,
        depth_stride: T.int64,
        chunk: T.int64,
        chunks: T.int64,
        scale: T.float32,
    ):
        T.func_attr({"global_symbol": symbol, "tirx.noalias": True})
        place = T.launch_thread("blockIdx.x", T.cast(T.truncdiv(outer + (rows - 1), rows) * chunks * inner, "int32"))
        lane = T.launch_thread("threadIdx.x", along)
        row = T.launch_thread("threadIdx.y", rows)
        total = T.alloc_buffer((PIECE,), "float32", scope="local")
        piece = T.alloc_buffer((PIECE * STEPS,), "float32", scope="local")
        at: T.let[T.int64] = T.call_extern("int64", "quotient", T.cast(place, "int64"), chunks)
        part: T.let[T.int64] = T.call_extern("int64", "kept", T.cast(place, "int64") - at * chunks)
        o: T.let[T.int64] = T.call_extern("int64", "kept", at * rows + T.cast(row, "int64"))
        mine: T.let[T.int64] = T.cast(lane * PIECE, "int64")
        count: T.let[T.int64] = T.call_extern(
            "int64", "kept", T.if_then_else(o < outer, T.min(chunk, depth - part * chunk), T.int64(0))
        )
        apart: T.let[T.int64] = T.call_extern("int64", spread, depth_stride)
        first: T.let[T.int64] = T.call_extern("int64", "kept", o * outer_stride + (part * chunk + mine) * apart)
        left: T.let[T.int64] = T.call_extern("int64", "kept", count - mine)
        for e in T.unroll(PIECE):
            total[e] = T.call_extern("float32", "nothing")
        whole: T.let[T.int64] = T.call_extern("int64", "kept", T.truncdiv(count, step))
        for turn in T.serial(whole):
            for u in T.unroll(STEPS):
                k: T.let[T.int64] = turn * step + T.cast(u * (along * PIECE), "int64")
                T.evaluate(T.call_extern("int32", fetch, T.address_of(piece[u * PIECE]), X, first + k * apart, apart))
            combine_pieces(total, piece)
        if whole * step < count:
            for u in T.unroll(STEPS):
                k: T.let[T.int64] = whole * step + T.cast(u * (along * PIECE), "int64")
                here: T.let[T.int64] = first + k * apart
                T.evaluate(T.call_extern("int32", take, T.address_of(piece[u * PIECE]), X, here, apart, left - k))
            combine_pieces(total, piece)
        total[0] = T.call_extern(
            "float32",
            "combine",
            T.call_extern("float32", "combine", total[0], total[1]),
            T.call_extern("float32", "combine", total[2], total[3]),
        )
        if lanes > 1:
            total[0] = T.call_extern("float32", across_lanes, total[0])
        if warps > 1:
            meeting = T.alloc_buffer((rows * warps,), "float32", scope="shared.dyn")
            if lane % LANES == 0:
                meeting[row * warps + lane // LANES] = total[0]
            T.evaluate(T.call_extern("int32", "__syncthreads"))
            if lane == 0:
                for w in T.unroll(warps - 1):
                    total[0] = T.call_extern("float32", "combine", total[0], meeting[row * warps + w + 1])
        if T.And(lane == 0, o < outer):
            T.evaluate(T.call_extern("int32", "put_4", Y, o * chunks + part, T.address_of(total[0]), scale, T.int64(1)))

    return program


def columns_kernel(block: ReduceBlock, symbol: str, vector: int) -> tirx.PrimFunc:
    """The reduced axis is an outer one: a thread has PIECE columns, and `along` of them take rows in turn, and meet."""
    rows, along, across, step = block.rows, block.along, block.across, block.step
    fetch, take, put, halvings = f"fetch_{vector}", f"take_{vector}", f"put_{vector}", along.bit_length() - 1

    @T.prim_func(s_tir=True)
    def program(
        X: T.handle("float32", "global"),  # type: ignore[valid-type]
        Y: T.handle("float32", "global"),  # type: ignore[valid-type]
        outer: T.int64,
        depth: T.int64,
        inner: T.int64,
        outer_stride: T.int64,
        depth_stride: T.int64,
        chunk: T.int64,
        chunks: T.int64,
        scale: T.float32,
    ):
        T.func_attr({"global_symbol": symbol, "tirx.noalias": True})
        wide: T.let[T.int64] = T.truncdiv(inner + (across * PIECE - 1), across * PIECE)
        place = T.launch_thread("blockIdx.x", T.cast(T.truncdiv(outer + (rows - 1), rows) * chunks * wide, "int32"))
        x = T.launch_thread("threadIdx.x", across)
        place_of_row = T.launch_thread("threadIdx.y", along * rows)  # a block has 64 threads along z at most
        y: T.let[T.int32] = place_of_row % along
        z: T.let[T.int32] = place_of_row // along
        total = T.alloc_buffer((PIECE,), "float32", scope="local")
        piece = T.alloc_buffer((PIECE * STEPS,), "float32", scope="local")
        above: T.let[T.int64] = T.call_extern("int64", "quotient", T.cast(place, "int64"), wide)
        at: T.let[T.int64] = T.call_extern("int64", "quotient", above, chunks)
        part: T.let[T.int64] = T.call_extern("int64", "kept", above - at * chunks)
        column: T.let[T.int64] = T.call_extern(
            "int64", "kept", ((T.cast(place, "int64") - above * wide) * across + T.cast(x, "int64")) * PIECE
        )
        o: T.let[T.int64] = T.call_extern("int64", "kept", at * rows + T.cast(z, "int64"))
        left: T.let[T.int64] = T.call_extern("int64", "kept", T.if_then_else(o < outer, inner - column, T.int64(0)))
        count: T.let[T.int64] = T.call_extern("int64", "kept", T.min(chunk, depth - part * chunk))
        first: T.let[T.int64] = T.call_extern(
            "int64", "kept", o * outer_stride + (part * chunk + T.cast(y, "int64")) * depth_stride + column
        )
        for e in T.unroll(PIECE):
            total[e] = T.call_extern("float32", "nothing")
        whole: T.let[T.int64] = T.call_extern(
            "int64", "kept", T.if_then_else(left < PIECE, T.int64(0), T.truncdiv(count, step))
        )
        for turn in T.serial(whole):
            for u in T.unroll(STEPS):
                k: T.let[T.int64] = turn * step + T.cast(u * along, "int64")
                here: T.let[T.int64] = first + k * depth_stride
                T.evaluate(T.call_extern("int32", fetch, T.address_of(piece[u * PIECE]), X, here, T.int64(1)))
            combine_pieces(total, piece)
        for turn in T.serial(T.truncdiv(count + (step - 1), step) - whole):  # the last one; all where columns end
            for u in T.unroll(STEPS):
                k: T.let[T.int64] = (whole + turn) * step + T.cast(u * along, "int64")
                T.evaluate(
                    T.call_extern(
                        "int32",
                        take,
                        T.address_of(piece[u * PIECE]),
                        X,
                        first + k * depth_stride,
                        T.int64(1),
                        T.if_then_else(k < count - T.cast(y, "int64"), left, T.int64(0)),
                    )
                )
            combine_pieces(total, piece)
        if along > 1:
            meeting = T.alloc_buffer((along * rows * across * PIECE,), "float32", scope="shared.dyn")
            own: T.let[T.int32] = ((z * along + y) * across + x) * PIECE
            T.evaluate(T.call_extern("int32", "move_16", T.address_of(meeting[own]), T.address_of(total[0])))
            for h in T.unroll(halvings):
                T.evaluate(T.call_extern("int32", "__syncthreads"))
                half: T.let[T.int32] = T.shift_right(along // 2, h)
                if y < half:
                    T.evaluate(
                        T.call_extern(
                            "int32",
                            "move_16",
                            T.address_of(piece[0]),
                            T.address_of(meeting[own + half * (across * PIECE)]),
                        )
                    )
                    for e in T.unroll(PIECE):
                        total[e] = T.call_extern("float32", "combine", total[e], piece[e])
                    T.evaluate(T.call_extern("int32", "move_16", T.address_of(meeting[own]), T.address_of(total[0])))
        if y == 0:
            T.evaluate(
                T.call_extern(
                    "int32", put, Y, (o * chunks + part) * inner + column, T.address_of(total[0]), scale, left
                )
            )

    return program


def source(block: ReduceBlock, kind: str, vector: int, arch: str) -> KernelSource:
    """CUDA of one tile, by accesses of so many bytes."""
    symbol = block.symbol(kind, vector)
    kernel = rows_kernel if block.family is Family.ROWS else columns_kernel
    function = kernel(block, symbol, vector)
    offsets, shared_bytes = layout(function.body)
    text = placed(printed(function.body, symbol, list(function.params), cuda_target(arch)), offsets)
    text = text.replace("int64_t", "long long")  # which needs no header
    side = block.along if block.family is Family.ROWS else block.across
    return KernelSource(symbol, text, PARAMETERS, (side, block.threads // side, 1), shared_bytes)
