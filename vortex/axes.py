"""The axes of an operator, what is known of their extents, and how its operands lie along them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any, ClassVar

from vortex.dtypes import ITEM_BYTES
from vortex.errors import ShapeError


class Role(Enum):
    """How an axis enters the result."""

    SPATIAL = "spatial"
    BATCH = "batch"
    """Products side by side: cut at the outermost level alone."""
    REDUCTION = "reduction"


@dataclass(frozen=True)
class Axis:
    """One loop axis; its extent is known at run time."""

    name: str
    role: Role


MOST_EXTENT = 1 << 40
"""Extents are smaller."""
BETWEEN_POINTS = 9


@dataclass(frozen=True)
class Hint:
    """Extents that calls are expected to have, each with a weight. It chooses kernels; no other extent is refused."""

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise ShapeError("a hint without extents: expected one at least, as in often({1: 0.9, 128: 0.1})")
        for extent, weight in self.points:
            _check_extent(extent, "a hint")
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
                raise ShapeError(f"a hint weighs extent {extent} by {weight!r}: expected a positive number")

    def settings(self) -> list[list[float]]:
        """The points as JSON knows them."""
        return [[extent, weight] for extent, weight in self.points]

    @classmethod
    def rebuilt(cls, points: list[list[float]]) -> Hint:
        return cls(tuple((int(extent), weight) for extent, weight in points))


def between(low: int, high: int) -> Hint:
    """Any extent from `low` to `high`, both included, by their order of magnitude: a hint."""
    for extent in (low, high):
        _check_extent(extent, f"between({low!r}, {high!r})")
    if low > high:
        raise ShapeError(f"between({low}, {high}): expected the smaller extent first")
    steps = BETWEEN_POINTS - 1
    return Hint(
        tuple((extent, 1.0) for extent in sorted({round(low * (high / low) ** (i / steps)) for i in range(steps + 1)}))
    )


def often(weights: Mapping[int, float]) -> Hint:
    """These extents, as often as the weights say: a hint."""
    return Hint(tuple(sorted(weights.items())))


Extent = int | Hint | None
"""Fixed, expected, or unknown."""


def check_extent(name: str, extent: Extent) -> None:
    """Refuse what an operator cannot be told about an axis."""
    if extent is not None and not isinstance(extent, Hint):
        _check_extent(extent, f"{name}={extent!r}")


def _check_extent(extent: Any, where: str) -> None:
    if not isinstance(extent, int) or isinstance(extent, bool) or not 1 <= extent < MOST_EXTENT:
        raise ShapeError(
            f"{where}: {extent!r} is no extent; expected a whole number of at least 1, between(low, high), "
            "often({extent: weight}), or nothing where any extent may come"
        )


def extents(operator: Any) -> dict[str, Extent]:
    """What an operator knows of the extents of its axes: fields of the same names."""
    return {axis.name: getattr(operator, axis.name, None) for axis in operator.axes}


def fixed(operator: Any) -> dict[str, int]:
    """The extents that every call has."""
    return {name: extent for name, extent in extents(operator).items() if isinstance(extent, int)}


@dataclass(frozen=True)
class Access:
    """An operand and the axes that index it, outermost first."""

    operand: str
    axes: tuple[str, ...]

    def elements(self, tile: Mapping[str, int]) -> int:
        """Elements of this operand that one tile touches."""
        return prod(tile[axis] for axis in self.axes)


class OverAxes:
    """What follows from the axes of an operator, its element type and how its operands lie along them."""

    operations: ClassVar[int] = 2
    """For each element of the loop nest: a multiplication and an addition."""
    dtype: str

    @property
    def axes(self) -> tuple[Axis, ...]:
        raise NotImplementedError

    @property
    def inputs(self) -> tuple[Access, ...]:
        raise NotImplementedError

    @property
    def output(self) -> Access:
        raise NotImplementedError

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def storage(self) -> str:
        """What the operands are in memory: float32 where the multiplier rounds it to tfloat32."""
        return "float32" if self.dtype == "tfloat32" else self.dtype

    def flops(self, tile: Mapping[str, int]) -> int:
        """Operations of one tile (or of the whole shape); rows that groups share out are counted once."""
        reduced = (axis.name for axis in self.axes if axis.role is Role.REDUCTION)
        return self.operations * prod(tile[name] for name in (*self.output.axes, *reduced))

    def bytes(self, tile: Mapping[str, int]) -> int:
        """Bytes of every operand that one tile touches, each place along its axes counted once."""
        return self.item_bytes * sum(access.elements(tile) for access in (*self.inputs, self.output))
