"""Operands of many products as Python sees them: packed ones, results, and how refusals of the native door read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vortex.errors import ShapeError, VortexError
from vortex.operands import REASONS, TRANSPOSE_A, TRANSPOSE_B, Refusal, described

BATCH_REASONS: tuple[Refusal, ...] = (
    REASONS[0],
    (
        ShapeError,
        "has the wrong rank",
        "pass matrices along at most two batch axes; grouped operands have the one of b",
    ),
    *REASONS[2:12],
    (
        ShapeError,
        "has batch axes that do not fit those of the other operands",
        "make each equal to theirs, or 1; `out` has the larger, and grouped b as many matrices as there are groups",
    ),
    (ShapeError, "do not divide the rows of a", "pass one whole number of at least 0 for each group, all rows in sum"),
)
"""In the order of the numbers of runtime/door.h."""
PLACES = ("a", "b", "out", "rows")
MOST_RANK = 4


@dataclass(frozen=True, eq=False)
class PackedMatrices:
    """Constant B's, laid out once for one library: [..., elements of the panels of one].

    Few columns need no panels: then matrices with rows on cache lines, [..., k, n], or [..., n, k] if `transposed`.
    """

    data: npt.NDArray[np.float32]
    batch: tuple[int, ...]
    n: int
    k: int
    identity: str
    transposed: bool

    @property
    def has_panels(self) -> bool:
        return self.data.ndim == len(self.batch) + 1

    @property
    def shape(self) -> tuple[int, ...]:
        return *self.batch, self.k, self.n

    def __repr__(self) -> str:
        return f"PackedMatrices(batch={self.batch}, n={self.n}, k={self.k}, library={self.identity[:12]})"


def whole_numbers(rows: Any) -> npt.NDArray[np.int64]:
    counts = np.asarray(rows)
    if counts.ndim != 1 or (counts.size and counts.dtype.kind not in "iu"):
        raise ShapeError(f"rows={rows!r}: expected one whole number of at least 0 for each group")
    return np.ascontiguousarray(counts, np.int64)


def matrix_extents(operand: Any, name: str) -> tuple[int, ...]:
    try:
        shape = tuple(operand.shape)
    except (AttributeError, TypeError, RuntimeError) as error:
        kind, _, remedy = BATCH_REASONS[0]
        raise kind(f"{name} is a {type(operand).__name__}; expected a tensor; {remedy}") from error
    if not 2 <= len(shape) <= MOST_RANK:
        raise ShapeError(
            f"{name} has shape {shape}; expected 2 to {MOST_RANK} dimensions; reshape or index the operand"
        )
    return shape


def product_shape(a: Any, b: Any, flags: int) -> tuple[int, ...]:
    left, right = matrix_extents(a, "a"), matrix_extents(b, "b")
    m = left[-1 if flags & TRANSPOSE_A else -2]
    n = right[-2 if flags & TRANSPOSE_B and type(b) is not PackedMatrices else -1]
    if left[:-2] == right[:-2]:
        return *left[:-2], m, n
    try:
        return *np.broadcast_shapes(left[:-2], right[:-2]), m, n
    except ValueError as error:
        kind, problem, remedy = BATCH_REASONS[12]
        raise kind(f"b ({described(b)}) {problem}; given a {described(a)}; {remedy}") from error


def refusal(status: int, a: Any, b: Any, out: Any) -> VortexError:
    kind, problem, remedy = BATCH_REASONS[(status & 0xFF) - 1]
    place = status >> 8
    given = {"a": a, "b": b, "out": out}
    shapes = ", ".join(f"{name} {described(operand)}" for name, operand in given.items())
    name = PLACES[place]
    about = f"{name} ({described(given[name])})" if name in given else name
    return kind(f"{about} {problem}; given {shapes}; {remedy}")
