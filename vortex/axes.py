"""The axes of an operator and how its operands lie along them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


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


@dataclass(frozen=True)
class Access:
    """An operand and the axes that index it, outermost first."""

    operand: str
    axes: tuple[str, ...]

    def elements(self, tile: Mapping[str, int]) -> int:
        """Elements of this operand that one tile touches."""
        count = 1
        for axis in self.axes:
            count *= tile[axis]
        return count
