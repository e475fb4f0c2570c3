"""The empirical half of the hybrid analyzer: L0 measured, replayed, or computed where the device is absent."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from vortex.arithmetic import Array
from vortex.dtypes import WordFormat
from vortex.hardware import HardwareSpec
from vortex.passes import CALL_SECONDS, TRIES, Timer, Timing, enough, handed, one_pass, quads_pay, settled
from vortex.selector import SlopeTable

RECORDINGS = Path(__file__).resolve().parent / "measurements"


@dataclass(frozen=True)
class Measurement:
    """One L0 micro-kernel: seconds = start + slope * k, and by how much the median of the passes is above them."""

    rows: int
    vectors: int
    start_s: float
    slope_s: float
    spread: float


@dataclass(frozen=True)
class Profile:
    """All that the cost model takes from the low levels, and where it came from."""

    basis: Literal["measured", "replayed", "computed"]
    device: str
    date: str
    versions: tuple[str, ...]
    kernels: tuple[Measurement, ...]
    copy_s: float
    transpose_s: float
    thread_start_s: float
    quads: bool = False
    """Whether micro-kernels of a single vector were quicker, and timed, with four elements of A loaded at once."""
    peak_flops_per_s: float = 0.0
    """Of one core between the micro-kernels, by float32 multiply-adds on registers alone; 0: not measured."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Profile:
        data = json.loads(text)
        data["kernels"] = tuple(Measurement(**row) for row in data["kernels"])
        data["versions"] = tuple(data["versions"])
        return cls(**data)

    def slopes(self) -> SlopeTable:
        rows = 2 + max(kernel.rows for kernel in self.kernels)
        vectors = 1 + max(kernel.vectors for kernel in self.kernels)
        table: Array = np.zeros((vectors, rows), np.float32)
        for kernel in self.kernels:
            table[kernel.vectors, kernel.rows] = kernel.slope_s
        # Past the tallest micro-kernel of a width nothing is ever looked up with weight; repeat it to stay finite.
        for v in range(1, vectors):
            filled = np.flatnonzero(table[v])
            if filled.size:
                table[v, filled[-1] + 1 :] = table[v, filled[-1]]
        return SlopeTable(table)


def measure(
    spec: HardwareSpec,
    shapes: Iterable[tuple[int, int]],
    lanes: int,
    timer: Timer,
    versions: tuple[str, ...],
    dtype: str = "float32",
) -> Profile:
    """Time every (rows, vectors) micro-kernel at two depths, operands in the innermost cache, and the load stages."""
    inner, isa = spec.memories[0].capacity_bytes // 2, spec.multiplier(dtype)
    short = max(8, isa.depth)
    depths = {
        at: max(4 * short, min(256, inner // (4 * (at[0] + at[1] * lanes))) // isa.depth * isa.depth)
        for at in sorted(shapes)
    }
    quads = quads_pay(timer, depths)

    def micro_kernel(rows: int, vectors: int, depth: int) -> Timing:
        ideal = isa.step_cycles(rows, vectors) * depth / spec.clock_hz
        calls, of_spec = max(4, int(CALL_SECONDS / ideal)), ideal if rows > 1 else 0.0  # a single row waits for loads
        return Timing(lambda: min(timer.micro_kernel(0, rows, vectors, depth, calls, TRIES)), of_spec)

    def load_stage(stage: int) -> Timing:
        return Timing(lambda: min(timer.load_stage(stage, 256, 4 * lanes, 1024 + lanes, TRIES)))

    timings = [micro_kernel(*at, depth) for at, deep in depths.items() for depth in (short, deep)]
    timings += [load_stage(0), load_stage(1)]
    passes = enough(lambda: one_pass(timings, lambda: timer.multiply_add(1)[0], lambda: handed(timer, spec.cores)))
    seconds, medians, multiply_add = settled(passes)
    low, high = seconds[:-2].reshape(-1, 2).T
    slopes = (high - low) / (np.array([*depths.values()]) - short)
    spreads = np.max((medians / seconds - 1)[:-2].reshape(-1, 2), axis=1).round(4)
    found = zip(depths, np.maximum(low - slopes * short, 0.0), slopes, spreads, strict=True)
    return Profile(
        basis="measured",
        device=spec.name,
        date=time.strftime("%Y-%m-%d"),
        versions=(*versions, f"python {platform.python_version()}"),
        kernels=tuple(Measurement(*at, *map(float, figures)) for at, *figures in found),
        copy_s=float(seconds[-2]),
        transpose_s=float(seconds[-1]),
        thread_start_s=max(spec.thread_start_ns * 1e-9, min(one.handed for one in passes)),
        quads=quads,
        peak_flops_per_s=2 * lanes / multiply_add,
    )


WIDENING = 4
"""Instructions that make a vector of quantized weights float32, on as many ports again as multiply-adds have."""


def compute(
    spec: HardwareSpec, shapes: Iterable[tuple[int, int]], dtype: str = "float32", words: WordFormat | None = None
) -> Profile:
    """The same figures from the spec alone, for a device that is not here: issue, latency, loads of one core."""
    isa, inner = spec.multiplier(dtype), spec.memories[0]
    loads_per_cycle = inner.bandwidth_bytes_per_s / (spec.clock_hz * isa.lanes * 4)
    kernels = []
    for rows, vectors in sorted(shapes):
        tall = isa.tall(rows)
        accumulators, latency = tall * vectors, isa.latency_cycles / isa.depth
        cycles = max(isa.step_cycles(rows, vectors), (tall + vectors) / loads_per_cycle, latency)
        if words and words.weights:
            cycles += WIDENING * vectors / (2 * isa.issue_per_cycle)
        start = (12 + 2 * accumulators) / spec.clock_hz
        kernels.append(Measurement(rows, vectors, start, cycles / spec.clock_hz, 0.0))
    return Profile(
        basis="computed",
        device=spec.name,
        date="",
        versions=(),
        kernels=tuple(kernels),
        copy_s=2 / (isa.lanes * loads_per_cycle * spec.clock_hz) * 2,
        transpose_s=1 / spec.clock_hz,
        thread_start_s=spec.thread_start_ns * 1e-9,
    )


def recording(spec: HardwareSpec, folder: Path = RECORDINGS, dtype: str = "float32") -> Profile | None:
    """The measurement of this device that ships with vortex, if there is one."""
    path = folder / f"{spec.name}{'' if dtype == 'float32' else f'-{dtype}'}.json"
    return replace(Profile.from_json(path.read_text()), basis="replayed") if path.is_file() else None


def acquire(
    spec: HardwareSpec,
    shapes: Sequence[tuple[int, int]],
    lanes: int,
    timer: Timer | None,
    versions: tuple[str, ...],
    dtype: str = "float32",
    words: WordFormat | None = None,
) -> Profile:
    """Measured where a timer runs on the device, else replayed, else computed; the profile says which."""
    if timer is not None:
        return measure(spec, shapes, lanes, timer, versions, dtype)
    recorded = None if words and words.weights else recording(spec, dtype=dtype)
    if recorded is not None and {(k.rows, k.vectors) for k in recorded.kernels} >= set(shapes):
        return recorded
    return compute(spec, shapes, dtype, words)
