"""What the L0 kernels of CPUs share: vectors under a lane mask, and the stages of a register tile around its compute.

A masked-off lane touches no memory, so that an operand may end at an unmapped page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T


def masked_load(address: Any, mask: Any, lanes: int, dtype: str = "float32", other: Any = None) -> Any:
    """The vector at `address`; lanes that `mask` leaves out are those of `other`, or zero."""
    nothing = T.broadcast(tirx.const(0, dtype), lanes) if other is None else other
    return T.call_llvm_pure_intrin(f"{dtype}x{lanes}", "llvm.masked.load", address, mask, nothing)


def masked_store(value: Any, address: Any, mask: Any) -> Any:
    """An expression, for `T.evaluate`."""
    return T.call_llvm_intrin("void", "llvm.masked.store", value, address, mask)


LINE = 16
"""Elements of a cache line."""
PERMUTE = {8: "llvm.x86.avx2.permps", 16: "llvm.x86.avx512.permvar.sf.512"}
"""By lanes: the instruction that takes each lane from the lane an index names."""


def fetch(address: Any, write: int = 0, cache: int = 1) -> Any:
    """Ask for the cache line at `address`, to be read or written, into the first or second cache; for `T.evaluate`.

    What comes from memory in long streams belongs into the second: the first can wait for few lines at a time.
    """
    return T.call_llvm_intrin("void", "llvm.prefetch", address, T.int32(write), T.int32(4 - cache), T.int32(1))


@T.inline
def fetch_dense(target: Any, place: Any, count: Any, line: Any, near: Any, write: Any) -> None:
    """Ask for `count` elements from `place` on, `line` of them in a cache line: into the first cache if `near`."""
    for q in T.serial(T.truncdiv(count + line - 1, line)):
        if near:
            T.evaluate(fetch(T.address_of(target[place + q * line]), write=write))
        else:
            T.evaluate(fetch(T.address_of(target[place + q * line]), cache=2))


@dataclass(frozen=True)
class Intrinsics:
    """Names of the registered tensor intrinsics of one vector width."""

    load: str
    read: str
    """The same without a mask."""
    zero: str
    multiply_add: str
    store: str


ADDS, STREAMS, NEAR, QUIET, SHARES, TRUSTS, KEEPS, QUADS, FILLED, OWNS, LEADS, AWAY, PADDED, INTO_L2, FAR_C = (
    1 << bit for bit in range(15)
)
"""What a kernel does with its sums and a nest with what comes next, bit by bit: runtime/vortex_runtime.h."""
STREAM_SYMBOL = "vortex_stream"


def stream_ir(lanes: int) -> str:
    """LLVM text that a module of kernels which stream needs: a store past the caches."""
    return f"""define weak_odr hidden i32 @{STREAM_SYMBOL}(ptr %place, <{lanes} x float> %vector) #0 {{
  store <{lanes} x float> %vector, ptr %place, align {4 * lanes}, !nontemporal !0
  ret i32 0
}}
attributes #0 = {{ alwaysinline nounwind }}
!0 = !{{i32 1}}
"""


def stream(place: Any, vector: Any) -> Any:
    """Store `vector` at the aligned address `place` past the caches, into lines that are not read; for `T.evaluate`."""
    return T.call_extern("int32", STREAM_SYMBOL, place, vector)


def vector_intrinsics(lanes: int, dtype: str = "float32") -> Intrinsics:
    """Register load, zero, multiply-add and store of one vector of `lanes` elements, the ends under a lane mask."""
    return _registered(lanes, dtype)


@cache
def _registered(lanes: int, dtype: str) -> Intrinsics:
    """Once for each pair: TVM refuses a second registration."""
    nothing, every = tirx.const(0, dtype), slice(0, lanes)
    vector = T.ramp(0, 1, lanes)

    def moving(body: Callable[..., None], source: str, target: str) -> tirx.PrimFunc:
        """`body(S, M, D)`: a vector from the memory `source` to `target` under a mask."""

        @T.prim_func(s_tir=True)
        def stage(s: T.handle, m: T.handle, d: T.handle):
            S = T.match_buffer(s, (lanes,), dtype, offset_factor=1, scope=source, align=4)
            M = T.match_buffer(m, (lanes,), "int32", offset_factor=1, scope="local", align=4)
            D = T.match_buffer(d, (lanes,), dtype, offset_factor=1, scope=target, align=4)
            with T.sblock("root"):
                T.reads(M[every], S[every])
                T.writes(D[every])
                body(S, M, D)

        return stage

    def reading(body: Callable[..., None]) -> tirx.PrimFunc:
        @T.prim_func(s_tir=True)
        def stage(s: T.handle, d: T.handle):
            S = T.match_buffer(s, (lanes,), dtype, offset_factor=1, align=4)
            D = T.match_buffer(d, (lanes,), dtype, offset_factor=1, scope="local", align=4)
            with T.sblock("root"):
                T.reads(S[every])
                T.writes(D[every])
                body(S, D)

        return stage

    def clearing(body: Callable[..., None]) -> tirx.PrimFunc:
        @T.prim_func(s_tir=True)
        def stage(d: T.handle):
            D = T.match_buffer(d, (lanes,), dtype, offset_factor=1, scope="local", align=4)
            with T.sblock("root"):
                T.reads()
                T.writes(D[every])
                body(D)

        return stage

    def multiplying(body: Callable[..., None]) -> tirx.PrimFunc:
        @T.prim_func(s_tir=True)
        def stage(a: T.handle, b: T.handle, c: T.handle):
            A = T.match_buffer(a, (1,), dtype, offset_factor=1, align=4)
            B = T.match_buffer(b, (lanes,), dtype, offset_factor=1, scope="local", align=4)
            C = T.match_buffer(c, (lanes,), dtype, offset_factor=1, scope="local", align=4)
            with T.sblock("root"):
                T.reads(C[every], A[0], B[every])
                T.writes(C[every])
                body(A, B, C)

        return stage

    @T.inline
    def move_lanes(S: Any, M: Any, D: Any) -> None:
        for l in range(lanes):
            with T.sblock("lane"):
                v = T.axis.spatial(lanes, l)
                D[v] = T.if_then_else(M[v] != 0, S[v], nothing)

    @T.inline
    def load_vector(S: Any, M: Any, D: Any) -> None:
        D[vector] = masked_load(T.address_of(S[0]), M[vector] != T.broadcast(0, lanes), lanes, dtype)

    @T.inline
    def read_lanes(S: Any, D: Any) -> None:
        for l in range(lanes):
            with T.sblock("lane"):
                v = T.axis.spatial(lanes, l)
                D[v] = S[v]

    @T.inline
    def read_vector(S: Any, D: Any) -> None:
        D[vector] = masked_load(T.address_of(S[0]), T.broadcast(T.bool(True), lanes), lanes, dtype)

    @T.inline
    def store_vector(S: Any, M: Any, D: Any) -> None:
        T.evaluate(masked_store(S[vector], T.address_of(D[0]), M[vector] != T.broadcast(0, lanes)))

    @T.inline
    def clear_lanes(D: Any) -> None:
        for l in range(lanes):
            with T.sblock("lane"):
                v = T.axis.spatial(lanes, l)
                D[v] = nothing

    @T.inline
    def clear_vector(D: Any) -> None:
        D[vector] = T.broadcast(nothing, lanes)

    @T.inline
    def multiply_lanes(A: Any, B: Any, C: Any) -> None:
        for l in range(lanes):
            with T.sblock("lane"):
                v = T.axis.spatial(lanes, l)
                C[v] = C[v] + A[0] * B[v]

    @T.inline
    def multiply_vector(A: Any, B: Any, C: Any) -> None:
        C[vector] = T.fma(T.broadcast(A[0], lanes), B[vector], C[vector])

    names = Intrinsics(*(f"vortex_{stage}_{dtype}x{lanes}" for stage in ("load", "read", "zero", "fma", "store")))
    for name, description, implementation in (
        (names.load, moving(move_lanes, "global", "local"), moving(load_vector, "global", "local")),
        (names.read, reading(read_lanes), reading(read_vector)),
        (names.zero, clearing(clear_lanes), clearing(clear_vector)),
        (names.multiply_add, multiplying(multiply_lanes), multiplying(multiply_vector)),
        (names.store, moving(move_lanes, "local", "global"), moving(store_vector, "local", "global")),
    ):
        TensorIntrin.register(name, description, implementation)
    return names


@dataclass(frozen=True)
class TileStages:
    """Statements of a kernel in TVMScript around the sums of a register tile, each for one use in one kernel."""

    masks: Callable[[Any, Any], None]
    """(mask, last): of every column whether it is one, where the last vector has `last` columns."""
    begin: Callable[[Any, Any, Any, Any], None]
    """(acc, mask, C, adds): blocks `load` where `adds` holds, else `zero`."""
    zero: Callable[[Any], None]
    """(acc): block `zero`."""
    end: Callable[[Any, Any, Any], None]
    """(C, mask, acc): block `store`."""
    stream: Callable[[Any, Any], None]
    """(C, acc): the same past the caches, of whole lines alone."""


def tile_stages(rows: int, vectors: int, lanes: int, dtype: str = "float32") -> TileStages:
    """Of a tile of `rows` x `vectors` vectors of `lanes` sums of `dtype`."""
    columns, nothing = vectors * lanes, tirx.const(0, dtype)

    @T.inline
    def masks(mask: Any, last: Any) -> None:
        for j in T.unroll(vectors):
            for l in T.vectorized(lanes):
                with T.sblock("mask"):
                    vj = T.axis.spatial(columns, j * lanes + l)
                    mask[vj] = T.Select(
                        T.Or(vj < (vectors - 1) * lanes, vj - (vectors - 1) * lanes < last), T.int32(1), T.int32(0)
                    )

    @T.inline
    def zero(acc: Any) -> None:
        for i, j in T.grid(rows, vectors):
            for l in range(lanes):
                with T.sblock("zero"):
                    vi = T.axis.spatial(rows, i)
                    vj = T.axis.spatial(columns, j * lanes + l)
                    acc[vi, vj] = nothing

    @T.inline
    def begin(acc: Any, mask: Any, C: Any, adds: Any) -> None:
        if adds:
            for i, j in T.grid(rows, vectors):
                for l in range(lanes):
                    with T.sblock("load"):
                        vi = T.axis.spatial(rows, i)
                        vj = T.axis.spatial(columns, j * lanes + l)
                        acc[vi, vj] = T.if_then_else(mask[vj] != 0, C[vi, vj], nothing)
        else:
            zero(acc)

    @T.inline
    def end(C: Any, mask: Any, acc: Any) -> None:
        for i, j in T.grid(rows, vectors):
            for l in range(lanes):
                with T.sblock("store"):
                    vi = T.axis.spatial(rows, i)
                    vj = T.axis.spatial(columns, j * lanes + l)
                    C[vi, vj] = T.if_then_else(mask[vj] != 0, acc[vi, vj], nothing)

    @T.inline
    def streamed(C: Any, acc: Any) -> None:
        for i in T.unroll(rows):
            for j in T.unroll(vectors):
                with T.sblock("stream"):
                    vi = T.axis.spatial(rows, i)
                    vj = T.axis.spatial(vectors, j)
                    T.reads(acc[vi, vj * lanes : vj * lanes + lanes])
                    T.writes(C[vi, vj * lanes : vj * lanes + lanes])
                    T.evaluate(stream(T.address_of(C[vi, vj * lanes]), acc[vi, T.ramp(vj * lanes, 1, lanes)]))

    return TileStages(masks, begin, zero, end, streamed)


def with_extents(kernel: tirx.PrimFunc, *extents: tirx.Var) -> tirx.PrimFunc:
    """`kernel`, in which `extents` were free, with them as its last parameters: parsed once for all their values.

    To parse a kernel takes ten times as long as to schedule it.
    """
    return tirx.PrimFunc([*kernel.params, *extents], kernel.body, kernel.ret_type, kernel.attrs)


def filled(form: tirx.PrimFunc, symbol: str, *extents: int) -> tirx.PrimFunc:
    """The function `symbol` for these values of the last parameters of `form`."""
    variables = form.params[len(form.params) - len(extents) :]
    values = {
        variable: tirx.const(value, variable.ty.dtype) for variable, value in zip(variables, extents, strict=True)
    }
    return form.specialize(values).with_attr("global_symbol", symbol)


def placed(kernel: tirx.PrimFunc, stages: Sequence[tuple[str, str, int]]) -> s_tir.Schedule:
    """`kernel` with the innermost loop of every (block, intrinsic, serial) tensorized and all but the outermost
    `serial` of the loops around it unrolled."""
    schedule = s_tir.Schedule(kernel)
    for block, intrinsic, serial in stages:
        loops = schedule.get_loops(schedule.get_sblock(block))
        schedule.tensorize(loops[-1], intrinsic)
        for loop in loops[serial:-1]:
            schedule.unroll(loop)
    return schedule
