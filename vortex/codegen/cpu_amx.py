"""L0 of AMX: a register tile made of tiles of 16 rows by 16 words, for the operands of `cpu_words`.

A is read as it lies, 16 rows of 64 bytes at a time, and a packed panel of B is what a tile of B wants: a line for each
word of k. Sizes of the tiles are told to the processor once for each call, so that rows, columns and words past the
end are never touched. The words that fill no tile of k come last, after the sums were stored, since another
configuration clears all tiles: the order in which products are added up is that of k.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.script import tirx as T

from vortex.codegen.cpu_words import WordTile
from vortex.dtypes import WordFormat

ROWS = WORDS = 16
"""Rows of a tile, and 32-bit words of each (Intel SDM vol. 1, chapter 18: palette 1)."""
TILES = 8
CONFIGURATION = 64
"""Bytes of what `ldtilecfg` reads: the palette, from 16 on the bytes of a row of each tile, from 48 on its rows."""
CONFIGURE, RELEASE = "vortex_tile_configure", "vortex_tile_release"


@dataclass(frozen=True)
class Placement:
    """Which tile registers hold what: those of C by row and column, A's by row, B's by column.

    The shorter operand stays; of the longer one a tile passes at a time, the last, which may be smaller, through a
    register of its own.
    """

    tall: int
    wide: int

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


def placement(tile: WordTile) -> Placement:
    return Placement(-(-tile.rows // ROWS), tile.vectors)


def kinds(words: WordFormat) -> tuple[str, ...]:
    """The instructions of a format: for integers that with a signed A, then that with an unsigned one."""
    return ("tdpbssd", "tdpbusd") if words.accumulator == "int32" else ("tdpbf16ps",)


def dot_symbol(kind: str, c: int, a: int, b: int) -> str:
    return f"vortex_{kind}_{c}_{a}_{b}"


def amx_ir(tiles: Sequence[WordTile], words: WordFormat) -> str:
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

    define(CONFIGURE, "ldtilecfg", "ptr", "ptr %p", "ptr %p")
    define(RELEASE, "tilerelease", "", "", "")
    for t in range(TILES):
        moved = ("i8 immarg, ptr, i64", "ptr %p, i64 %s", f"i8 {t}, ptr %p, i64 %s")
        define(f"vortex_tile_load_{t}", "tileloadd64", *moved)
        define(f"vortex_tile_store_{t}", "tilestored64", *moved)
        define(f"vortex_tile_zero_{t}", "tilezero", "i8 immarg", "", f"i8 {t}")
    for c, a, b in sorted({dot for tile in tiles for dot in placement(tile).dots()}):
        for kind in kinds(words):
            registers = f"i8 {c}, i8 {a}, i8 {b}"
            define(dot_symbol(kind, c, a, b), kind, "i8 immarg, i8 immarg, i8 immarg", "", registers)
    return "\n".join(lines)


def amx_kernel(tile: WordTile, lanes: int, words: WordFormat) -> tvm.tirx.PrimFunc:
    """The L0 rKernel of `tile`, as `cpu_words.word_kernel` declares it.

    `flip` other than 0 tells that A is signed; the line at `start` is for instructions that cannot multiply it.
    """
    where, per_word, item = placement(tile), words.per_word, words.item_bytes
    heights = [min(ROWS, tile.rows - ROWS * row) for row in range(where.tall)]
    columns = range(where.wide)

    def run(symbol: str, *arguments: Any) -> None:
        T.evaluate(T.call_extern("int32", symbol, *arguments))

    def configure(config: tirx.Buffer, last: Any, depth: Any) -> None:
        """Sizes of all tiles for a step of `depth` words."""
        across = [4 * WORDS if column < where.wide - 1 else 4 * last for column in columns]
        sizes = {
            where.c(row, column): (heights[row], across[column]) for row in range(where.tall) for column in columns
        }
        sizes |= {where.a(row): (heights[row], 4 * depth) for row in range(where.tall)}
        sizes |= {where.b(column): (depth, across[column]) for column in columns}
        filled = {0: 1}
        for register, (rows, row_bytes) in sizes.items():
            filled |= {16 + 2 * register: row_bytes, 48 + register: rows}
        for byte in range(CONFIGURATION):
            T.buffer_store(config, T.Cast("uint8", filled.get(byte, 0)), [byte])
        run(CONFIGURE, T.address_of(config[0]))

    def move(what: str, C: tirx.Buffer, ldc: Any) -> None:
        for row in range(where.tall):
            for column in columns:
                place = T.address_of(C[row * ROWS * ldc + column * lanes])
                run(f"vortex_tile_{what}_{where.c(row, column)}", *([] if what == "zero" else [place, 4 * ldc]))

    def step(kind: str, A: tirx.Buffer, B: tirx.Buffer, lda: Any, ldb: Any, at: Any) -> None:
        """The products of the words from `at` on."""

        def fetch_a(row: int) -> None:
            place = T.address_of(A[row * ROWS * lda + at * per_word])
            run(f"vortex_tile_load_{where.a(row)}", place, lda * item)

        def fetch_b(column: int) -> None:
            run(f"vortex_tile_load_{where.b(column)}", T.address_of(B[at * ldb + column * lanes]), 4 * ldb)

        stays = where.tall <= where.wide
        for held in range(min(where.tall, where.wide)):
            (fetch_a if stays else fetch_b)(held)
        for passing in range(max(where.tall, where.wide)):
            (fetch_b if stays else fetch_a)(passing)
            for held in range(min(where.tall, where.wide)):
                row, column = (held, passing) if stays else (passing, held)
                run(dot_symbol(kind, where.c(row, column), where.a(row), where.b(column)))

    def steps(A: tirx.Buffer, B: tirx.Buffer, lda: Any, ldb: Any, at: Any, flip: Any) -> None:
        signed, *unsigned = kinds(words)
        if not unsigned:
            step(signed, A, B, lda, ldb, at)
            return
        with T.If(flip != 0):
            with T.Then():
                step(signed, A, B, lda, ldb, at)
            with T.Else():
                step(unsigned[0], A, B, lda, ldb, at)

    @T.prim_func(s_tir=True)
    def kernel(
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
    ):
        T.func_attr({"global_symbol": tile.symbol, "tirx.noalias": True})
        A = T.match_buffer(a, (tile.rows * lda,), words.stored, align=item)
        B = T.match_buffer(b, (depth * ldb,), "int32", align=4)
        C = T.match_buffer(c, (tile.rows * ldc,), words.accumulator, align=4)
        Start = T.match_buffer(start, (lanes,), "int32", align=4)  # noqa: F841  # it has a place among the arguments
        with T.sblock("root"):
            config = T.sblock_alloc_buffer((CONFIGURATION,), "uint8", scope="local")
            whole: T.let[T.int64] = T.truncdiv(depth, T.int64(WORDS))
            rest: T.let[T.int64] = depth - whole * WORDS
            configure(config, last, WORDS)
            if T.bitwise_and(mode, 1) != 0:
                move("load", C, ldc)
            else:
                move("zero", C, ldc)
            for s in T.serial(whole):
                steps(A, B, lda, ldb, s * WORDS, flip)
            if rest > 0:
                move("store", C, ldc)
                configure(config, last, rest)
                move("load", C, ldc)
                steps(A, B, lda, ldb, whole * WORDS, flip)
            move("store", C, ldc)
            T.evaluate(T.call_extern("int32", RELEASE))

    return s_tir.Schedule(kernel).mod["main"]
