"""Products with few rows or few columns, bound by memory: the long operand goes from DRAM straight to registers.

One program serves the whole family. A thread computes a tile of lines and columns over some k; the lanes of a warp lie
along k, along the rows or along the columns, whichever the long operand has contiguous, so that a warp reads whole
lines of the cache. Sums of lanes along k meet by shuffles, those of warps that share the depth in shared memory, always
in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from vortex.codegen.cuda_lower import SCALARS, SUFFIX, KernelSource, cuda_target, layout, placed, printed, rasterized
from vortex.codegen.cuda_program import STORAGE
from vortex.dtypes import SUMS
from vortex.errors import CodegenError
from vortex.gpu_candidates import WARP, Variant

VECTOR_BYTES = 16


@dataclass(frozen=True)
class Fragment:
    """What one thread holds of an operand, and how it is read."""

    lines: int
    depth: int
    along_k: bool
    """Whether k is contiguous, in memory as in registers."""
    piece: int
    """Elements of one access."""

    @property
    def size(self) -> int:
        return self.lines * self.depth

    @property
    def pieces(self) -> int:
        return self.size // self.piece

    def at(self, piece: Any) -> tuple[Any, Any]:
        """(line, k) of the first element of a piece."""
        per_row = (self.depth if self.along_k else self.lines) // self.piece
        outer, inner = piece // per_row, piece % per_row * self.piece
        return (outer, inner) if self.along_k else (inner, outer)

    def index(self, line: Any, k: Any) -> Any:
        return line * self.depth + k if self.along_k else k * self.lines + line


def _fragment(lines: int, depth: int, along_k: bool, variant: Variant) -> Fragment:
    widest = min(variant.vector_bytes, VECTOR_BYTES) // variant.strategy.item_bytes
    contiguous = depth if along_k else lines
    piece = 1
    while piece * 2 <= widest and contiguous % (piece * 2) == 0:
        piece *= 2
    return Fragment(lines, depth, along_k, piece)


def _own(total: Any, first: Any, lane: Any, count: int) -> Any:
    """The sum that a lane hands out, picked by constants: a register cannot be indexed by a lane, and written as a loop
    nvcc would index the array by the lane and move it to local memory."""
    picked = tirx.const(0, str(total.dtype))
    for e in range(count):
        picked = tirx.Select(tirx.EQ(lane, e), tirx.BufferLoad(total, [first + e]), picked)
    return picked


def kernel(variant: Variant) -> tirx.PrimFunc:
    """The kernel of a `skinny` variant, already a loop nest over threads."""
    strategy = variant.strategy
    thread, l0, l1, storage = strategy.thread, strategy.l0, strategy.l1, STORAGE[strategy.dtype]
    lanes_m, lanes_n, lanes_k = (
        outer // inner for outer, inner in ((l0.m, thread.m), (l0.n, thread.n), (l0.k, thread.k))
    )
    if sorted((lanes_m, lanes_n, lanes_k)) != [1, 1, WARP] or l1.m % l0.m or l1.n % l0.n or l1.k % l0.k:
        raise CodegenError("the lanes of a warp must lie along one axis, and L1 be a multiple of L0")
    sums = SUMS.get(strategy.dtype, "float32")
    side_n, deep = l1.n // l0.n, l1.k // l0.k
    a = _fragment(thread.m, thread.k, not variant.transpose_a, variant)
    b = _fragment(thread.n, thread.k, variant.transpose_b, variant)
    transpose_a, transpose_b = variant.transpose_a, variant.transpose_b
    name_a, name_b = (f"copy_{x.piece * strategy.item_bytes}" for x in (a, b))
    tm, tn, tk = thread.m, thread.n, thread.k
    count, warps, threads, tile = tm * tn, strategy.warps, strategy.threads, l1.m * l1.n
    wide = 1
    while wide < 4 and tn % (wide * 2) == 0 and wide * 2 * strategy.item_bytes <= variant.vector_bytes:
        wide *= 2
    store, store_one = (f"store_{SUFFIX[strategy.dtype]}_{w}" for w in (wide, 1))
    runs = 4 if tn % 4 == 0 else 2 if tn % 2 == 0 else 1
    move = f"move_{4 * runs}"

    @T.prim_func(s_tir=True)
    def program(
        A: T.handle(storage, "global"),  # type: ignore[valid-type]
        B: T.handle(storage, "global"),  # type: ignore[valid-type]
        C: T.handle(sums, "global"),  # type: ignore[valid-type]
        M: T.int32,
        N: T.int32,
        K: T.int32,
        lda: T.int32,
        ldb: T.int32,
        ldc: T.int32,
        chunk: T.int32,
        splits: T.int32,
    ):
        T.func_attr({"global_symbol": variant.name, "tirx.noalias": True})
        z = T.launch_thread("blockIdx.z", splits)
        block_i = T.launch_thread("blockIdx.y", (M + (l1.m - 1)) // l1.m)
        block_j = T.launch_thread("blockIdx.x", (N + (l1.n - 1)) // l1.n)
        lane = T.launch_thread("threadIdx.x", WARP)
        warp = T.launch_thread("threadIdx.y", warps)
        total = T.alloc_buffer((count,), sums, scope="local")
        own = T.alloc_buffer((1,), sums, scope="local")
        left = T.alloc_buffer((a.size,), storage, scope="local")
        right = T.alloc_buffer((b.size,), storage, scope="local")
        i0: T.let[T.int32] = block_i * l1.m + warp // deep // side_n * l0.m + (lane * tm if lanes_m > 1 else 0)
        j0: T.let[T.int32] = block_j * l1.n + warp // deep % side_n * l0.n + (lane * tn if lanes_n > 1 else 0)
        own[0] = T.cast(0, sums)
        for e in T.unroll(count):
            total[e] = T.cast(0, sums)
        for turn in T.serial((chunk + (l1.k - 1)) // l1.k):
            k0: T.let[T.int32] = turn * l1.k + z * chunk + warp % deep * l0.k + (lane * tk if lanes_k > 1 else 0)
            for p in T.unroll(a.pieces):
                T.evaluate(
                    T.call_extern(
                        "int32",
                        name_a,
                        T.address_of(left[p * a.piece]),
                        T.call_extern("handle", "at", A, k0 + a.at(p)[1], lda, i0 + a.at(p)[0])
                        if transpose_a
                        else T.call_extern("handle", "at", A, i0 + a.at(p)[0], lda, k0 + a.at(p)[1]),
                        T.And(i0 + a.at(p)[0] < M, k0 + a.at(p)[1] < K),
                    )
                )
            for p in T.unroll(b.pieces):
                T.evaluate(
                    T.call_extern(
                        "int32",
                        name_b,
                        T.address_of(right[p * b.piece]),
                        T.call_extern("handle", "at", B, j0 + b.at(p)[0], ldb, k0 + b.at(p)[1])
                        if transpose_b
                        else T.call_extern("handle", "at", B, k0 + b.at(p)[1], ldb, j0 + b.at(p)[0]),
                        T.And(j0 + b.at(p)[0] < N, k0 + b.at(p)[1] < K),
                    )
                )
            for k in T.unroll(tk):
                for i in T.unroll(tm):
                    for j in T.unroll(tn):
                        total[i * tn + j] = total[i * tn + j] + T.cast(left[a.index(i, k)], sums) * T.cast(
                            right[b.index(j, k)], sums
                        )
        if lanes_k > 1:
            for e in T.unroll(count):
                total[e] = T.call_extern(sums, "sum_of_lanes", total[e])
        if deep > 1:
            product = T.alloc_buffer((deep * tile,), sums, scope="shared.dyn")
            place: T.let[T.int32] = warp % deep * tile + (i0 - block_i * l1.m) * l1.n + (j0 - block_j * l1.n)
            if lanes_k > 1:
                for group in T.unroll((count + (WARP - 1)) // WARP):
                    own[0] = _own(total, group * WARP, lane, min(count, WARP))
                    if group * WARP + lane < count:
                        product[place + (group * WARP + lane) // tn * l1.n + (group * WARP + lane) % tn] = own[0]
            else:
                for i in T.unroll(tm):
                    for j in T.unroll(tn // runs):
                        T.evaluate(
                            T.call_extern(
                                "int32",
                                move,
                                T.address_of(product[place + i * l1.n + j * runs]),
                                T.address_of(total[i * tn + j * runs]),
                            )
                        )
            T.evaluate(T.call_extern("int32", "__syncthreads"))
            for turn in T.serial((tile + (threads - 1)) // threads):
                element: T.let[T.int32] = turn * threads + warp * WARP + lane
                if T.And(
                    element < tile,
                    T.And(block_i * l1.m + element // l1.n < M, block_j * l1.n + element % l1.n < N),
                ):
                    own[0] = T.cast(0, sums)
                    for d in T.unroll(deep):
                        own[0] = own[0] + product[d * tile + element]
                    T.evaluate(
                        T.call_extern(
                            "int32",
                            store_one,
                            C,
                            chunk < K,
                            z,
                            M,
                            block_i * l1.m + element // l1.n,
                            ldc,
                            block_j * l1.n + element % l1.n,
                            T.address_of(own[0]),
                        )
                    )
        else:
            if lanes_k > 1:
                for group in T.unroll((count + (WARP - 1)) // WARP):
                    own[0] = _own(total, group * WARP, lane, min(count, WARP))
                    row: T.let[T.int32] = i0 + (group * WARP + lane) // tn
                    column: T.let[T.int32] = j0 + (group * WARP + lane) % tn
                    if T.And(group * WARP + lane < count, T.And(row < M, column < N)):
                        T.evaluate(
                            T.call_extern(
                                "int32", store_one, C, chunk < K, z, M, row, ldc, column, T.address_of(own[0])
                            )
                        )
            else:
                for i in T.unroll(tm):
                    for j in T.unroll(tn // wide):
                        if T.And(i0 + i < M, j0 + j * wide < N):
                            T.evaluate(
                                T.call_extern(
                                    "int32",
                                    store,
                                    C,
                                    chunk < K,
                                    z,
                                    M,
                                    i0 + i,
                                    ldc,
                                    j0 + j * wide,
                                    T.address_of(total[i * tn + j * wide]),
                                )
                            )

    return program


def source(variant: Variant, arch: str) -> KernelSource:
    """CUDA of a `skinny` variant."""
    function = kernel(variant)
    scalars = {parameter.name: parameter for parameter in function.params[3:]}
    raster = scalars["raster"] = tirx.Var("raster", "int32")
    extents, body = rasterized(function.body, raster)
    offsets, shared_bytes = layout(body)
    parameters = [*function.params[:3], *(scalars[name] for name in SCALARS)]
    text = placed(printed(body, variant.name, parameters, cuda_target(arch)), offsets)
    block = (int(extents["threadIdx.x"]), int(extents["threadIdx.y"]), 1)
    return KernelSource(variant.name, text, ("*A", "*B", "*C", *SCALARS), block, shared_bytes)
