"""What is priced, as columns: the strategies of a library, and one call of it."""

from __future__ import annotations

from dataclasses import dataclass

from vortex.effects import Value


@dataclass(frozen=True)
class Strategies:
    """One column per field, one row per strategy, float32."""

    rows: Value
    vectors: Value
    width: Value
    registers: Value
    """Of its sums and the vectors of B, or the rows of A, that it multiplies at a time."""
    per_row: Value
    per_width: Value
    tile_m: Value
    tile_n: Value
    tile_k: Value
    per_tile_n: Value
    per_tile_k: Value
    rows_first: Value
    pack_a: Value
    pack_b: Value
    swap: Value
    """1 where the product is turned over: C^T = B^T A^T."""
    dot: Value
    """1 for the dot family."""
    held: Value
    """1 for the held family."""
    streamed: Value
    """1 for the streamed family."""
    plain: Value
    """1 where an unpacked, untransposed B (of the turned product: A^T) is accepted."""
    transposed: Value
    """1 where a transposed one is accepted."""
    prepacked: Value
    """1 where a packed operand is accepted."""


@dataclass(frozen=True)
class Problem:
    """One call: the shape, what kind of B it has, and how L2 cuts it."""

    m: Value
    n: Value
    k: Value
    a_is_col: Value
    plain: Value
    transposed: Value
    prepacked: Value
    spacing_a: Value
    """Lines of A as stored start on multiples of this many bytes within the span of L1's sets."""
    spacing_b: Value
    """The same for an unpacked B."""
    drift_a: Value
    """Bytes by which the next line of A as stored misses the place of the one before within the span of L1's sets."""
    drift_b: Value
    """The same for an unpacked B."""
    grid_m: Value
    grid_n: Value
    splits: Value
    """Parts that k is cut into: a task has one of them, and the results are added up in the end."""
    active: Value
    """Cores that work at the same time."""
    batch: Value
    """Products of this shape in one call; each is cut into the same grid."""
    items_a: Value
    """How many A's there are: fewer than products where several share one."""
    items_b: Value
    others: Value
    """Bytes of operands that other regions of the same call touch."""
