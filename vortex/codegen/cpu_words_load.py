"""Load stages of dot instructions on CPUs: elements gathered into 32-bit words of neighbours along k, or widened.

A word past the end of k is filled with zeros, and a masked-off lane touches no memory. What is packed of B lies in
panels `width` words wide and `stride` words apart: first the line that a zero point of A is multiplied by (the sums of
the columns, negative; zeros where products are of floating point), then a line for each word of k, up to a whole tile
of AMX.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import s_tir, tirx
from tvm.script import tirx as T

from vortex.codegen.cpu_load import exchanges, turn, zipped
from vortex.codegen.cpu_tile import LINE, fetch, masked_load
from vortex.codegen.cpu_words_begin import Begin
from vortex.dtypes import WordFormat
from vortex.epilogue import NOTHING, Epilogue

INTERLEAVE_SYMBOL = "vortex_words_interleave"
TURN_SYMBOL = "vortex_words_turn"
ROWS_SYMBOL = "vortex_words_rows"
COLUMNS_SYMBOL = "vortex_words_columns"


GATHERED = 4
"""Vectors of words that are interleaved side by side,"""
STREAMS = 16
"""from so many rows of B at a time: what they add to the sums of columns stays in registers meanwhile."""


def _byte_sum(total: Any, word: Any, lanes: int) -> Any:
    """`total` plus the four signed bytes of every word."""
    return T.call_llvm_pure_intrin(
        f"int32x{lanes}",
        f"llvm.x86.avx512.vpdpbusd.{32 * lanes}",
        total,
        T.broadcast(T.int8(1), 4 * lanes),
        T.reinterpret(f"int8x{4 * lanes}", word),
    )


class Gather:
    """Expressions that fetch `lanes` words."""

    def __init__(self, words: WordFormat, lanes: int) -> None:
        self.words, self.lanes = words, lanes
        self.element, self.bits = words.stored, 8 * words.item_bytes

    def elements(self, address: Any, limit: Any, count: int, beyond: Any = None) -> Any:
        """`count` elements from `address`, those from `limit` on those of the vector `beyond`, or zero."""
        # Compared in the size of the elements: the mask is then one instruction.
        within = T.Cast(f"int{self.bits}", T.min(limit, T.int32(count)))
        mask = T.ramp(tirx.const(0, f"int{self.bits}"), 1, count) < T.broadcast(within, count)
        return masked_load(address, mask, count, self.element, beyond)

    def along(self, address: Any, limit: Any) -> Any:
        """Words of neighbours in memory: `limit` elements of them."""
        found = self.elements(address, limit, self.lanes * self.words.per_word)
        return self.wide(found) if self.words.widened else T.reinterpret(f"int32x{self.lanes}", found)

    def wide(self, found: Any) -> Any:
        """Elements of 16 bits as the float32 they stand for, in words."""
        shape = f"int32x{self.lanes}"
        if self.words.element == "float16":
            halves = T.reinterpret(f"float16x{self.lanes}", found)
            return T.reinterpret(shape, T.Cast(f"float32x{self.lanes}", halves))
        return T.shift_left(T.Cast(shape, found), T.broadcast(T.int32(16), self.lanes))

    def across(self, addresses: Sequence[Any], limits: Sequence[Any]) -> Any:
        """Word j of the j-th elements of each row."""
        if self.words.widened:
            return self.wide(self.elements(addresses[0], limits[0], self.lanes))
        wide = f"uint32x{self.lanes}"
        result = None
        for place, (address, limit) in enumerate(zip(addresses, limits, strict=True)):
            row = T.Cast(wide, self.elements(address, limit, self.lanes))
            moved = T.shift_left(row, T.broadcast(T.uint32(place * self.bits), self.lanes)) if place else row
            result = moved if result is None else T.bitwise_or(result, moved)
        return T.reinterpret(f"int32x{self.lanes}", result)

    def neighbours(self, rows: Sequence[Any]) -> list[Any]:
        """The vectors of words that `per_word` rows of `lanes * per_word` elements make, in the order of columns."""
        groups, size = [[row] for row in rows], self.bits
        if self.words.widened:
            return [self.wide(row) for row in rows]
        while len(groups) > 1:
            count = 32 * self.lanes // size
            element = f"uint{size}x{count}"
            groups = [
                [
                    T.Shuffle([T.reinterpret(element, x), T.reinterpret(element, y)], order)
                    for x, y in zip(left, right, strict=True)
                    for order in zipped(count, count)
                ]
                for left, right in zip(groups[::2], groups[1::2], strict=True)
            ]
            size *= 2
        return [T.reinterpret(f"int32x{self.lanes}", vector) for vector in groups[0]]


def column_sums(lines: Sequence[Any], lanes: int) -> Any:
    """The sums of the signed bytes of every column of words, in a few chains."""
    chains = [T.broadcast(T.int32(0), lanes)] * GATHERED
    for i, line in enumerate(lines):
        chains[i % GATHERED] = _byte_sum(chains[i % GATHERED], line, lanes)
    return (chains[0] + chains[1]) + (chains[2] + chains[3])


def interleave_kernel(words: WordFormat, lanes: int) -> tirx.PrimFunc:
    """Load stage of a plain B: `symbol(source, target, k, columns, source_stride, width, stride)`, source [k, columns].

    A few rows at a time over all panels: B is read as it lies in memory.
    """
    gather, per_word, signed = Gather(words, lanes), words.per_word, words.accumulator == "int32"
    element, span, pieces, whole = gather.element, lanes * per_word, GATHERED // per_word, words.whole
    at_once, line = STREAMS // per_word, LINE * 4 // words.item_bytes
    lines = max(GATHERED * lanes // line, 1)

    def gathered(block: tirx.Buffer, S: tirx.Buffer, row: Any, first: Any, left: Any, k: Any, stride: Any) -> list[Any]:
        """The words of `GATHERED` vectors of columns from `first` on, `left` of which there are."""
        found: list[Any] = []
        for piece in range(pieces):
            slots = [T.ramp((piece * per_word + r) * span, 1, span) for r in range(per_word)]
            for r, slot in enumerate(slots):
                limit = T.Select(row + r < k, left - piece * span, T.int32(0))
                address = T.address_of(S[(row + r) * stride + first + piece * span])
                T.buffer_store(block, gather.elements(address, limit, span), [slot])
            found += gather.neighbours([block[slot] for slot in slots])
        return found

    def put(
        block: tirx.Buffer, sums: tirx.Buffer, S: tirx.Buffer, D: tirx.Buffer, w: Any, first: Any, left: Any, k: Any,
        source_stride: Any, width: Any, place: tirx.Buffer,
    ) -> None:  # fmt: skip
        """The words of step `w`, GATHERED vectors of columns from `first` on, where they belong in their panels."""
        found = gathered(block, S, w * per_word, first, left, k, source_stride)
        for v, vector in enumerate(found):
            if signed:
                total = T.ramp(v * lanes, 1, lanes)
                T.buffer_store(sums, _byte_sum(sums[total], vector, lanes), [total])
            with T.If(left > v * lanes), T.Then():
                T.buffer_store(D, vector, [T.ramp(place[v] + (w + 1) * width, 1, lanes)])

    def subtract(sums: tirx.Buffer, D: tirx.Buffer, left: Any, place: tirx.Buffer) -> None:
        for v in range(GATHERED):
            line = T.ramp(place[v], 1, lanes)
            with T.If(left > v * lanes), T.Then():
                T.buffer_store(D, D[line] - sums[T.ramp(v * lanes, 1, lanes)], [line])

    @T.prim_func(s_tir=True)
    def interleave(
        source: T.handle,
        target: T.handle,
        k: T.int64,
        columns: T.int64,
        source_stride: T.int64,
        width: T.int64,
        stride: T.int64,
    ):
        T.func_attr({"global_symbol": INTERLEAVE_SYMBOL, "tirx.noalias": True})
        S = T.match_buffer(source, (k * source_stride,), element, align=words.item_bytes)
        D = T.match_buffer(target, (k * stride,), "int32", align=4)
        with T.sblock("root"):
            block = T.sblock_alloc_buffer((GATHERED * span,), element, scope="local")
            sums = T.sblock_alloc_buffer((GATHERED * lanes,), "int32", scope="local")
            within = T.sblock_alloc_buffer((GATHERED,), "int64", scope="local")
            place = T.sblock_alloc_buffer((GATHERED,), "int64", scope="local")
            for j in T.serial(T.truncdiv(columns + lanes - 1, lanes)):
                D[T.ramp(T.truncdiv(j * lanes, width) * stride + T.truncmod(j * lanes, width), 1, lanes)] = T.broadcast(
                    T.int32(0), lanes
                )
            depth: T.let[T.int64] = T.truncdiv(k + per_word * whole - 1, per_word * whole) * whole
            for wo in T.serial(T.truncdiv(depth + at_once - 1, at_once)):
                for jo in T.serial(T.truncdiv(columns + GATHERED * lanes - 1, GATHERED * lanes)):
                    first: T.let[T.int64] = jo * (GATHERED * lanes)
                    left: T.let[T.int32] = T.Cast("int32", T.min(columns - first, T.int64(GATHERED * lanes)))
                    within[0] = T.truncmod(first, width)
                    place[0] = T.truncdiv(first, width) * stride + within[0]
                    for v in T.unroll(GATHERED - 1):
                        within[v + 1] = T.Select(within[v] + lanes < width, within[v] + lanes, T.int64(0))
                        place[v + 1] = place[v] + lanes + T.Select(within[v + 1] > 0, T.int64(0), stride - width)
                    if signed:
                        for v in T.unroll(GATHERED):
                            sums[T.ramp(v * lanes, 1, lanes)] = T.broadcast(T.int32(0), lanes)
                    for wi in T.serial(T.min(depth - wo * at_once, T.int64(at_once))):
                        w: T.let[T.int64] = wo * at_once + wi
                        # The rows that are next: each is a page of its own, which hardware does not follow.
                        for r in T.unroll(per_word):
                            for q in T.unroll(lines):
                                row: T.let[T.int64] = w * per_word + r + STREAMS
                                T.evaluate(fetch(T.address_of(S[row * source_stride + first + q * line]), cache=2))
                        put(block, sums, S, D, w, first, left, k, source_stride, width, place)
                    if signed:
                        subtract(sums, D, left, place)

    return s_tir.Schedule(interleave).mod["main"]


def turn_kernel(words: WordFormat, lanes: int) -> tirx.PrimFunc:
    """Load stage of a transposed B: the same arguments, source [columns, k].

    Square blocks of words in registers: `lanes` loads, log2(lanes) rounds of shuffles, `lanes` stores.
    """
    gather, per_word, signed = Gather(words, lanes), words.per_word, words.accumulator == "int32"
    element, rounds, whole = gather.element, len(exchanges(lanes)), words.whole

    @T.prim_func(s_tir=True)
    def turn_(
        source: T.handle,
        target: T.handle,
        k: T.int64,
        columns: T.int64,
        source_stride: T.int64,
        width: T.int64,
        stride: T.int64,
    ):
        T.func_attr({"global_symbol": TURN_SYMBOL, "tirx.noalias": True})
        S = T.match_buffer(source, (columns * source_stride,), element, align=words.item_bytes)
        D = T.match_buffer(target, (k * stride,), "int32", align=4)
        with T.sblock("root"):
            block = T.sblock_alloc_buffer(((rounds + 1) * lanes * lanes,), "int32", scope="local")
            for jo in T.serial(T.truncdiv(columns + lanes - 1, lanes)):
                first: T.let[T.int64] = jo * lanes
                begin: T.let[T.int64] = T.truncdiv(first, width) * stride + T.truncmod(first, width)
                D[T.ramp(begin, 1, lanes)] = T.broadcast(T.int32(0), lanes)
                for io in T.serial(T.truncdiv(k + lanes * per_word - 1, lanes * per_word)):
                    left: T.let[T.int32] = T.Cast("int32", T.min(k - io * lanes * per_word, T.int64(lanes * per_word)))
                    tall: T.let[T.int32] = T.Cast("int32", T.min(columns - first, T.int64(lanes)))
                    filled: T.let[T.int32] = T.truncdiv(left + per_word * whole - 1, per_word * whole) * whole
                    for j in T.unroll(lanes):
                        if j < tall:
                            block[T.ramp(j * lanes, 1, lanes)] = gather.along(
                                T.address_of(S[(first + j) * source_stride + io * lanes * per_word]), left
                            )
                        else:
                            block[T.ramp(j * lanes, 1, lanes)] = T.broadcast(T.int32(0), lanes)
                    turn(block, lanes)
                    if signed:  # words past the end of k are zeros
                        D[T.ramp(begin, 1, lanes)] = D[T.ramp(begin, 1, lanes)] - column_sums(
                            [block[T.ramp((rounds * lanes + i) * lanes, 1, lanes)] for i in range(lanes)], lanes
                        )
                    for i in T.unroll(lanes):
                        if i < filled:
                            D[T.ramp(begin + (io * lanes + i + 1) * width, 1, lanes)] = block[
                                T.ramp((rounds * lanes + i) * lanes, 1, lanes)
                            ]

    return s_tir.Schedule(turn_).mod["main"]


def rows_kernel(words: WordFormat, lanes: int, prologue: Epilogue = NOTHING) -> tirx.PrimFunc:
    """Load stage of A by rows: `symbol(source, target, k, rows, source_stride, target_stride)`, source [rows, k].

    Rows of words `target_stride` apart, with room for a vector past their end; each element through the chain.
    """
    gather, begin = Gather(words, lanes), Begin(prologue, words, lanes)
    element, span = gather.element, lanes * words.per_word

    @T.prim_func(s_tir=True)
    def rows_(
        source: T.handle, target: T.handle, k: T.int64, rows: T.int64, source_stride: T.int64, target_stride: T.int64
    ):
        T.func_attr({"global_symbol": ROWS_SYMBOL, "tirx.noalias": True})
        S = T.match_buffer(source, (rows * source_stride,), element, align=words.item_bytes)
        D = T.match_buffer(target, (rows * target_stride,), "int32", align=4)
        with T.sblock("root"):
            begin.allocate()
            for i in T.serial(rows):
                for w in T.serial(T.truncdiv(k + span - 1, span)):
                    left: T.let[T.int32] = T.Cast("int32", T.min(k - w * span, T.int64(span)))
                    D[T.ramp(i * target_stride + w * lanes, 1, lanes)] = begin.begun(
                        gather.along(T.address_of(S[i * source_stride + w * span]), left)
                    )

    return s_tir.Schedule(rows_).mod["main"]


def columns_kernel(words: WordFormat, lanes: int, prologue: Epilogue = NOTHING) -> tirx.PrimFunc:
    """Load stage of A by columns: the same arguments, source [k, rows]; blocks of words are turned in registers."""
    gather, begin, per_word = Gather(words, lanes), Begin(prologue, words, lanes), words.per_word
    element, rounds = gather.element, len(exchanges(lanes))

    @T.prim_func(s_tir=True)
    def columns_(
        source: T.handle, target: T.handle, k: T.int64, rows: T.int64, source_stride: T.int64, target_stride: T.int64
    ):
        T.func_attr({"global_symbol": COLUMNS_SYMBOL, "tirx.noalias": True})
        S = T.match_buffer(source, (k * source_stride,), element, align=words.item_bytes)
        D = T.match_buffer(target, (rows * target_stride,), "int32", align=4)
        with T.sblock("root"):
            block = T.sblock_alloc_buffer(((rounds + 1) * lanes * lanes,), "int32", scope="local")
            begin.allocate()
            for io in T.serial(T.truncdiv(rows + lanes - 1, lanes)):
                wide: T.let[T.int32] = T.Cast("int32", T.min(rows - io * lanes, T.int64(lanes)))
                for wo in T.serial(T.truncdiv(k + lanes * per_word - 1, lanes * per_word)):
                    for j in T.unroll(lanes):
                        block[T.ramp(j * lanes, 1, lanes)] = gather.across(
                            [
                                T.address_of(S[((wo * lanes + j) * per_word + r) * source_stride + io * lanes])
                                for r in range(per_word)
                            ],
                            [T.Select((wo * lanes + j) * per_word + r < k, wide, T.int32(0)) for r in range(per_word)],
                        )
                    turn(block, lanes)
                    for i in T.unroll(lanes):
                        if i < wide:
                            D[T.ramp((io * lanes + i) * target_stride + wo * lanes, 1, lanes)] = begin.begun(
                                block[T.ramp((rounds * lanes + i) * lanes, 1, lanes)]
                            )

    return s_tir.Schedule(columns_).mod["main"]
