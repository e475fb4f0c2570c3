"""Outputs that no cache has room for: whole lines go past the caches, all else as ever; the numbers are the same."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import needs
import numpy as np
import pytest
from conftest import compiled, few_tiles
from families import keeps_or_skips, plans_of
from lying import caches, integers, within

import vortex
from vortex import operators as ops
from vortex.arithmetic import F32
from vortex.batch_launcher import BatchGemmKernel
from vortex.conv_launcher import ConvKernel
from vortex.conv_selector import ConvPlan
from vortex.effects import line_turns, past_caches
from vortex.epilogue import Epilogue
from vortex.launcher import GemmKernel
from vortex.library import Library
from vortex.operands import aligned_zeros
from vortex.plans import Grid, OperandB
from vortex.selector import NumpyArithmetic
from vortex.shapes import Shape
from vortex.stores import TURN_COLUMNS, TURN_DEPTH, TURN_ROWS

pytestmark = needs.a_compiler


@pytest.mark.parametrize(
    ("n", "shift", "stride"),
    [
        pytest.param(64, 0, 64, id="dense"),
        pytest.param(64, 0, 80, id="apart"),
        pytest.param(64, 4, 64, id="not on a line"),
        pytest.param(64, 0, 72, id="torn rows"),
        pytest.param(72, 0, 80, id="half a line more"),
        pytest.param(16, 16, 32, id="one line"),
        pytest.param(1008, 0, 1008, id="panels"),
        pytest.param(1009, 0, 1009, id="in 16 turns"),
        pytest.param(1004, 7, 1010, id="in 8 turns"),
        pytest.param(257, 15, 264, id="in 2 turns"),
        pytest.param(1008, 4, 1008, id="in one turn"),
    ],
)
def test_every_strategy_writes_the_product_and_nothing_else(gemm: GemmKernel, n: int, shift: int, stride: int) -> None:
    m, k = caches(gemm) // n + 5, 3
    a, b = integers(m, k), integers(k, n, seed=1)
    expected = a @ b
    memory, out = within(m, n, shift, stride)
    for plan in gemm.plans(m, n, k, threads=2):
        out[:] = np.nan
        gemm.run(plan, a, b, out)
        assert (out == expected).all(), plan
    out[:] = -7
    assert (memory == -7).all()


def test_several_steps_of_k_and_sums_onto_what_is_there(gemm: GemmKernel) -> None:
    k = 1100
    m = caches(gemm) // 64 + 7
    a, b = integers(m, k), integers(k, 64, seed=1)
    product = a @ b
    out = aligned_zeros(m * 64).reshape(m, 64)
    for threads in (1, 2):
        vortex.set_num_threads(threads)
        gemm(a, b, out=out)
        assert (out == product).all()
        gemm(a, b, out=out, accumulate=True)
        assert (out == 2 * product).all()


@pytest.mark.parametrize("n", [16, 48])
def test_the_held_family_in_several_steps_of_k_and_onto_what_is_there(gemm: GemmKernel, n: int) -> None:
    """The last step reads what those before left in the caches, and is the one that writes past them."""
    held = keeps_or_skips(gemm, "held")
    m, depth = caches(held) // n + 5, next(s.l0.k for s in held.strategies if s.stage.held)
    for k in (depth, 2 * depth + 1):
        a, b, c = integers(m, k), integers(k, n, seed=1), aligned_zeros(m * n).reshape(m, n)
        product = a @ b
        for plan in plans_of(held, "held", m, n, k)[0]:
            c[:] = np.nan
            held.run(plan, a, b, c)
            assert (c == product).all(), plan
            held.run(plan, a, b, c, accumulate=True)
            assert (c == 2 * product).all(), plan


@pytest.mark.parametrize(("n", "shift"), [(64, 0), (64, 4), (72, 0), (1008, 0), (1003, 2)])
def test_fused_products(gemm: GemmKernel, chains: dict[Epilogue, GemmKernel], n: int, shift: int) -> None:
    """In the micro-kernels, and through a tile of sums where the chain has a gelu or k takes several steps."""
    m = caches(gemm) // n + 5
    for k in (3, 1100) if n == 64 else (3,):
        a, b = integers(m, k), integers(k, n, seed=1)
        bias = integers(n, seed=2)
        product = a @ b + bias
        for last, fused in chains.items():
            expected = ops.Gemm(epilogue=ops.bias() >> last).reference(a, b, bias=bias)
            memory, out = within(m, n, shift, n + n % 16)
            for threads in (1, 2):
                vortex.set_num_threads(threads)
                out[:] = np.nan
                fused(a, b, out, bias=bias)
                assert np.abs(out - expected).max() <= 1e-6 * np.abs(product).max()
            out[:] = -7
            assert (memory == -7).all()


def test_rows_taken_in_turns_have_the_bits_of_others(gemm: GemmKernel) -> None:
    """Onto what is there, and of a B and an A that are stored transposed; C has several blocks and two threads."""
    n, k = 2031, 100
    m = caches(gemm) // n + 70
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((m, k), (k, n)))
    few = np.concatenate([gemm(a[at : at + 512], b) for at in range(0, m, 512)])
    memory, out = within(m, n, 3, n)
    for threads in (1, 2):
        vortex.set_num_threads(threads)
        for x, y in ((a, b), (a, b.T.copy().T), (a.T.copy().T, b)):
            out[:] = np.nan
            gemm(x, y, out=out)
            assert (out == few).all()
        gemm(a, b, out=out, accumulate=True)
        assert np.abs(out - 2 * few).max() <= 1e-4
    out[:] = -7
    assert (memory == -7).all()


def test_a_fixed_width_has_the_kernels_between_its_lines() -> None:
    n = 1003
    fixed = compiled(ops.Gemm(n=n))
    m = caches(fixed) // n + 70
    a, b = integers(m, 3), integers(3, n, seed=1)
    expected = a @ b
    memory, out = within(m, n, 1, n)
    for plan in fixed.plans(m, n, 3, threads=2):
        out[:] = np.nan
        fixed.run(plan, a, b, out)
        assert (out == expected).all(), plan
    out[:] = -7
    assert (memory == -7).all()


def test_products_of_a_batch_that_are_many_only_together(gemm: GemmKernel) -> None:
    batch = BatchGemmKernel(for_batches(gemm.library))
    m = 96
    count = caches(gemm) // (m * 64) + 3
    x, y = integers(count, m, 5), integers(count, 5, 64, seed=1)
    assert (batch(x, y) == np.matmul(x, y)).all()


def test_results_that_are_large_start_on_a_line(gemm: GemmKernel) -> None:
    for rows in (1, 4096, 8192):
        c = gemm(integers(rows, 2), integers(2, 64))
        assert c.shape == (rows, 64) and c.flags.c_contiguous and c.flags.writeable
        assert rows * 64 < 1 << 18 or c.ctypes.data % 64 == 0


CONVOLUTIONS = [
    pytest.param((3, 3), 3, 64, {}, id="few channels"),
    pytest.param((3, 3), 3, 64, {"padding": 1}, id="few channels, padded"),
    pytest.param((3, 3), 5, 48, {"padding": (2, 0, 1, 3), "stride": (1, 2)}, id="padded, strided"),
    pytest.param((3, 3), 5, 40, {"padding": 1}, id="half lines"),
    pytest.param((1, 1), 8, 128, {}, id="a product"),
]


DEPTHWISE = [
    pytest.param((3, 3), 64, 64, {"padding": 1, "groups": 64}, id="depthwise"),
    pytest.param((3, 5), 48, 48, {"padding": 2, "dilation": 2, "groups": 48}, id="depthwise, dilated"),
]


@pytest.mark.parametrize(("taps", "channels", "filters", "where"), CONVOLUTIONS)
def test_convolutions(conv: ConvKernel, taps: tuple[int, int], channels: int, filters: int, where: dict) -> None:
    batch = 3
    side = int((caches(conv) * (2 if "stride" in where else 1) / batch / filters) ** 0.5) + 6
    x, w = integers(batch, side, side, channels), integers(filters, channels, *taps, seed=1)
    expected = conv.operator.reference(x, w, **where)
    packed = conv.pack(w)
    for shift in (0, 4):
        memory = aligned_zeros(expected.size + 16)
        memory[:] = -7
        out = memory[shift : shift + expected.size].reshape(expected.shape)
        for threads in (1, 2):
            vortex.set_num_threads(threads)
            out[:] = np.nan
            conv(x, packed, out, **where)
            assert (out == expected).all()
        assert (memory[:shift] == -7).all() and (memory[shift + expected.size :] == -7).all()


@pytest.mark.parametrize(("taps", "channels", "filters", "where"), [*CONVOLUTIONS, *DEPTHWISE])
def test_fused_convolutions(fused: ConvKernel, taps: tuple[int, int], channels: int, filters: int, where: dict) -> None:
    """Sums go through the store stage on their way past the caches; at an edge, in parts."""
    side = int((caches(fused) * (2 if "stride" in where else 1) / 2 / filters) ** 0.5) + 6
    groups = where.get("groups", 1)
    x, w = integers(2, side, side, channels), integers(filters, channels // groups, *taps, seed=1)
    b = integers(filters, seed=2)
    packed, plain = fused.pack(w, groups=groups), ops.Conv2d().reference(x, w, **where)
    r = integers(*plain.shape, seed=3)
    expected = np.maximum(plain + b + r, 0)
    for shift in (0, 4):
        memory = aligned_zeros(expected.size + 16)
        out = memory[shift : shift + expected.size].reshape(expected.shape)
        for threads in (1, 2):
            vortex.set_num_threads(threads)
            out[:] = np.nan
            fused(x, packed, out, bias=b, residual=r, **where)
            assert (out == expected).all()


def test_pixels_of_several_images(conv: ConvKernel) -> None:
    batch = caches(conv) // (16 * 64) + 4
    x, w = integers(batch, 4, 4, 2), integers(64, 2, 3, 3, seed=1)
    expected = conv.operator.reference(x, w, padding=1)
    out = aligned_zeros(expected.size).reshape(expected.shape)
    for walk in (False, True):
        conv.run(ConvPlan("direct", walk, 0, Grid(2, 1), 0.0), x, w, out, padding=1)
        assert (out == expected).all()
        out[:] = np.nan


@pytest.mark.parametrize("filters", [64, 40])
def test_winograds_form(conv_library: Library, fused_conv_library: Library, filters: int) -> None:
    """Pixels of whole lines and of others, with a chain and without, on a line and beside it: the same bits."""
    for library in (conv_library, fused_conv_library):
        kernel = ConvKernel(library)
        side = int((caches(kernel) / 2 / filters) ** 0.5) + 6
        x, w = integers(2, side, side, 16), integers(filters, 16, 3, 3, seed=1)
        extras = (
            {
                name: integers(*extents, seed=3)
                for name, extents in (("bias", (filters,)), ("residual", (2, side, side, filters)))
            }
            if library is fused_conv_library
            else {}
        )
        packed = kernel.pack(w)
        memory = aligned_zeros(2 * side * side * filters + 16)
        found = []
        for shift in (0, 4):
            out = memory[shift : shift + 2 * side * side * filters].reshape(2, side, side, filters)
            for plan in (plan for plan in kernel.plans(x.shape, w.shape, padding=1, threads=2) if plan.blocking):
                out[:] = np.nan
                kernel.run(plan, x, packed, out, padding=1, **extras)
                found.append((plan.blocking.tile, out.copy()))
        expected = kernel.operator.reference(x, w, padding=1, **extras)
        for tile in {tile for tile, _ in found}:
            first, *others = (made for of, made in found if of == tile)
            assert others and all((made == first).all() for made in others)
            assert np.abs(first - expected).max() <= 1e-4 * np.abs(expected).max()


def test_the_cost_knows_what_goes_past_the_caches(gemm: GemmKernel) -> None:
    selector = gemm.manifest.selector()
    arithmetic, rates = NumpyArithmetic(selector.table), selector.rates
    room = rates.outer_bytes / 4
    for outputs, columns, expected in [(0.9, 64, 0), (1.1, 64, 1), (1.1, 72, 0), (1.1, 100_000, 1), (1.1, 100_008, 0)]:
        assert past_caches(arithmetic, rates, F32(outputs * room), F32(columns)) == expected


@pytest.mark.parametrize(("columns", "turns"), [(64, 1), (72, 2), (1004, 4), (1002, 8), (1003, 16), (100_001, 16)])
def test_rows_begin_at_the_same_place_of_a_line_so_often(gemm: GemmKernel, columns: int, turns: int) -> None:
    selector = gemm.manifest.selector()
    assert line_turns(NumpyArithmetic(selector.table), selector.rates, F32(columns)) == turns
    starts = [row * columns % 16 for row in range(1, 17)]
    assert starts.index(0) + 1 == turns


def test_the_cost_takes_rows_in_turns_where_the_runtime_does() -> None:
    source = (Path(vortex.__file__).parent / "runtime" / "streams.h").read_text()
    found = {name: float(value) for name, value in re.findall(r"#define VX_(TURN_\w+) (\d+)", source)}
    assert found == {"TURN_ROWS": TURN_ROWS, "TURN_COLUMNS": TURN_COLUMNS, "TURN_DEPTH": TURN_DEPTH}


def test_odd_rows_are_predicted_like_whole_lines(gemm: GemmKernel) -> None:
    """Of a short k; of one that the runtime does not take in turns they are read first. By a memory of 15 GB/s, slow
    enough that what goes to it decides, whatever was measured."""
    measured = gemm.manifest.selector()
    slow = replace(measured.rates, dram_byte=1 / 15e9, dram_byte_shared=1 / 18e9)
    selector = replace(measured, rates=slow)
    n = 1009
    m = 4 * int(slow.outer_bytes) // n
    even, odd = (selector.select(Shape(m, columns, 8, OperandB.PLAIN), 1).seconds for columns in (1008, n))
    assert even < odd < 1.3 * even


def test_a_b_in_words_is_not_packed_for_each_turn(gemm: GemmKernel) -> None:
    selector = gemm.manifest.selector()
    words = replace(selector, rates=replace(selector.rates, dot_turned=0.0))
    n = 1009
    odd = Shape(4 * int(selector.rates.outer_bytes) // n, n, 8, OperandB.PLAIN)
    plain, in_words = (np.asarray(one.costs(odd, Grid(1, 1), 1).terms()["packing"]) for one in (selector, words))
    tiled = [(i, s) for i, s in enumerate(selector.strategies) if s.stage.tiled and not s.stage.swap]
    packs = [i for i, s in tiled if s.stage.pack_b != "none" and s.l0.n % 16 == 0]  # others store no whole lines
    assert packs and np.allclose(plain[packs], 16 * in_words[packs])


def for_batches(library: Library) -> Library:
    """The same machine code for batches."""
    return replace(
        library,
        manifest=replace(library.manifest, operator=ops.BatchGemm().name, settings=ops.settings(ops.BatchGemm())),
    )


@pytest.fixture(scope="module")
def gemm() -> GemmKernel:
    return compiled(ops.Gemm())


@pytest.fixture(scope="module")
def conv_library() -> Library:
    library: Library = few_tiles(ops.Conv2d()).library
    return library


@pytest.fixture(scope="module")
def conv(conv_library: Library) -> ConvKernel:
    return strict(conv_library)


@pytest.fixture(scope="module")
def chains() -> dict[Epilogue, GemmKernel]:
    return {last: compiled(ops.Gemm(epilogue=ops.bias() >> last)) for last in (ops.relu(), ops.gelu())}


@pytest.fixture(scope="module")
def fused(fused_conv_library: Library) -> ConvKernel:
    return strict(fused_conv_library)


def strict(library: Library) -> ConvKernel:
    """Every product of the definition is formed, so that small integers give exact results."""
    operator = ops.rebuilt(library.manifest.operator, library.manifest.settings)
    settings = ops.settings(replace(operator, accuracy="strict"))
    return ConvKernel(replace(library, manifest=replace(library.manifest, settings=settings)))
