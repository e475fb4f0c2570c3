"""Winograd convolution: its matrices and error bound, and its transforms and executor on the CPU against NumPy."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from dataclasses import astuple, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import hypothesis
import needs
import numpy as np
import priced
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from test_conv import variant
from test_gemm import guarded, run_in_child

from vortex.affinity import cpu_flags
from vortex.conv_launcher import ConvKernel
from vortex.conv_selector import DIRECT, ConvPlan
from vortex.convolution import Conv2d, ConvShape, window
from vortex.errors import OperandError
from vortex.library import Library
from vortex.plans import Grid, grids
from vortex.selector import NumpyArithmetic
from vortex.specs import load_spec
from vortex.winograd import ALGORITHMS, Winograd
from vortex.winograd_cost import BLOCKINGS, Blocking, WinogradProblem, predict_winograd, strategies
from vortex.winograd_selector import PACKED, VECTORS, Situation, WinogradSelector, suits, tiles_called

RNG = np.random.default_rng(11)
TILES = sorted(ALGORITHMS)
WIDE = "avx512f" in cpu_flags()
SPEC, CPU = ("epyc-zen5", "x86-64-v4") if WIDE else ("xeon-e5-2680v3", "x86-64-v3")
PRICED = priced.selector(load_spec(SPEC), ())
LANES = PRICED.lanes
MODEL = WinogradSelector(PRICED.rates, PRICED.table, LANES)
ALONE = Grid(1, 1)
LAYOUTS = ("nhwc", "nchw")
NAMES = (
    *("batch", "height", "width", "channels", "filters", "kernel_h", "kernel_w", "out_h", "out_w", "stride_h"),
    *("stride_w", "pad_top", "pad_left", "dilation_h", "dilation_w", "groups"),
)


class Call(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in "xwy"),
        *((name, ctypes.c_int64) for name in NAMES),
        *((name, ctypes.c_int64 * 4) for name in ("x_stride", "y_stride")),
    )


class Plan(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("strategy", "algorithm", "tiles", "panels", "grid_tiles", "grid_panels")),
        *((name, ctypes.c_float) for name in ("alone", "seconds")),
    )


class Executor:
    """runtime/winograd.c on the transforms and the few micro-kernels that it needs."""

    def __init__(self, folder: Path) -> None:
        from vortex.codegen.cpu_kernels import RegisterTile, dispatch_table, micro_kernel
        from vortex.codegen.cpu_load import PAST_IR, copy_kernel, transpose_kernel
        from vortex.codegen.cpu_steps import quad_ir, settle_ir
        from vortex.codegen.cpu_tile import stream_ir
        from vortex.codegen.cpu_winograd import winograd_costs, winograd_kernels, winograd_table
        from vortex.codegen.link import RUNTIME, link
        from vortex.codegen.lower import compile_object, cpu_target

        registers = round(MODEL.rates.registers)
        tiles = [RegisterTile(*tile, "row") for tile in sorted(tiles_called(registers))]
        kernels = [micro_kernel(tile, LANES) for tile in tiles]
        loads = [copy_kernel(LANES), transpose_kernel(LANES)]
        parts = [*kernels, *loads, *winograd_kernels(TILES, LANES)]
        text = stream_ir(LANES) + settle_ir(LANES) + quad_ir(LANES) + PAST_IR
        compile_object(parts, cpu_target(CPU), folder / "kernels.o", llvm_ir=text)
        function = winograd_costs(MODEL.rates, MODEL.table, LANES, CPU)
        compile_object([function], cpu_target(CPU), folder / "costs.o", share=False)
        slopes = ", ".join(float(value).hex() for value in MODEL.table.seconds.ravel())
        lines = [
            f"const int64_t vx_lanes = {LANES}, vx_operand_count = 0;",
            "const vx_epilogue vx_store_stage = 0, vx_store_past = 0;",
            "const vx_load vx_conv_begin = 0;",
            f"const int64_t vx_outer_bytes = {MODEL.rates.outer_bytes:.0f};",
            "const vx_operand vx_operands[VX_EXTRAS];",
            f"const float vx_slopes[] = {{{slopes}}};",
            "",
        ]
        (folder / "table.c").write_text("\n".join([*winograd_table(LANES, registers), *dispatch_table(tiles), *lines]))
        names = ("winograd.c", "winograd_select.c", "threads.c", "scratch.c")
        sources = [folder / "table.c", *(RUNTIME / name for name in names)]
        objects = [folder / "kernels.o", folder / "costs.o"]
        link(folder / "winograd.so", objects, sources, defines=[f"VX_WINOGRAD_PRICED={LANES}"])
        self.library = ctypes.CDLL(str(folder / "winograd.so"))
        self.library.vx_select_winograd.restype = Plan
        self.width = VECTORS * LANES

    def pack(self, w: np.ndarray, tile: int) -> np.ndarray:
        filters, channels = w.shape[:2]
        packed = np.full(
            -(-filters // self.width) * ALGORITHMS[tile].points * channels * self.width, np.nan, np.float32
        )
        address = [ctypes.c_void_p(operand.ctypes.data) for operand in (w, packed)]
        sizes = [ctypes.c_int64(size) for size in (filters, channels, TILES.index(tile))]
        assert self.library.vx_pack_winograd(*address, *sizes) == 0
        assert np.isfinite(packed).all()
        return packed

    def select(self, shape: ConvShape, threads: int, given: Situation, offered: int) -> tuple[Blocking, Grid]:
        """What the native selector picks for a shape without padding."""
        extents = (
            shape.batch,
            shape.height,
            shape.width,
            shape.channels,
            shape.filters,
            3,
            3,
            shape.out_h,
            shape.out_w,
        )
        x, y = ((ctypes.c_int64 * 4)(0, 0, 0, 2 if turn else 1) for turn in (given.turn_x, given.turn_y))
        call = Call(None, None, None, *extents, 1, 1, 0, 0, 1, 1, 1, x, y)
        flags = [ctypes.c_int64(flag) for flag in (offered, not given.packed, threads)]
        plan = self.library.vx_select_winograd(ctypes.byref(call), *flags)
        return BLOCKINGS[plan.strategy], Grid(plan.grid_tiles, plan.grid_panels)

    def __call__(
        self,
        x: np.ndarray,
        packed: np.ndarray,
        y: np.ndarray,
        layout: str,
        padding: Sequence[int],
        plan: Sequence[int],
        threads: int = 2,
    ) -> None:
        places = (0, 1, 2, 3) if layout == "nhwc" else (0, 2, 3, 1)
        batch, height, width, channels = (x.shape[place] for place in places)
        _, out_h, out_w, filters = (y.shape[place] for place in places)
        strides = [(ctypes.c_int64 * 4)(*(z.strides[place] // 4 for place in places)) for z in (x, y)]
        extents = (batch, height, width, channels, filters, 3, 3, out_h, out_w, 1, 1, padding[0], padding[2], 1, 1, 1)
        call = Call(x.ctypes.data, packed.ctypes.data, y.ctypes.data, *extents, *strides)
        self.library.vx_set_threads(ctypes.c_int64(threads))
        assert self.library.vx_execute_winograd(ctypes.byref(call), ctypes.byref(Plan(0, *plan))) == 0


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Executor:
    return Executor(tmp_path_factory.mktemp("winograd"))


def padded_shape(height: int, width: int, padding: Sequence[int]) -> tuple[int, int]:
    return height + padding[0] + padding[1] - 2, width + padding[2] + padding[3] - 2


def reals(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def turned(array: np.ndarray, layout: str) -> np.ndarray:
    return np.ascontiguousarray(array if layout == "nhwc" else array.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("tile", TILES)
def test_the_matrices_give_the_convolution(tile: int) -> None:
    bt, g, at = ALGORITHMS[tile].matrices
    d, w = RNG.standard_normal((tile + 2, tile + 2)), RNG.standard_normal((3, 3))
    found = at @ ((g @ w @ g.T) * (bt @ d @ bt.T)) @ at.T
    expected = [[(d[i : i + 3, j : j + 3] * w).sum() for j in range(tile)] for i in range(tile)]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_the_points_are_better_than_the_usual_ones() -> None:
    """The growth of rounding errors that both choices allow, for the same operands."""
    x, w = RNG.standard_normal((6, 6, 64)), RNG.standard_normal((8, 64, 3, 3))
    usual = Winograd((Fraction(1), Fraction(2)))
    assert ALGORITHMS[4].error_bound(x, w).mean() < 0.7 * usual.error_bound(x, w).mean()
    assert ALGORITHMS[2].error_bound(x, w).mean() < 0.7 * ALGORITHMS[4].error_bound(x, w)[:4, :4].mean()


@needs.a_compiler
class TestExecutor:
    @settings(max_examples=150, deadline=None, derandomize=True)
    @hypothesis.given(data=st.data())
    def test_any_shape(self, executor: Executor, data: Any) -> None:
        def draw(least: int, most: int) -> int:
            return data.draw(st.integers(least, most))

        batch, channels, filters = draw(1, 3), draw(1, 40), draw(1, 2 * executor.width + 3)
        height, width, padding = draw(1, 19), draw(1, 19), [draw(0, 4) for _ in range(4)]
        out_h, out_w = padded_shape(height, width, padding)
        if out_h < 1 or out_w < 1:
            return
        layout, tile = data.draw(st.sampled_from(LAYOUTS)), data.draw(st.sampled_from(TILES))
        plan = (TILES.index(tile), draw(1, 40), draw(1, 3), draw(1, 4), draw(1, 3))
        x = RNG.integers(-4, 5, (batch, height, width, channels)).astype(np.float32)
        w = RNG.integers(-4, 5, (filters, channels, 3, 3)).astype(np.float32)
        x, y = turned(x, layout), turned(np.full((batch, out_h, out_w, filters), np.nan, np.float32), layout)
        executor(x, executor.pack(w, tile), y, layout, padding, plan, draw(1, 3))
        expected = Conv2d(layout).reference(x, w, padding=padding)
        # F(2x2) is exact on small integers; the points of F(4x4) are not whole numbers.
        assert np.abs(y - expected).max() <= (0 if tile == 2 else 1e-4 * channels)

    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("tile", TILES)
    def test_the_plan_and_the_layout_change_no_bit(self, executor: Executor, tile: int, layout: str) -> None:
        x, w = reals(2, 13, 21, 37), reals(70, 37, 3, 3)
        packed, results = executor.pack(w, tile), []
        for plan in ((1000, 9, 1, 1), (5, 1, 2, 2), (1, 2, 3, 1), (28, 3, 1, 2)):
            y = turned(np.zeros((2, 13, 21, 70), np.float32), layout)
            executor(turned(x, layout), packed, y, layout, (1, 1, 1, 1), (TILES.index(tile), *plan))
            results.append(y)
        assert all(np.array_equal(result, results[0]) for result in results)

    @pytest.mark.parametrize("tile", TILES)
    @pytest.mark.parametrize("kind", ["normal", "one sign", "far apart"])
    def test_the_error_stays_inside_the_bound(self, executor: Executor, tile: int, kind: str) -> None:
        x, w = reals(1, 12, 12, 96), reals(33, 96, 3, 3)
        if kind == "one sign":
            x, w = np.abs(x) + 1, np.abs(w) + 1
        if kind == "far apart":
            x, w = (z * np.exp(6 * RNG.standard_normal(z.shape)).astype(np.float32) for z in (x, w))
        y = np.empty((1, 10, 10, 33), np.float32)
        executor(x, executor.pack(w, tile), y, "nhwc", (0, 0, 0, 0), (TILES.index(tile), 28, 8, 1, 1))
        error = np.abs(y[0] - Conv2d("nhwc").reference(x, w)[0])
        bound = ALGORITHMS[tile].error_bound(x[0], w)
        assert (error <= bound).all()
        assert error.max() > 1e-5 * bound.max()  # the bound speaks of this computation

    def test_nan_stays_in_the_windows_that_see_it(self, executor: Executor) -> None:
        x, w = np.zeros((1, 24, 24, 3), np.float32), reals(5, 3, 3, 3)
        x[0, 9, 9, 1] = np.nan
        for tile in TILES:
            y = np.zeros((1, 24, 24, 5), np.float32)
            executor(x, executor.pack(w, tile), y, "nhwc", (1, 1, 1, 1), (TILES.index(tile), 7, 1, 1, 1))
            seen = np.isnan(y).any(axis=-1)[0]
            assert seen[8:11, 8:11].all() and seen.sum() <= (2 * tile) ** 2

    def test_nothing_outside_the_operands_is_touched(self, executor: Executor) -> None:
        assert run_in_child(touch_only_operands, executor) == 0


def placed(array: np.ndarray, at_end: bool) -> np.ndarray:
    """The same array in memory that ends (or begins) at a page nobody may touch."""
    return guarded(array.reshape(1, -1), at_end).reshape(array.shape)


def touch_only_operands(executor: Executor) -> None:
    for at_end in (True, False):
        for layout in LAYOUTS:
            for batch, height, width, channels, filters in ((1, 1, 1, 1, 1), (2, 7, 9, 5, 33), (1, 12, 6, 17, 40)):
                x = placed(
                    turned(RNG.integers(-4, 5, (batch, height, width, channels)).astype(np.float32), layout), at_end
                )
                w = placed(RNG.integers(-4, 5, (filters, channels, 3, 3)).astype(np.float32), at_end)
                y = placed(turned(np.zeros((batch, height, width, filters), np.float32), layout), at_end)
                packed = placed(executor.pack(w, 2), at_end)
                executor(x, packed, y, layout, (1, 1, 1, 1), (0, 3, 1, 1, 1), threads=1)
                assert np.array_equal(y, Conv2d(layout).reference(x, w, padding=1))


def random_shapes(count: int, seed: int) -> list[tuple[ConvShape, int, Situation, int]]:
    """Shapes, threads, situations, and the bits of the algorithms on offer."""
    rng = np.random.default_rng(seed)
    sides = np.exp(rng.uniform(1.1, 6, (count, 2))).astype(int)
    deep = np.exp(rng.uniform(0, 7, (count, 2))).astype(int)
    batch, flags = np.exp(rng.uniform(0, 4.5, count)).astype(int), rng.integers(0, 2, (count, 3)).astype(bool)
    threads, offered = rng.choice([1, 2, 3, 8], count), rng.integers(1, 4, count)
    return [
        (ConvShape(*map(int, (n, h, w, c, k, 3, 3))), int(t), Situation(*map(bool, f)), int(o))
        for n, (h, w), (c, k), f, t, o in zip(batch, sides, deep, flags, threads, offered, strict=True)
    ]


def tiles_of(offered: int) -> list[int]:
    return [tile for bit, tile in enumerate(TILES) if offered >> bit & 1]


def mirror(shapes: list[tuple[ConvShape, int, Situation, int]]) -> list[tuple[Blocking, Grid]]:
    """`WinogradSelector.select` of many shapes at once."""
    chosen = [(BLOCKINGS[0], ALONE)] * len(shapes)
    tile = np.array([blocking.tile for blocking in BLOCKINGS])
    offers = np.array([[blocking.tile in tiles_of(offered) for blocking in BLOCKINGS] for *_, offered in shapes])
    for threads in {count for _, count, _, _ in shapes}:
        places = [place for place, (_, count, _, _) in enumerate(shapes) if count == threads]
        least, open_to = np.full(len(places), np.inf, np.float32), offers[places]
        rows = [astuple(MODEL.problem(shapes[p][0], ALONE, threads, shapes[p][2])) for p in places]
        alone = WinogradProblem(*(np.array(values, np.float32)[:, None] for values in zip(*rows, strict=True)))
        for grid in grids(threads):
            active = np.float32(min(threads, grid.m * grid.n))
            columns = replace(alone, grid_m=np.float32(grid.m), grid_n=np.float32(grid.n), active=active)
            found = predict_winograd(NumpyArithmetic(MODEL.table), MODEL.float32_rates, strategies(), columns)
            total = np.where(open_to, np.asarray(found.total), np.float32(np.inf))
            index = total.argmin(axis=1)
            if grid == ALONE:
                open_to = tile[None] == tile[index][:, None]
            value = total[np.arange(len(places)), index]
            for row in np.flatnonzero(value < least):
                chosen[places[row]] = (BLOCKINGS[index[row]], grid)
            least = np.minimum(value, least)
    return chosen


class TestSelection:
    @needs.a_compiler
    def test_native_is_the_mirror(self, executor: Executor) -> None:
        shapes = random_shapes(100_000, 5)
        assert [executor.select(*question) for question in shapes] == mirror(shapes)

    def test_many_at_once_is_one_by_one(self) -> None:
        shapes = random_shapes(200, 6)
        plans = [MODEL.select(shape, threads, given, tiles_of(offered)) for shape, threads, given, offered in shapes]
        assert mirror(shapes) == [(plan.blocking, plan.grid) for plan in plans]
        assert {plan.blocking for plan in plans} == set(BLOCKINGS)

    def test_threads_change_no_bit(self) -> None:
        for shape, _, given, offered in random_shapes(200, 7):
            assert len({MODEL.select(shape, count, given, tiles_of(offered)).blocking.tile for count in (1, 2, 8)}) == 1

    def test_what_the_cost_knows(self) -> None:
        def seconds(shape: ConvShape, given: Situation = PACKED, grid: Grid = ALONE) -> np.ndarray:
            return np.asarray(MODEL.costs(shape, grid, 2, given).total)

        large = ConvShape(8, 58, 58, 128, 128, 3, 3)
        small, _, fast, _ = seconds(large)
        assert 1.3 < small / fast < 2.4  # 16 products for 4 pixels against 36 for 16, and dearer transforms
        assert (seconds(large, Situation(turn_x=True)) > seconds(large)).all()
        assert (seconds(large, Situation(turn_y=True)) > seconds(large)).all()
        assert (seconds(large, Situation(packed=False)) > seconds(large)).all()
        assert (seconds(large, grid=Grid(2, 1)) < 0.6 * seconds(large)).all()
        few = ConvShape(1, 6, 6, 512, 512, 3, 3)  # one block of tiles: only the filters can be shared out
        assert (seconds(few, grid=Grid(1, 2)) < seconds(few, grid=Grid(2, 1))).all()
        # Filters that no cache holds are read less often by high blocks.
        low, high = seconds(ConvShape(64, 16, 16, 4096, 4096, 3, 3))[2:]
        assert high < low

    def test_what_it_computes(self) -> None:
        assert suits(ConvShape(1, 8, 8, 4, 4, 3, 3, window(padding=1)))
        for shape in (
            ConvShape(1, 8, 8, 4, 4, 3, 3, window(stride=2)),
            ConvShape(1, 8, 8, 4, 4, 3, 3, window(dilation=2)),
            ConvShape(1, 8, 8, 4, 4, 3, 3, window(groups=2)),
            ConvShape(1, 8, 8, 4, 4, 3, 1),
            ConvShape(0, 8, 8, 4, 4, 3, 3),
            ConvShape(1, 8, 8, 0, 4, 3, 3),
        ):
            assert not suits(shape)


@pytest.fixture(scope="module")
def fast(conv_library: Library) -> ConvKernel:
    return ConvKernel(conv_library)


def choices(count: int) -> list[tuple[ConvShape, int]]:
    """Shapes that Winograd computes, and threads."""
    return [(shape, threads) for shape, threads, _, _ in random_shapes(count, 8)]


class TestInConvolutions:
    def test_the_error_stays_inside_the_bound(self, fast: ConvKernel) -> None:
        for channels, filters, side in ((64, 64, 30), (16, 40, 58), (256, 64, 9)):
            x, w = (
                reals(1, side, side, channels),
                reals(filters, channels, 3, 3),
            )
            plan = fast.plan(x.shape, w.shape)
            assert plan.family == "winograd" and plan.blocking
            error = np.abs(fast(x, fast.pack(w))[0] - fast.operator.reference(x, w)[0])
            assert (error <= ALGORITHMS[plan.blocking.tile].error_bound(x[0], w)).all()

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_packed_or_not_and_both_layouts(self, conv_library: Library, layout: str) -> None:
        kernel = variant(conv_library, layout=layout)
        for shape, padding in (((2, 15, 18, 24), (1, 0, 2, 3)), ((1, 33, 40, 65), 1)):
            x, w = (
                turned(RNG.standard_normal(shape, np.float32), layout),
                reals(70, shape[3], 3, 3),
            )
            expected = kernel.operator.reference(x, w, padding=padding)
            for filters in (w, kernel.pack(w), kernel.pack(np.asfortranarray(w))):
                np.testing.assert_allclose(kernel(x, filters, padding=padding), expected, rtol=0, atol=3e-4)

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_with_an_epilogue(self, fused_conv_library: Library, layout: str) -> None:
        kernel = variant(fused_conv_library, layout=layout)
        x, w = turned(reals(2, 15, 18, 24), layout), reals(70, 24, 3, 3)
        added = turned(reals(2, 15, 18, 70), layout)
        operands = {"bias": reals(70), "residual": added}
        assert kernel.plan(x.shape, w.shape, padding=1).family == "winograd"
        expected = kernel.operator.reference(x, w, padding=1, **operands)
        np.testing.assert_allclose(kernel(x, kernel.pack(w), padding=1, **operands), expected, rtol=0, atol=3e-4)

    def test_strict_never_leaves_the_definition(self, conv_library: Library) -> None:
        strict, w = variant(conv_library, accuracy="strict"), reals(64, 64, 3, 3)
        assert {strict.selected(shape, threads).family for shape, threads in choices(50)} <= {"direct", "lines"}
        assert strict.pack(w).forms == DIRECT

    def test_every_plan_and_thread_count(self, fast: ConvKernel) -> None:
        x, w = reals(2, 20, 21, 33), reals(50, 33, 3, 3)
        packed, expected = fast.pack(w), fast.operator.reference(x, w, padding=1)
        for tile in TILES:
            results = []
            for blocking, grid in itertools.product([b for b in BLOCKINGS if b.tile == tile], grids(4)):
                plan = ConvPlan("winograd", False, 0, grid, 0.0, blocking)
                results.append(fast.run(plan, x, packed, np.empty((2, 20, 21, 50), np.float32), padding=1))
            assert all(np.array_equal(result, results[0]) for result in results)
            np.testing.assert_allclose(results[0], expected, rtol=0, atol=3e-4)

    def test_a_plan_whose_form_is_missing_is_refused(self, conv_library: Library, fast: ConvKernel) -> None:
        x, w = reals(1, 8, 8, 4), reals(5, 4, 3, 3)
        only_direct = replace(fast.pack(w), forms=DIRECT)
        with pytest.raises(OperandError, match="plan"):
            fast.run(
                ConvPlan("winograd", False, 0, ALONE, 0.0, BLOCKINGS[0]),
                x,
                only_direct,
                np.empty((1, 6, 6, 5), np.float32),
            )

    def test_native_chooses_as_the_mirror(self, fast: ConvKernel) -> None:
        families = set()
        for shape, threads in choices(400):
            for forms, packed in ((7, True), (7, False), (3, True), (5, True)):
                plan = fast.selector.choose(shape, threads, forms, Situation(packed=packed))
                found = fast.native_choice(shape, threads, forms, packed)
                assert found == (plan.family, plan.walk_batch, plan.grid, plan.blocking), (shape, threads, forms)
                families.add((plan.family, packed))
        assert families >= set(itertools.product(("winograd", "direct"), (True, False)))
        for shape, threads in choices(50):
            assert replace(fast.selector.choose(shape, threads, 7), alone=0.0) == replace(
                fast.selected(shape, threads), alone=0.0
            )
