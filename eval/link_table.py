"""Libraries of strategies that the analyzer did not keep: what the oracle and the utilization figure run.

The compiler keeps few strategies, because each one is priced at every call. A library made here holds any number of
them and is slow to choose; its micro-kernels, nests, measurements and cost model are those of the library it widens.
"""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vortex import operators
from vortex.cache import object_files
from vortex.candidates import Strategy
from vortex.codegen.cpu import emit_library
from vortex.codegen.cpu_kernels import LAYOUTS
from vortex.codegen.cpu_objects import nest_tasks, parts_of, product_tasks
from vortex.codegen.emission import Emission
from vortex.codegen.object_cache import ObjectCache
from vortex.hardware import HardwareSpec, spec_from
from vortex.keys import makers
from vortex.launcher import GemmKernel
from vortex.library import Library
from vortex.operators import rebuilt
from vortex.rkernel import decompose
from vortex.sieve import sieve


def hardware_of(gemm: Any) -> HardwareSpec:
    """The spec that a library was compiled for."""
    hardware: dict[str, Any] = gemm.manifest.hardware
    return spec_from(hardware, f"the manifest of {gemm!r}")


def every_strategy(gemm: Any, most: int | None = None) -> list[Strategy]:
    """All that the sieve admits for the library's operator and device, or an even sample of about `most` of them.

    Even in the sieve's order: register tiles, then extents of the L1 tile, then load stages. Those that the library
    kept come first and are never left out.
    """
    found = sieve(decompose(operators.named(gemm.manifest.operator), hardware_of(gemm))).strategies
    step = 1 if most is None else max(1, -(-len(found) // most))
    return list(dict.fromkeys((*gemm.manifest.strategies, *found[::step])))


def widened(gemm: Any, strategies: Sequence[Strategy]) -> GemmKernel:
    """The library `gemm` with these strategies in place of its own. Compiles for some ten seconds."""
    manifest, hardware = gemm.manifest, hardware_of(gemm)
    selector = replace(manifest.selector(), strategies=tuple(strategies), shortlists=None)
    operator = rebuilt(manifest.operator, manifest.settings)
    tiles = sieve(decompose(operator, hardware)).register_tiles
    shapes = [(tile.m, tile.n // manifest.lanes) for tile in tiles]
    registers = hardware.instruction(manifest.dtype).registers
    emitted = parts_of(operator, strategies, shapes, LAYOUTS, registers, manifest.lanes, hardware.kept_pages > 0)
    parts = replace(emitted, quads=manifest.profile.get("quads", False))
    workers = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="vortex-eval-") as name:
        folder = Path(name)
        kept = ObjectCache(object_files(), makers())
        with Emission(manifest.lanes, hardware.llvm_cpu, folder, workers, kept) as emission:
            tasks = product_tasks(parts)
            nests = nest_tasks(strategies, parts, manifest.lanes, bool(manifest.rates.panel_room))
            every = [*tasks.measured, *tasks.rest, *nests]
            objects = emission.start(every).wait("", lambda what, share: None)
        started = manifest.rates.call + manifest.rates.thread_start
        binary = emit_library(selector, objects, parts, hardware.llvm_cpu, folder, started).read_bytes()
    return GemmKernel(Library(replace(manifest, strategies=selector.strategies, shortlists=None), binary))
