"""rKernel (paper section 4.2, Algorithm 1): an operator laid along the levels of the hardware, top-down.

Every level has the same form: parallel loops, temporal spatial loops, temporal reduction loops, and inside them
load, rKernel of the level below, store. What differs per level is which axes it loops over and how operands move.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Generic

from typing_extensions import TypeVar

from vortex.axes import Role
from vortex.dtypes import WORDS, WordFormat
from vortex.gpu_hardware import GpuSpec
from vortex.hardware import HardwareSpec, Level
from vortex.operators import Operator


class Loop(Enum):
    """Loop types of section 4.2."""

    PARALLEL = "parallel"
    TEMPORAL_SPATIAL = "temporal_spatial"
    TEMPORAL_REDUCTION = "temporal_reduction"


class Move(Enum):
    """How operands reach (load) or leave (store) the tile of a level: the choices of Table 1."""

    NONE = "none"
    REGISTERS = "memory or CacheBuffer to registers"
    CACHE_BUFFER = "memory to CacheBuffer (pack)"
    MEMORY = "registers to memory"
    GLOBAL_TO_REGISTERS = "global memory to registers"
    SHARED_TO_REGISTERS = "shared memory to registers"
    GLOBAL_TO_SHARED = "global to shared memory"
    REGISTERS_TO_GLOBAL = "registers to global memory"
    REGISTERS_TO_SHARED = "registers to shared memory, and on to global"


@dataclass(frozen=True)
class RLevel:
    """One level of an rKernel: what Algorithm 1 needs to know to emit or to price it."""

    level: Level
    loops: tuple[tuple[str, Loop], ...]
    """Outermost first. On a GPU an axis has several: of a warp's rows, lanes share some and each repeats others."""
    loads: tuple[Move, ...]
    compute: str
    stores: tuple[Move, ...]

    def loop(self, axis: str) -> Loop:
        """The outermost loop of an axis."""
        return next(loop for name, loop in self.loops if name == axis)

    @property
    def empirical(self) -> bool:
        return self.level.analysis == "empirical"


H = TypeVar("H", HardwareSpec, GpuSpec, default=HardwareSpec)


@dataclass(frozen=True)
class RKernel(Generic[H]):
    """An operator on one device, level by level, innermost first."""

    operator: Operator
    hardware: H
    levels: tuple[RLevel, ...]

    @property
    def words(self: RKernel[HardwareSpec]) -> WordFormat | None:
        """How the operands of a product reach the multiplier of a CPU; None as they are, float32."""
        weights, words = getattr(self.operator, "weights", None), self.hardware.words(self.operator.dtype)
        return WORDS[f"{words.name if words else 'float32'} by {weights}"] if weights else words


def decompose(operator: Operator, hardware: H) -> RKernel[H]:
    """Lay `operator` along the levels of a device."""
    levels = gpu_levels if isinstance(hardware, GpuSpec) else cpu_levels
    return RKernel(operator, hardware, levels(operator, *(hardware.level(name) for name in ("L0", "L1", "L2"))))


def reuses(operator: Operator) -> bool:
    """Whether an element of some input enters several outputs: an axis of the loops does not index it."""
    axes = {axis.name for axis in operator.axes}
    return any(axes - set(operand.axes) for operand in operator.inputs)


def cpu_levels(operator: Operator, l0: Level, l1: Level, l2: Level) -> tuple[RLevel, ...]:
    """Spatial axes in parallel at the outermost level, in time below it; those of a batch are there alone.

    What is used once is worth no buffer. Its reduction is cut into chunks at the outermost level too, with a second
    reduction over their results; and in a register tile its steps go by for all outputs before the next few.
    """

    def loops(spatial: Loop, reduction: Loop = Loop.TEMPORAL_REDUCTION) -> tuple[tuple[str, Loop], ...]:
        return tuple(
            (axis.name, reduction if axis.role is Role.REDUCTION else spatial)
            for axis in operator.axes
            if spatial is Loop.PARALLEL or axis.role is not Role.BATCH
        )

    below, alone = loops(Loop.TEMPORAL_SPATIAL), (Move.NONE,)
    if reuses(operator):
        return (
            RLevel(l0, below, (Move.REGISTERS,), "multiply-add", (Move.MEMORY,)),
            RLevel(l1, below, (Move.NONE, Move.CACHE_BUFFER), "rKernel(L0)", alone),
            RLevel(l2, loops(Loop.PARALLEL), alone, "rKernel(L1)", alone),
        )
    innermost = tuple(sorted(below, key=lambda loop: loop[1] is Loop.TEMPORAL_REDUCTION))
    return (
        RLevel(l0, innermost, (Move.REGISTERS,), "combine", (Move.MEMORY,)),
        RLevel(l1, below, alone, "rKernel(L0)", alone),
        RLevel(l2, loops(Loop.PARALLEL, Loop.PARALLEL), alone, "rKernel(L1), then one over the chunks", alone),
    )


def gpu_levels(operator: Operator, l0: Level, l1: Level, l2: Level) -> tuple[RLevel, ...]:
    """Spatial axes in parallel at every level (blocks, warps, lanes), and in time below the lanes.

    The reduction runs in time over stages and steps. The skinny family also shares it among the warps of a block, and
    the grid among blocks when the output alone has too few. Products of a batch are layers of the grid. What is used
    once goes to registers without a stage; its reduction is shared out at every level, and what parts gave is combined.
    """

    def every(role: Role, loop: Loop) -> tuple[tuple[str, Loop], ...]:
        return tuple((axis.name, loop) for axis in operator.axes if axis.role is role)

    side_by_side = every(Role.SPATIAL, Loop.PARALLEL)
    layers = every(Role.BATCH, Loop.PARALLEL)
    shared_out = every(Role.REDUCTION, Loop.PARALLEL)
    step_by_step = every(Role.REDUCTION, Loop.TEMPORAL_REDUCTION)
    repeated = every(Role.SPATIAL, Loop.TEMPORAL_SPATIAL)
    if not reuses(operator):
        lanes, alone = (*shared_out, *side_by_side, *step_by_step), (Move.NONE,)
        to_registers, stored = (Move.GLOBAL_TO_REGISTERS,), (Move.REGISTERS_TO_GLOBAL, Move.REGISTERS_TO_SHARED)
        return (
            RLevel(l0, (*lanes, *repeated), to_registers, "combine", stored),
            RLevel(l1, (*shared_out, *side_by_side), alone, "rKernel(L0), then what its warps gave", alone),
            RLevel(l2, (*shared_out, *side_by_side), alone, "rKernel(L1), then one over the chunks", alone),
        )
    loads = (Move.SHARED_TO_REGISTERS, Move.GLOBAL_TO_REGISTERS)
    stores = (Move.REGISTERS_TO_GLOBAL, Move.REGISTERS_TO_SHARED)
    staged = (Move.GLOBAL_TO_SHARED, Move.NONE)
    return (
        RLevel(l0, (*step_by_step, *side_by_side, *repeated), loads, "multiply-add", stores),
        RLevel(l1, (*shared_out, *side_by_side, *step_by_step), staged, "rKernel(L0)", (Move.NONE,)),
        RLevel(l2, (*layers, *shared_out, *side_by_side), (Move.NONE,), "rKernel(L1)", (Move.NONE,)),
    )
