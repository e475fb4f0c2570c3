"""L0 of AMX: a register tile made of tiles of 16 rows by 16 words, for the operands of `cpu_words`.

A is read as it lies, 16 rows of 64 bytes at a time, and a packed panel of B is what a tile of B wants: a line for each
word of k, and lines of zeros up to a whole tile. Sizes of the tiles are told to the processor, so that rows and columns
past the end are never touched: one kernel serves all heights that take so many tiles. Telling them takes 66 ns (a
Granite Rapids, where a step of 2x2 tiles takes 18), and clears all tiles: it is left out where the sizes are those of
the call before, which asking for them tells in one or two, and the words of a row of A that fill no tile are brought
beside zeros instead of being multiplied in tiles of another size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.script import tirx as T

from vortex.codegen.cpu_tile import LINE, fetch, masked_load, masked_store
from vortex.codegen.cpu_words import WordTile
from vortex.dtypes import WordFormat

ROWS = WORDS = 16
"""Rows of a tile, and 32-bit words of each (Intel SDM vol. 1, chapter 18: palette 1)."""
TILES = 8
CONFIGURE, RELEASE = "vortex_tile_configure", "vortex_tile_release"
LEAVE_SYMBOL = "vortex_leave_tiles"


@dataclass(frozen=True, order=True)
class Placement:
    """One L0 micro-kernel: `tall` by `wide` tiles of C, and which registers hold what.

    Those of C go by row and column, A's by row, B's by column.

    The shorter operand stays; of the longer one a tile passes at a time, the last, which may be smaller, through a
    register of its own.
    """

    tall: int
    wide: int

    @property
    def symbol(self) -> str:
        return f"vortex_l0_tiles_{self.tall}x{self.wide}"

    def c(self, row: int, column: int) -> int:
        return row * self.wide + column

    def a(self, row: int) -> int:
        return self._operand(row, self.tall, self.tall <= self.wide)

    def b(self, column: int) -> int:
        return self._operand(column, self.wide, self.tall > self.wide)

    def _operand(self, at: int, count: int, stays: bool) -> int:
        held = self.tall * self.wide
        return held + at if stays else held + min(self.tall, self.wide) + (at == count - 1)

    def dots(self) -> Iterator[tuple[int, int, int]]:
        for row in range(self.tall):
            for column in range(self.wide):
                yield self.c(row, column), self.a(row), self.b(column)


def placements(tiles: Iterable[WordTile]) -> list[Placement]:
    """The micro-kernels that register tiles need."""
    return sorted({Placement(-(-tile.rows // ROWS), tile.vectors) for tile in tiles})


def kinds(words: WordFormat) -> tuple[str, ...]:
    """The instructions of a format: for integers that with a signed A, then that with an unsigned one."""
    return ("tdpbssd", "tdpbusd") if words.accumulator == "int32" else ("tdpbf16ps",)


def dot_symbol(kind: str, c: int, a: int, b: int) -> str:
    return f"vortex_{kind}_{c}_{a}_{b}"


CONFIGURING = f"""
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.sttilecfg(ptr)
define weak_odr hidden i32 @{CONFIGURE}(i64 %low, i64 %high, i64 %rows) #0 {{
  %place = alloca <8 x i64>, align 64
  call void @llvm.x86.sttilecfg(ptr %place)
  %there = load <8 x i64>, ptr %place, align 64
  %one = insertelement <8 x i64> <i64 1, i64 0, i64 0, i64 0, i64 0, i64 0, i64 0, i64 0>, i64 %low, i64 2
  %two = insertelement <8 x i64> %one, i64 %high, i64 3
  %wanted = insertelement <8 x i64> %two, i64 %rows, i64 6
  %differs = icmp ne <8 x i64> %there, %wanted
  %bits = bitcast <8 x i1> %differs to i8
  %any = icmp ne i8 %bits, 0
  br i1 %any, label %set, label %done
set:
  store <8 x i64> %wanted, ptr %place, align 64
  call void @llvm.x86.ldtilecfg(ptr %place)
  br label %done
done:
  ret i32 0
}}"""
"""Tells sizes of tiles if they are others than before: palette 1, from byte 16 on the bytes of a row of each tile in 16
bits, from 48 on its rows in 8."""


def amx_ir(kernels: Sequence[Placement], words: WordFormat) -> str:
    """LLVM text that a module of these kernels needs: a function for each instruction with its registers, inlined.

    The intrinsics take registers as constants and give nothing back, which TVM cannot say.
    """
    lines = ["attributes #0 = { alwaysinline nounwind }"]

    def define(symbol: str, intrinsic: str, declared: str, given: str, call: str) -> None:
        lines.append(f"define weak_odr hidden i32 @{symbol}({given}) #0 {{")
        lines.append(f"  call void @llvm.x86.{intrinsic}({call})\n  ret i32 0\n}}")
        declaration = f"declare void @llvm.x86.{intrinsic}({declared})"
        if declaration not in lines:
            lines.insert(0, declaration)

    define(RELEASE, "tilerelease", "", "", "")
    for t in range(TILES):
        moved = ("i8 immarg, ptr, i64", "ptr %p, i64 %s", f"i8 {t}, ptr %p, i64 %s")
        define(f"vortex_tile_load_{t}", "tileloadd64", *moved)
        define(f"vortex_tile_store_{t}", "tilestored64", *moved)
        define(f"vortex_tile_zero_{t}", "tilezero", "i8 immarg", "", f"i8 {t}")
    for c, a, b in sorted({dot for kernel in kernels for dot in kernel.dots()}):
        for kind in kinds(words):
            registers = f"i8 {c}, i8 {a}, i8 {b}"
            define(dot_symbol(kind, c, a, b), kind, "i8 immarg, i8 immarg, i8 immarg", "", registers)
    return "\n".join([*lines, CONFIGURING])


def leave_kernel() -> tirx.PrimFunc:
    """`vortex_leave_tiles()`: they are empty then, and Linux need not save them where it changes threads."""
    body = tirx.Evaluate(tirx.call_extern("int32", RELEASE))
    return tirx.PrimFunc([], body).with_attr("global_symbol", LEAVE_SYMBOL)


def amx_kernel(where: Placement, lanes: int, words: WordFormat) -> tvm.tirx.PrimFunc:
    """The L0 rKernel of so many tiles

    `symbol(rows, a, b, c, start, depth, lda, ldb, ldc, last, mode, flip, ahead, lines)`: as `cpu_words.word_kernel`
    declares it, with `rows` that end in the last tile. `flip` other than 0 tells that A is signed, and then 128 less
    than what `mode` says stands for its 0. L2 is asked for so many `lines` from `ahead` on with every tile of words:
    all of them at once would keep loads waiting.
    """
    per_word, item = words.per_word, words.item_bytes
    columns, integer = range(where.wide), words.accumulator == "int32"

    def run(symbol: str, *arguments: Any) -> None:
        T.evaluate(T.call_extern("int32", symbol, *arguments))

    def configure(rows: Any, last: Any) -> None:
        row_bytes, heights = [T.int64(0), T.int64(0)], T.int64(0)
        down = [T.int64(ROWS)] * (where.tall - 1) + [T.Cast("int64", rows) - ROWS * (where.tall - 1)]
        across = [T.int64(4 * WORDS)] * (where.wide - 1) + [4 * T.Cast("int64", last)]
        sizes = {where.c(row, column): (down[row], across[column]) for row in range(where.tall) for column in columns}
        sizes |= {where.a(row): (down[row], T.int64(4 * WORDS)) for row in range(where.tall)}
        sizes |= {where.b(column): (T.int64(WORDS), across[column]) for column in columns}
        for register, (tall, wide) in sizes.items():
            row_bytes[register // 4] = row_bytes[register // 4] + wide * T.int64(1 << 16 * (register % 4))
            heights = heights + T.shift_left(tall, T.int64(8 * register))
        run(CONFIGURE, *row_bytes, heights)

    def move(what: str, C: tirx.Buffer, ldc: Any) -> None:
        for row in range(where.tall):
            for column in columns:
                place = T.address_of(C[row * ROWS * ldc + column * lanes])
                run(f"vortex_tile_{what}_{where.c(row, column)}", *([] if what == "zero" else [place, 4 * ldc]))

    def begin(C: tirx.Buffer, Start: tirx.Buffer, i: Any, ldc: Any, last: Any, given: Any, adds: Any) -> None:
        """A row of C from `given` times the sums of the columns: tiles cannot be added to."""
        for column in columns:
            limit = T.Cast("int32", last) if column == where.wide - 1 else T.int32(lanes)
            there, read = (T.ramp(0, 1, lanes) < T.broadcast(x, lanes) for x in (limit, T.Select(adds, limit, 0)))
            place = T.address_of(C[i * ldc + column * lanes])
            sums = Start[T.ramp(column * lanes, 1, lanes)] * T.broadcast(given, lanes)
            T.evaluate(masked_store(masked_load(place, read, lanes, "int32") + sums, place, there))

    def step(kind: str, A: tirx.Buffer, a: Any, lda: Any, B: tirx.Buffer, b: Any, ldb: Any) -> None:
        """The products of a tile of words from those places on; `lda` in elements of A."""

        def fetch_a(row: int) -> None:
            place = T.address_of(A[row * ROWS * lda + a])
            run(f"vortex_tile_load_{where.a(row)}", place, lda * (4 if A.dtype == "int32" else item))

        def fetch_b(column: int) -> None:
            run(f"vortex_tile_load_{where.b(column)}", T.address_of(B[b + column * lanes]), 4 * ldb)

        stays = where.tall <= where.wide
        for held in range(min(where.tall, where.wide)):
            (fetch_a if stays else fetch_b)(held)
        for passing in range(max(where.tall, where.wide)):
            (fetch_b if stays else fetch_a)(passing)
            for held in range(min(where.tall, where.wide)):
                row, column = (held, passing) if stays else (passing, held)
                run(dot_symbol(kind, where.c(row, column), where.a(row), where.b(column)))

    def steps(flip: Any, *operands: Any) -> None:
        signed, *unsigned = kinds(words)
        if not unsigned:
            step(signed, *operands)
            return
        with T.If(flip != 0):
            with T.Then():
                step(signed, *operands)
            with T.Else():
                step(unsigned[0], *operands)

    def words_of(A: tirx.Buffer, i: Any, lda: Any, at: Any, count: Any) -> Any:
        """The first `count` words of row `i` from the word `at` on, beside zeros."""
        there = T.ramp(0, 1, lanes) < T.broadcast(T.Cast("int32", count), lanes)
        return masked_load(T.address_of(A[i * lda + at * per_word]), there, lanes, "int32")

    @T.prim_func(s_tir=True)
    def kernel(
        rows: T.int32,
        a: T.handle,
        b: T.handle,
        c: T.handle,
        start: T.handle,
        depth: T.int64,
        lda: T.int64,
        ldb: T.int64,
        ldc: T.int64,
        last: T.int32,
        mode: T.int32,
        flip: T.int32,
        ahead: T.handle,
        lines: T.int32,
    ):
        T.func_attr({"global_symbol": where.symbol, "tirx.noalias": True})
        Ahead = T.match_buffer(ahead, (depth * ldb,), "int32", align=4)
        A = T.match_buffer(a, (T.Cast("int64", rows) * lda,), words.stored, align=item)
        B = T.match_buffer(b, (depth * ldb,), "int32", align=4)
        C = T.match_buffer(c, (T.Cast("int64", rows) * ldc,), words.accumulator, align=4)
        Start = T.match_buffer(start, (where.wide * lanes,), "int32", align=4)
        with T.sblock("root"):
            edge = T.sblock_alloc_buffer((where.tall * ROWS * WORDS,), "int32", scope="local")
            whole: T.let[T.int64] = T.truncdiv(depth, T.int64(WORDS))
            rest: T.let[T.int64] = depth - whole * WORDS
            adds: T.let[T.bool] = T.bitwise_and(mode, 1) != 0
            given: T.let[T.int32] = T.Select(
                T.And(T.bitwise_and(mode, 2) != 0, T.bool(integer)),
                T.shift_right(mode, T.int32(2)) - T.Select(flip != 0, T.int32(128), T.int32(0)),
                T.int32(0),
            )
            configure(rows, last)
            if integer:  # noqa: SIM102
                if given != 0:
                    for i in T.serial(rows):
                        begin(C, Start, i, ldc, last, given, adds)
            if T.Or(adds, given != 0):
                move("load", C, ldc)
            else:
                move("zero", C, ldc)
            for s in T.serial(whole):
                for line in T.serial(T.Cast("int64", lines)):
                    T.evaluate(fetch(T.address_of(Ahead[(s * T.Cast("int64", lines) + line) * LINE]), cache=2))
                steps(flip, A, s * (WORDS * per_word), lda, B, s * WORDS * ldb, ldb)
            if rest > 0:
                for i in T.serial(where.tall * ROWS):
                    there: T.let[T.int64] = T.Select(i < rows, rest, T.int64(0))
                    edge[T.ramp(i * WORDS, 1, lanes)] = words_of(A, i, lda, whole * WORDS, there)
                steps(flip, edge, T.int64(0), T.int64(WORDS), B, whole * WORDS * ldb, ldb)
            move("store", C, ldc)

    return s_tir.Schedule(kernel).mod["main"]
