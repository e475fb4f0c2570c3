"""L1 of dot instructions on CPUs: the nest of `cpu_nest` over 32-bit words.

B always passes a load stage, at the call or before it (`pack`), since a dot instruction wants neighbours along k in one
word. A is read as it lies where its rows are whole words, else it passes one as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import tvm
from tvm import tirx
from tvm.script import tirx as T

from vortex.codegen.cpu_ahead import AHEAD, SHORT, WAITED_FOR, adds_far, ask_for_next, own_lines
from vortex.codegen.cpu_amx import ROWS, placements
from vortex.codegen.cpu_call import STORE_SYMBOL
from vortex.codegen.cpu_tile import LINE, fetch_dense
from vortex.codegen.cpu_words import WordTile
from vortex.codegen.cpu_words_load import COLUMNS_SYMBOL, INTERLEAVE_SYMBOL, ROWS_SYMBOL, TURN_SYMBOL
from vortex.dtypes import WordFormat

DISPATCH_SYMBOL = "vortex_l0_words"
LOAD_A = ("none", "rows", "columns")
LOAD_B = ("none", "interleave", "turn")


def word_dispatch(tiles: Sequence[WordTile], words: WordFormat) -> tirx.PrimFunc:
    """`vortex_l0_words(rows, vectors, <arguments of L0>)`: calls the micro-kernel of that tile; AMX asks for rows."""
    pointers, integers = ("a", "b", "c", "start"), ("depth", "lda", "ldb", "ldc")
    rows, vectors = tirx.Var("rows", "int32"), tirx.Var("vectors", "int32")
    pointer = tvm.ir.PointerType(tvm.ir.PrimType("float32"))
    ahead = [tirx.Var("ahead", pointer), tirx.Var("lines", "int32")] if words.tiles else []
    arguments = [
        *(tirx.Var(name, pointer) for name in pointers),
        *(tirx.Var(name, "int64") for name in integers),
        *(tirx.Var(name, "int32") for name in ("last", "mode", "flip")),
        *ahead,
    ]
    if words.tiles:
        high, given = tirx.truncdiv(rows + (ROWS - 1), ROWS), [rows, *arguments]
        kernels = [(kernel.symbol, kernel.tall, kernel.wide) for kernel in placements(tiles)]
    else:
        high, given = rows, arguments
        kernels = [(tile.symbol, tile.rows, tile.vectors) for tile in tiles]
    height = max(tall for _, tall, _ in kernels) + 1
    body: tirx.Stmt = tirx.Evaluate(0)
    for symbol, tall, wide in reversed(kernels):
        call = tirx.Evaluate(tirx.call_extern("int32", symbol, *given))
        body = tirx.IfThenElse(vectors * height + high == wide * height + tall, call, body)
    return tirx.PrimFunc([rows, vectors, *arguments], body).with_attr("global_symbol", DISPATCH_SYMBOL)


@dataclass(frozen=True, order=True)
class WordStage:
    """What L1 does before it computes: how A and B are brought into the CacheBuffer, and the walk order."""

    rows_first: bool
    load_a: str
    load_b: str

    @property
    def symbol(self) -> str:
        return f"vortex_l1_words_{'rows' if self.rows_first else 'panels'}_{self.load_a}_{self.load_b}"


WORD_STAGES = tuple(WordStage(*choice) for choice in product((False, True), LOAD_A, LOAD_B))


def word_nest(stage: WordStage, lanes: int, words: WordFormat) -> tirx.PrimFunc:
    """C[0:m, first:end] (+)= A[0:m, 0:k] B[0:k, first:end] over cache tiles of `tile_m` x `tile_n` x `tile_k`.

    `k`, `lda` and `ldb` of an unpacked B in elements, all else in words. A packed panel begins with the line `start`,
    which is multiplied by `zero`. The store stage is run as in `cpu_nest.nest`.
    """
    rows_first, load_a, load_b = stage.rows_first, stage.load_a, stage.load_b
    per_word, item, weights, whole, tiled = words.per_word, words.item_bytes, words.weights, words.whole, words.tiles
    element, line = words.stored, LINE * 4 // item
    asks = tiled and load_b == "none" and not rows_first
    signed_tiles = T.bool(tiled and words.accumulator == "int32")  # for tiles 128 is no number without effect

    def line_of(step: Any) -> Any:
        """Where the words of this step of k begin in a packed panel."""
        if weights is None:
            return step + 1
        if weights.group:
            return T.truncdiv(step * per_word, weights.group) * (weights.group // weights.per_word + weights.heads)
        return T.truncdiv(step * per_word, weights.per_word) + weights.heads

    def held_at(j: Any, panel: Any, panel_stride: Any) -> Any:
        return T.truncdiv(j, panel) * panel_stride + T.truncmod(j, panel)

    @T.prim_func(s_tir=True)
    def l1(
        a: T.handle,
        b: T.handle,
        c: T.handle,
        scratch_a: T.handle,
        scratch_b: T.handle,
        m: T.int64,
        first: T.int64,
        end: T.int64,
        k: T.int64,
        lda: T.int64,
        ldb: T.int64,
        ldc: T.int64,
        panel: T.int64,
        panel_stride: T.int64,
        tile_m: T.int64,
        tile_n: T.int64,
        tile_k: T.int64,
        rows: T.int64,
        vectors: T.int64,
        accumulate: T.int32,
        store: T.handle,
        finish: T.int32,
        flip: T.int32,
        zero: T.int32,
    ):
        T.func_attr({"global_symbol": stage.symbol})
        A = T.match_buffer(a, (m * lda,), element, align=item)
        B = T.match_buffer(b, (k * ldb,), "int32" if load_b == "none" else element, align=item)
        C = T.match_buffer(c, (m * ldc,), "int32", align=4)
        SA = T.match_buffer(scratch_a, (tile_m * tile_k,), "int32", align=4)
        SB = T.match_buffer(scratch_b, ((tile_k + 2) * tile_n,), "int32", align=4)
        width: T.let[T.int64] = vectors * lanes
        depth: T.let[T.int64] = T.truncdiv(k + per_word - 1, per_word)
        for jo in T.serial(T.truncdiv(end - first + tile_n - 1, tile_n)):
            j0: T.let[T.int64] = first + jo * tile_n
            nb: T.let[T.int64] = T.min(tile_n, end - j0)
            panels: T.let[T.int64] = T.truncdiv(nb + width - 1, width)
            for po in T.serial(T.max(T.truncdiv(depth + tile_k - 1, tile_k), T.int64(1))):
                p0: T.let[T.int64] = po * tile_k
                kb: T.let[T.int64] = T.min(tile_k, depth - p0)
                elements: T.let[T.int64] = T.min(tile_k * per_word, k - p0 * per_word)
                padded: T.let[T.int64] = T.truncdiv(kb + whole - 1, T.int64(whole)) * whole
                stride: T.let[T.int64] = width * (padded + 2)  # a line for `start`, and one against colliding panels
                begins: T.let[T.int32] = T.Select(po == 0, T.int32(1), T.int32(0)) if load_b == "none" else T.int32(1)
                begun: T.let[T.int32] = T.Select(po > 0, T.int32(1), accumulate)
                mode: T.let[T.int32] = begun + T.Select(
                    T.Or(zero != 0, signed_tiles), (2 + 4 * zero) * begins, T.int32(0)
                )
                if load_b != "none":
                    T.evaluate(
                        T.call_extern(
                            "int32",
                            INTERLEAVE_SYMBOL if load_b == "interleave" else TURN_SYMBOL,
                            T.address_of(
                                B[p0 * per_word * ldb + j0 if load_b == "interleave" else j0 * ldb + p0 * per_word]
                            ),
                            T.address_of(SB[0]),
                            elements,
                            nb,
                            ldb,
                            width,
                            stride,
                        )
                    )
                for io in T.serial(T.truncdiv(m + tile_m - 1, tile_m)):
                    i0: T.let[T.int64] = io * tile_m
                    mb: T.let[T.int64] = T.min(tile_m, m - i0)
                    tiles: T.let[T.int64] = T.truncdiv(mb + rows - 1, rows)
                    # Rows are shared out evenly; of tiles with 16 rows all but the last are whole.
                    low: T.let[T.int64] = rows if tiled else T.truncdiv(mb, tiles)
                    extra: T.let[T.int64] = T.int64(0) if tiled else mb - low * tiles
                    corner: T.let[T.int64] = (
                        p0 * per_word * lda + i0 if load_a == "columns" else i0 * lda + p0 * per_word
                    )
                    kept: T.let[T.int64] = tile_k + lanes
                    # Blocks of C that tiles of AMX add to are in L2.
                    adds: T.let[T.bool] = T.bool(False) if tiled else adds_far(begun, panels, m * nb)
                    # What was packed last is still there where it is all of A.
                    if load_a != "none" and T.Or(jo == 0, T.Or(mb < m, elements < k)):
                        T.evaluate(
                            T.call_extern(
                                "int32",
                                ROWS_SYMBOL if load_a == "rows" else COLUMNS_SYMBOL,
                                T.address_of(A[corner]),
                                T.address_of(SA[0]),
                                elements,
                                mb,
                                lda,
                                kept,
                            )
                        )
                    for x in T.serial(tiles if rows_first else panels):
                        for y in T.serial(panels if rows_first else tiles):
                            t: T.let[T.int64] = y if rows_first else x
                            u: T.let[T.int64] = x if rows_first else y
                            j: T.let[T.int64] = j0 + t * width
                            wide: T.let[T.int64] = T.min(width, j0 + nb - j)
                            vecs: T.let[T.int64] = T.truncdiv(wide + lanes - 1, T.int64(lanes))
                            i: T.let[T.int64] = u * low + T.min(u, extra)
                            height: T.let[T.int64] = (
                                T.min(rows, mb - i) if tiled else low + T.Select(u < extra, T.int64(1), T.int64(0))
                            )
                            if t == 0:
                                if load_a == "none":  # noqa: SIM102
                                    # Rows this short end before the hardware has seen a stream.
                                    if elements == lda and kb <= SHORT:
                                        near: T.let[T.bool] = height * (kb + nb) <= WAITED_FOR
                                        later: T.let[T.int64] = corner + i * lda + AHEAD * 4 // item
                                        fetch_dense(A, later, height * lda, line, near, 0)
                                if ldc == nb and nb <= SHORT:
                                    own_lines(C, (i0 + i) * ldc + j0 + AHEAD, height * nb, T.int32(0))
                            if adds:
                                goes_on: T.let[T.bool] = y + 1 < (panels if rows_first else tiles)
                                ask_for_next(
                                    C, i0, i, height, j0, j, width, goes_on, rows_first, ldc, T.int32(0), store, finish
                                )
                            place: T.let[T.int64] = T.Select(finish == 2, first, (i0 + i) * ldc + j)
                            held: T.let[T.int64] = held_at(j, panel, panel_stride)
                            # The next panel is asked for under the tiles of this one, unless there is only one.
                            lines: T.let[T.int64] = T.truncdiv(width + tiles - 1, tiles)
                            steps: T.let[T.int64] = T.truncdiv(kb, T.int64(whole))
                            asked: T.let[T.int64] = u * steps * lines * LINE
                            beside: T.let[T.bool] = T.And(
                                T.And(tiles > 1, t + 1 < panels), T.And(asked < kb * panel, T.bool(asks))
                            )
                            T.evaluate(
                                T.call_extern(
                                    "int32",
                                    DISPATCH_SYMBOL,
                                    T.Cast("int32", height),
                                    T.Cast("int32", vecs),
                                    T.address_of(A[corner + i * lda] if load_a == "none" else SA[i * kept]),
                                    T.address_of(
                                        B[held + line_of(p0) * panel] if load_b == "none" else SB[t * stride + width]
                                    ),
                                    T.address_of(C[place]),
                                    T.address_of(B[held] if load_b == "none" else SB[t * stride]),
                                    kb,
                                    lda if load_a == "none" else kept * per_word,
                                    panel if load_b == "none" else width,
                                    ldc,
                                    T.Cast("int32", wide - (vecs - 1) * lanes),
                                    mode,
                                    flip,
                                    *(
                                        [
                                            T.address_of(
                                                B[held_at(j + width, panel, panel_stride) + line_of(p0) * panel + asked]
                                            ),
                                            T.Select(beside, T.Cast("int32", lines), T.int32(0)),
                                        ]
                                        if tiled
                                        else []
                                    ),
                                )
                            )
                            if finish != 0 and p0 + kb == depth:
                                T.evaluate(
                                    T.call_extern(
                                        "int32",
                                        STORE_SYMBOL,
                                        store,
                                        T.address_of(C[place]),
                                        ldc,
                                        i0 + i,
                                        j,
                                        height,
                                        wide,
                                    )
                                )

    return l1
