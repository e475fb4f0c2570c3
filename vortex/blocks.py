"""Blocks of C that stay in L2 until all of k was added: what L1's CacheBuffer holds where tiles of AMX multiply.

Their products take a fifth of the time that those of vectors take, and what they wait for is L1: a micro-kernel over
all of k reads both operands from L2, one of few steps finds its panel of B in L1, where the row tile before it left it.
So k is cut short. The sums of a block of C wait in L2, beside the rows of A that are packed for it over all of k.
"""

from __future__ import annotations

WORD = 4
"""Bytes."""
SHARE = 0.5
"""Of L2 for the rows of A that are packed for blocks of C."""


def room_words(l2_bytes: float) -> float:
    """Words of A that are packed at a time for blocks of C."""
    return SHARE * l2_bytes / WORD


def block_bytes(rows: int, columns: int, depth: int, l2_bytes: float) -> float:
    """What L2 holds of a block of C, its columns of B in a step of k, and the room for A."""
    return WORD * (columns * (rows + depth) + room_words(l2_bytes))


def step_bytes(rows: int, width: int, depth: int) -> int:
    """What L1 holds of a register tile: what it reads in a step of k, and adds to."""
    return WORD * ((rows + width) * depth + rows * width)
