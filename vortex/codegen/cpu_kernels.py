"""L0 on CPUs: a register tile of `rows` x `vectors`, its stages (load, compute, store) each placed by `tensorize`.

The accumulators are one chain of fused multiply-adds per output element, in the order of k, whatever the tile: that is
why every strategy, blocking and thread count of the outer-product family gives bitwise the same result.
"""

from dataclasses import dataclass
from functools import cache

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

LAYOUTS = ("row", "col")
"""How L0 walks A: `row` has k contiguous and rows `lda` apart, `col` has rows contiguous and k `lda` apart."""


@dataclass(frozen=True, order=True)
class RegisterTile:
    """One L0 micro-kernel: `rows` broadcasts of A against `vectors` vectors of B."""

    rows: int
    vectors: int
    layout: str

    @property
    def symbol(self) -> str:
        return f"vortex_l0_{self.layout}_{self.rows}x{self.vectors}"


@dataclass(frozen=True)
class Intrinsics:
    """Names of the registered tensor intrinsics of one vector width."""

    load: str
    zero: str
    multiply_add: str
    store: str


def vector_intrinsics(lanes: int, dtype: str = "float32") -> Intrinsics:
    """Register load, zero, multiply-add and store of one vector of `lanes` elements, each under a lane mask.

    A masked-off lane touches no memory, so that an operand may end at an unmapped page.
    """
    return _registered(lanes, dtype)


@cache
def _registered(lanes: int, dtype: str) -> Intrinsics:
    """Once for each pair: TVM refuses a second registration."""
    vector, nothing = f"{dtype}x{lanes}", tirx.const(0, dtype)

    @T.prim_func(s_tir=True)
    def load_desc(s: T.handle, m: T.handle, d: T.handle):
        S = T.match_buffer(s, (lanes,), dtype, offset_factor=1, align=4)
        M = T.match_buffer(m, (lanes,), "int32", offset_factor=1, scope="local", align=4)
        D = T.match_buffer(d, (lanes,), dtype, offset_factor=1, scope="local", align=4)
        with T.sblock("root"):
            T.reads(M[0:lanes], S[0:lanes])
            T.writes(D[0:lanes])
            for l in range(lanes):
                with T.sblock("lane"):
                    v = T.axis.spatial(lanes, l)
                    D[v] = T.if_then_else(M[v] != 0, S[v], nothing)

    @T.prim_func(s_tir=True)
    def load_impl(s: T.handle, m: T.handle, d: T.handle):
        S = T.match_buffer(s, (lanes,), dtype, offset_factor=1, align=4)
        M = T.match_buffer(m, (lanes,), "int32", offset_factor=1, scope="local", align=4)
        D = T.match_buffer(d, (lanes,), dtype, offset_factor=1, scope="local", align=4)
        with T.sblock("root"):
            T.reads(M[0:lanes], S[0:lanes])
            T.writes(D[0:lanes])
            D[T.ramp(0, 1, lanes)] = T.call_llvm_pure_intrin(
                vector,
                "llvm.masked.load",
                T.address_of(S[0]),
                M[T.ramp(0, 1, lanes)] != T.broadcast(0, lanes),
                T.broadcast(nothing, lanes),
            )

    @T.prim_func(s_tir=True)
    def zero_desc(d: T.handle):
        D = T.match_buffer(d, (lanes,), dtype, offset_factor=1, scope="local", align=4)
        with T.sblock("root"):
            T.reads()
            T.writes(D[0:lanes])
            for l in range(lanes):
                with T.sblock("lane"):
                    v = T.axis.spatial(lanes, l)
                    D[v] = nothing

    @T.prim_func(s_tir=True)
    def zero_impl(d: T.handle):
        D = T.match_buffer(d, (lanes,), dtype, offset_factor=1, scope="local", align=4)
        with T.sblock("root"):
            T.reads()
            T.writes(D[0:lanes])
            D[T.ramp(0, 1, lanes)] = T.broadcast(nothing, lanes)

    @T.prim_func(s_tir=True)
    def fma_desc(a: T.handle, b: T.handle, c: T.handle):
        A = T.match_buffer(a, (1,), dtype, offset_factor=1, align=4)
        B = T.match_buffer(b, (lanes,), dtype, offset_factor=1, scope="local", align=4)
        C = T.match_buffer(c, (lanes,), dtype, offset_factor=1, scope="local", align=4)
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0], B[0:lanes])
            T.writes(C[0:lanes])
            for l in range(lanes):
                with T.sblock("lane"):
                    v = T.axis.spatial(lanes, l)
                    C[v] = C[v] + A[0] * B[v]

    @T.prim_func(s_tir=True)
    def fma_impl(a: T.handle, b: T.handle, c: T.handle):
        A = T.match_buffer(a, (1,), dtype, offset_factor=1, align=4)
        B = T.match_buffer(b, (lanes,), dtype, offset_factor=1, scope="local", align=4)
        C = T.match_buffer(c, (lanes,), dtype, offset_factor=1, scope="local", align=4)
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0], B[0:lanes])
            T.writes(C[0:lanes])
            C[T.ramp(0, 1, lanes)] = T.fma(T.broadcast(A[0], lanes), B[T.ramp(0, 1, lanes)], C[T.ramp(0, 1, lanes)])

    @T.prim_func(s_tir=True)
    def store_desc(s: T.handle, m: T.handle, d: T.handle):
        S = T.match_buffer(s, (lanes,), dtype, offset_factor=1, scope="local", align=4)
        M = T.match_buffer(m, (lanes,), "int32", offset_factor=1, scope="local", align=4)
        D = T.match_buffer(d, (lanes,), dtype, offset_factor=1, align=4)
        with T.sblock("root"):
            T.reads(M[0:lanes], S[0:lanes])
            T.writes(D[0:lanes])
            for l in range(lanes):
                with T.sblock("lane"):
                    v = T.axis.spatial(lanes, l)
                    D[v] = T.if_then_else(M[v] != 0, S[v], nothing)

    @T.prim_func(s_tir=True)
    def store_impl(s: T.handle, m: T.handle, d: T.handle):
        S = T.match_buffer(s, (lanes,), dtype, offset_factor=1, scope="local", align=4)
        M = T.match_buffer(m, (lanes,), "int32", offset_factor=1, scope="local", align=4)
        D = T.match_buffer(d, (lanes,), dtype, offset_factor=1, align=4)
        with T.sblock("root"):
            T.reads(M[0:lanes], S[0:lanes])
            T.writes(D[0:lanes])
            T.call_llvm_intrin(
                "void",
                "llvm.masked.store",
                S[T.ramp(0, 1, lanes)],
                T.address_of(D[0]),
                M[T.ramp(0, 1, lanes)] != T.broadcast(0, lanes),
            )

    names = Intrinsics(*(f"vortex_{stage}_{dtype}x{lanes}" for stage in ("load", "zero", "fma", "store")))
    TensorIntrin.register(names.load, load_desc, load_impl)
    TensorIntrin.register(names.zero, zero_desc, zero_impl)
    TensorIntrin.register(names.multiply_add, fma_desc, fma_impl)
    TensorIntrin.register(names.store, store_desc, store_impl)
    return names


def micro_kernel(tile: RegisterTile, lanes: int) -> tvm.tirx.PrimFunc:
    """The L0 rKernel of `tile` as a scheduled function

    `symbol(a, b, c, depth, lda, ldb, ldc, last, accumulate)`: C[rows, columns] (+)= A[rows, depth] B[depth, columns],
    where columns = (vectors - 1) * lanes + last; strides in elements; C is read first only if `accumulate` is not 0.
    """
    rows, vectors, columns = tile.rows, tile.vectors, tile.vectors * lanes
    tall = rows >= vectors
    row_stride, depth_stride = (1, 0) if tile.layout == "row" else (0, 1)

    @T.prim_func(s_tir=True)
    def kernel(
        a: T.handle,
        b: T.handle,
        c: T.handle,
        depth: T.int64,
        lda: T.int64,
        ldb: T.int64,
        ldc: T.int64,
        last: T.int32,
        accumulate: T.int32,
    ):
        T.func_attr({"global_symbol": tile.symbol, "tirx.noalias": True})
        A = T.match_buffer(
            a,
            (rows, depth),
            "float32",
            align=4,
            strides=[lda * row_stride + (1 - row_stride), lda * depth_stride + (1 - depth_stride)],
        )
        B = T.match_buffer(b, (depth, columns), "float32", align=4, strides=[ldb, T.int64(1)])
        C = T.match_buffer(c, (rows, columns), "float32", align=4, strides=[ldc, T.int64(1)])
        with T.sblock("root"):
            mask = T.sblock_alloc_buffer((vectors * lanes,), "int32", scope="local")
            acc = T.sblock_alloc_buffer((rows, columns), "float32", scope="local")
            row = T.sblock_alloc_buffer((columns,), "float32", scope="local")
            for j in T.unroll(vectors):
                for l in T.vectorized(lanes):
                    with T.sblock("mask"):
                        vj = T.axis.spatial(columns, j * lanes + l)
                        mask[vj] = T.Select(
                            T.Or(vj < (vectors - 1) * lanes, vj - (vectors - 1) * lanes < last), T.int32(1), T.int32(0)
                        )
            if accumulate != 0:
                for i, j in T.grid(rows, vectors):
                    for l in range(lanes):
                        with T.sblock("load"):
                            vi = T.axis.spatial(rows, i)
                            vj = T.axis.spatial(columns, j * lanes + l)
                            acc[vi, vj] = T.if_then_else(mask[vj] != 0, C[vi, vj], T.float32(0))
            else:
                for i, j in T.grid(rows, vectors):
                    for l in range(lanes):
                        with T.sblock("zero"):
                            vi = T.axis.spatial(rows, i)
                            vj = T.axis.spatial(columns, j * lanes + l)
                            acc[vi, vj] = T.float32(0)
            for k in T.serial(depth):
                if tall:
                    for j in range(vectors):
                        for l in range(lanes):
                            with T.sblock("fetch"):
                                vk = T.axis.spatial(depth, k)
                                vj = T.axis.spatial(columns, j * lanes + l)
                                row[vj] = T.if_then_else(mask[vj] != 0, B[vk, vj], T.float32(0))
                    for i, j in T.grid(rows, vectors):
                        for l in range(lanes):
                            with T.sblock("compute"):
                                vk = T.axis.reduce(depth, k)
                                vi = T.axis.spatial(rows, i)
                                vj = T.axis.spatial(columns, j * lanes + l)
                                acc[vi, vj] = acc[vi, vj] + A[vi, vk] * row[vj]
                else:
                    for j in range(vectors):
                        for l in range(lanes):
                            with T.sblock("fetch"):
                                vk = T.axis.spatial(depth, k)
                                vj = T.axis.spatial(columns, j * lanes + l)
                                row[vj] = T.if_then_else(mask[vj] != 0, B[vk, vj], T.float32(0))
                        for i in range(rows):
                            for l in range(lanes):
                                with T.sblock("compute"):
                                    vk = T.axis.reduce(depth, k)
                                    vi = T.axis.spatial(rows, i)
                                    vj = T.axis.spatial(columns, j * lanes + l)
                                    acc[vi, vj] = acc[vi, vj] + A[vi, vk] * row[vj]
            for i, j in T.grid(rows, vectors):
                for l in range(lanes):
                    with T.sblock("store"):
                        vi = T.axis.spatial(rows, i)
                        vj = T.axis.spatial(columns, j * lanes + l)
                        C[vi, vj] = T.if_then_else(mask[vj] != 0, acc[vi, vj], T.float32(0))

    schedule = s_tir.Schedule(kernel)
    names = vector_intrinsics(lanes)
    for block, intrinsic in (
        ("load", names.load),
        ("zero", names.zero),
        ("fetch", names.load),
        ("compute", names.multiply_add),
        ("store", names.store),
    ):
        loops = schedule.get_loops(schedule.get_sblock(block))
        schedule.tensorize(loops[-1], intrinsic)
        for loop in loops[:-1]:
            if loop is not loops[0] or block not in ("fetch", "compute"):
                schedule.unroll(loop)
    return schedule.mod["main"]
