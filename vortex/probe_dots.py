"""Dot instructions that a processor may have: how they are found, and what a spec says of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vortex.machine import Machine

Rates = Mapping[str, tuple[float, float]]
"""What `probe.c` prints: name -> (one core alone, all cores together), per second; `hand_off` in seconds."""


NOISE = 0.3
"""Of a cycle, by which the clock may have moved between two measurements. All else only slows what is measured: another
guest's thread on the same core takes half of its multiply-adds."""


def clock_of(rates: Rates) -> float:
    """Cycles of scalar code a second, at least: no core starts more than two multiply-adds in one, or ends one within
    less than four (uops.info: Haswell to Golden Cove, Zen to Zen 5)."""
    return max(rates["clock"][0], rates["fma"][0] / 2, 4 * rates["fma_chain"][0])


def starts_a_cycle(rate: float) -> int:
    """Instructions that begin in a cycle, of which `rate` were seen to."""
    return max(1, math.ceil(rate - NOISE))


def latency_cycles(seen: float, most: float) -> int:
    """Cycles from one link of a chain to the next; `most` leave enough registers for as many accumulators."""
    return max(1, min(math.floor(seen + NOISE), int(most)))


@dataclass(frozen=True)
class Dot:
    """A dot instruction that a processor may have, and the CPU flags that say so: the last is its own."""

    name: str
    dtype: str
    flags: tuple[str, ...]
    rows: int = 1
    """Of a tile of AMX, which has as many words of depth."""

    @property
    def measured(self) -> str:
        """What `probe.c` calls its rate."""
        return f"{self.dtype}_tiles" if self.rows > 1 else self.dtype

    def is_in(self, machine: Machine) -> bool:
        return machine.flags >= set(self.flags) and machine.lanes == 16


DOTS = {
    "b": Dot("vdpbf16ps-zmm", "bfloat16", ("avx512_bf16",)),
    "v": Dot("vpdpbusd-zmm", "int8", ("avx512_vnni",)),
    "B": Dot("tdpbf16ps-tmm", "bfloat16", ("avx512_bf16", "amx_tile", "amx_bf16"), 16),
    "V": Dot("tdpbssd-tmm", "int8", ("avx512_vnni", "amx_tile", "amx_int8"), 16),
}
"""By the letter that `probe.c` is told. Load stages beside the tiles are made of what the vectors' products need."""


def dot_figures(dot: Dot, rates: Rates, clock_hz: float, flags: tuple[str, ...]) -> list[tuple[str, Any, str]]:
    """The figures of an instruction, each with where it came from. Vectors run at the clock of scalar code, tiles at
    the one that multiply-adds keep, `clock_hz`."""
    clock, told = (clock_hz, "the clock") if dot.rows > 1 else (clock_of(rates), "the scalar clock")
    rate, link = rates[dot.measured][0] / clock, clock / rates[f"{dot.measured}_chain"][0]
    registers, named = (8, "tmm0-tmm7") if dot.rows > 1 else (32, "zmm0-zmm31")
    starts, cycles = starts_a_cycle(rate), max(dot.rows, math.floor(1 / rate + NOISE))  # a row of a tile takes a cycle
    accumulators = registers // 2 if dot.rows > 1 else registers * 3 // 4
    latency = latency_cycles(link, accumulators * cycles / starts)
    tile = [
        ("rows", dot.rows, "Intel SDM vol. 1, chapter 18: palette 1"),
        ("depth", dot.rows, "the same chapter: words of a row of A"),
    ]
    seldom = [("cycles", cycles, f"measured: one in {1 / rate:.2f} cycles of {told}")]
    return [
        ("name", dot.name, "the widest in the flags"),
        ("dtype", dot.dtype, "what it multiplies"),
        ("lanes", 16, f"read from /proc/cpuinfo: {dot.flags[-1]} in flags"),
        ("registers", registers, f"read from /proc/cpuinfo: {named}"),
        *(tile if dot.rows > 1 else []),
        *(seldom if cycles > 1 else []),
        ("issue_per_cycle", starts, f"measured: {rate:.2f} a cycle of {told}"),
        ("latency_cycles", latency, f"measured: {link:.2f} cycles of {told}"),
        ("features", flags, ""),
    ]
