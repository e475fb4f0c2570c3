"""What a nest asks for before a register tile needs it: C of the next one, where sums come from outside L2."""

from typing import Any

from tvm.script import tirx as T

from vortex.codegen.cpu_tile import AWAY, FAR_C, INTO_L2, LEADS, LINE, OWNS, fetch_dense
from vortex.rates import FETCHED_AHEAD, FETCHED_TILE, MISSES

ASK_SYMBOL, ASK_STORED_SYMBOL = "vortex_ask", "vortex_ask_stored"
"""Of `runtime/ahead.c`."""
FAR, LONG = T.int64(1 << 18), T.int64(64)
"""Elements of what a nest walks over of A, in so many steps of k, or of a C that is added to, from which on tiles ask
for C of the next one. With A 8448x3000x2816 went from 77 to 82 GFLOP/s and 3072x1500x128 from 73 to 82 on a Zen 3, the
second from 103 to 108 and 20000x256x64 from 80 to 95 on a Zen 4; where L2 keeps A nothing is gained, and a Zen 3 loses
2 to 3 %. With it, and shares of A that whole panels of row tiles ask for, 403394x64x96 took 45 to 47 ms on a Zen 3, not
52 to 61. With C, on a Zen 5: two steps of k of 1440x2400x768 by 14 x 32 from 22.0 to 20.6 ms."""

SHORT, AHEAD = int(FETCHED_AHEAD), int(FETCHED_TILE) // 4
WAITED_FOR = int(MISSES) * LINE
"""Elements that a tile may ask for into the first cache: with more, it waits itself."""


@T.inline
def ask(first: Any, rows: Any, columns: Any, stride: Any, near: Any) -> None:
    """Ask for `rows` x `columns` elements: into L1 if `near`, else L2."""
    T.evaluate(T.call_extern("int32", ASK_SYMBOL, first, rows, columns, stride, T.Cast("int32", near)))


@T.inline
def own_lines(C: Any, place: Any, count: Any, how: Any) -> None:
    """Rows of C that follow each other: their lines are owned before they are stored to, or come into L2."""
    owned: T.let[T.bool] = T.And(count <= WAITED_FOR, T.bitwise_and(how, INTO_L2) == 0)
    fetch_dense(C, place, count, LINE, owned, 1)


@T.inline
def own_next(C: Any, place: Any, count: Any, part: Any, panel: Any, how: Any, crowd: int | None) -> None:
    """Of the `count` elements that are written next: with the first panel all, or of more than a crowd a `part` with
    each."""
    if crowd == 0:  # noqa: SIM114 - known before the nest runs, what comes next is not
        own_lines(C, place + panel * part, part, how)
    elif crowd is not None and count > crowd:
        own_lines(C, place + panel * part, part, how)
    elif panel == 0:
        own_lines(C, place, count, how)


@T.inline
def ask_for_next(
    C: Any,
    i0: Any,
    i: Any,
    height: Any,
    j0: Any,
    j: Any,
    width: Any,
    goes_on: Any,
    rows_first: Any,
    ldc: Any,
    how: Any,
    store: Any,
    finish: Any,
) -> None:
    """C of the tile after the one at (i0 + i, j): of this band or panel if it `goes_on`, or the first of the next; of
    what sums are stored to, where micro-kernels finish them."""
    down: T.let[T.bool] = T.Not(goes_on) if rows_first else goes_on
    below: T.let[T.int64] = T.Select(down, i + height, i if rows_first else T.int64(0))
    beside: T.let[T.int64] = T.Select(down, j0 if rows_first else j, j + width)
    near: T.let[T.bool] = T.bitwise_and(how, INTO_L2) == 0
    if finish == 2:
        into: T.let[T.int32] = T.Cast("int32", near)
        T.evaluate(T.call_extern("int32", ASK_STORED_SYMBOL, store, i0 + below, beside, height, width, into))
    else:
        ask(T.address_of(C[(i0 + below) * ldc + beside]), height, width, ldc, near)


def leads(how: Any) -> Any:
    """Whether the rows of A that follow those of a tile are asked for."""
    return T.bitwise_and(how, LEADS) != 0


def owns(how: Any) -> Any:
    """Whether short rows of C are, before they are stored to."""
    return T.bitwise_and(how, OWNS) != 0


def away(how: Any) -> Any:
    """Whether the block of B that is packed is more than L2 has room for."""
    return T.bitwise_and(how, AWAY) != 0


def wants_next(
    how: Any, begun: Any, reads: Any, walked: Any, owning: Any, panels: Any, outputs: Any, walks: bool, rows_first: bool
) -> Any:
    """Whether tiles ask for C of the next one: of a nest that `walks` where a far part of A is `walked` over, or sums
    are added to so many `outputs` of several panels that these are far; of any where `how` says that all of C is,
    unless it is `owning` the rows that come."""
    anywhere = T.And(T.And(reads, T.bitwise_and(how, FAR_C) != 0), T.Not(owning))
    if not walks:
        return anywhere
    sums = T.Or(adds_far(begun, panels, outputs), T.And(reads, walked))
    # Outermost row tiles that own the rows of C that follow have asked for those of the next one.
    return T.Or(anywhere, T.And(T.Not(owning), sums) if rows_first else sums)


def walks_far(panels: Any, m: Any, depth: Any) -> Any:
    """Whether L2 has no room for the A that several panels are made of, in steps of k that are not few."""
    return T.And(panels > 1, T.And(depth >= LONG, m * depth >= FAR))


def adds_far(begun: Any, panels: Any, outputs: Any) -> Any:
    """Whether sums of so many panels are added to a C that L2 has no room for."""
    return T.And(panels > 1, T.And(begun != 0, outputs >= FAR))
