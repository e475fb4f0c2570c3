"""Kernels of all but plain float products, tried like those: int8, epilogues, batches, groups of rows, convolutions.

Operands lie in memory full of NaN (integers: of the largest number), C in memory of one value, and what C should be
comes from NumPy in float64, in which sums of int8 are exact. All are matrices here: rows of C are those of all
products, of all groups, or the pixels of all images.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eval.gpu.torch_gpu import TYPES, TorchGpu
from vortex.epilogue import NOTHING, Epilogue, Store
from vortex.gpu_batch import GpuBatchGemm
from vortex.gpu_conv import GpuConv
from vortex.gpu_door import ITEM_BYTES
from vortex.gpu_fused import FusedGpuGemm
from vortex.gpu_grouped import GpuGroupedGemm
from vortex.gpu_launcher import GpuGemm
from vortex.gpu_library import GpuManifest, read
from vortex.gpu_reduction_launcher import GpuReduce
from vortex.gpu_selector import GpuPlan
from vortex.operators import finishing, rebuilt, store_of

LAUNCHERS: dict[str, Any] = {
    "batch_gemm": GpuBatchGemm,
    "grouped_gemm": GpuGroupedGemm,
    "conv2d": GpuConv,
    "reduce": GpuReduce,
}
PRODUCTS = 2
"""Of a batch; groups with rows."""
FILTER = 3
GUARD = 77
OUTSIDE = {torch.int8: 127, torch.uint8: 255, torch.int32: 2**31 - 1}
"""What surrounds operands of integers, in the place of NaN."""
EPSILON = {"float32": 2.0**-23, "tfloat32": 2.0**-10, "float16": 2.0**-10, "bfloat16": 2.0**-7}
EXACT = ("int8", "uint8", "int32")


def opened(path: Path, jit: bool) -> Any:
    """The callable of a GPU library on device 0."""
    library = read(path)
    operator = rebuilt(library.manifest.operator, library.manifest.settings)
    product = FusedGpuGemm if finishing(operator) is not None else GpuGemm
    return LAUNCHERS.get(operator.name, product)(library, 0, jit=jit)


def is_plain(manifest: GpuManifest) -> bool:
    """A library of float products without an epilogue, which the suites and their rivals are for."""
    operator = rebuilt(manifest.operator, manifest.settings)
    return manifest.operator == "gemm" and manifest.dtype != "int8" and finishing(operator) is None


def is_reduction(manifest: GpuManifest) -> bool:
    return manifest.operator == "reduce"


@dataclass(frozen=True)
class Arranged:
    """One call: what runs it, C as a matrix and the memory around it, and sums and their sizes in float64."""

    run: Callable[[GpuPlan], Any]
    out: Any
    whole: Any
    k: int
    sums: Any
    sizes: Any
    operands: dict[str, Any]
    """Of the epilogue, as NumPy has them: [n], [m], or [m, n]."""


@dataclass(frozen=True)
class Place:
    """Where operands of a trial come from and how they lie: in elements, see `verify.shift_of`."""

    gpu: TorchGpu
    dtype: str
    seed: int
    integers: bool
    shift: int
    extra: int

    def matrix(self, rows: int, columns: int, number: int) -> Any:
        bound = 127 if self.dtype == "int8" else 2
        made = self.gpu.operand(rows, columns, self.dtype, self.seed + number, self.integers or bound == 127, bound)
        return self.gpu.guarded(made, self.shift, self.extra, OUTSIDE.get(made.dtype, float("nan")))[0]

    def result(self, rows: int, columns: int, dtype: str) -> tuple[Any, Any]:
        made = torch.full((rows, columns), GUARD, dtype=TYPES[dtype], device=self.gpu.place)
        return self.gpu.guarded(made, self.shift, self.extra, GUARD)


def extras(place: Place, chain: Epilogue, m: int, n: int) -> dict[str, Any]:
    """Tensors of an epilogue: [n], [m], or [m, n]; small integers or normal numbers."""
    shapes = {"column": (1, n), "row": (1, m), "element": (m, n)}
    made = {}
    for number, operand in enumerate(chain.operands):
        given = place.gpu.operand(*shapes[operand.per], operand.dtype, place.seed + 7 + number, place.integers)
        made[operand.name] = given if operand.per == "element" else given[0]
    return made


def numpy(tensor: Any) -> Any:
    return tensor.double().cpu().numpy()


def sums_of(operator: Any, a: Any, b: Any, *more: Any, **keywords: Any) -> tuple[Any, Any]:
    """A B of an operator without its epilogue, and |A| |B|."""
    left, right = numpy(a), numpy(b)
    return operator.reference(left, right, *more, **keywords), operator.reference(
        abs(left), abs(right), *more, **keywords
    )


def arranged(place: Place, gemm: Any, kernel: Any, trial: Any) -> Arranged:
    """The operands of a trial for one kernel."""
    operator: Any = rebuilt(gemm.manifest.operator, gemm.manifest.settings)
    v = kernel.variant
    step = max(1, v.vector_bytes // ITEM_BYTES[place.dtype])
    if operator.name == "conv2d":
        return _convolution(place, gemm, operator, trial, step)
    turned = {"transpose_a": v.transpose_a, "transpose_b": v.transpose_b}
    if operator.name == "grouped_gemm":
        return _grouped(place, gemm, operator, turned, trial, step)
    if operator.name == "batch_gemm":
        return _batch(place, gemm, operator, turned, trial)
    a = place.matrix(*((trial.k, trial.m) if v.transpose_a else (trial.m, trial.k)), 0)
    b = place.matrix(*((trial.n, trial.k) if v.transpose_b else (trial.k, trial.n)), 1)
    store = store_of(operator)
    out, whole = place.result(trial.m, trial.n, store.out)
    held = extras(place, store.chain, trial.m, trial.n)
    bare = replace(operator, epilogue=NOTHING, out_dtype=None)
    sums, sizes = sums_of(bare, a.T if v.transpose_a else a, b.T if v.transpose_b else b)
    known = {name: numpy(tensor) for name, tensor in held.items()}
    return Arranged(
        lambda plan: gemm.run_planned(plan, a, b, out, **turned, **held), out, whole, trial.k, sums, sizes, known
    )


def _batch(place: Place, gemm: Any, operator: Any, turned: dict[str, bool], trial: Any) -> Arranged:
    rows_a, width_a = (trial.k, trial.m) if turned["transpose_a"] else (trial.m, trial.k)
    rows_b, width_b = (trial.n, trial.k) if turned["transpose_b"] else (trial.k, trial.n)
    a = place.matrix(PRODUCTS * rows_a, width_a, 0).unflatten(0, (PRODUCTS, rows_a))
    b = place.matrix(PRODUCTS * rows_b, width_b, 1).unflatten(0, (PRODUCTS, rows_b))
    out, whole = place.result(PRODUCTS * trial.m, trial.n, store_of(operator).out)
    given = out.unflatten(0, (PRODUCTS, trial.m))
    chain, bare = operator.epilogue, replace(operator, **turned, epilogue=NOTHING, out_dtype=None)
    sums, sizes = (found.reshape(-1, trial.n) for found in sums_of(bare, a, b))
    held = extras(place, chain, PRODUCTS * trial.m, trial.n)
    of_products = {
        x.name: held[x.name] if x.per == "column" else held[x.name].unflatten(0, (PRODUCTS, trial.m))
        for x in chain.operands
    }
    known = {name: numpy(tensor) for name, tensor in held.items()}

    def run(plan: GpuPlan) -> Any:
        return gemm.run_planned(plan, a, b, given, **turned, **of_products)

    return Arranged(run, out, whole, trial.k, sums, sizes, known)


def _grouped(place: Place, gemm: Any, operator: Any, turned: dict[str, bool], trial: Any, step: int) -> Arranged:
    """Two groups with rows and an empty one between them."""
    first = min(max(1, trial.m // 2 // step) * step, trial.m)
    rows = [first, 0, trial.m - first]
    rows_b, width_b = (trial.n, trial.k) if turned["transpose_b"] else (trial.k, trial.n)
    a = place.matrix(*((trial.k, trial.m) if turned["transpose_a"] else (trial.m, trial.k)), 0)
    b = place.matrix(len(rows) * rows_b, width_b, 1).unflatten(0, (len(rows), rows_b))
    out, whole = place.result(trial.m, trial.n, store_of(operator).out)
    sums, sizes = sums_of(replace(operator, **turned, epilogue=NOTHING, out_dtype=None), a, b, rows)
    held = extras(place, operator.epilogue, trial.m, trial.n)
    known = {name: numpy(tensor) for name, tensor in held.items()}

    def run(plan: GpuPlan) -> Any:
        return gemm.run_planned(plan, a, b, rows, out, **turned, **held)

    return Arranged(run, out, whole, trial.k, sums, sizes, known)


def _convolution(place: Place, gemm: Any, operator: Any, trial: Any, step: int) -> Arranged:
    """Two square images under a filter of 3 by 3 with its border, as many pixels and channels as the trial says."""
    side = math.isqrt(trial.m // 2 - 1) + 1
    depth = math.ceil(trial.k / FILTER**2 / step) * step
    walk = {name: value for name, value in (("padding", FILTER // 2),) if getattr(operator, name) is None}
    groups = operator.window().groups
    images = place.matrix(2 * side * side, groups * depth, 0).unflatten(0, (2, side, side))
    taps = place.matrix(groups * trial.n, FILTER**2 * depth, 1)
    w = taps.unflatten(1, (FILTER, FILTER, depth)).permute(0, 3, 1, 2)
    nchw = operator.layout == "nchw"
    x = images.permute(0, 3, 1, 2) if nchw else images
    shape = operator.shape(tuple(x.shape), tuple(w.shape), operator.window(**walk))
    pixels = shape.batch, shape.out_h, shape.out_w
    out, whole = place.result(math.prod(pixels), shape.filters, store_of(operator).out)

    def as_images(matrix: Any) -> Any:
        found = matrix.unflatten(0, pixels)
        return found.permute(0, 3, 1, 2) if nchw else found

    held = extras(place, operator.epilogue, math.prod(pixels), shape.filters)
    given = {name: as_images(tensor) if tensor.ndim == 2 else tensor for name, tensor in held.items()}
    bare = replace(operator, epilogue=NOTHING, layout="nhwc")
    sums, sizes = (found.reshape(-1, shape.filters) for found in sums_of(bare, images, w, **walk))
    known = {name: numpy(tensor) for name, tensor in held.items()}

    def run(plan: GpuPlan) -> Any:
        return gemm.run_planned(plan, x, w, as_images(out), **walk, **given)

    return Arranged(run, out, whole, shape.gemm["k"], sums, sizes, known)


def judged(case: Arranged, store: Store, dtype: str, integers: bool) -> dict[str, Any]:
    """The largest error of C as the call left it, whether rounding explains all, and how many guards were written over.

    Sums of integers are exact, and rounded once where no step follows. What rounding does to other sums goes through
    the epilogue on both sides of them; an output of integers may be one off after steps in float32.
    """
    found = numpy(case.out)
    if (integers or dtype == "int8") and not store.chain.steps:
        expected = numpy(torch.from_numpy(case.sums).to(case.out.dtype))
        room = np.zeros_like(expected)
    else:
        slack = 0.0 * case.sizes if dtype == "int8" else 4 * (EPSILON[dtype] * case.k**-0.5 + 2.0**-20) * case.sizes
        expected, below, above = (store.chain.reference(case.sums + way * slack, **case.operands) for way in (0, -1, 1))
        rounding = 1.0 if store.out in EXACT else 4 * (EPSILON[store.out] * abs(expected) + 2.0**-20 * (1 + case.sizes))
        room = np.maximum(abs(above - expected), abs(below - expected)) + rounding
    difference = np.where(np.isnan(found), np.inf, abs(found - expected))
    case.out.fill_(GUARD)
    outside = int((case.whole != GUARD).sum().item())
    right = outside == 0 and bool((difference <= room).all())
    return {"error": float(difference.max()), "outside": outside, "right": right}
