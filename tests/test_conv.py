"""Direct convolution on this machine: results, refusals, selection."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import few_tiles
from hypothesis import given, settings
from hypothesis import strategies as st

import vortex
from vortex import DtypeError, LibraryError, OperandError, ShapeError, UnknownNameError, VortexError
from vortex import operators as ops
from vortex.conv_cost import ConvProblem, predict_conv
from vortex.conv_launcher import ConvKernel
from vortex.conv_selector import ConvPlan, ConvSelector, family_of, passes, staged, strategies, taps_seen
from vortex.convolution import ConvShape, window
from vortex.library import Library
from vortex.plans import Grid, grids
from vortex.selector import NumpyArithmetic

SHAPES = 20_000


def integers(*shape: int, seed: int = 0) -> np.ndarray:
    """Sums of products of these are exact in float32."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def images(layout: str, x: np.ndarray) -> np.ndarray:
    """NHWC data as the layout has it, in memory too."""
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if layout == "nchw" else x


def expect(kernel: ConvKernel, x: np.ndarray, w: np.ndarray, **where: Any) -> None:
    """The exact result, packed or not, into memory that was full of something else."""
    expected = kernel.operator.reference(x, w, **where)
    out = np.full(expected.shape, np.nan, np.float32)
    assert kernel(x, kernel.pack(w, groups=where.get("groups", 1)), out, **where) is out
    assert (out == expected).all()
    assert (kernel(x, w, **where) == expected).all()


CASES = [
    pytest.param((2, 9, 11, 5), (7, 5, 3, 3), {"padding": 1}, id="3x3"),
    pytest.param((2, 9, 11, 6), (70, 6, 1, 1), {}, id="1x1 is a GEMM"),
    pytest.param((2, 9, 11, 6), (70, 6, 1, 1), {"padding": 2}, id="1x1 padded"),
    pytest.param((2, 9, 11, 6), (70, 6, 1, 1), {"stride": 2}, id="1x1 strided"),
    pytest.param((3, 9, 11, 5), (130, 5, 3, 2), {"padding": (5, 2, 0, 4), "stride": (2, 3)}, id="asymmetric"),
    pytest.param((1, 4, 5, 3), (33, 3, 2, 3), {"padding": 6}, id="padding larger than the filter"),
    pytest.param((2, 13, 13, 4), (5, 4, 2, 2), {"stride": 5}, id="stride larger than the filter"),
    pytest.param((2, 12, 13, 4), (5, 4, 3, 3), {"dilation": (3, 2), "padding": 2}, id="dilated"),
    pytest.param((1, 3, 3, 8), (9, 8, 3, 3), {}, id="one output pixel"),
    pytest.param((2, 9, 70, 1), (16, 1, 3, 3), {"padding": 1}, id="one channel"),
    pytest.param((2, 12, 67, 1), (70, 1, 5, 20), {"padding": (0, 3, 9, 30), "stride": 2}, id="one channel, strided"),
    pytest.param((1, 23, 40, 3), (64, 3, 7, 7), {"padding": 3, "stride": 2}, id="three channels"),
    pytest.param((1, 9, 67, 3), (64, 3, 3, 3), {"padding": 1}, id="three channels, next to each other"),
    pytest.param((2, 9, 11, 3), (7, 3, 3, 3), {"padding": 2, "dilation": (3, 1)}, id="three channels, dilated down"),
    pytest.param((2, 9, 11, 3), (7, 3, 3, 3), {"padding": 2, "dilation": 2}, id="three channels, dilated"),
    pytest.param((1, 2, 1, 2), (5, 2, 2, 3), {"padding": 7, "stride": (1, 2)}, id="two channels, mostly padding"),
    pytest.param((40, 3, 3, 16), (48, 16, 3, 3), {"padding": 1}, id="many small images"),
    pytest.param((9, 14, 14, 512), (24, 512, 1, 1), {}, id="pixels alone, half a vector left"),
    pytest.param((2, 9, 11, 40), (100, 40, 1, 1), {}, id="pixels alone, two panels"),
    pytest.param((2, 4, 5, 400), (9, 400, 5, 5), {"padding": 2}, id="filter columns in passes"),
    pytest.param(
        (3, 2, 3, 9000),
        (5, 9000, 3, 2),
        {"padding": (5, 1, 2, 4), "dilation": 2, "stride": (1, 2)},
        id="taps in passes",
    ),
    pytest.param((2, 9, 11, 6), (14, 3, 3, 3), {"padding": 1, "groups": 2}, id="groups"),
    pytest.param((2, 9, 33, 48), (36, 16, 3, 3), {"padding": (1, 0, 2, 3), "groups": 3}, id="groups side by side"),
    pytest.param(
        (1, 7, 12, 40), (24, 20, 3, 5), {"padding": (9, 2, 11, 1), "groups": 2, "dilation": (1, 2)}, id="mostly zeros"
    ),
    pytest.param((2, 9, 11, 3), (6, 1, 3, 3), {"padding": 1, "groups": 3}, id="groups of one channel, two filters"),
    pytest.param((2, 9, 11, 40), (40, 1, 3, 3), {"padding": 1, "groups": 40}, id="depthwise"),
    pytest.param((2, 9, 31, 40), (40, 1, 5, 5), {"padding": (3, 3, 2, 7), "groups": 40, "stride": 2}, id="depthwise 5"),
    pytest.param((1, 15, 16, 20), (20, 1, 7, 7), {"padding": 9, "groups": 20}, id="depthwise 7, pad larger"),
    pytest.param(
        (2, 9, 30, 20), (20, 1, 4, 2), {"dilation": 2, "groups": 20, "padding": 1}, id="depthwise, odd filter"
    ),
    pytest.param((2, 9, 2, 600), (600, 1, 3, 3), {"groups": 600, "padding": 1}, id="depthwise, many channels"),
    pytest.param((3, 12, 19, 37), (37, 1, 3, 3), {"groups": 37, "padding": (4, 1, 2, 5)}, id="depthwise, asymmetric"),
    pytest.param((3, 12, 19, 37), (37, 1, 3, 3), {"groups": 37, "padding": 1, "stride": 2}, id="depthwise, strided"),
    pytest.param((2, 14, 14, 512), (512, 1, 3, 3), {"groups": 512, "padding": 1}, id="depthwise, few sets of L1"),
    pytest.param((2, 7, 9, 70), (70, 1, 3, 3), {"groups": 70, "padding": (4, 1, 2, 5), "stride": 2}, id="in blocks"),
    pytest.param(
        (1, 5, 4, 1100), (1100, 1, 3, 3), {"groups": 1100, "padding": 1, "stride": 2}, id="in panels of blocks"
    ),
    pytest.param((3, 9, 6, 128), (128, 1, 3, 3), {"groups": 128, "padding": (0, 3, 1, 4)}, id="in blocks, stride 1"),
    pytest.param((2, 9, 31, 20), (20, 2, 3, 3), {"padding": 1, "groups": 10}, id="groups in vectors of 2"),
    pytest.param((2, 9, 30, 84), (84, 4, 3, 3), {"padding": (0, 2, 5, 1), "stride": 2, "groups": 21}, id="of 4"),
    pytest.param((1, 9, 9, 104), (104, 8, 3, 3), {"padding": 2, "dilation": 2, "groups": 13}, id="of 8, dilated"),
    pytest.param((1, 8, 9, 24), (24, 8, 5, 2), {"stride": (3, 1), "groups": 3}, id="of 8, odd filter"),
    pytest.param((0, 9, 9, 4), (5, 4, 3, 3), {}, id="empty batch"),
    pytest.param((2, 9, 9, 4), (0, 4, 3, 3), {}, id="no filters"),
    pytest.param((2, 9, 9, 0), (5, 0, 3, 3), {}, id="no channels"),
    pytest.param((2, 0, 9, 4), (5, 4, 3, 3), {"padding": 2}, id="no rows"),
]


class TestResults:
    @pytest.mark.parametrize("threads", [1, 3])
    @pytest.mark.parametrize(("x", "w", "where"), CASES)
    def test_exact(self, conv: ConvKernel, x: tuple[int, ...], w: tuple[int, ...], where: dict, threads: int):
        vortex.set_num_threads(threads)
        expect(conv, integers(*x), integers(*w, seed=1), **where)

    @pytest.mark.parametrize(("x", "w", "where"), CASES)
    def test_channels_first(self, conv_nchw: ConvKernel, x: tuple[int, ...], w: tuple[int, ...], where: dict):
        expect(conv_nchw, images("nchw", integers(*x)), integers(*w, seed=1), **where)

    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def test_random_shapes(self, conv: ConvKernel, conv_nchw: ConvKernel, data: st.DataObject):
        def draw(low: int, high: int) -> int:
            return data.draw(st.integers(low, high))

        groups = data.draw(st.sampled_from([1, 1, 2, 5]))
        depth, share = draw(1, 20), draw(1, 70)
        if data.draw(st.booleans()):
            depth = share = data.draw(st.sampled_from([1, 1, 2, 4, 8]))
            groups = draw(2, 40)
        taps, spread = (draw(1, 5), draw(1, 5)), (draw(1, 3), draw(1, 3))
        pads = tuple(draw(0, 6) for _ in range(4))
        least = [
            max(1, (t - 1) * d + 1 - a - b) for t, d, a, b in zip(taps, spread, pads[::2], pads[1::2], strict=True)
        ]
        x = integers(draw(1, 3), least[0] + draw(0, 9), least[1] + draw(0, 20), groups * depth)
        w = integers(groups * share, depth, *taps, seed=1)
        where = {"stride": (draw(1, 4), draw(1, 4)), "padding": pads, "dilation": spread, "groups": groups}
        expect(conv, x, w, **where)
        expect(conv_nchw, images("nchw", x), w, **where)

    def test_strided_operands(self, conv: ConvKernel):
        x = integers(2, 14, 12, 9)[:, ::2, 1:11, 2:7]
        w = integers(3, 3, 6, 5).transpose(2, 3, 0, 1)
        wide = np.zeros((2, 7, 24, 8), np.float32)
        out = wide[:, :, 2:22:2, 1:7]
        conv(x, w, out, padding=1)
        assert (out == conv.operator.reference(x, w, padding=1)).all()
        assert (wide[:, :, 1::2] == 0).all() and (wide[..., 0] == 0).all() and (wide[..., 7] == 0).all()

    @pytest.mark.parametrize("channels", [1, 3])
    def test_pixels_of_few_channels_that_are_apart(self, conv: ConvKernel, channels: int):
        wide, w = integers(2, 9, 40, 8), integers(20, channels, 3, 5, seed=1)
        for x in (wide[..., 2 : 2 + channels], wide[:, :, ::3, :channels], wide[:, ::2, :, :channels]):
            assert (conv(x, w, padding=2) == conv.operator.reference(x, w, padding=2)).all()

    @pytest.mark.parametrize("stride", [1, 2])
    @pytest.mark.parametrize("channels", [21, 128])
    @pytest.mark.parametrize("width", [1, 2, 3, 4, 9, 16, 23])
    def test_depthwise_rows_are_what_each_is_alone(self, conv: ConvKernel, width: int, stride: int, channels: int):
        """To the bit: blocks, and tiles that walk down rows where there are registers for them, add as others do."""
        rng = np.random.default_rng(width)
        x = rng.standard_normal((1, 13, width, channels), dtype=np.float32)
        w = rng.standard_normal((channels, 1, 3, 3), dtype=np.float32)
        y = conv(x, w, padding=1, stride=stride, groups=channels)
        for row in range(y.shape[1]):
            first, end = max(row * stride - 1, 0), min(row * stride + 2, x.shape[1])
            missing = (first - (row * stride - 1), row * stride + 2 - end)
            alone = conv(x[:, first:end], w, padding=(*missing, 1, 1), stride=stride, groups=channels)
            assert alone.shape[1] == 1 and (alone[:, 0] == y[:, row]).all()

    @pytest.mark.parametrize("apart", [0, 60, 2048, 4072])
    @pytest.mark.parametrize(("height", "stride", "channels"), [(20, 1, 512), (14, 1, 509), (29, 1, 20), (15, 2, 64)])
    def test_depthwise_pixels_among_others(self, conv: ConvKernel, height: int, stride: int, channels: int, apart: int):
        """What lies between them stays as it is, also beside the edges, where blocks make more than there is."""
        rows = (height - 1) // stride + 1

        def wide(shape: tuple[int, ...], first: int) -> np.ndarray:
            """Pixels 2 KiB apart, the first `first` bytes past the beginning of a page."""
            memory = np.full(int(np.prod(shape)) + 2048, 7, np.float32)
            begin = (first - memory.ctypes.data) % 4096 // 4
            return memory[begin:][: int(np.prod(shape))].reshape(shape)

        x, out = wide((2, height, 9, 512), 0), wide((2, rows, 8 // stride + 1, 512), apart)
        x[:], w = integers(*x.shape), integers(channels, 1, 3, 3, seed=1)
        where = {"padding": 1, "stride": stride, "groups": channels}
        conv(x[..., :channels], w, out[..., :channels], **where)
        assert (out[..., :channels] == conv.operator.reference(x[..., :channels], w, **where)).all()
        assert (out[..., channels:] == 7).all()

    @pytest.mark.parametrize("taps", [3, 5])
    def test_depthwise_from_memory(self, conv: ConvKernel, taps: int):
        """Blocks are taller or rows fetched ahead where operands are many: the bits are those of fewer at a time."""
        x, w = integers(1, 224, 224, 128), integers(128, 1, taps, taps, seed=1)
        whole = conv(x, w, padding=taps // 2, groups=128)
        for few in (slice(0, 16), slice(16, 96), slice(96, 128)):
            part = conv(np.ascontiguousarray(x[..., few]), w[few], padding=taps // 2, groups=few.stop - few.start)
            assert (whole[..., few] == part).all()

    def test_channels_last_in_memory_under_the_other_name(self, conv_nchw: ConvKernel):
        x, w = integers(2, 8, 9, 5).transpose(0, 3, 1, 2), integers(6, 5, 3, 3)
        y = conv_nchw(x, w, padding=1)
        assert y.strides[1] == 4
        assert (y == conv_nchw.operator.reference(x, w, padding=1)).all()

    def test_every_plan_has_the_same_bits(self, conv: ConvKernel):
        generator = np.random.default_rng(3)
        x = generator.standard_normal((7, 10, 11, 33), np.float32)
        w = conv.pack(generator.standard_normal((70, 33, 3, 3), np.float32))
        found = [
            conv.run(ConvPlan("direct", walk, 0, Grid(m, n), 0.0), x, w, np.empty((7, 5, 6, 70), np.float32), **where)
            for where in [{"padding": 1, "stride": 2}]
            for walk in (False, True)
            for m, n in ((1, 1), (3, 1), (1, 2), (2, 2))
        ]
        assert all((y == found[0]).all() for y in found)

    @pytest.mark.parametrize(("taps", "at_once"), [((5, 5), 5), ((5, 5), 10), ((3, 2), 1)])
    def test_passes_over_a_panel_have_the_same_bits(self, conv: ConvKernel, taps: tuple[int, int], at_once: int):
        """As many channels as let the second cache keep so many taps: one column, two, and less than one."""
        kept = round(conv.selector.rates.l2_bytes)
        x, filters = (3, 5, 6, kept // (4 * conv.selector.panel * at_once)), 20
        shape, where = ConvShape(*x, filters, *taps, window(1, 2)), {"padding": 2}
        parts = -(-taps[1] // max(1, at_once // taps[0])) * -(-taps[0] // at_once)
        assert passes(shape, conv.selector.panel, kept) == parts > 1
        generator = np.random.default_rng(3)
        data, w = generator.standard_normal(x, np.float32), generator.standard_normal(shape.weights, np.float32)
        expected = conv.operator.reference(data, w, **where)
        found = [
            conv.run(
                ConvPlan("direct", walk, 0, Grid(m, n), 0.0), data, w, np.empty(expected.shape, np.float32), **where
            )
            for walk in (False, True)
            for m, n in ((1, 1), (3, 1))
        ]
        assert all((y == found[0]).all() for y in found)
        assert np.abs(found[0] - expected).max() <= 1e-4 * np.abs(expected).max()

    def test_every_plan_of_lines_has_the_same_bits(self, conv: ConvKernel):
        generator = np.random.default_rng(3)
        x = generator.standard_normal((2, 10, 41, 3), np.float32)
        w = conv.pack(generator.standard_normal((70, 3, 3, 3), np.float32))
        found = [
            conv.run(ConvPlan("lines", False, 0, Grid(m, n), 0.0), given, w, np.empty((2, 10, 41, 70), np.float32),
                     padding=1)
            for given in (x, np.concatenate([x, x], axis=3)[..., 3:])
            for m, n in ((1, 1), (3, 1), (1, 2), (2, 2))
        ]  # fmt: skip
        assert all((y == found[0]).all() for y in found)

    def test_groups_side_by_side_have_the_bits_of_those_that_lie_apart(self, conv: ConvKernel):
        generator = np.random.default_rng(3)
        shape = ConvShape(3, 10, 35, 48, 36, 3, 3, window(1, 1, 1, 3))
        assert staged(shape, conv.selector.lanes) == (conv.selector.lanes == 16)
        x = generator.standard_normal((3, 10, 35, 48), np.float32)
        w = conv.pack(generator.standard_normal(shape.weights, np.float32), groups=3)
        found = [
            conv.run(ConvPlan("direct", walk, 0, Grid(m, n), 0.0), x, w, np.empty((3, 10, 35, 36), np.float32),
                     padding=1, groups=3)
            for walk in (False, True)
            for m, n in ((1, 1), (4, 1), (1, 2), (2, 2))
        ]  # fmt: skip
        assert all((y == found[0]).all() for y in found)

    @pytest.mark.parametrize("channels", [2, 16])
    def test_padding_is_never_read(self, conv: ConvKernel, channels: int):
        """Values beside the input would show: they are not numbers."""
        around = np.full((5, 9, 9, channels), np.nan, np.float32)
        around[2:3, 2:7, 2:7] = integers(1, 5, 5, channels)
        x, w = around[2:3, 2:7, 2:7], integers(40, channels, 3, 3)
        assert (conv(x, w, padding=3) == conv.operator.reference(x, w, padding=3)).all()

    @pytest.mark.parametrize(("x", "w", "where"), CASES)
    def test_what_torch_gives(self, conv_nchw: ConvKernel, x: tuple[int, ...], w: tuple[int, ...], where: dict):
        """torch takes padding on both sides alone, and nothing empty but a batch."""
        torch = pytest.importorskip("torch")
        if not all((*x[1:], *w)):
            pytest.skip("torch has no such convolution")
        image, weights = torch.from_numpy(images("nchw", integers(*x))), torch.from_numpy(integers(*w, seed=1))
        top, bottom, left, right = window(**where).padding
        rest = {name: value for name, value in where.items() if name != "padding"}
        padded = torch.nn.functional.pad(image, (left, right, top, bottom))
        expected = torch.nn.functional.conv2d(padded, weights, **rest)
        torch.testing.assert_close(conv_nchw(image, weights, **where), expected, rtol=1e-5, atol=1e-3)

    def test_torch_channels_last(self, conv_nchw: ConvKernel):
        torch = pytest.importorskip("torch")
        x, w = torch.randn(2, 24, 15, 17), torch.randn(40, 24, 3, 3)
        for operand in (x, x.contiguous(memory_format=torch.channels_last)):
            y = conv_nchw(operand, w.contiguous(memory_format=torch.channels_last), stride=2, padding=1)
            torch.testing.assert_close(y, torch.nn.functional.conv2d(x, w, stride=2, padding=1), rtol=1e-4, atol=1e-4)


WHERE: dict[str, Any] = {"stride": (2, 1), "padding": (0, 1, 2, 0), "dilation": (1, 2), "groups": 2}


class TestImagesBy:
    """What layers of networks call, with constants that stay."""

    def test_exact(self, conv: ConvKernel, fused: ConvKernel):
        x, w, where = integers(2, 9, 11, 6), integers(70, 6, 3, 3, seed=1), window(stride=(1, 2), padding=1)
        bias, residual = integers(70, seed=2), integers(2, 9, 6, 70, seed=3)
        told = {"stride": where.stride, "padding": where.padding}
        for kernel, constants, operands in ((conv, (), ()), (fused, (bias,), (residual,))):
            convolve = kernel.images_by(kernel.pack(w), where, empty, *constants)
            named = dict(zip(("bias", "residual"), (*constants, *operands), strict=False))
            for images in (x, x[:1], x[:0]):
                part = {name: each[: len(images)] if name == "residual" else each for name, each in named.items()}
                expected = kernel.operator.reference(images, w, **told, **part)
                assert np.array_equal(convolve(images, *(each[: len(images)] for each in operands)), expected)

    def test_what_is_refused(self, conv: ConvKernel, fused: ConvKernel):
        packed = fused.pack(integers(4, 6, 1, 1))
        with pytest.raises(OperandError, match="packed by another library"):
            conv.images_by(packed, window(), empty)
        with pytest.raises(ShapeError, match="groups=2, but w was packed for groups=1"):
            fused.images_by(packed, window(groups=2), empty)
        convolve = fused.images_by(packed, window(), empty, integers(4))
        with pytest.raises(ShapeError, match=r"residual .*\(1, 2, 3, 5\).* does not fit the output"):
            convolve(integers(1, 2, 3, 6), integers(1, 2, 3, 5))
        with pytest.raises(ShapeError, match="channels"):
            convolve(integers(1, 2, 3, 7), integers(1, 2, 3, 4))


def empty(shape: ConvShape) -> np.ndarray:
    return np.full((shape.batch, shape.out_h, shape.out_w, shape.filters), np.nan, np.float32)


class TestFixedWindow:
    def test_it_need_not_be_given(self, conv: ConvKernel, conv_library: Library, tmp_path: Path):
        """The bits are those of the open library, of a saved one too, and the machine code is the same."""
        variant(conv_library, accuracy="strict", **WHERE).save(tmp_path / "fixed.vortex")
        fixed = vortex.load(tmp_path / "fixed.vortex")
        generator = np.random.default_rng(3)
        x, w = (
            generator.standard_normal((2, 9, 11, 6), np.float32),
            generator.standard_normal((14, 3, 3, 3), np.float32),
        )
        expected = conv(x, w, **WHERE)
        packed = fixed.pack(w)
        assert packed.groups == 2 and fixed.library.identity == conv.library.identity
        for y in (fixed(x, w), fixed(x, packed), fixed(x, packed, stride=[2, 1], groups=2)):
            assert np.array_equal(y, expected)
        plan = fixed.plan(x.shape, w.shape)
        assert plan == conv.plan(x.shape, w.shape, **WHERE)
        assert np.array_equal(fixed.run(plan, x, w, np.empty_like(expected)), expected)
        assert np.allclose(fixed.operator.reference(x, w), expected, atol=1e-4)
        told = r"stride \(2, 1\), padding \(0, 1, 2, 0\), .*2 groups; fixed: stride, padding, dilation, groups"
        assert re.search(told, str(fixed.explain(x.shape, w.shape)))
        assert fixed.time_selection(x.shape, w.shape, 1) > 0 and fixed.plans(x.shape, w.shape)

    def test_another_is_refused(self, conv_library: Library):
        fixed = variant(conv_library, **WHERE)
        x, w = floats(2, 9, 11, 6), floats(14, 3, 3, 3)
        packed = fixed.pack(w)
        asks = (
            lambda: fixed(x, packed, stride=1),
            lambda: fixed(x, w, stride=[1, 1]),
            lambda: fixed.plan(x.shape, w.shape, stride=1),
            lambda: fixed.explain(x.shape, w.shape, stride=1),
        )
        for ask in asks:
            with pytest.raises(ShapeError, match=r"stride=.*1.*this library is for stride=\(2, 1\) alone; leave"):
                ask()
        for ask in (lambda: fixed.pack(w, groups=1), lambda: fixed(x, packed, groups=1)):
            with pytest.raises(ShapeError, match=r"groups=1: this library is for groups=2 alone"):
                ask()

    def test_one_library_is_compiled_for_all(self, fused_conv_library: Library):
        operator = replace(fused_operator(fused_conv_library), **WHERE)
        fixed = few_tiles(operator)
        assert fixed.operator == operator and fixed.library.identity == fused_conv_library.identity


class TestEpilogue:
    @pytest.mark.parametrize("threads", [1, 2])
    @pytest.mark.parametrize(("x", "w", "where"), CASES)
    def test_exact(self, fused: ConvKernel, x: tuple[int, ...], w: tuple[int, ...], where: dict, threads: int):
        vortex.set_num_threads(threads)
        plain = ops.Conv2d().reference(integers(*x), integers(*w, seed=1), **where)
        b, r = integers(w[0], seed=2), integers(*plain.shape, seed=3) * 10
        y = fused(integers(*x), integers(*w, seed=1), bias=b, residual=r, **where)
        assert (y == np.maximum(plain + b + r, 0)).all()
        assert (y == fused.operator.reference(integers(*x), integers(*w, seed=1), bias=b, residual=r, **where)).all()

    def test_channels_first(self, fused_conv_library: Library):
        epilogue = fused_operator(fused_conv_library).epilogue
        turned = ops.Conv2d(layout="nchw", epilogue=epilogue, accuracy="strict")
        kernel = ConvKernel(
            replace(fused_conv_library, manifest=replace(fused_conv_library.manifest, settings=ops.settings(turned)))
        )
        x, w, b = integers(2, 5, 8, 9), integers(6, 5, 3, 3, seed=1), integers(6, seed=2)
        last = x.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)
        r = integers(2, 8, 9, 6, seed=3).transpose(0, 3, 1, 2)
        expected = kernel.operator.reference(x, w, padding=1, bias=b, residual=r)
        assert (kernel(last, w, padding=1, bias=b, residual=r) == expected).all()
        with pytest.raises(ShapeError, match=r"residual .*lies in memory as out does not"):
            kernel(x, w, padding=1, bias=b, residual=r)
        assert (kernel(x, w, padding=1, bias=b, residual=np.ascontiguousarray(r)) == expected).all()

    @pytest.mark.parametrize(("x", "w", "where"), CASES)
    def test_channels_first_with_a_residual(
        self, fused_nchw: ConvKernel, x: tuple[int, ...], w: tuple[int, ...], where: dict
    ):
        image = images("nchw", integers(*x))
        plain = ops.Conv2d(layout="nchw").reference(image, integers(*w, seed=1), **where)
        b, r = integers(w[0], seed=2), integers(*plain.shape, seed=3) * 10
        expected = fused_nchw.operator.reference(image, integers(*w, seed=1), bias=b, residual=r, **where)
        assert (fused_nchw(image, integers(*w, seed=1), bias=b, residual=r, **where) == expected).all()

    def test_every_plan_has_the_same_bits(self, fused: ConvKernel):
        generator = np.random.default_rng(3)
        x, w = (
            generator.standard_normal((7, 10, 11, 33), np.float32),
            generator.standard_normal((70, 33, 3, 3), np.float32),
        )
        b, r = generator.standard_normal(70, np.float32), generator.standard_normal((7, 10, 11, 70), np.float32)
        found = [
            fused.run(
                ConvPlan("direct", walk, 0, Grid(m, n), 0.0), x, w, np.empty_like(r), padding=1, bias=b, residual=r
            )
            for walk in (False, True)
            for m, n in ((1, 1), (3, 1), (1, 2))
        ]
        assert all((y == found[0]).all() for y in found)

    @pytest.mark.parametrize(
        ("operands", "kind", "told"),
        [
            ({}, UnknownNameError, "expects .*bias.*residual"),
            ({"bias": (5,), "scale": (5,)}, UnknownNameError, "scale"),
            ({"bias": (4,), "residual": (1, 6, 6, 5)}, ShapeError, "bias .*does not fit"),
            ({"bias": (5, 1), "residual": (1, 6, 6, 5)}, ShapeError, "bias .*rank"),
            ({"bias": (5,), "residual": (1, 6, 6, 4)}, ShapeError, "residual .*does not fit"),
        ],
    )
    def test_operands_that_do_not_fit(self, fused: ConvKernel, operands: dict, kind: type[VortexError], told: str):
        with pytest.raises(kind, match=told):
            fused(X, W, **{name: floats(*extents) for name, extents in operands.items()})

    def test_an_operand_that_the_output_overlaps(self, fused: ConvKernel):
        out = floats(1, 6, 6, 5)
        with pytest.raises(OperandError, match=r"residual .*overlaps out"):
            fused(X, W, out, bias=floats(5), residual=out)

    def test_chains_that_no_convolution_has(self):
        for chain in (ops.cast("int8"), ops.bias("row"), ops.bias(dtype="bfloat16")):
            with pytest.raises(DtypeError, match="Conv2d"):
                ops.Conv2d(epilogue=chain)


def fused_operator(library: Library) -> ops.Conv2d:
    found = ops.rebuilt(library.manifest.operator, library.manifest.settings)
    assert isinstance(found, ops.Conv2d)
    return found


def floats(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


X, W = floats(1, 8, 8, 4), floats(5, 4, 3, 3)
REFUSED = [
    ("rank of x", lambda c: c(floats(8, 8, 4), W), ShapeError, "x has shape"),
    ("rank of w", lambda c: c(X, floats(5, 4)), ShapeError, "w has shape"),
    ("no tensor", lambda c: c([[1.0]], W), OperandError, "x is a list"),
    ("no tensor as w", lambda c: c(X, 3.0), OperandError, "w is a float"),
    ("channels", lambda c: c(X, floats(5, 3, 3, 3)), ShapeError, "x has 4 channels and w 3"),
    ("groups and channels", lambda c: c(X, floats(6, 1, 3, 3), groups=3), ShapeError, "groups=3"),
    ("groups and filters", lambda c: c(X, floats(5, 2, 3, 3), groups=2), ShapeError, "groups=2 does not divide w"),
    ("groups packed for", lambda c: c(X, c.pack(W), groups=2), ShapeError, "packed for groups=1"),
    ("negative output", lambda c: c(floats(1, 2, 9, 4), W), ShapeError, "larger than the padded input"),
    ("no taps", lambda c: c(X, floats(5, 4, 0, 3)), ShapeError, "no taps"),
    ("stride", lambda c: c(X, W, stride=0), ShapeError, "stride=0"),
    ("padding", lambda c: c(X, W, padding=-1), ShapeError, "padding=-1"),
    ("padding in a list", lambda c: c(X, W, padding=[1, 2, 3]), ShapeError, "2 or 4"),
    ("dtype", lambda c: c(X.astype(np.float64), W), DtypeError, "x .*float64"),
    ("dtype of w", lambda c: c(X, W.astype(np.float16)), DtypeError, "w .*float16"),
    ("shape of out", lambda c: c(X, W, floats(1, 6, 6, 4)), ShapeError, "out .*wrong shape"),
    ("rank of out", lambda c: c(X, W, floats(36, 5)), ShapeError, "out .*rank"),
    ("overlap", lambda c: c(X, floats(4, 4, 3, 3), X, padding=1), OperandError, "x .*overlaps out"),
    ("negative strides", lambda c: c(X[:, ::-1], W), ShapeError, "x .*strides"),
    ("nothing contiguous", lambda c: c(floats(1, 8, 16, 8)[:, :, ::2, ::2], W), ShapeError, "x .*strides"),
    ("read-only out", lambda c: c(X, W, np.broadcast_to(floats(1), (1, 6, 6, 5))), OperandError, "out is read-only"),
]


class TestRefusals:
    @pytest.mark.parametrize(
        ("call", "kind", "told"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
    )
    def test_bad_input(self, conv: ConvKernel, call: Any, kind: type[VortexError], told: str):
        with pytest.raises(kind, match=told):
            call(conv)

    def test_weights_of_another_library(self, conv: ConvKernel):
        foreign = replace(conv.pack(W), identity="0" * 64)
        with pytest.raises(OperandError, match="packed by another library"):
            conv(X, foreign)

    def test_gradients(self, conv: ConvKernel):
        torch = pytest.importorskip("torch")
        with pytest.raises(OperandError, match="x requires grad"):
            conv(torch.ones(1, 8, 8, 4, requires_grad=True), W)

    def test_outputs_that_share_places(self, conv: ConvKernel):
        memory = floats(1, 6, 6, 5)
        out = np.lib.stride_tricks.as_strided(memory, (1, 6, 6, 5), (720, 20, 20, 4))
        with pytest.raises(ShapeError, match=r"out .*strides"):
            conv(X, W, out)


def random_shapes(count: int) -> Iterator[tuple[ConvShape, int]]:
    generator = np.random.default_rng(5)
    while count:
        batch, height, width, depth, share = (int(x) for x in np.exp(generator.uniform(0, 6, 5)))
        taps, stride = generator.integers(1, 8, 2), generator.integers(1, 4, 2)
        pads, spread = generator.integers(0, 5, 4), generator.integers(1, 3, 2)
        groups = int(generator.choice([1, 1, 1, 4, 32]))
        if groups > 1 and generator.random() < 0.5:
            depth = share = int(generator.choice([1, 2, 4, 8]))
        where = window(stride.tolist(), pads.tolist(), spread.tolist(), groups)
        try:
            shape = ConvShape(
                batch, height, width, groups * depth, groups * share, int(taps[0]), int(taps[1]), where
            )  # fmt: skip
        except ShapeError:
            continue
        count -= 1
        yield shape, int(generator.choice([1, 2, 3, 8]))


def mirrored(selector: ConvSelector, shapes: list[ConvShape], threads: int) -> list[tuple[bool, Grid]]:
    """`ConvSelector.select` of many shapes at once: the same expressions, shapes down and walks across."""
    ops, rates = NumpyArithmetic(selector.table), selector.float32_rates
    chosen = [(False, Grid(1, 1))] * len(shapes)
    least = np.full(len(shapes), np.inf, np.float32)
    for grid in grids(threads):
        rows = [astuple(selector.problem(shape, grid, threads)) for shape in shapes]
        columns = ConvProblem(*(np.array(values, np.float32)[:, None] for values in zip(*rows, strict=True)))
        total = np.asarray(predict_conv(ops, rates, strategies(), columns).total)
        for place in np.flatnonzero(total.min(axis=1) < least):
            least[place], walk = total[place].min(), int(total[place].argmin())
            chosen[place] = (bool(walk), grid)
    return chosen


class TestSelection:
    def test_the_mirror_chooses_the_same(self, conv: ConvKernel):
        drawn = list(random_shapes(SHAPES))
        for count in sorted({threads for _, threads in drawn}):
            shapes = [shape for shape, threads in drawn if threads == count]
            for shape, (walk, grid) in zip(shapes, mirrored(conv.selector, shapes, count), strict=True):
                found = conv.native_choice(shape, count)
                if found[0] == "gemm":
                    continue
                assert found[1:3] == (walk, grid), (shape, count)

    def test_one_shape_at_a_time(self, conv: ConvKernel):
        for shape, threads in random_shapes(100):
            assert conv.selected(shape, threads) == conv.selector.select(shape, threads), (shape, threads)

    @pytest.mark.parametrize(
        ("shape", "family"),
        [
            (ConvShape(1, 8, 8, 4, 4, 1, 1), "gemm"),
            (ConvShape(1, 8, 8, 4, 4, 1, 1, window(padding=(0, 1, 0, 0))), "direct"),
            (ConvShape(1, 8, 8, 4, 4, 1, 1, window(groups=2)), "grouped"),
            (ConvShape(1, 8, 8, 6, 6, 1, 1, window(groups=2)), "direct"),
            (ConvShape(1, 8, 8, 64, 64, 3, 3, window(groups=8)), "grouped"),
            (ConvShape(1, 8, 8, 64, 64, 3, 3, window(groups=4)), "direct"),
            (ConvShape(1, 8, 8, 4, 8, 1, 1, window(groups=2)), "direct"),
            (ConvShape(1, 8, 8, 4, 4, 1, 1, window(groups=4)), "depthwise"),
            (ConvShape(1, 8, 8, 4, 8, 3, 3, window(groups=4)), "direct"),
            (ConvShape(1, 8, 8, 4, 8, 3, 3), "lines"),
            (ConvShape(1, 8, 8, 5, 8, 3, 3), "direct"),
            (ConvShape(1, 8, 8, 4, 8, 3, 1), "direct"),
            (ConvShape(1, 8, 8, 4, 8, 3, 3, window(dilation=(1, 2))), "direct"),
        ],
    )
    def test_families(self, conv: ConvKernel, shape: ConvShape, family: str):
        assert family_of(shape) == conv.selected(shape, 1).family == family

    def test_it_takes_microseconds(self, conv_library: Library):
        """The bound is far above what was measured (0.1 to 0.6 us): this machine may be busy."""
        kernel = ConvKernel(conv_library)
        for w, where in (((64, 64, 3, 3), {"padding": 1}), ((64, 64, 1, 1), {}), ((64, 64, 5, 5), {})):
            assert 0 < kernel.time_selection((1, 56, 56, 64), w, 2000, **where) < 20e-6

    def test_small_images_in_a_batch_are_walked_together(self, conv: ConvKernel):
        assert conv.plan((128, 2, 2, 256), (256, 256, 3, 3), padding=1, threads=1).walk_batch
        assert not conv.plan((1, 56, 56, 64), (64, 64, 3, 3), padding=1, threads=1).walk_batch

    def test_taps_that_are_seen(self):
        def counted(outputs: int, taps: int, stride: int, dilation: int, before: int, extent: int) -> int:
            places = (i * stride + t * dilation - before for i in range(outputs) for t in range(taps))
            return sum(0 <= place < extent for place in places)

        generator = np.random.default_rng(7)
        for _ in range(500):
            numbers = [int(x) for x in generator.integers((1, 1, 1, 1, 0, 1), (9, 6, 4, 4, 9, 12))]
            assert taps_seen(*numbers) == counted(*numbers), numbers


class TestExplanation:
    @pytest.mark.parametrize(
        ("x", "w", "where", "told"),
        [
            ((1, 56, 56, 64), (64, 64, 3, 3), {"padding": 1}, "direct, tiles of at most .* pixels of a row"),
            ((64, 4, 4, 192), (384, 192, 3, 3), {"stride": 2, "padding": 1}, "images, one pixel of each"),
            ((1, 56, 56, 3), (64, 3, 7, 7), {"stride": 2, "padding": 3}, "direct along lines"),
            ((1, 56, 56, 96), (96, 1, 7, 7), {"padding": 3, "groups": 96}, "depthwise, grid .*96 groups|96 groups"),
            ((1, 56, 56, 128), (128, 4, 3, 3), {"padding": 1, "groups": 32}, "32 groups(.|\n)*groups in vectors, grid"),
            ((1, 56, 56, 64), (256, 64, 1, 1), {}, "gemm 3136x256x64 .*packed B"),
            ((1, 56, 56, 64), (16, 64, 1, 1), {}, "gemm 3136x16x64 .*plain B"),
        ],
    )
    def test_families(self, conv: ConvKernel, x: tuple[int, ...], w: tuple[int, ...], where: dict, told: str):
        found = conv.explain(x, w, threads=2, **where)
        assert re.search(told, str(found))
        assert found.gflops > 0 and found.plan.seconds > 0
        assert all(rival.seconds >= found.plan.seconds for rival, _ in found.rivals)

    def test_the_plan_is_the_one_that_runs_and_its_terms_add_up(self, conv_library: Library):
        kernel = ConvKernel(conv_library)
        for where in ({"padding": 1}, {"padding": 1, "stride": 2}):
            found = kernel.explain((2, 30, 30, 64), (64, 64, 3, 3), threads=1, **where)
            assert found.plan == kernel.plan((2, 30, 30, 64), (64, 64, 3, 3), threads=1, **where)
            unhidden = sum(value for name, value in found.terms.items() if name not in ("total", "traffic"))
            assert unhidden <= found.terms["total"] * 1.001 <= (unhidden + found.terms["traffic"]) * 1.01
        assert "Winograd" in str(kernel.explain((2, 30, 30, 64), (64, 64, 3, 3), threads=1, padding=1))

    def test_what_is_empty_has_no_plan(self, conv: ConvKernel):
        with pytest.raises(ShapeError, match="no output"):
            conv.explain((0, 8, 8, 4), (5, 4, 3, 3))


class TestDtypes:
    @pytest.mark.parametrize("dtype", ["bfloat16", "float16", "tfloat32"])
    def test_cpus_have_float32_alone(self, dtype: str):
        """On a Zen 5 too, which has an instruction for products of bfloat16."""
        with pytest.raises(DtypeError, match=rf"conv2d\(dtype='{dtype}'\) on .*float32 alone.*cast.*GPU"):
            vortex.compile(ops.Conv2d(dtype=dtype), "epyc-zen5")


class TestLibrary:
    def test_saved_and_loaded_without_a_compiler(self, conv: ConvKernel, tmp_path: Path):
        path = tmp_path / "conv.vortex"
        conv.save(path)
        program = (
            "import sys, numpy, vortex; conv = vortex.load(sys.argv[1]); x = numpy.ones((1, 4, 4, 3), numpy.float32);"
            "assert (conv(x, numpy.ones((5, 3, 3, 3), numpy.float32)) == 27).all();"
            "assert not {'tvm', 'torch', 'pydantic'} & {name for name, found in sys.modules.items() if found}"
        )
        subprocess.run([sys.executable, "-c", program, os.fspath(path)], check=True, timeout=60)

    def test_an_altered_file_is_refused(self, conv: ConvKernel, tmp_path: Path):
        path = tmp_path / "conv.vortex"
        conv.save(path)
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(LibraryError):
            vortex.load(path)


@pytest.fixture(scope="module")
def conv(conv_library: Library) -> ConvKernel:
    """Every product of the definition is formed, so that small integers give exact results."""
    return variant(conv_library, accuracy="strict")


@pytest.fixture(scope="module")
def fused(fused_conv_library: Library) -> ConvKernel:
    return variant(fused_conv_library, accuracy="strict")


@pytest.fixture(scope="module")
def fused_nchw(fused_conv_library: Library) -> ConvKernel:
    return variant(fused_conv_library, layout="nchw", accuracy="strict")


@pytest.fixture(scope="module")
def conv_nchw(conv_library: Library) -> ConvKernel:
    """The same machine code: a layout only names the dimensions."""
    return variant(conv_library, layout="nchw", accuracy="strict")


def variant(library: Library, **changes: Any) -> ConvKernel:
    """The same machine code for another setting of the operator."""
    operator = replace(fused_operator(library), **changes)
    given = replace(library.manifest, settings=ops.settings(operator))
    return ConvKernel(replace(library, manifest=given))
