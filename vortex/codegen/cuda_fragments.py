"""Fragments of one warp on Tensor Cores, and the tensor intrinsics that load, clear and multiply them.

A fragment is a buffer [.., lane, register] of scope `warp`: `cuda_passes.WarpToLocal` leaves each thread its registers.
What an element of A or B maps to is the hardware's affair, since only `load` writes and only `multiply` reads it; the
accumulator's map is the one that the PTX manual gives for m16n8 (`Spread`), because the store stage reads it.

Intrinsics name operands as loads, not as addresses: TVM places barriers by what statements read. The functions they
call are those of `cuda_prelude`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

from vortex.dtypes import SUMS

WARP = 32
SIDE = 16
"""Rows and columns of an accumulator tile: two m16n8 instructions side by side share the fragment of A."""


@dataclass(frozen=True)
class Instruction:
    """One kind of mma.sync, by the element type of its operands."""

    storage: str
    depth: int
    """k of a step: the 32 bytes that one ldmatrix reads of a row."""
    load: str
    """Suffix of the functions in the prelude that load fragments."""
    multiply: str
    """Suffix of the function that multiplies a step, in as many instructions as it takes."""


INSTRUCTIONS = {
    ("float16", 16): Instruction("float16", 16, "f16", "f16"),
    ("float16", 8): Instruction("float16", 16, "f16", "f16_k8"),
    ("bfloat16", 16): Instruction("bfloat16", 16, "bf16", "bf16"),
    ("tfloat32", 8): Instruction("float32", 8, "tf32", "tf32"),
    ("int8", 32): Instruction("int8", 32, "s8", "s8"),
}
"""By element type and k of the instruction."""


def operand(rows: int, columns: int) -> Any:
    """Index map of an operand's [rows, columns] tiles: any bijection serves."""
    registers = rows * columns // WARP
    if columns == registers:  # a row for each lane
        return lambda i, j: (i // rows, j // columns, i % rows, j % columns)
    return lambda i, j: (
        i // rows,
        j // columns,
        i % rows * (columns // registers) + j % columns // registers,
        j % registers,
    )


@dataclass(frozen=True)
class Spread:
    """How C lies over a warp.

    ldmatrix turns pairs of bytes over, not bytes: an int8 operand whose k is not contiguous comes in as pairs of
    neighbouring rows of A (columns of B), which a permutation of bytes takes apart. Its two fragments are therefore the
    even and the odd ones, where they are else the upper and the lower (left and right) eight.
    """

    pairs_a: bool = False
    pairs_b: bool = False

    def __call__(self, i: Any, j: Any) -> tuple[Any, ...]:
        """Index map of C: without pairs, register 4h + 2u + v of lane 4r + c is row 8u + r, column 8h + 2c + v."""
        r, u = (i % SIDE // 2, i % 2) if self.pairs_a else (i % 8, i % SIDE // 8)
        if self.pairs_b:  # register 4u + w of lane 4r + c is column 4c + w
            return i // SIDE, j // SIDE, r * 4 + j % SIDE // 4, u * 4 + j % 4
        return i // SIDE, j // SIDE, r * 4 + j % 8 // 2, j % SIDE // 8 * 4 + u * 2 + j % 2


def spread(dtype: str, transpose_a: bool, transpose_b: bool) -> Spread:
    """Of operands given like that."""
    return Spread(transpose_a, not transpose_b) if dtype == "int8" else Spread()


@dataclass(frozen=True)
class Intrinsics:
    """Names of the registered tensor intrinsics of one element type and layout."""

    load_a: str
    load_b: str
    clear: str
    multiply: str


def _lane_address(wide: bool, trans: bool, dtype: str) -> Any:
    """Where in its tile lane `t` points ldmatrix.x4: eight lanes a matrix; `wide` walks columns before rows."""
    half = {"tfloat32": 4, "int8": 16}.get(dtype, 8)
    if trans and dtype == "int8":  # rows 4j, 4j + 1 of k, then the two below them, then the same 16 rows further on
        return lambda t: (t % 8 // 2 * 4 + t % 2 + t % 16 // 8 * 2 + t // 16 * 16, 0)
    if wide:
        return lambda t: (t % 8 + t // 16 * 8, t % 16 // 8 * half)
    return lambda t: (t % 16, t // 16 * half)


def _load(name: str, dtype: str, instruction: Instruction, rows: int, columns: int, wide: bool, trans: bool) -> None:
    """Register a load of one [rows, columns] tile as it lies in shared memory; ldmatrix where it can."""
    storage, registers = instruction.storage, rows * columns // WARP
    index = operand(rows, columns)
    address = _lane_address(wide, trans, dtype)
    scalar = trans and dtype == "tfloat32"  # ldmatrix.trans moves halves, not words
    function = f"ldmatrix_{instruction.load}" + ("_trans" if trans else "")
    if trans and dtype == "int8":
        function += "_a" if wide else "_b"

    @T.prim_func(s_tir=True)
    def description(w: T.handle, s: T.handle):
        S = T.match_buffer(s, (rows, columns), storage, align=4, offset_factor=1, scope="shared.dyn")
        W = T.match_buffer(w, (WARP, registers), storage, align=4, offset_factor=1, scope="warp")
        with T.sblock("root"):
            T.reads(S[0:rows, 0:columns])
            T.writes(W[0:WARP, 0:registers])
            for i, j in T.grid(rows, columns):
                with T.sblock("element"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    W[index(vi, vj)[2], index(vi, vj)[3]] = S[vi, vj]

    if scalar:
        # Lane 4g + t holds k = t, t + 4 of rows (of A) or columns (of B) g, g + 8: in A rows change first, in B k.

        @T.prim_func(s_tir=True)
        def implementation(w: T.handle, s: T.handle):
            s0, s1 = T.int32(), T.int32()
            S = T.match_buffer(
                s, (rows, columns), storage, align=4, offset_factor=1, scope="shared.dyn", strides=[s0, s1]
            )
            W = T.match_buffer(w, (WARP, registers), storage, align=4, offset_factor=1, scope="warp")
            with T.sblock("root"):
                T.reads(S[0:rows, 0:columns])
                T.writes(W[0:WARP, 0:registers])
                for t in T.thread_binding(0, WARP, "threadIdx.x"):
                    for e in T.unroll(4):
                        W[t, e] = T.call_extern(
                            "float32",
                            "round_tf32",
                            S[
                                t % 4 + (e // 2 if wide else e % 2) * 4,
                                t // 4 + (e % 2 if wide else e // 2) * 8,
                            ],
                        )
    else:

        @T.prim_func(s_tir=True)
        def implementation(w: T.handle, s: T.handle):
            s0, s1 = T.int32(), T.int32()
            S = T.match_buffer(
                s, (rows, columns), storage, align=4, offset_factor=1, scope="shared.dyn", strides=[s0, s1]
            )
            W = T.match_buffer(w, (WARP, registers), storage, align=4, offset_factor=1, scope="warp")
            with T.sblock("root"):
                T.reads(S[0:rows, 0:columns])
                T.writes(W[0:WARP, 0:registers])
                for t in T.thread_binding(0, WARP, "threadIdx.x"):
                    T.evaluate(T.call_extern("int32", function, W[t, 0], S[address(t)[0], address(t)[1]]))

    TensorIntrin.register(name, description, implementation, override=True)


def _clear(name: str, sums: str, place: Spread) -> None:
    @T.prim_func(s_tir=True)
    def description(c: T.handle):
        C = T.match_buffer(c, (WARP, 8), sums, align=4, offset_factor=1, scope="warp")
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:WARP, 0:8])
            for i, j in T.grid(SIDE, SIDE):
                with T.sblock("element"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[place(vi, vj)[2], place(vi, vj)[3]] = T.cast(0, sums)

    @T.prim_func(s_tir=True)
    def implementation(c: T.handle):
        C = T.match_buffer(c, (WARP, 8), sums, align=4, offset_factor=1, scope="warp")
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:WARP, 0:8])
            for t in T.thread_binding(0, WARP, "threadIdx.x"):
                for e in T.unroll(8):
                    C[t, e] = T.cast(0, sums)

    TensorIntrin.register(name, description, implementation, override=True)


def _multiply(
    name: str, instruction: Instruction, sums: str, place: Spread, transpose_a: bool, transpose_b: bool
) -> None:
    storage, depth = instruction.storage, instruction.depth
    registers = SIDE * depth // WARP
    map_a = operand(*((depth, SIDE) if transpose_a else (SIDE, depth)))
    map_b = operand(*((SIDE, depth) if transpose_b else (depth, SIDE)))
    function = f"mma_m16n16_{instruction.multiply}" + ("_pairs" if place.pairs_b else "")

    @T.prim_func(s_tir=True)
    def description(a: T.handle, b: T.handle, c: T.handle):
        A = T.match_buffer(a, (WARP, registers), storage, align=4, offset_factor=1, scope="warp")
        B = T.match_buffer(b, (WARP, registers), storage, align=4, offset_factor=1, scope="warp")
        C = T.match_buffer(c, (WARP, 8), sums, align=4, offset_factor=1, scope="warp")
        with T.sblock("root"):
            T.reads(C[0:WARP, 0:8], A[0:WARP, 0:registers], B[0:WARP, 0:registers])
            T.writes(C[0:WARP, 0:8])
            for i, j, k in T.grid(SIDE, SIDE, depth):
                with T.sblock("element"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    at_a = T.meta_var(map_a(vk, vi) if transpose_a else map_a(vi, vk))
                    at_b = T.meta_var(map_b(vj, vk) if transpose_b else map_b(vk, vj))
                    at_c = T.meta_var(place(vi, vj))
                    C[at_c[2], at_c[3]] = C[at_c[2], at_c[3]] + T.cast(A[at_a[2], at_a[3]], sums) * T.cast(
                        B[at_b[2], at_b[3]], sums
                    )

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle):
        A = T.match_buffer(a, (WARP, registers), storage, align=4, offset_factor=1, scope="warp")
        B = T.match_buffer(b, (WARP, registers), storage, align=4, offset_factor=1, scope="warp")
        C = T.match_buffer(c, (WARP, 8), sums, align=4, offset_factor=1, scope="warp")
        with T.sblock("root"):
            T.reads(C[0:WARP, 0:8], A[0:WARP, 0:registers], B[0:WARP, 0:registers])
            T.writes(C[0:WARP, 0:8])
            for t in T.thread_binding(0, WARP, "threadIdx.x"):
                T.evaluate(T.call_extern("int32", function, C[t, 0], A[t, 0], B[t, 0]))

    TensorIntrin.register(name, description, implementation, override=True)


@cache
def intrinsics(dtype: str, k: int, transpose_a: bool, transpose_b: bool) -> Intrinsics:
    """Register the intrinsics of one element type, k of the instruction and layout, once, and name them."""
    instruction = INSTRUCTIONS[dtype, k]
    depth = instruction.depth
    tag = f"{dtype}_{k}_{'t' if transpose_a else 'n'}{'t' if transpose_b else 'n'}"
    names = Intrinsics(
        *(f"vortex_{kind}_{tag}" for kind in ("load_a", "load_b", "clear", "multiply")),
    )
    rows_a, columns_a = (depth, SIDE) if transpose_a else (SIDE, depth)
    rows_b, columns_b = (SIDE, depth) if transpose_b else (depth, SIDE)
    # Matrices of A go rows first, those of B k first: a fragment of B is two of n8 side by side.
    _load(names.load_a, dtype, instruction, rows_a, columns_a, wide=transpose_a, trans=transpose_a)
    _load(names.load_b, dtype, instruction, rows_b, columns_b, wide=transpose_b, trans=not transpose_b)
    sums, place = SUMS.get(dtype, "float32"), spread(dtype, transpose_a, transpose_b)
    _clear(names.clear, sums, place)
    _multiply(names.multiply, instruction, sums, place, transpose_a, transpose_b)
    return names
