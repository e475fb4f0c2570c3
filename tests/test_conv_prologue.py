"""Convolutions with a prologue: every family, each pixel exactly once, and the padding never."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import few_tiles
from test_conv import CASES, images, integers

import vortex
from vortex import OperandError, UnknownNameError
from vortex import operators as ops
from vortex.conv_launcher import ConvKernel
from vortex.conv_selector import FAMILIES
from vortex.convolution import ConvShape, window
from vortex.library import Library
from vortex.plans import Grid

CHAIN = ops.relu() >> ops.scale(2.0) >> ops.clamp(1.0, 6.0)
"""Exact on integers, and another thing done twice; of a zero of the padding it would make 1."""
WINOGRAD = [
    ((2, 9, 11, 5), 7, 1),
    ((1, 30, 41, 20), 70, (0, 2, 1, 0)),
    ((3, 4, 3, 33), 16, 3),
    ((1, 12, 90, 8), 24, 0),
]
"""Shapes of x, filters and padding."""


@pytest.fixture(scope="module")
def library() -> Library:
    found: Library = few_tiles(ops.Conv2d(prologue=CHAIN)).library
    return found


def variant(library: Library, **settings: Any) -> ConvKernel:
    """Every layout and accuracy has the same machine code."""
    operator = ops.Conv2d(prologue=CHAIN, **settings)
    return ConvKernel(replace(library, manifest=replace(library.manifest, settings=ops.settings(operator))))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize(("x", "w", "where"), CASES)
def test_exact(
    library: Library, x: tuple[int, ...], w: tuple[int, ...], where: dict[str, Any], layout: str, threads: int
) -> None:
    vortex.set_num_threads(threads)
    kernel = variant(library, layout=layout, accuracy="strict")
    data, weights = images(layout, integers(*x)), integers(*w, seed=1)
    expected = kernel.operator.reference(data, weights, **where)
    out = np.full(expected.shape, np.nan, np.float32)
    kernel(data, kernel.pack(weights, groups=where.get("groups", 1)), out, **where)
    assert (out == expected).all()
    assert (kernel(data, weights, **where) == expected).all()


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize(("x", "filters", "padding"), WINOGRAD)
def test_winograd(library: Library, x: tuple[int, ...], filters: int, padding: Any, layout: str) -> None:
    """Every algorithm and height of blocks; sums of so few channels are off by little."""
    kernel, weights = variant(library), integers(filters, x[3], 3, 3, seed=1)
    data = integers(*x)
    expected = kernel.operator.reference(data, weights, padding=padding)
    found = [p for p in kernel.plans(x, weights.shape, padding=padding, threads=2) if p.family == "winograd"]
    kernel, data = variant(library, layout=layout), images(layout, data)
    assert len({plan.blocking for plan in found}) > 1
    for plan in found:
        out = images(layout, np.full(expected.shape, np.nan, np.float32))
        kernel.run(plan, data, kernel.pack(weights), out, padding=padding)
        made = out.transpose(0, 2, 3, 1) if layout == "nchw" else out
        assert np.abs(made - expected).max() <= 1e-5 * np.abs(expected).max(), plan


def test_every_plan_has_the_same_bits(library: Library) -> None:
    generator = np.random.default_rng(3)
    for shape, where in [((7, 10, 11, 33), {"padding": 1, "stride": 2}), ((2, 10, 41, 3), {"padding": 1})]:
        kernel, x = variant(library, accuracy="strict"), generator.standard_normal(shape, np.float32)
        w = generator.standard_normal((70, shape[3], 3, 3), np.float32)
        plans = kernel.plans(x.shape, w.shape, threads=2, **where)
        out = kernel(x, w, **where)
        assert {plan.walk_batch for plan in plans} == {False}
        for plan in (*plans, replace(plans[0], walk_batch=True, grid=Grid(3, 2))):
            assert (kernel.run(plan, x, w, np.empty_like(out), **where) == out).all(), plan


def test_operands_that_are_apart_and_neighbours_that_are_not_read(library: Library) -> None:
    around = np.full((5, 9, 9, 24), np.nan, np.float32)
    around[2:4, 2:7, 2:7, 3:19] = integers(2, 5, 5, 16)
    x = around[2:4, 2:7, 2:7, 3:19]
    kernel = variant(library, accuracy="strict")
    for shape, groups in [((40, 16, 3, 3), 1), ((16, 1, 3, 3), 16), ((16, 2, 3, 3), 8), ((16, 1, 4, 3), 16)]:
        w, where = integers(*shape), {"padding": 3, "groups": groups}
        assert (kernel(x, w, **where) == kernel.operator.reference(x, w, **where)).all(), shape


def test_an_epilogue_behind_it() -> None:
    operator = ops.Conv2d(epilogue=ops.bias() >> ops.residual() >> ops.relu(), accuracy="strict", prologue=CHAIN)
    kernel = few_tiles(operator)
    for x, w, where in [case.values for case in CASES]:
        data, weights, bias = integers(*x), integers(*w, seed=1), integers(w[0], seed=2)
        shape = ConvShape(*x, w[0], *w[2:], window(**where))
        residual = integers(x[0], shape.out_h, shape.out_w, w[0], seed=3)
        expected = operator.reference(data, weights, bias=bias, residual=residual, **where)
        assert (kernel(data, weights, bias=bias, residual=residual, **where) == expected).all(), (x, w, where)


def test_the_mirror_picks_the_same_plan(library: Library) -> None:
    """Of batches too, whose pixels would be walked along images."""
    kernel, rng = variant(library), np.random.default_rng(5)
    for _ in range(500):
        batch, height, width, channels, filters = (int(x) for x in np.exp(rng.uniform(0, 5, 5)))
        shape = ConvShape(batch, height, width, channels, filters, 3, 3, window(1, 1))
        threads, forms = int(rng.choice([1, 2, 8])), kernel.forms(shape.weights, 1)
        plan = kernel.selector.choose(shape, threads, forms)
        family, walk, grid, blocking = kernel.native_choice(shape, threads, forms)
        assert (family, walk, grid, blocking) == (plan.family, False, plan.grid, plan.blocking), shape
        assert not plan.walk_batch and family in FAMILIES


def test_explain_names_the_steps(library: Library) -> None:
    kernel = variant(library)
    assert f"load   {CHAIN} on x while its rows are brought" in str(kernel.explain((1, 9, 9, 40), (40, 40, 3, 3)))
    assert f"load   {CHAIN} on A while it is packed" in str(kernel.explain((1, 9, 9, 40), (40, 40, 1, 1)))


def test_a_fixed_window_keeps_it(library: Library) -> None:
    kernel = few_tiles(ops.Conv2d(prologue=CHAIN, stride=2, padding=1))
    assert kernel.library.identity == library.identity and kernel.operator.open == ops.Conv2d(prologue=CHAIN)
    x, w = integers(1, 9, 9, 6), integers(5, 6, 3, 3)
    assert (kernel(x, w) == kernel.operator.reference(x, w)).all()


def test_refused_at_the_door() -> None:
    with pytest.raises(OperandError, match=r"Conv2d.*no tensors"):
        ops.Conv2d(prologue=ops.bias())
    with pytest.raises(UnknownNameError, match=r"Conv2d.*chain"):
        ops.Conv2d(prologue="relu")  # type: ignore[arg-type]
    with pytest.raises(OperandError, match=r"conv2d with prologue=relu on a100.*padding.*do it to x first"):
        vortex.compile(ops.Conv2d(dtype="float16", prologue=ops.relu()), "a100", cache=False)
