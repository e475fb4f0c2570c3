"""Reduction as an operator: its axes, its view of a tensor, and its reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, ClassVar, Literal

from vortex.axes import Access, Axis, OverAxes, Role
from vortex.errors import DtypeError, ShapeError, UnknownNameError

KINDS = ("sum", "max", "mean")


@dataclass(frozen=True)
class Reduce(OverAxes):
    """out[outer, inner] = sum, maximum or mean of x[outer, depth, inner] over depth, every extent dynamic.

    A tensor of any rank, reduced over neighbouring axes, is such an x: `outer` is all axes before them, `inner` all
    after. Not-a-number anywhere in a sum, maximum or mean makes it not a number, as in NumPy.
    """

    operations: ClassVar[int] = 1
    kind: Literal["sum", "max", "mean"] = "sum"
    dtype: Literal["float32"] = "float32"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UnknownNameError(f"Reduce(kind={self.kind!r}): expected one of {', '.join(map(repr, KINDS))}")
        if self.dtype != "float32":
            raise DtypeError(f"Reduce(dtype={self.dtype!r}): expected 'float32'; cast the operand")

    @property
    def name(self) -> str:
        return "reduce"

    @property
    def axes(self) -> tuple[Axis, ...]:
        return Axis("outer", Role.SPATIAL), Axis("depth", Role.REDUCTION), Axis("inner", Role.SPATIAL)

    @property
    def inputs(self) -> tuple[Access, ...]:
        return (Access("x", ("outer", "depth", "inner")),)

    @property
    def output(self) -> Access:
        return Access("out", ("outer", "inner"))

    def reference(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        """The operator in NumPy, in float64. The mean of nothing is not a number."""
        import numpy as np

        with np.errstate(all="ignore"):
            wide = np.asarray(x, np.float64)
            if self.kind == "max":
                return np.max(wide, axis=axis, keepdims=keepdims)
            total = np.sum(wide, axis=axis, keepdims=keepdims)
            return total if self.kind == "sum" else total / np.float64(wide.size / max(1, total.size))


def normalized_axes(axis: Any, rank: int) -> tuple[int, ...]:
    """Axes counted from the front, in order: all of them for None. Raises ShapeError."""
    if axis is None:
        return tuple(range(rank))
    given = axis if isinstance(axis, Sequence) and not isinstance(axis, str) else (axis,)
    try:
        counted = [index(each) for each in given]
    except TypeError:
        counted = [rank]
    if any(not -rank <= each < rank for each in counted):
        raise ShapeError(
            f"axis={axis!r}: expected None, a whole number from {-rank} to {rank - 1} or a sequence of them"
        )
    found = sorted(each % rank for each in counted)
    if len(set(found)) != len(found):
        raise ShapeError(f"axis={axis!r}: an axis is given twice; name each once")
    return tuple(found)


def neighbours(axes: Sequence[int]) -> list[tuple[int, int]]:
    """Sorted axes as runs of neighbours: (first, one past the last)."""
    runs: list[tuple[int, int]] = []
    for axis in axes:
        if runs and runs[-1][1] == axis:
            runs[-1] = (runs[-1][0], axis + 1)
        else:
            runs.append((axis, axis + 1))
    return runs
