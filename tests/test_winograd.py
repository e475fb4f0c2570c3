"""Winograd convolution: its matrices and error bound, and its transforms and executor on the CPU against NumPy."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import needs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gemm import guarded, run_in_child

from vortex.affinity import cpu_flags
from vortex.convolution import Conv2d
from vortex.winograd import ALGORITHMS, Winograd

RNG = np.random.default_rng(11)
TILES = sorted(ALGORITHMS)
WIDE = "avx512f" in cpu_flags()
LANES, REGISTERS, CPU = (16, 32, "x86-64-v4") if WIDE else (8, 16, "x86-64-v3")
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
    _fields_ = tuple((name, ctypes.c_int64) for name in ("algorithm", "tiles", "panels", "grid_tiles", "grid_panels"))


class Executor:
    """runtime/winograd.c on the transforms and the few micro-kernels that it needs."""

    def __init__(self, folder: Path) -> None:
        from vortex.codegen.cpu_kernels import RegisterTile, micro_kernel
        from vortex.codegen.cpu_load import transpose_kernel
        from vortex.codegen.cpu_nest import dispatch
        from vortex.codegen.cpu_winograd import VECTORS, winograd_kernels, winograd_table
        from vortex.codegen.link import RUNTIME, link
        from vortex.codegen.lower import compile_object, cpu_target

        rows = (REGISTERS - 3) // VECTORS
        tiles = [RegisterTile(r, v, "row") for r in range(1, rows + 1) for v in range(1, VECTORS + 1)]
        kernels = [micro_kernel(tile, LANES) for tile in tiles]
        parts = [*kernels, dispatch(tiles, "row"), transpose_kernel(LANES), *winograd_kernels(LANES)]
        compile_object(parts, cpu_target(CPU), folder / "kernels.o")
        table = [*winograd_table(LANES, REGISTERS), f"const int64_t vx_lanes = {LANES};", ""]
        (folder / "table.c").write_text("\n".join(table))
        sources = [folder / "table.c", *(RUNTIME / name for name in ("winograd.c", "threads.c", "scratch.c"))]
        link(folder / "winograd.so", [folder / "kernels.o"], sources)
        self.library = ctypes.CDLL(str(folder / "winograd.so"))
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
        assert self.library.vx_execute_winograd(ctypes.byref(call), ctypes.byref(Plan(*plan))) == 0


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Executor:
    return Executor(tmp_path_factory.mktemp("winograd"))


def padded_shape(height: int, width: int, padding: Sequence[int]) -> tuple[int, int]:
    return height + padding[0] + padding[1] - 2, width + padding[2] + padding[3] - 2


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
    @given(data=st.data())
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
        x, w = RNG.standard_normal((2, 13, 21, 37), np.float32), RNG.standard_normal((70, 37, 3, 3), np.float32)
        packed, results = executor.pack(w, tile), []
        for plan in ((1000, 9, 1, 1), (5, 1, 2, 2), (1, 2, 3, 1), (28, 3, 1, 2)):
            y = turned(np.zeros((2, 13, 21, 70), np.float32), layout)
            executor(turned(x, layout), packed, y, layout, (1, 1, 1, 1), (TILES.index(tile), *plan))
            results.append(y)
        assert all(np.array_equal(result, results[0]) for result in results)

    @pytest.mark.parametrize("tile", TILES)
    @pytest.mark.parametrize("kind", ["normal", "one sign", "far apart"])
    def test_the_error_stays_inside_the_bound(self, executor: Executor, tile: int, kind: str) -> None:
        x, w = RNG.standard_normal((1, 12, 12, 96), np.float32), RNG.standard_normal((33, 96, 3, 3), np.float32)
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
        x, w = np.zeros((1, 24, 24, 3), np.float32), RNG.standard_normal((5, 3, 3, 3), np.float32)
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
