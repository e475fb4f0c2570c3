"""L1 on CPUs: the load stage copies operands into the CacheBuffer or does nothing, the compute stage is L0.

Tile extents are run-time values: one nest per load stage serves every strategy, like the template of section 6.1.
"""

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from vortex.codegen.cpu_ahead import AHEAD, SHORT, ask, ask_for_next, away, leads, own_next, owns, walks_far, wants_next
from vortex.codegen.cpu_call import tile_called
from vortex.codegen.cpu_load import COPY_SYMBOL
from vortex.codegen.cpu_pack import copy_b, copy_rows, either, place_of_b, transpose_b
from vortex.codegen.cpu_steps import NARROW, STEP
from vortex.codegen.cpu_tile import ADDS, FILLED, KEEPS, LINE, NEAR, PADDED, QUADS, QUIET, SHARES, STREAMS, TRUSTS
from vortex.epilogue import Store
from vortex.rates import CROWD, KEPT_TILES, LEAST_RUN


@dataclass(frozen=True, order=True)
class LoadStage:
    """What L1 does before it computes (Table 1, CPU row 1): which operands it copies into the CacheBuffer."""

    layout: str
    rows_first: bool
    pack_a: bool
    pack_b: str

    @property
    def symbol(self) -> str:
        order = "rows" if self.rows_first else "panels"
        return f"vortex_l1_{self.layout}_{order}_{'a' if self.pack_a else 'n'}_{self.pack_b}"

    @property
    def keeps(self) -> bool:
        """Whether the first of many row tiles of a panel copies it for the others, as it multiplies: to load it is what
        it does anyway, and rows of a plain B are pages apart, of which L1 and L2 keep few (packing as LibShalom does,
        SC 2021)."""
        return self.layout == "row" and not self.rows_first and self.pack_b == "none"


AHEAD_ROWS, NEAR_ROWS = T.int64(42), T.int64(20)
"""Rows of B: 8 KiB of a panel of three vectors, past the end of the page that hardware follows it to; and into L1."""
STAYS = T.int64(1 << 16)
"""Elements of a B, fewer than of A, that any L2 keeps while A passes: its tiles ask for the next rows of A, not for the
next panel. By 5 x 80 13068x128x300 went from 10.4 to 9.3 ms on a Zen 4, from 5.5 to 5.0 on both its cores."""
QUICK, NEVER = 5, T.int64(1 << 40)
"""Rows of a tile that is over with a step of k before L2 has brought the next: 8 cycles for 4 x 4 vectors; steps."""
PACK_B = ("none", "copy", "transpose")


def nest(
    stage: LoadStage, lanes: int, stored: Store, copy_a: str = COPY_SYMBOL, keeping: bool = False
) -> tirx.PrimFunc:
    """C[0:m, first:end] (+)= A[0:m, 0:k] B[0:k, first:end] over cache tiles of `tile_m` x `tile_n` x `tile_k`.

    B is found where `place_of_b` says.
    If `stored` is needed a register tile is handed to the store stage after its last step of k, while it is in L1,
    where `finish` is not 0. Where it is 2, k is a single step: the store stage is in the micro-kernel, or, with A by
    columns or a long chain, C is one register tile that all take turns in. The row tiles of a panel ask for the next
    one between them, each for its share of the rows. Where row tiles are outermost the next panel comes right after:
    each asks for all of it, unless B is in the CacheBuffer. A single tile, and one of few rows unless `how` has it
    share, asks for its own panel's AHEAD_ROWS on, if that is one stream; if `how` says so NEAR_ROWS on into L1, also if
    rows straddle lines, or nothing. Where it trusts hardware nobody asks for a block in the CacheBuffer, unless that
    lies away from L2. Beside panels that stay, each whole one asks for its share of the A that is AHEAD of the next row
    tile. Where a FAR part of A is walked over, a tile asks for C of the next one, where sums begin or end there, and of
    outermost row tiles for its share of the next one's rows of A, also if C goes past the caches. C that is added to is
    asked for if it is FAR, any if `how` says that it is. Of short rows of C that follow each other a tile of a first
    panel asks to own those AHEAD, or each of outermost ones, if these are a CROWD or with AVX2, its share; outermost
    ones do not ask for them again.
    LEAST_RUN tiles and more that lie alike are one run, which the second copy of the loops goes over.
    If `how` has room for it, the first of KEPT_TILES or more row tiles of a whole panel of a B that lies as it is keeps
    it in the scratch of B for the others. `copy_a` packs A; `keeping`: the library has micro-kernels that keep B.
    Sums are added to C, or written past the caches in the end, as `how` says.
    """
    rows_first, pack_a, pack_b, is_col = stage.rows_first, stage.pack_a, stage.pack_b != "none", stage.layout == "col"
    call = tile_called(stage.layout, lanes, stored)
    keeps = keeping and stage.keeps
    from_memory, asks_all = not pack_a and not is_col, rows_first and not pack_b
    crowd = None if not rows_first else int(CROWD) * LINE if lanes > NARROW else 0
    walks, reads_a = pack_b or not rows_first, from_memory and rows_first
    copies = copy_b if lanes > NARROW else copy_rows
    stores = stored.needed
    # How far apart A is asked for, which has no gaps: kernels of AVX2 know no other distance than that of rows of B.
    gapless: Any = (lambda row, apart: row) if lanes > NARROW else T.min

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
        how: T.int32,
        store: T.handle,
        finish: T.int32,
    ):
        T.func_attr({"global_symbol": stage.symbol})
        A = T.match_buffer(a, (m * lda,), "float32", align=4)
        B = T.match_buffer(b, (k * ldb,), "float32", align=4)
        C = T.match_buffer(c, (m * ldc,), "float32", align=4)
        SA = T.match_buffer(scratch_a, (tile_m * tile_k,), "float32", align=4)
        SB = T.match_buffer(scratch_b, ((tile_k + 1) * tile_n,), "float32", align=4)
        width: T.let[T.int64] = vectors * lanes
        # Panels that B comes in are as wide as tiles are: one is as far from the next as the first two are.
        next_panel: T.let[T.int64] = place_of_b(width, T.int64(0), panel, panel_stride, ldb)
        asks_l1: T.let[T.bool] = T.bitwise_and(how, NEAR) != 0
        quiet: T.let[T.bool] = T.bitwise_and(how, QUIET) != 0
        shares: T.let[T.bool] = T.bitwise_and(how, SHARES) != 0
        trusts: T.let[T.bool] = T.bitwise_and(how, TRUSTS) != 0
        at_hand: T.let[T.bool] = T.Not(away(how)) if pack_b else T.bool(False)
        # Vectors of a B whose rows straddle lines wait for both, which hardware brings late.
        asks_for_own: T.let[T.bool] = T.Or(panel == ldb, T.And(asks_l1, T.truncmod(ldb, T.int64(LINE)) != 0))
        for jo in T.serial(T.truncdiv(end - first + tile_n - 1, tile_n)):
            j0: T.let[T.int64] = first + jo * tile_n
            nb: T.let[T.int64] = T.min(tile_n, end - j0)
            panels: T.let[T.int64] = T.truncdiv(nb + width - 1, width)
            whole: T.let[T.int64] = T.truncdiv(nb, width)
            for po in T.serial(T.max(T.truncdiv(k + tile_k - 1, tile_k), T.int64(1))):
                p0: T.let[T.int64] = po * tile_k
                kb: T.let[T.int64] = T.min(tile_k, k - p0)
                begun: T.let[T.int32] = T.Select(po > 0, T.int32(ADDS), T.bitwise_and(how, ADDS))
                finishing: T.let[T.int32] = T.Select(p0 + kb == k, finish, T.int32(0))
                ended: T.let[T.int32] = T.Select(p0 + kb == k, T.bitwise_and(how, STREAMS), T.int32(0))
                # Of a packed panel, no wider than its columns: what is between its rows would take up sets of L1.
                row: T.let[T.int64] = T.min(width, T.truncdiv(nb + lanes - 1, lanes) * lanes)
                stride: T.let[T.int64] = row * (kb + 1)  # one row more: panels do not start in the same cache sets
                apart: T.let[T.int64] = row if pack_b else ldb
                first_panel: T.let[T.int64] = place_of_b(j0, p0, panel, panel_stride, ldb)
                beside: T.let[T.int64] = place_of_b(j0 + nb, p0, panel, panel_stride, ldb)
                # Panels that L2 keeps are not asked for: what comes next are the rows of A, if dense. Short ones end
                # before the hardware has seen a stream: any first panel asks for those, and for all beside a B that
                # stays.
                stays: T.let[T.bool] = T.Or(at_hand, T.And(kb * nb <= STAYS, m > nb))
                kept: T.let[T.bool] = T.Or(panels == 1, stays) if rows_first else panels == 1
                # A last panel that is narrower would ask for less at a time, and so asks for nothing.
                asking: T.let[T.int64] = T.Select(kept, T.max(whole, T.int64(1)), T.int64(1))
                # Rounded down: one line in nine that is not asked for makes a tile take 1.6 times as long.
                asked_apart: T.let[T.int64] = gapless(row, apart)
                if pack_b:  # noqa: SIM102
                    if T.bitwise_and(how, FILLED) == 0:
                        if stage.pack_b == "copy":
                            copies(B, SB, ldb, p0, j0, kb, nb, width, row, stride)
                        else:
                            transpose_b(B, SB, ldb, p0, j0, kb, nb, width, row, stride)
                for io in T.serial(T.truncdiv(m + tile_m - 1, tile_m)):
                    i0: T.let[T.int64] = io * tile_m
                    mb: T.let[T.int64] = T.min(tile_m, m - i0)
                    tiles: T.let[T.int64] = T.truncdiv(mb + rows - 1, rows)
                    low: T.let[T.int64] = T.truncdiv(mb, tiles)
                    extra: T.let[T.int64] = mb - low * tiles
                    corner: T.let[T.int64] = p0 * lda + i0 if is_col else i0 * lda + p0
                    step: T.let[T.int64] = (tile_m if is_col else tile_k) + lanes if pack_a else lda
                    if pack_a:
                        T.evaluate(
                            T.call_extern(
                                "int32",
                                copy_a,
                                T.address_of(A[corner]),
                                T.address_of(SA[0]),
                                kb if is_col else mb,
                                mb if is_col else kb,
                                lda,
                                step,
                            )
                        )
                    # Divisions are for each band or panel: a tile of a short k takes no longer than a few of them.
                    keeps_any: T.let[T.bool] = T.And(T.bitwise_and(how, KEEPS) != 0, tiles >= int(KEPT_TILES))
                    sharing: T.let[T.int64] = T.Select(panels > 1, T.int64(1), tiles) if asks_all else tiles
                    asked: T.let[T.int64] = T.truncdiv(kb, sharing)
                    reads: T.let[T.bool] = T.Or(begun != 0, ended == 0)
                    many: T.let[T.bool] = walks_far(panels, m, kb)
                    owning: T.let[T.bool] = T.And(T.And(owns(how), ended == 0), T.And(ldc == nb, nb <= SHORT))
                    far: T.let[T.bool] = wants_next(how, begun, reads, many, owning, panels, m * nb, walks, rows_first)
                    # After the last panel comes the next step of k, or the first panel of what is beside this block.
                    leaves: T.let[T.bool] = T.And(p0 + kb >= k, T.And(i0 + tile_m >= m, j0 + nb < end))
                    down_k: T.let[T.int64] = T.Select(p0 + kb < k, kb, T.Select(leaves, -p0, T.int64(0)))
                    after_last: T.let[T.int64] = T.Select(leaves, beside, first_panel) + down_k * ldb
                    # A single tile waits for rows of B that lie apart, others find them.
                    found: T.let[T.bool] = T.Or(apart <= row, tiles > 1)
                    dense: T.let[T.bool] = T.And(leads(how), T.And(kb == step, found)) if from_memory else T.bool(False)
                    # Each panel asks for its part of as many rows as the tallest tile has.
                    tallest: T.let[T.int64] = low + T.Select(extra > 0, T.int64(1), T.int64(0))
                    often: T.let[T.int64] = T.max(T.truncdiv(STEP * asked_apart * asking, tallest), T.int64(STEP))
                    part: T.let[T.int64] = T.truncdiv(tallest * kb, asking)
                    # Tiles that lie alike are a run, unless each is stored, keeps B, or asks for the next A or a far C.
                    asks_itself: T.let[T.bool] = T.And(many, T.And(reads_a, T.Not(trusts))) if rows_first else keeps_any
                    singly: T.let[T.bool] = T.Or(T.Or(far, asks_itself), finishing != 0)
                    # The C of the next row tile is one run of lines, of which each panel asks for as many.
                    next_c: T.let[T.int64] = T.max(tallest * nb, T.int64(AHEAD))
                    part_c: T.let[T.int64] = T.truncdiv(tallest * nb + panels - 1, panels)
                    panel_on: T.let[T.int64] = stride if pack_b else next_panel
                    spare: T.let[T.int64] = kb - asked * tiles
                    # Over panels one of whole ones, but for a first one that asks for rows of A, and a last one.
                    comes: T.let[T.bool] = T.And(trusts, at_hand if pack_b else quiet)
                    alike: T.let[T.int64] = T.Select(T.Or(comes, T.And(dense, kept)), whole, T.min(whole, panels - 1))
                    leads_in: T.let[T.bool] = T.And(dense, T.Not(kept))
                    pays: T.let[T.bool] = T.And(T.Not(singly), (alike if rows_first else tiles) >= int(LEAST_RUN))
                    at = T.alloc_buffer((1,), "int64", scope="local")
                    outer: T.let[T.int64] = tiles if rows_first else panels
                    inner: T.let[T.int64] = panels if rows_first else tiles
                    for in_runs in T.unroll(2):
                        for x in T.serial(T.Select(T.Cast("int32", pays) == in_runs, outer, T.int64(0))):
                            at[0] = 0
                            while at[0] < inner:
                                y: T.let[T.int64] = at[0]
                                # Tiles go on to where they are a row less high, or ask for a row less.
                                even: T.let[T.int64] = T.Select(y < extra, extra, tiles)
                                over_tiles: T.let[T.int64] = T.Select(y < spare, T.min(even, spare), even) - y
                                in_run: T.let[T.int64] = (
                                    T.Select(T.And(y == 0, leads_in), T.int64(1), T.max(alike - y, T.int64(1)))
                                    if rows_first
                                    else over_tiles
                                )
                                count: T.let[T.int64] = T.Select(in_runs == 0, T.int64(1), in_run)
                                at[0] = y + count
                                t: T.let[T.int64] = y if rows_first else x
                                u: T.let[T.int64] = x if rows_first else y
                                j: T.let[T.int64] = j0 + t * width
                                wide: T.let[T.int64] = T.min(width, j0 + nb - j)
                                i: T.let[T.int64] = u * low + T.min(u, extra)
                                height: T.let[T.int64] = low + T.Select(u < extra, T.int64(1), T.int64(0))
                                origin: T.let[T.int64] = first_panel + t * next_panel
                                # A panel from outside L2 arrives while the tiles of the one before are computed.
                                ahead: T.let[T.int64] = T.Select(t + 1 < panels, origin + next_panel, after_last)
                                follows: T.let[T.int64] = T.Select(t + 1 < panels, t + 1, T.int64(0))
                                quick: T.let[T.bool] = T.And(height <= QUICK, T.Not(shares))
                                own: T.let[T.bool] = T.And(T.Or(tiles == 1, quick), asks_for_own)
                                shared: T.let[T.bool] = T.And(keeps_any, wide == width) if keeps else T.bool(False)
                                from_kept: T.let[T.bool] = T.And(shared, u > 0)
                                alone: T.let[T.bool] = T.bool(False) if pack_b else T.And(own, T.Not(shared))
                                near: T.let[T.bool] = T.And(alone, asks_l1)
                                share: T.let[T.int64] = T.int64(0) if rows_first else u * asked + T.min(u, spare)
                                passing: T.let[T.bool] = T.And(
                                    dense, T.Or(kept, T.And(t == 0, T.Or(kb <= SHORT, stays)))
                                )
                                if in_runs == 0 and far:
                                    goes_on: T.let[T.bool] = y + 1 < inner
                                    ask_for_next(
                                        C, i0, i, height, j0, j, width, goes_on, rows_first, ldc, how, store, finish
                                    )
                                if reads_a:  # noqa: SIM102
                                    if in_runs == 0 and many and not passing and not trusts:
                                        next_a: T.let[T.int64] = (
                                            corner + (i + height) * step + T.truncdiv(t * kb, panels)
                                        )
                                        ask(T.address_of(A[next_a]), height, T.truncdiv(kb, panels), step, False)
                                left: T.let[T.int64] = (0 if pack_a else corner) + (i if is_col else i * step)
                                right: T.let[T.int64] = t * stride if pack_b else origin
                                further: T.let[T.int64] = (
                                    follows * stride + share * row
                                    if pack_b
                                    else T.Select(
                                        alone, origin + T.Select(near, NEAR_ROWS, AHEAD_ROWS) * ldb, ahead + share * ldb
                                    )
                                )
                                later: T.let[T.int64] = corner + (i + height) * step + AHEAD + t * part
                                beyond: T.let[T.int64] = T.Select(passing, asked_apart, apart)
                                # A turn that asks takes longer, where pages are small, than a line that L2 has anyway.
                                has: T.let[T.bool] = T.Or(comes, T.And(quiet, alone))
                                rarely: T.let[T.int64] = T.Select(has, NEVER, STEP * sharing)
                                asked_by: T.let[T.int64] = T.Select(t < asking, often, NEVER)
                                every: T.let[T.int64] = T.Select(passing, asked_by, T.Select(near, T.int64(0), rarely))
                                place: T.let[T.int64] = (
                                    T.Select(finish == 2, first, (i0 + i) * ldc + j) if stores else (i0 + i) * ldc + j
                                )
                                as_wide: T.let[T.int64] = row if pack_b else T.Select(from_kept, width, ldb)
                                its_rows: T.let[T.int64] = asked + T.Select(u < spare, T.int64(1), T.int64(0))
                                down: T.let[T.int64] = height if is_col else height * step
                                shared_rows: T.let[T.int64] = T.Select(alone, T.int64(0), its_rows * apart)
                                rows_on: T.let[T.int64] = panel_on if rows_first else shared_rows
                                asks_on: T.let[T.int64] = T.Select(passing, part if rows_first else down, rows_on)
                                c_on: T.let[T.int64] = width if rows_first else height * ldc
                                for again in T.serial(count):
                                    if owning:
                                        rows_c: T.let[T.int64] = tallest if rows_first else height
                                        panel_c: T.let[T.int64] = t + again if rows_first else t
                                        on_c: T.let[T.int64] = next_c if rows_first else AHEAD + again * c_on
                                        next_at: T.let[T.int64] = (i0 + i) * ldc + j0 + on_c
                                        own_next(C, next_at, rows_c * nb, part_c, panel_c, how, crowd)
                                    at_a: T.let[T.int64] = left if rows_first else left + again * down
                                    at_b: T.let[T.int64] = right + again * panel_on if rows_first else right
                                    of_b: T.let[T.handle] = either(from_kept, SB[0], (SB if pack_b else B)[at_b])
                                    coming: T.let[T.handle] = either(
                                        passing,
                                        A[later + again * asks_on],
                                        (SB if pack_b else B)[further + again * asks_on],
                                    )
                                    call(
                                        T.address_of((SA if pack_a else A)[at_a]),
                                        of_b,
                                        T.address_of(C[place + again * c_on]),
                                        height,
                                        wide,
                                        kb,
                                        step,
                                        as_wide,
                                        ldc,
                                        T.bitwise_or(T.bitwise_or(begun, ended), T.bitwise_and(how, QUADS + PADDED)),
                                        coming,
                                        every,
                                        beyond,
                                        T.And(shared, u == 0) if keeps else False,
                                        T.address_of(SB[0]),
                                        finishing,
                                        store,
                                        i0 + i,
                                        j,
                                    )
        if lanes == NARROW:  # its kernels leave the upper halves of vector registers to it
            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.avx.vzeroupper"))

    return l1
