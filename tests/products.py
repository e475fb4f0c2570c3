"""Emitted GEMM kernels against NumPy in the emulator: adversarial shapes, strides, alignment and timing."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any

import ml_dtypes
import numpy as np
from emulator import TIMINGS, EmulationError, Record, Statistics, TensorMap, Workspace, run
from numpy.typing import NDArray

from vortex.codegen import cuda_reduce, hopper_tiles, nvrtc
from vortex.codegen.cuda import reduction, source, split_args
from vortex.codegen.cuda_form import Form, form_of
from vortex.codegen.cuda_lower import STORED, KernelSource
from vortex.epilogue import Store, cast
from vortex.gpu_candidates import Backend, Variant
from vortex.operators import Gemm

Array = NDArray[np.generic]
ELEMENTS = {
    "float32": np.dtype(np.float32),
    "tfloat32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    **{name: np.dtype(name) for name in ("int8", "uint8", "int32")},
}
MAP_NORESERVE = 0x4000  # mman.h of Linux; Python has a name for it from 3.13 on
LARGEST = {"float32": 8, "tfloat32": 8, "float16": 3, "bfloat16": 2, "int8": 127}
"""Of the integers in operands: products and their sums stay exact in float32."""
ROUNDING = {"float32": 2.0**-24, "tfloat32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Of C, to nearest."""


CHAINED = {"float32": 1e-4, "float16": 2e-3, "bfloat16": 1e-2, "int8": 0.51, "uint8": 0.51, "int32": 1e-3}
"""Of C after an epilogue, for normal numbers and a few hundred products of them; integers to one step."""


@dataclass(frozen=True)
class Case:
    """One product that a kernel is to compute."""

    m: int
    n: int
    k: int
    timing: str
    seed: int
    splits: int = 1
    exact: bool = True
    """Integers, and a result that must be equal; else normal numbers against float64."""
    leading: int = 0
    """Elements between rows of A and of C, if not the least that are uneven."""


@dataclass(frozen=True)
class Unit:
    """Kernels of one translation unit, and the whole text."""

    text: str
    kernels: tuple[tuple[Variant, KernelSource], ...]


def unit(variants: Sequence[Variant], arch: str, form: Form | None = None) -> Unit:
    """Sources as compiled for a device, and the kernels that add partial sums up; a plain Gemm's by default."""
    form = form_of(Gemm(dtype=variants[0].strategy.dtype)) if form is None else form
    kernels = tuple((variant, source(variant, arch, form)) for variant in variants)
    dtypes = sorted({STORED[variant.strategy.dtype] for variant in variants})
    reductions = [reduction(dtype, arch, form).source for dtype in dtypes]
    return Unit("\n".join([form.prelude, *(kernel.source for _, kernel in kernels), *reductions]), kernels)


def machine_code(text: str, arch: str) -> nvrtc.Compiled:
    """A unit as NVRTC compiles it, which looks for a driver and must not find the fake one of other tests."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(nvrtc.compile_nvrtc, text, arch).result()


def rounded_up(value: int, to: int) -> int:
    return -(-value // to) * to


def cases(variant: Variant, count: int, seed: int = 0) -> Iterator[Case]:
    """Shapes of three tiles an axis, the last of them partial, and of more tiles of k than there are stages twice.

    Extents obey the kernel's alignment class and nothing more. Every fourth reduction is split.
    """
    s, random = variant.strategy, np.random.default_rng([seed, *map(ord, variant.name)])
    vector = max(1, variant.vector_bytes // s.item_bytes)
    m_step = vector if variant.transpose_a else 1
    k_step = vector if not variant.transpose_a or variant.transpose_b else 1
    deep = max(2 * s.stages, 2)

    def ragged(tiles: int, tile: int, step: int) -> int:
        """A whole tile only where the alignment leaves no other."""
        extent = tiles * tile + step * int(random.integers(1, max(2, tile // step)))
        return extent if extent % tile or tile <= step else extent - step

    for index, timing in zip(range(count), itertools.cycle(TIMINGS)):
        splits = 3 if index % 4 == 1 else 1
        yield Case(
            rounded_up(ragged(2, s.l1.m, m_step), m_step),
            rounded_up(ragged(2, s.l1.n, vector), vector),
            rounded_up(ragged(deep, s.l1.k, k_step), k_step),
            timing,
            index,
            splits,
            exact=index % 2 == 0,
        )


def matrix(
    rows: int, columns: int, variant: Variant, random: np.random.Generator, *, exact: bool, leading: int = 0
) -> Array:
    """A read-only operand whose rows lie as badly as the alignment class allows, or `leading` elements apart."""
    s = variant.strategy
    element, vector = ELEMENTS[s.dtype], max(1, variant.vector_bytes // s.item_bytes)
    if not leading:
        leading = rounded_up(columns, vector) + vector
        if leading // vector % 2 == 0:
            leading += vector  # rows on odd multiples of the class
    memory = mmap(-1, rows * leading * element.itemsize, flags=MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)
    whole = np.frombuffer(memory, element).reshape(rows, leading)
    largest = LARGEST[s.dtype]
    values = (
        random.integers(-largest, largest + 1, (rows, columns)) if exact else random.standard_normal((rows, columns))
    )
    whole[:, :columns] = values.astype(element)
    view = whole[:, :columns]
    view.flags.writeable = False
    return view


def extras(store: Store, m: int, n: int, random: np.random.Generator, *, exact: bool) -> dict[str, Array]:
    """Tensors of an epilogue, some of them with gaps between what is read."""
    found: dict[str, Array] = {}
    for operand in store.chain.operands:
        shape = {"column": (n, 1), "row": (m, 2), "element": (m, n + 3)}[operand.per]
        values = random.integers(-3, 4, shape) if exact else random.standard_normal(shape)
        whole = values.astype(ELEMENTS[operand.dtype])
        view = whole[:, :n] if operand.per == "element" else whole[:, 0]
        view.flags.writeable = False
        found[operand.name] = view
    return found


def finished(store: Store, c: Array, alignment: int, tensors: dict[str, Array]) -> Record:
    """What a kernel takes in the place of C."""
    addresses: list[Workspace | int] = [Workspace(c, alignment)]
    rows, columns = [], []
    for operand in store.chain.operands:
        x = tensors[operand.name]
        addresses.append(Workspace(x, x.itemsize))
        steps = [step // x.itemsize for step in x.strides]
        rows.append(0 if operand.per == "column" else steps[0])
        columns.append(0 if operand.per == "row" else steps[-1])
    missing = [0] * (4 - len(rows))
    return Record((*addresses, *missing, *rows, *missing, *columns, *missing, *[0] * 10))


def check(
    variant: Variant, kernel: KernelSource, text: str, case: Case, *, traced: bool = False, form: Form | None = None
) -> Statistics:
    """Run one case; an AssertionError tells what is wrong with the kernel."""
    s, random = variant.strategy, np.random.default_rng(case.seed)
    form = form_of(Gemm(dtype=s.dtype)) if form is None else form
    m, n, k, store = case.m, case.n, case.k, form.store
    exact = case.exact or s.dtype == "int8"
    a = matrix(*((k, m) if variant.transpose_a else (m, k)), variant, random, exact=exact, leading=case.leading)
    b = matrix(*((n, k) if variant.transpose_b else (k, n)), variant, random, exact=exact)
    c = matrix(m, n, variant, random, exact=True, leading=case.leading)
    item, out_item = s.item_bytes, c.itemsize
    if store is not None:
        step = min(4, max(1, variant.vector_bytes // item))  # no kernel stores more than four elements at a time
        wide = case.leading or rounded_up(n, step) + step
        memory = mmap(-1, m * wide * ELEMENTS[store.out].itemsize, flags=MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)
        c = np.frombuffer(memory, ELEMENTS[store.out]).reshape(m, wide)[:, :n]
        out_item = c.itemsize
    c.flags.writeable = True
    c[...] = np.nan if c.dtype.kind not in "iu" else 77
    chunk = k if case.splits == 1 else rounded_up(-(-k // case.splits), s.l1.k)
    splits = 1 if case.splits == 1 else -(-k // chunk)
    partial = np.full((splits, m, n), *((77, np.int32) if s.dtype == "int8" else (np.nan, np.float32)))
    values: dict[str, Array | int | TensorMap | Workspace | Record] = {
        "*A": a, "*B": b, "*C": c, "*W": Workspace(partial), "M": m, "N": n, "K": k, "chunk": chunk,
        "lda": a.strides[0] // item, "ldb": b.strides[0] // item, "ldc": c.strides[0] // out_item,
        "raster": int(random.integers(1, 4)), "splits": splits,
    }  # fmt: skip
    tensors = {} if store is None else extras(store, m, n, random, exact=exact)
    if store is not None:
        values["&C"] = finished(store, c, step * out_item, tensors)
        values["&W"] = finished(store, partial, 16, tensors)
    if s.backend is Backend.HOPPER:
        box_a, box_b = hopper_tiles.boxes(variant)
        values |= {"@A": TensorMap(a, box_a), "@B": TensorMap(b, box_b)}
    args = kernel.args if splits == 1 else split_args(kernel.args)
    tile = s.grid_tile
    tiles = -(-m // tile.m) * -(-n // tile.n)
    if s.backend is Backend.HOPPER:  # blocks stay, and take one tile after the other
        tiles = int(random.integers(1, tiles + 1))
    grid = (tiles * s.cluster, 1, splits)
    how: dict[str, Any] = {"timing": case.timing, "seed": case.seed, "alignment": variant.vector_bytes}
    counted = run(
        text, kernel.symbol, grid, kernel.block, kernel.shared_bytes, [values[x] for x in args], traced=traced, **how
    )
    if splits > 1:
        adding = reduction(s.dtype, "sm_80", form)
        blocks = -(-m * n // cuda_reduce.COLUMNS)
        run(text, adding.symbol, (blocks,), adding.block, 0, [values[x] for x in adding.args], **how)
    left, right = (x.astype(np.float64) for x in (a.T if variant.transpose_a else a, b.T if variant.transpose_b else b))
    if form.prologue:
        left = form.prologue.reference(left)
        if s.dtype != "tfloat32":  # which the multiplier rounds
            left = left.astype(ELEMENTS[s.dtype]).astype(np.float64)
    expected = left @ right
    if store is not None:
        expected = np.asarray((store.chain >> cast(store.out)).reference(expected, **tensors)).astype(np.float64)
    got = c.astype(np.float64)
    if store is not None and not exact:
        # Steps of a chain stretch what sums lost; approximations of the device's library are a few units off.
        wrong = ~(np.abs(got - expected) <= CHAINED[store.out] * (1 + np.abs(expected)))
    elif c.dtype.kind in "iu":
        wrong = got != expected
    elif exact:
        wrong = got != expected.astype(np.float32).astype(c.dtype).astype(np.float64)
    else:
        # Float32 sums in any order; TF32 drops or rounds 13 bits of each factor.
        lost = (k + 2) * 2.0**-24 + (2.0**-9 if s.dtype == "tfloat32" else 0.0)
        wrong = ~(
            np.abs(got - expected)
            <= lost * (np.abs(left) @ np.abs(right)) + ROUNDING[s.dtype] * np.abs(expected) * 1.01
        )
    if wrong.any():
        at = tuple(int(x[0]) for x in np.nonzero(wrong))
        raise EmulationError(
            f"{variant.name}, {case}: {wrong.sum()} of {wrong.size} elements are wrong, the first at {at}: "
            f"{got[at]} instead of {expected[at]}"
        )
    if counted.ldmatrix_conflicts:
        raise EmulationError(f"{variant.name}: {counted.ldmatrix_conflicts} bank conflicts of ldmatrix")
    return counted


def check_variants(variants: Sequence[Variant], arch: str, count: int) -> list[str]:
    """What is wrong with any of some kernels, each on `count` shapes; of the first also every access is looked at."""
    emulated = unit(variants, arch)
    wrong = []
    if variants[0].strategy.backend is not Backend.HOPPER:
        alone = unit(variants[:1], arch)
        try:
            check(*alone.kernels[0], alone.text, next(cases(variants[0], 1)), traced=True)
        except EmulationError as error:
            wrong.append(f"traced: {error}")
    for variant, kernel in emulated.kernels:
        for case in cases(variant, count):
            try:
                check(variant, kernel, emulated.text, case)
            except EmulationError as error:
                wrong.append(str(error))
                break
    return wrong


def renamed(kernel: KernelSource, text: str, symbol: str) -> KernelSource:
    """A changed text of a kernel under another name."""
    return replace(kernel, symbol=symbol, source=text.replace(f" {kernel.symbol}(", f" {symbol}("))
