"""Lines of C that the held family asks for before it stores to them: sums that reach into one wait for it to come, and
hardware follows the rows of A alone.
"""

from collections.abc import Callable
from typing import Any

from tvm.script import tirx as T

from vortex.candidates import HELD_ROWS
from vortex.codegen.cpu_tile import INTO_L2, LINE, NEAR, fetch

LINE_BYTES = 4 * LINE
OWNED_BYTES, OWNED_ROWS = 4096, 64
"""How far ahead a line is asked for into L1, at least so many bytes and so many rows (one core of a Zen 5 with and
without: 1430124 x 14 x 6 2.5 and 5.4 ms, 334863 x 16 x 16 0.94 and 1.25). Not where it is near: 50515 x 12 x 8 takes a
twentieth longer so."""
WIDE = 2048
"""Bytes from row to row from which on L2 would not keep what a block of rows asks for below it."""


def own(place: Callable[[int, Any], Any], stride: Any, count: int, lanes: int, item: int, how: Any) -> None:
    """Ask for the lines of `count` rows that come, each once, unless `how` says that they are near; `place` is the
    address so many elements on from a row, of `item` bytes, and rows are `stride` of them apart.

    Vectors that are lines ask into L2 if it says so, where more of them are waited for at a time than the two dozen of
    L1 (a core of a Zen 4, ms by L1 and so: 334863 x 52 x 2 8.3 and 4.4, 56944 x 121 x 8 2.4 and 1.6, 232965 x 41 x 8
    3.7 and 2.4; by AVX2's half lines nothing is gained there).
    """
    several = max(1, LINE_BYTES // (lanes * item))
    below = T.max(T.int64(OWNED_BYTES // item), OWNED_ROWS * stride)

    def into_l1() -> None:
        for i in range(0, count, several):
            T.evaluate(fetch(place(i, below), write=1))

    with T.If(T.bitwise_and(how, NEAR) == 0), T.Then():
        if several > 1:
            into_l1()
            return
        with T.If(T.bitwise_and(how, INTO_L2) == 0):
            with T.Then():
                into_l1()
            with T.Else():
                for i in range(count):
                    T.evaluate(fetch(place(i, far(stride, lanes, item)), cache=2))


def far(stride: Any, lanes: int, item: int) -> Any:
    """Elements from a row to the line that it asks for: of the next block of rows, or of wide ones of the next vector.
    The line in which a vector ends: where rows straddle lines, it begins in one that the vector before it has."""
    return T.Select(stride >= WIDE // item, T.int64(lanes), HELD_ROWS * stride) + (lanes - 1)
