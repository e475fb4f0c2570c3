"""What tests of reductions on GPUs share: a library of sums, the same of other kinds, sources of kernels, operands."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import gpu_doubles
import numpy as np

import vortex
from vortex.codegen import cuda_reduction
from vortex.codegen.cuda_lower import KernelSource
from vortex.gpu_library import DOOR, GpuLibrary, read, verify
from vortex.gpu_reduction import ReduceBlock
from vortex.operators import Reduce

HW, ARCH = "a100", "sm_80"


def built(kind: str, path: str) -> None:
    vortex.compile(Reduce(kind), hw=HW, cache=False).save(path)  # type: ignore[arg-type]  # a kind


def library_of_sums(folder: Path) -> GpuLibrary:
    """Compiled where no fake driver is."""
    path = folder / "sum.vortex"
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(built, "sum", str(path)).result()
    return read(path)


def of_kind(library: GpuLibrary, kind: str) -> GpuLibrary:
    """The same tiles for another kind, whose machine code is a name only."""
    m = library.manifest
    entries = tuple(replace(e, symbol=e.symbol.replace("_sum_", f"_{kind}_"), file="all.cubin") for e in m.entries)
    manifest = replace(m, settings={**m.settings, "kind": kind}, entries=entries, ptx="")
    code = {"all.cubin": gpu_doubles.cubin([entry.symbol for entry in entries])}
    found = GpuLibrary(manifest, {DOOR: library.parts[DOOR], **code})
    verify(found, "of another kind")
    return found


def with_room(library: GpuLibrary, bytes: int) -> GpuLibrary:
    """The same with another workspace."""
    return replace(library, manifest=replace(library.manifest, workspace_bytes=bytes))


@cache
def emitted(block: ReduceBlock, kind: str, vector: int) -> tuple[str, KernelSource]:
    kernel = cuda_reduction.source(block, kind, vector, ARCH)
    return f"{cuda_reduction.prelude(kind)}\n{kernel.source}", kernel


def whole_numbers(*shape: int, seed: int = 0) -> Any:
    """Small ones: their sums are exact in any order."""
    return np.random.default_rng([seed, *shape]).integers(-8, 9, shape).astype(np.float32)
