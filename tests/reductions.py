"""What tests of reductions on GPUs share: a library of sums, the same of other kinds, sources of kernels, operands."""

from __future__ import annotations

import ctypes
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import gpu_doubles
import numpy as np
from gpu_doubles import Launch

import vortex
from vortex.codegen import cuda_reduction
from vortex.codegen.cuda_lower import KernelSource
from vortex.gpu_library import DOOR, GpuLibrary, read, verify
from vortex.gpu_reduction import ITEM, NARROW, PARAMETERS, PIECE, WIDE, ReduceBlock
from vortex.gpu_reduction_launcher import GpuReduce
from vortex.operators import Reduce
from vortex.reduction_tiles import Family

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


TYPES = (ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * (len(PARAMETERS) - 3), ctypes.c_float)
"""Of the parameters of every kernel, in order."""


def parameters(launch: Launch) -> dict[str, Any]:
    pairs = zip(PARAMETERS, TYPES, launch.parameters, strict=False)
    return {name: kind.from_address(address).value for name, kind, address in pairs}


def operands_of(given: dict[str, Any]) -> tuple[Any, Any]:
    """x[outer, depth, inner] with its strides and y[outer, chunks, inner], where a launch has them."""
    outer, depth, inner, chunks = (given[name] for name in ("outer", "depth", "inner", "chunks"))
    steps = given["outer_stride"], given["depth_stride"], 1
    read = 1 + sum((extent - 1) * step for extent, step in zip((outer, depth, inner), steps, strict=True))

    def floats(name: str, count: int) -> Any:
        return np.frombuffer((ctypes.c_char * (ITEM * count)).from_address(given[name] or 1), np.float32)

    x = floats("*X", read) if depth else np.zeros(1, np.float32)
    strided = np.lib.stride_tricks.as_strided(x, (outer, depth, inner), [ITEM * step for step in steps])
    return strided, floats("*Y", outer * chunks * inner).reshape(outer, chunks, inner)


def computing(reduce: GpuReduce, names: list[str] | None = None) -> Any:
    """A callback that computes each launch with NumPy, from what the driver was given; `names` are those of kernels."""
    known = {
        block.symbol(reduce.kind, vector): (block, vector)
        for block in reduce.selector.blocks
        for vector in (WIDE, NARROW)
    }

    def run(launch: Launch) -> None:
        name = launch.name.decode()
        block, vector = known[name]
        given = parameters(launch)
        outer, depth, inner, chunk, chunks = (given[axis] for axis in ("outer", "depth", "inner", "chunk", "chunks"))
        is_columns = block.family is Family.COLUMNS
        pieces = (inner, given["depth_stride"]) if is_columns else (depth,)
        assert given["*X"] % vector == given["*Y"] % vector == 0
        assert vector == NARROW or not any(each % PIECE for each in (*pieces, given["outer_stride"]))
        assert vector == NARROW or is_columns or given["depth_stride"] == 1
        assert launch.grid[0] == -(-outer // block.rows) * chunks * -(-inner // block.columns)
        x, y = operands_of(given)
        for part in range(chunks):
            piece = x[:, part * chunk : (part + 1) * chunk]
            y[:, part] = piece.max(1) if reduce.kind == "max" else piece.sum(1, np.float64)
        y *= np.float32(given["scale"])
        if names is not None:
            names.append(name)

    return run


def whole_numbers(*shape: int, seed: int = 0) -> Any:
    """Small ones: their sums are exact in any order."""
    return np.random.default_rng([seed, *shape]).integers(-8, 9, shape).astype(np.float32)
