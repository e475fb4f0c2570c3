"""From a reduction and a GPU's spec to a library, no GPU at hand: the same spine as `gpu_compiler`."""

from __future__ import annotations

import multiprocessing
import os
import platform
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from vortex.affinity import end_with_parent
from vortex.candidates import Admitted
from vortex.codegen import cuda_reduction, gpu_reduction_link, nvrtc
from vortex.codegen.toolchain import check_versions
from vortex.compiler import Progress, Stopwatch
from vortex.errors import CodegenError
from vortex.gpu_compiler import known
from vortex.gpu_hardware import GpuSpec
from vortex.gpu_library import DOOR, WITHOUT_SPILLS, Entry, GpuLibrary, GpuManifest, ptx_name, verify
from vortex.gpu_reduction import NARROW, WIDE, ReduceBlock
from vortex.gpu_reduction_sieve import selector_of, sieve
from vortex.reduction import Reduce
from vortex.rkernel import decompose

MOST_WORKERS = 8


def compile(
    operator: Reduce, hardware: GpuSpec, folder: Path, progress: Progress, compiler: str = nvrtc.DEFAULT
) -> GpuLibrary:
    """Build every kernel of `operator` on `hardware` inside the working `folder`; costs are computed."""
    versions = {**check_versions(), compiler: nvrtc.release(compiler), "python": platform.python_version()}
    clock = Stopwatch()
    progress("sieving candidates", 0.0)
    found = sieve(decompose(operator, hardware))
    clock.lap("sieve")
    progress("emitting kernels", 0.3)
    entries = emit(operator.kind, found.blocks, hardware, folder, compiler)
    clock.lap("emit")
    registers = [
        max(entries[block.symbol(operator.kind, size)].registers for size in (WIDE, NARROW)) for block in found.blocks
    ]
    selector = selector_of(hardware, found.blocks, registers)
    manifest = GpuManifest(
        **known(operator, hardware),
        basis="computed",
        admitted=(*found.admitted, Admitted("library", WITHOUT_SPILLS, len(found.blocks))),
        kernels=(),
        entries=tuple(entries.values()),
        reduce=-1,
        reduce_columns=0,
        selector=selector.to_json(),
        versions=versions,
        offline_seconds=clock.laps,
    )
    files = {name for entry in entries.values() for name in (entry.file, ptx_name(entry.file))}
    door = {DOOR: gpu_reduction_link.build(selector, folder)}
    library = GpuLibrary(manifest, door | {name: (folder / name).read_bytes() for name in files})
    verify(library, "the new library")
    progress("done", 1.0)
    return library


def emit(kind: str, blocks: Sequence[ReduceBlock], spec: GpuSpec, folder: Path, compiler: str) -> dict[str, Entry]:
    """Compile both kernels of every tile into cubins in `folder`: entries by symbol. CodegenError where one spills."""
    workers = max(1, min(len(os.sched_getaffinity(0)), MOST_WORKERS, len(blocks)))
    # Forked, as the kernels of products are (see codegen.cuda.emit).
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), end_with_parent) as pool:
        jobs = [
            pool.submit(emit_unit, kind, blocks[place::workers], spec.arch, folder / f"reduce_{place}", compiler)
            for place in range(workers)
        ]
        return {entry.symbol: entry for job in jobs for entry in job.result()}


def emit_unit(kind: str, blocks: Sequence[ReduceBlock], arch: str, stem: Path, compiler: str) -> list[Entry]:
    """One translation unit."""
    kernels = [cuda_reduction.source(block, kind, size, arch) for block in blocks for size in (WIDE, NARROW)]
    text = "\n".join([cuda_reduction.prelude(kind), *(kernel.source for kernel in kernels)])
    unit = nvrtc.COMPILERS[compiler](text, arch)
    cubin = stem.with_suffix(".cubin")
    cubin.write_bytes(unit.cubin)
    stem.with_suffix(".ptx").write_text(unit.ptx)
    entries = []
    for kernel in kernels:
        used = unit.resources[kernel.symbol]
        if used.spills or used.stack:
            raise CodegenError(f"{kernel.symbol}: {used.spills} bytes of spills, {used.stack} of stack; it needs none")
        geometry = (kernel.block, kernel.shared_bytes, used.registers, used.stack, used.spills)
        entries.append(Entry(kernel.symbol, cubin.name, kernel.args, *geometry))
    return entries
