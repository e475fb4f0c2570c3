"""The spine: from an operator and a hardware spec to a library, having seen no shape."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from vortex.analyzer import FILTERS, analyze
from vortex.axes import extents
from vortex.candidates import takes_packed
from vortex.codegen.conv import conv_addition, conv_tasks
from vortex.codegen.cpu import Addition, emit_library
from vortex.codegen.cpu_kernels import LAYOUTS
from vortex.codegen.cpu_objects import nest_tasks, parts_of, product_tasks
from vortex.codegen.emission import Emission
from vortex.codegen.object_cache import ObjectCache
from vortex.codegen.prices import Prices
from vortex.codegen.toolchain import check_versions
from vortex.device import Meter
from vortex.errors import SpecError
from vortex.hardware import HardwareSpec
from vortex.library import Library, Manifest
from vortex.operators import Conv2d, Operator, settings
from vortex.profiler import acquire
from vortex.rates import Rates
from vortex.rating import rates
from vortex.rkernel import decompose
from vortex.selector import Selector, SlopeTable
from vortex.sieve import invariant_in_m, sieve
from vortex.specialise import specialised
from vortex.winograd_selector import tiles_called

Progress = Callable[[str, float], None]
MOST_STRATEGIES = 16
"""For each kind of B: the selector prices every one at every call, and as many as lanes of one AVX-512 vector cost it
no more than one."""


def compile(
    operator: Operator,
    hardware: HardwareSpec,
    folder: Path,
    progress: Progress,
    measurable: bool,
    invariant: str | None = None,
    cache: ObjectCache | None = None,
) -> Library:
    """Build every micro-kernel `operator` may need on `hardware` inside the working `folder`, or take it from `cache`.

    With `measurable` the device is at hand and L0 is timed on it; otherwise a recorded measurement is replayed, or L0
    is computed. `invariant="m"` keeps what gives a row the same bits whatever m is.
    """
    versions = check_versions()
    clock = Stopwatch()
    if getattr(operator, "weights", None):
        hardware = hardware.without_tiles()
    isa = hardware.multiplier(operator.dtype)  # FilterByISA
    lanes, vectors = isa.lanes, hardware.by_vectors(operator.dtype) or isa
    rkernel = decompose(operator, hardware)  # top-down: one level per rung of the hardware
    words = rkernel.words
    progress("sieving candidates", 0.0)
    found = sieve(rkernel)  # bottom-up: L0 first, every candidate a multiple of the one below
    conv = isinstance(operator, Conv2d)
    if conv:  # pixels are rows, weights of a 1x1 filter are packed, or a plain B where a panel has room for them
        found = replace(found, strategies=tuple(s for s in found.strategies if takes_packed(s) or s.stage.dot))
    if invariant:
        found = invariant_in_m(found)

    def priced(machine: Rates, table: SlopeTable, path: Path) -> Prices:
        return Prices(machine, table, lanes, hardware.llvm_cpu, measurable, path)

    if not words:
        foreseen = partial(priced, path=folder / "foreseen.o")
        found = specialised(operator, hardware, found, lanes, MOST_STRATEGIES, foreseen)
    if not any(strategy.stage.tiled for strategy in found.strategies):
        counts = ", ".join(f"{step.level} {step.filter} {step.count}" for step in found.admitted)
        raise SpecError(
            f"{hardware.name}: no candidate for {operator.name} of {operator.dtype} passes the sieve ({counts}); "
            "widen the utilization bounds of the levels"
        )
    clock.lap("sieve")
    called = {(tile.m, tile.n // lanes) for tile in found.register_tiles}
    shapes = sorted(called | tiles_called(isa.registers) if conv else called)
    workers = max(1, min(len(os.sched_getaffinity(0)), 8))
    layouts = LAYOUTS[:1] if conv else LAYOUTS
    parts = parts_of(operator, found.strategies, shapes, layouts, vectors.registers, lanes, hardware.kept_pages > 0)
    tasks = product_tasks(parts, words)
    with Emission(lanes, hardware.llvm_cpu, folder, workers, cache) as emission:
        kernels = emission.start(tasks.measured).wait(
            "emitting micro-kernels", lambda what, share: progress(what, 0.05 + 0.3 * share)
        )
        clock.lap("emit")
        progress("measuring micro-kernels", 0.35)
        empirical = measurable and rkernel.levels[0].empirical
        timer = Meter(kernels, shapes, lanes, folder, words) if empirical else None
        used = tuple(f"{name} {found}" for name, found in versions.items())
        profile = acquire(hardware, shapes, lanes, timer, used, operator.dtype, words)
        clock.lap("measure")
        more = conv_tasks(shapes, vectors.registers) if isinstance(operator, Conv2d) else []
        others = emission.start([*tasks.rest, *more])  # what nobody times is emitted while strategies are chosen
        progress("analyzing strategies", 0.4)
        machine, table = rates(hardware, profile, operator.dtype, words, parts.store), profile.slopes()
        if words and (words.tiles or words.weights):  # what lies before the words of a panel is of all of k
            machine = replace(machine, cores=1.0)
        price = priced(machine, table, folder / "costs.o")
        known, packed = extents(operator), FILTERS if conv else None
        chosen, shortlists, panel = analyze(  # Eq. 1
            found.strategies, machine, table, lanes, hardware.cores, MOST_STRATEGIES, known, packed, words, price
        )
        clock.lap("analyze")
        nests = emission.start([] if words else nest_tasks(chosen, parts, lanes, bool(machine.panel_room)))
        objects = kernels + others.wait("emitting nests", lambda what, share: progress(what, 0.6 + 0.2 * share))
        objects += nests.wait("emitting nests", lambda what, share: progress(what, 0.8 + 0.1 * share))
        clock.lap("emit")
    progress("linking the library", 0.9)
    decided = replace(machine, cores=1.0) if invariant else machine
    selector = Selector(chosen, decided, table, lanes, panel, words, shortlists)
    begins = bool(parts.prologue)
    addition = conv_addition(selector, shapes, hardware, begins) if isinstance(operator, Conv2d) else Addition()
    started = machine.call + machine.thread_start
    parts = replace(parts, quads=profile.quads)
    binary = emit_library(selector, objects, parts, hardware.llvm_cpu, folder, started, addition, cache)
    clock.lap("link")
    manifest = Manifest(
        operator=operator.name,
        settings=settings(operator),
        dtype=operator.dtype,
        hardware=hardware.model_dump(mode="json"),
        features=tuple(sorted(isa.features)),
        basis=profile.basis,
        profile=asdict(profile),
        strategies=chosen,
        shortlists=shortlists,
        admitted=found.admitted,
        rates=machine,
        slopes=tuple(tuple(float(value) for value in row) for row in table.seconds),
        lanes=lanes,
        panel=panel,
        words=words.name if words else "",
        versions={**versions, "python": platform.python_version()},
        offline_seconds=clock.laps,
        invariant=invariant,
        reused=emission.taken,
    )
    progress("done", 1.0)
    return Library(manifest, binary.read_bytes())


class Stopwatch:
    """Seconds of each stage, by name."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = round(self.laps.get(name, 0.0) + now - self._last, 3)
        self._last = now
