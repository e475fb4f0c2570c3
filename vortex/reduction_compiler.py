"""From a reduction and a hardware spec to a library: the same spine as `compiler`, with tiles of its own."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from vortex.candidates import DOT_ROWS
from vortex.codegen.cpu_reduce import emit_reductions, emit_tiles, reduce_symbol
from vortex.codegen.link import link
from vortex.codegen.toolchain import check_versions
from vortex.compiler import Progress, Stopwatch
from vortex.hardware import HardwareSpec
from vortex.library import Library, ReduceManifest
from vortex.operands import aligned_zeros
from vortex.operators import settings
from vortex.reduction import Reduce
from vortex.reduction_tiles import Family, Measured, ReduceTile, best_chain, sieve
from vortex.rkernel import decompose

Floats = np.ndarray[Any, np.dtype[np.float32]]
STEPS = (1, 9)
"""Along the depth, few and many: start and slope follow."""
SHARES = (8, 2)
"""Of the second cache, how many such working sets fill it: what the call itself costs is in both, and drops out."""
REPETITIONS = 25
UNFOLLOWED = 1.5
"""Estimate: how many times longer a step takes whose rows are more streams than prefetchers follow."""


def compile(
    operator: Reduce, hardware: HardwareSpec, folder: Path, progress: Progress, measurable: bool
) -> Library[ReduceManifest]:
    """Build every tile of `operator` on `hardware` inside the working `folder`; with `measurable` L0 is timed here."""
    versions = check_versions()
    clock = Stopwatch()
    isa = hardware.instruction(operator.dtype)
    rkernel = decompose(operator, hardware)
    found = sieve(rkernel)
    clock.lap("sieve")
    progress("emitting tiles", 0.1)
    tiles = emit_tiles(operator.kind, found.tiles, isa.lanes, hardware.llvm_cpu, folder)
    clock.lap("emit")
    progress("measuring tiles", 0.6)
    empirical = measurable and rkernel.levels[0].empirical
    profile = measured(found.tiles, hardware, tiles, folder) if empirical else computed(found.tiles, hardware)
    clock.lap("measure")
    chosen = best_chain(profile)  # Eq. 1
    progress("linking the library", 0.8)
    binary = emit_reductions(operator.kind, chosen, isa.lanes, grain_bytes(hardware), [tiles], folder)
    clock.lap("link")
    manifest = ReduceManifest(
        operator=operator.name,
        settings=settings(operator),
        dtype=operator.dtype,
        hardware=hardware.model_dump(mode="json"),
        features=tuple(sorted(isa.features)),
        basis="measured" if empirical else "computed",
        strategies=chosen,
        admitted=found.admitted,
        lanes=isa.lanes,
        versions={**versions, "python": platform.python_version()},
        offline_seconds=clock.laps,
    )
    progress("done", 1.0)
    return Library(manifest, binary.read_bytes())


def grain_bytes(hardware: HardwareSpec) -> int:
    """Bytes that one core reads from the outermost cache while another is told to help: the least a task is worth."""
    return round(hardware.thread_start_ns * 1e-9 * hardware.memories[-2].bandwidth_bytes_per_s)


def measured(tiles: Sequence[ReduceTile], hardware: HardwareSpec, objects: Path, folder: Path) -> tuple[Measured, ...]:
    """Time every tile at two depths, operands in the second cache: a reduction uses nothing twice."""
    path = folder / "reduce_meter.so"
    link(path, [objects], [])
    library, lanes = ctypes.CDLL(str(path)), hardware.instruction("float32").lanes
    memory = aligned_zeros(hardware.memories[1].capacity_bytes // min(SHARES) // 4)
    return tuple(timed(getattr(library, reduce_symbol(tile)), tile, lanes, memory) for tile in tiles)


def timed(function: Callable[..., int], tile: ReduceTile, lanes: int, memory: Floats) -> Measured:
    """The cost of one group of a tile, from the difference of many groups and few in one call."""
    integer, wide = ctypes.c_int64, tile.vectors * lanes
    across = tile.family is Family.COLUMNS
    out = aligned_zeros(memory.size)
    pointers = ctypes.c_void_p(memory.ctypes.data), ctypes.c_void_p(out.ctypes.data)

    def seconds(groups: int, steps: int) -> float:
        numbers = (
            (integer(groups * wide), integer(steps), integer(groups * wide), ctypes.c_int32(0))
            if across
            else (integer(groups), integer(steps * wide), integer(steps * wide), integer(1))
        )
        best = float("inf")
        for _ in range(REPETITIONS):
            start = perf_counter()
            function(*pointers, *numbers, ctypes.c_float(1.0))
            best = min(best, perf_counter() - start)
        return best

    def of_one_group(steps: int) -> float:
        few, many = (memory.size * min(SHARES) // share // (tile.rows * steps * wide) for share in SHARES)
        return max(1e-10, (seconds(many, steps) - seconds(few, steps)) / (many - few))

    short, long = (of_one_group(steps) for steps in STEPS)
    slope = max(1e-11, (long - short) / (STEPS[1] - STEPS[0]))
    return Measured(tile, max(0.0, short - STEPS[0] * slope), slope)


def computed(tiles: Sequence[ReduceTile], hardware: HardwareSpec) -> tuple[Measured, ...]:
    """The same from the spec alone: vectors come at the bandwidth of the second cache, folds halve in sequence."""
    isa, memory = hardware.instruction("float32"), hardware.memories[1]
    vector = isa.lanes * 4 / memory.bandwidth_bytes_per_s
    step = isa.latency_cycles / hardware.clock_hz
    halvings = isa.lanes.bit_length() - 1
    found = []
    for tile in tiles:
        folds = (2 * halvings if tile.rows == 1 else tile.rows) if tile.family is Family.ROWS else 1
        slope = max(tile.rows * tile.vectors * vector, step) * (UNFOLLOWED if tile.rows > DOT_ROWS else 1.0)
        found.append(Measured(tile, folds * step, slope))
    return tuple(found)
