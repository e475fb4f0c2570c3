"""rKernel (paper section 4.2, Algorithm 1): an operator laid along the levels of the hardware, top-down.

Every level has the same form: parallel loops, temporal spatial loops, temporal reduction loops, and inside them
load, rKernel of the level below, store. What differs per level is which axes it loops over and how operands move.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from vortex.hardware import HardwareSpec, Level
from vortex.operators import Operator, Role


class Loop(Enum):
    """Loop types of section 4.2."""

    PARALLEL = "parallel"
    TEMPORAL_SPATIAL = "temporal_spatial"
    TEMPORAL_REDUCTION = "temporal_reduction"


class Move(Enum):
    """How operands reach (load) or leave (store) the tile of a level: the choices of Table 1, CPU rows."""

    NONE = "none"
    REGISTERS = "memory or CacheBuffer to registers"
    CACHE_BUFFER = "memory to CacheBuffer (pack)"
    MEMORY = "registers to memory"


@dataclass(frozen=True)
class RLevel:
    """One level of an rKernel: what Algorithm 1 needs to know to emit or to price it."""

    level: Level
    loops: tuple[tuple[str, Loop], ...]
    loads: tuple[Move, ...]
    compute: str
    store: Move

    def loop(self, axis: str) -> Loop:
        return dict(self.loops)[axis]

    @property
    def empirical(self) -> bool:
        return self.level.analysis == "empirical"


@dataclass(frozen=True)
class RKernel:
    """An operator on one device, level by level, innermost first."""

    operator: Operator
    hardware: HardwareSpec
    levels: tuple[RLevel, ...]


def decompose(operator: Operator, hardware: HardwareSpec) -> RKernel:
    """Lay `operator` along the levels: spatial axes in parallel at the outermost level, in time below it."""

    def loops(spatial: Loop) -> tuple[tuple[str, Loop], ...]:
        return tuple(
            (axis.name, Loop.TEMPORAL_REDUCTION if axis.role is Role.REDUCTION else spatial) for axis in operator.axes
        )

    l0, l1, l2 = (hardware.level(name) for name in ("L0", "L1", "L2"))
    return RKernel(
        operator,
        hardware,
        (
            RLevel(l0, loops(Loop.TEMPORAL_SPATIAL), (Move.REGISTERS,), "multiply-add", Move.MEMORY),
            RLevel(l1, loops(Loop.TEMPORAL_SPATIAL), (Move.NONE, Move.CACHE_BUFFER), "rKernel(L0)", Move.NONE),
            RLevel(l2, loops(Loop.PARALLEL), (Move.NONE,), "rKernel(L1)", Move.NONE),
        ),
    )
