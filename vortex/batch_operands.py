"""Operands of many products as Python sees them: packed ones, results, and how refusals of the native door read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vortex.errors import ShapeError, VortexError
from vortex.operands import REASONS, TRANSPOSE_A, TRANSPOSE_B, Refusal, described
from vortex.stored import WRONG_DTYPE, Stored

MANY_SHAPES = "[n] or [..., n]", "[m] or [..., m]", "[m, n] or [..., m, n]"
"""Of what an epilogue reads per column, per row, per element, in the words of a refusal."""
OF_MANY: dict[int, Refusal] = {
    2: (
        ShapeError,
        "has the wrong rank",
        "pass matrices along at most two batch axes; grouped operands have the one of b",
    ),
    14: (ShapeError, "does not fit the output", f"pass {', '.join(MANY_SHAPES)} for per column, per row, per element"),
}
"""Refusals that read otherwise than those of one product, by their numbers."""
MOST_RANK = 4
BATCH_DIFFERS = 19
"""The number of a refusal, see runtime/products.h."""
ROWS = 7
"""The place of a refused operand that is no tensor of the product, see runtime/door.h."""


@dataclass(frozen=True, eq=False)
class PackedMatrices:
    """Constant B's, laid out once for one library: [..., elements of the panels of one].

    Few columns need no panels: then matrices with rows on cache lines, [..., k, n], or [..., n, k] if `transposed`.
    """

    data: npt.NDArray[Any]
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
        kind, _, remedy = REASONS[0]
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
        kind, problem, remedy = REASONS[BATCH_DIFFERS - 1]
        raise kind(f"b ({described(b)}) {problem}; given a {described(a)}; {remedy}") from error


def refusal(status: int, a: Any, b: Any, out: Any, stage: Stored, extras: tuple[Any, ...]) -> VortexError:
    number, place = status & 0xFF, status >> 8
    kind, problem, remedy = OF_MANY.get(number, REASONS[number - 1])
    given = {"a": a, "b": b, "out": out, **dict(zip(stage.names, extras, strict=True))}
    shapes = ", ".join(f"{name} {described(operand)}" for name, operand in given.items())
    name = "rows" if place == ROWS else list(given)[place]
    if number == WRONG_DTYPE:
        remedy = f"{name} is {stage.dtypes[place]} in this library; cast the operand"
    about = f"{name} ({described(given[name])})" if name in given else name
    return kind(f"{about} {problem}; given {shapes}; {remedy}")
