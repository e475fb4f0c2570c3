"""The shortest time that measured peak and bandwidths allow for a case. Pure functions.

The memory bound counts only traffic that no replacement policy can avoid. On warm operands a level and those inside it
may still hold as much as their capacity from the call before, so only what exceeds that capacity must come from the
level outside: far past the edge this is the bandwidth of the level where the case fits, at the edge it is continuous.
On cold operands every input byte comes from memory, while the output may stay in a cache until after the call.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from eval.suites import Measurable

# The peak is itself a measurement: it repeats within 1 %.
SHARE_TOLERANCE = 0.02


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """Capacity and bandwidths of one level, for all threads of the run together."""

    name: str
    capacity_bytes: int
    read_bytes_per_s: float
    copy_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Limits:
    """What this machine did with the run's number of threads: FMA peak, and bandwidths from the innermost level out."""

    peak_flops_per_s: float
    levels: tuple[MemoryLevel, ...]
    tiles: bool = False
    """Whether there is an instruction that does a tile's worth of narrow products: AMX."""

    def peak_of(self, dtype: str) -> float:
        """The most that an instruction in use multiplies and adds in this element type, in operations per second.

        A dot product by vectors does the work of two multiply-adds in bfloat16 and of four in int8, a tile of AMX 1024
        and 2048 operations a cycle where two multiply-adds do 64 (Intel Optimization Reference Manual, chapter on AMX).
        """
        times = {"bfloat16": 16, "int8": 32} if self.tiles else {"bfloat16": 2, "int8": 4}
        return self.peak_flops_per_s * times.get(dtype, 1)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Limits":
        levels = tuple(MemoryLevel(**level) for level in data["levels"])
        return Limits(data["peak_flops_per_s"], levels, data.get("tiles", False))


def better(one: Limits, other: Limits) -> Limits:
    """The higher figure of two measurements of one machine: interference only ever lowers them."""
    return Limits(
        max(one.peak_flops_per_s, other.peak_flops_per_s),
        tuple(
            MemoryLevel(
                a.name,
                a.capacity_bytes,
                max(a.read_bytes_per_s, b.read_bytes_per_s),
                max(a.copy_bytes_per_s, b.copy_bytes_per_s),
            )
            for a, b in zip(one.levels, other.levels, strict=True)
        ),
        one.tiles,
    )


class RooflineError(RuntimeError):
    """A system was faster than the machine allows: the timing, the peak or the case is wrong."""


def transfer_seconds(level: MemoryLevel, read: float, write: float) -> float:
    """Reads alone cannot pass the read bandwidth; together with writes they cannot pass the better of read and copy."""
    both = max(level.read_bytes_per_s, level.copy_bytes_per_s)
    return max(read / level.read_bytes_per_s, (read + write) / both)


def memory_seconds(case: Measurable, levels: Sequence[MemoryLevel], mode: str) -> float:
    if mode == "cold":
        return transfer_seconds(levels[-1], case.read_bytes, 0.0)
    bound, held = 0.0, 0
    for level in levels:
        beyond = max(0.0, 1.0 - held / case.footprint_bytes)
        bound = max(bound, transfer_seconds(level, beyond * case.read_bytes, beyond * case.write_bytes))
        held += level.capacity_bytes
    return bound


def roofline_seconds(case: Measurable, limits: Limits, mode: str) -> float:
    return max(case.least_flops / limits.peak_of(case.multiplied), memory_seconds(case, limits.levels, mode))


def roofline_share(case: Measurable, limits: Limits, mode: str, seconds: float) -> float:
    """How much of the roofline was reached; raises where it was passed by more than the tolerance."""
    share = roofline_seconds(case, limits, mode) / seconds
    if share > 1.0 + SHARE_TOLERANCE:
        raise RooflineError(
            f"{case}: {share:.2f} of the roofline in {seconds:.3e} s; a share above 1 is a measuring error"
        )
    return share
