"""The spine of a GPU library: the same steps as `compiler`, having seen no shape and no GPU."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from vortex.candidates import Admitted
from vortex.codegen import nvrtc
from vortex.codegen.cuda import Emitted, emit
from vortex.codegen.cuda_form import form_of
from vortex.codegen.cuda_reduce import COLUMNS
from vortex.codegen.gpu_link import emit_door
from vortex.codegen.hopper_tiles import boxes
from vortex.codegen.toolchain import check_versions
from vortex.compiler import Progress, Stopwatch
from vortex.cuda_driver import Driver
from vortex.errors import CodegenError, DeviceError, OperandError, UnknownNameError
from vortex.gpu_candidates import Backend, Variant
from vortex.gpu_hardware import GpuSpec
from vortex.gpu_library import DOOR, WITHOUT_SPILLS, Entry, GpuLibrary, GpuManifest, Kernel, ptx_name, verify
from vortex.gpu_meter import Meter
from vortex.gpu_profiler import GpuProfile, block_costs, finished_bytes, rates, recording
from vortex.gpu_selector import ALIGNMENTS, GpuSelector
from vortex.gpu_sieve import backends
from vortex.gpu_variety import choose
from vortex.operators import Operator, finishing, prologue_of, settings
from vortex.rkernel import decompose

SERVED = ("gemm", "batch_gemm", "grouped_gemm", "conv2d")
"""Operators that have kernels on GPUs."""
WORKSPACE_BYTES = 64 << 20
"""Device memory for partial sums that a call may use; the selector cuts no reduction that would need more."""


def compile(
    operator: Operator,
    hardware: GpuSpec,
    folder: Path,
    progress: Progress,
    measurable: bool = False,
    compiler: str = nvrtc.DEFAULT,
) -> GpuLibrary:
    """Build every kernel `operator` may need on `hardware` inside the working `folder`, no device at hand.

    With `measurable` this machine has the device and L1 is timed on it; otherwise a recorded measurement is replayed,
    or L1 is computed. `compiler` is `nvrtc` or `nvcc`.
    """
    if operator.name not in SERVED:
        raise UnknownNameError(
            f"{operator.name} on {hardware.name}: GPU libraries compute {', '.join(SERVED)} so far; "
            "compile it for a CPU, or express it as one of these"
        )
    if operator.name == "conv2d" and prologue_of(operator):
        raise OperandError(
            f"conv2d with prologue={prologue_of(operator)} on {hardware.name}: kernels of GPUs would do it to the "
            "padding as well; do it to x first, or name a CPU's spec"
        )
    versions = {**check_versions(), compiler: nvrtc.release(compiler), "python": platform.python_version()}
    clock = Stopwatch()
    form = form_of(operator)
    rkernel = decompose(operator, hardware)  # top-down: lanes and warps, blocks, the grid
    progress("sieving candidates", 0.0)
    varieties = [choose(rkernel, backend) for backend in backends(rkernel)]  # bottom-up, then what is worth keeping
    variants = tuple(variant for variety in varieties for variant in variety.variants)
    clock.lap("sieve")
    workers = max(1, min(len(os.sched_getaffinity(0)), 8))
    emitted = emit(
        variants,
        hardware,
        folder,
        workers,
        lambda what, share: progress(what, 0.1 + 0.7 * share),
        compiler,
        form,
    )
    clock.lap("emit")
    fitting = filter_by_spills(variants, emitted)
    admitted = [row for variety in varieties for row in variety.admitted]
    admitted.append(Admitted("library", WITHOUT_SPILLS, len(fitting)))
    about = {"versions": versions, "admitted": tuple(admitted)}
    progress("analyzing kernels", 0.8)
    library = linked(operator, hardware, fitting, emitted, recording(hardware), folder, about)
    clock.lap("link")
    products = not (form.is_grouped or form.is_windowed)  # which are what the meter calls
    if measurable and products and any(level.empirical for level in rkernel.levels):
        with Meter(library, Driver()) as meter:
            profile = meter.profile(lambda share: progress("measuring kernels", 0.85 + 0.1 * share))
        library = linked(operator, hardware, fitting, emitted, profile, folder, about)
        clock.lap("measure")
    library = replace(library, manifest=replace(library.manifest, offline_seconds=clock.laps))
    verify(library, "the new library")
    progress("done", 1.0)
    return library


def linked(
    operator: Operator,
    hardware: GpuSpec,
    variants: tuple[Variant, ...],
    emitted: Sequence[Emitted],
    profile: GpuProfile,
    folder: Path,
    about: Mapping[str, Any],
) -> GpuLibrary:
    """The library of kernels that were emitted into `folder`, their costs as far as no shape is needed (Eq. 1 to 4)."""
    store = finishing(operator)
    kernels, entries = laid_out(variants, emitted)
    registers = {entry.variant.name: entry.registers for entry in emitted if entry.variant is not None}
    whole = frozenset(kernel.variant.name for kernel in kernels if kernel.split < 0)
    costs = block_costs(
        hardware,
        variants,
        profile,
        registers,
        whole,
        finished=finished_bytes(store),
    )
    selector = GpuSelector(variants, rates(hardware), costs, profile.basis)
    parts = {DOOR: emit_door(selector, folder).read_bytes()}
    for name in {entry.file for entry in entries}:
        parts |= {part: (folder / part).read_bytes() for part in (name, ptx_name(name))}
    sums = splits(kernels) or store is not None  # a sum of no products is finished by it too
    manifest = GpuManifest(
        **known(operator, hardware),
        basis=profile.basis,
        kernels=kernels,
        entries=entries,
        reduce=next(at for at, entry in enumerate(emitted) if entry.variant is None) if sums else -1,
        reduce_columns=COLUMNS,
        selector=selector.to_json(),
        offline_seconds={},
        **about,
    )
    return GpuLibrary(manifest, parts)


def known(operator: Operator, hardware: GpuSpec) -> dict[str, Any]:
    """Fields of a manifest that the operator and the device say, whatever the kernels are."""
    return {
        "operator": operator.name,
        "settings": settings(operator),
        "dtype": operator.dtype,
        "hardware": hardware.model_dump(mode="json"),
        "arch": hardware.arch,
        "ptx": hardware.arch.replace("sm_", "compute_"),
        "is_wide": True,
        "workspace_bytes": WORKSPACE_BYTES,
    }


def is_here(hardware: GpuSpec) -> bool:
    """Whether this machine has the device: L1 timed on it speaks for `hardware`."""
    try:
        device = Driver().device(0)
    except DeviceError:
        return False
    return (device.arch, device.sms) == (hardware.arch.rstrip("a"), hardware.sms)


def filter_by_spills(variants: Sequence[Variant], emitted: Sequence[Emitted]) -> tuple[Variant, ...]:
    """Variants that ptxas held in registers; an error where a layout and alignment lost all it had."""
    made = {entry.variant for entry in emitted}
    fitting = tuple(variant for variant in variants if variant in made)

    def served(kept: Sequence[Variant]) -> set[tuple[bool, bool, int]]:
        return {
            (turned_a, turned_b, size)
            for turned_a, turned_b, size in product((False, True), (False, True), ALIGNMENTS)
            for v in kept
            if (v.transpose_a, v.transpose_b) == (turned_a, turned_b) and v.vector_bytes <= size
        }

    if lost := served(variants) - served(fitting):
        raise CodegenError(f"all kernels for (A turned, B turned, alignment) {sorted(lost)} spill registers")
    return fitting


def splits(kernels: Sequence[Kernel]) -> bool:
    return any(kernel.split >= 0 for kernel in kernels)


def laid_out(variants: Sequence[Variant], emitted: Sequence[Emitted]) -> tuple[tuple[Kernel, ...], tuple[Entry, ...]]:
    """Kernels in the order of the variants, pointing at entries in the order they were emitted."""
    places = {(entry.variant, entry.split): at for at, entry in enumerate(emitted)}
    kernels = []
    for variant in variants:
        maps = boxes(variant) if variant.strategy.backend is Backend.HOPPER else ((0, 0), (0, 0))
        kernels.append(Kernel(variant, places[variant, False], places.get((variant, True), -1), *maps))
    entries = tuple(
        Entry(e.symbol, e.file, e.args, e.block, e.shared_bytes, e.registers, e.stack, e.spills) for e in emitted
    )
    return tuple(kernels), entries
