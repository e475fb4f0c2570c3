"""Sums of the lanes of many vectors at once: two vectors become one with the half sums of both, until one is left.

A third of the instructions of a vector at a time. Each sum adds the same lanes in the same order however many there
are: the upper half of a vector to the lower one, then the upper quarter, and so on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

QUARTER = 4
"""Lanes of 128 bits: within them, or of all in multiples of them, x86 shuffles two vectors without a table."""


def fold(partial: tirx.Buffer, count: Any, lanes: int) -> None:
    """Add up the lanes of each of the `count` vectors in partial[count, lanes]; `folded` tells where the sums are."""
    for width, most, half in _halvings(count, lanes):
        with T.unroll(half) as at:
            left, right = (partial[vector, T.ramp(0, 1, lanes)] for vector in (at, T.min(at + half, most - 1)))
            T.buffer_store(partial, _halves_added(left, right, width, lanes), [at, T.ramp(0, 1, lanes)])


def folded(vector: Any, lane: int, count: Any, lanes: int) -> tuple[Any, Any]:
    """Which sum is in this lane of this vector after `fold`, and whether one is: a sum may be there twice.

    The way back is a sum of products: the way there, a choice at each halving, takes TVM's analyses minutes.
    """
    number, there = vector, T.bool(True)
    for width, most, half in reversed(_halvings(count, lanes)):
        block = _block(width, lanes)
        right, inside = divmod(lane % block, block // 2)
        lane += 2 * inside - lane % block
        if right:
            number = number + half
            there = T.And(there, number < most)
    return number, there


def store_folded(
    target: tirx.Buffer,
    partial: tirx.Buffer,
    count: Any,
    columns: Any,
    lanes: int,
    value: Callable[[Any, Any, Any], Any] = lambda found, i, j: found,
) -> None:
    """target[i, j] = value(sum, i, j) for the `count` sums that `fold` left in `partial`, `columns` in a row."""
    with T.unroll(T.truncdiv(count + lanes - 1, lanes)) as vector:
        for lane in range(lanes):
            number, there = folded(vector, lane, count, lanes)
            at = [T.truncdiv(number, columns), T.truncmod(number, columns)]
            with T.If(there), T.Then():
                T.buffer_store(target, value(partial[vector, lane], *at), at)


def _halvings(count: Any, lanes: int) -> list[tuple[int, Any, Any]]:
    """Of each halving: lanes that one sum has in a vector before it, and vectors before and after it."""
    steps = []
    for halved in range(lanes.bit_length() - 1):
        half = T.truncdiv(count + 1, 2)
        steps.append((lanes >> halved, count, half))
        count = half
    return steps


def _block(width: int, lanes: int) -> int:
    """Lanes within which groups of `width` lanes are moved."""
    return lanes if width > QUARTER else QUARTER


def _halves_added(left: Any, right: Any, width: int, lanes: int) -> Any:
    """The halves of each group of `width` lanes added; in every block those of `left`, then those of `right`."""
    block = _block(width, lanes)
    lower = [
        vector + lane
        for at in range(0, lanes, block)
        for vector in (0, lanes)
        for lane in range(at, at + block)
        if lane % width < width // 2
    ]
    return T.Shuffle([left, right], lower) + T.Shuffle([left, right], [lane + width // 2 for lane in lower])
