"""Kernel variants in, machine code out: every kernel that a library for NVIDIA GPUs needs.

TVM makes the text and NVRTC the code, about twenty kernels to a translation unit, each unit in a process of its own.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from vortex.affinity import end_with_parent
from vortex.codegen import cuda_core, cuda_reduce, cuda_skinny, nvrtc, tensor_core, tensor_core_hopper
from vortex.codegen.cuda_form import PLAIN, Form
from vortex.codegen.cuda_lower import STORED, KernelSource, alone
from vortex.errors import CodegenError
from vortex.gpu_candidates import Backend, Variant
from vortex.gpu_hardware import GpuSpec

Progress = Callable[[str, float], None]
"""Told what is being done and which share of it is finished, 0 to 1."""
UNIT = 24
"""Kernels of a translation unit, at most: the compiler's start is shared, and yet every process has something to do."""
SOURCES: dict[Backend, Callable[[Variant, str], KernelSource]] = {
    Backend.CUDA_CORE: cuda_core.source,
    Backend.TENSOR_CORE: tensor_core.source,
    Backend.HOPPER: tensor_core_hopper.source,
    Backend.SKINNY: cuda_skinny.source,
}


@dataclass(frozen=True)
class Emitted:
    """One entry of a cubin and how to launch it.

    A kernel that may split its reduction has two: the same symbol, with the workspace in the place of C.
    """

    variant: Variant | None
    """None for `reduce_<dtype>`, which adds partial sums up."""
    symbol: str
    file: str
    """The cubin in the folder; the PTX lies beside it with the suffix `.ptx`."""
    args: tuple[str, ...]
    """Parameters by name, in order; those with a star are pointers."""
    block: tuple[int, int, int]
    shared_bytes: int
    """Dynamic shared memory."""
    registers: int
    stack: int
    spills: int
    split: bool


def source(variant: Variant, arch: str, form: Form = PLAIN) -> KernelSource:
    """CUDA of one variant; a strategy that cannot be scheduled is an error that names it."""
    try:
        return form.of(SOURCES[variant.strategy.backend](variant, arch))
    except KeyError:
        raise CodegenError(f"{variant.name}: no code generator for {variant.strategy.backend.value}") from None
    except CodegenError as error:
        raise CodegenError(f"{variant.name} ({variant.strategy}): {error}") from error
    except Exception as error:
        raise CodegenError(f"{variant.name} ({variant.strategy}) did not schedule: {error}") from error


def _checked(variant: Variant, kernel: KernelSource, most_shared: int) -> KernelSource:
    threads = kernel.block[0] * kernel.block[1] * kernel.block[2]
    if threads != variant.strategy.threads:
        raise CodegenError(f"{variant.name}: {threads} threads were made, the strategy has {variant.strategy.threads}")
    if kernel.shared_bytes > most_shared:
        raise CodegenError(f"{variant.name}: {kernel.shared_bytes} bytes of shared memory, a block has {most_shared}")
    return kernel


def split_args(args: tuple[str, ...]) -> tuple[str, ...]:
    """What a launch for partial sums passes: they are dense float32 [splits, m, n], where C would be."""
    return tuple({"*C": "*W", "&C": "&W", "&batch": "&parts", "ldc": "N"}.get(name, name) for name in args)


def reduction(dtype: str, arch: str, form: Form = PLAIN) -> KernelSource:
    """The kernel that adds partial sums up."""
    return form.of(cuda_reduce.source(dtype, arch))


def _emit_unit(
    variants: Sequence[Variant],
    dtypes: Sequence[str],
    arch: str,
    most_shared: int,
    compiler: str,
    stem: Path,
    form: Form = PLAIN,
) -> list[Emitted]:
    made: list[tuple[Variant | None, KernelSource]] = [
        (variant, _checked(variant, source(variant, arch, form), most_shared)) for variant in variants
    ]
    made += [(None, reduction(dtype, arch, form)) for dtype in dtypes]
    unit, made = _fitting(made, arch, compiler, form.prelude)
    cubin = stem.with_suffix(".cubin")
    cubin.write_bytes(unit.cubin)
    stem.with_suffix(".ptx").write_text(unit.ptx)
    emitted = []
    for variant, kernel in made:
        used = unit.resources[kernel.symbol]
        direct = Emitted(
            variant,
            kernel.symbol,
            cubin.name,
            kernel.args,
            kernel.block,
            kernel.shared_bytes,
            used.registers,
            used.stack,
            used.spills,
            split=False,
        )
        emitted.append(direct)
        if variant is not None and "chunk" in kernel.args and form.splits:
            emitted.append(replace(direct, args=split_args(kernel.args), split=True))
    return emitted


def _fitting(
    made: list[tuple[Variant | None, KernelSource]], arch: str, compiler: str, head: str
) -> tuple[nvrtc.Compiled, list[tuple[Variant | None, KernelSource]]]:
    """A translation unit and its kernels, without those that ptxas cannot hold in registers.

    ptxas saves registers for the sake of other blocks, now and then by spilling a few: a kernel that spills is tried
    again with one block's registers promised to it.
    """

    def compiled(rows: list[tuple[Variant | None, KernelSource]]) -> nvrtc.Compiled:
        return nvrtc.COMPILERS[compiler]("\n".join([head, *(kernel.source for _, kernel in rows)]), arch)

    def fits(unit: nvrtc.Compiled, kernel: KernelSource) -> bool:
        used = unit.resources[kernel.symbol]
        return not (used.spills or used.stack)

    unit = compiled(made)
    spilled = {kernel.symbol: alone(kernel) for _, kernel in made if not fits(unit, kernel)}
    if not spilled:
        return unit, made
    second = compiled([(None, kernel) for kernel in spilled.values()])
    kept = [
        (variant, spilled.get(kernel.symbol, kernel))
        for variant, kernel in made
        if kernel.symbol not in spilled or fits(second, kernel)
    ]
    return compiled(kept), kept


def units(variants: Sequence[Variant], workers: int) -> list[list[Variant]]:
    """Translation units of even work: neighbours in the list, which cost about the same, go to different units."""
    count = max(1, -(-len(variants) // UNIT))
    count = min(len(variants), -(-count // workers) * workers) or 1
    return [list(variants[start::count]) for start in range(count)]


def emit(
    variants: Sequence[Variant],
    spec: GpuSpec,
    folder: Path,
    workers: int,
    progress: Progress = lambda what, share: None,
    compiler: str = nvrtc.DEFAULT,
    form: Form = PLAIN,
) -> list[Emitted]:
    """Compile `variants` for the spec's architecture into cubins in `folder`; `progress` is told the share done.

    `form` is what the operator makes of a GEMM's kernels.
    For every element type of C that occurs, the kernel that adds partial sums up comes along. A kernel that spills, or
    has a stack, is left out: its strategy holds more than the registers do, which ptxas alone can tell.
    """
    dtypes = sorted({STORED[variant.strategy.dtype] for variant in variants}) if form.adds_up else []
    parts = units(variants, workers)
    emitted: list[Emitted] = []
    # Forked like the CPU's objects: a spawned process would run its parent's script again. TVM starts no thread before
    # its first parallel run, and NVRTC is opened in the children only.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), end_with_parent) as pool:
        jobs = [
            pool.submit(
                _emit_unit,
                part,
                dtypes if index == 0 else (),
                spec.arch,
                spec.shared_per_block_bytes,
                compiler,
                folder / f"unit_{index:03}",
                form,
            )
            for index, part in enumerate(parts)
        ]
        for done, job in enumerate(jobs, 1):
            emitted += job.result()
            progress("emitting kernels", done / len(jobs))
    return sorted(emitted, key=lambda entry: (entry.symbol, entry.split))
