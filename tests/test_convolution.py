"""Convolution as an operator: extents, refusals, and the reference against PyTorch's definition."""

import json

import numpy as np
import pytest

from vortex import DtypeError, ShapeError, UnknownNameError
from vortex import operators as ops
from vortex.convolution import ConvShape, Window, window


def definition(x: np.ndarray, w: np.ndarray, where: Window) -> np.ndarray:
    """NHWC, one output element at a time."""
    shape = ops.Conv2d().shape(x.shape, w.shape, where)
    y = np.zeros((shape.batch, shape.out_h, shape.out_w, shape.filters))
    share, depth = shape.filters // where.groups, shape.channels // where.groups
    for image, row, column, filter in np.ndindex(*y.shape):
        for channel, down, along in np.ndindex(*w.shape[1:]):
            high = row * where.stride[0] + down * where.dilation[0] - where.padding[0]
            wide = column * where.stride[1] + along * where.dilation[1] - where.padding[2]
            if 0 <= high < shape.height and 0 <= wide < shape.width:
                value = x[image, high, wide, filter // share * depth + channel]
                y[image, row, column, filter] += value * w[filter, channel, down, along]
    return y


WINDOWS = [
    window(),
    window(2, 1),
    window((1, 3), (0, 2, 3, 1)),
    window(1, 4, 2),
    window(5, 1, 1, 2),
    window(1, (1, 2), (1, 2), 4),
]


class TestReference:
    @pytest.mark.parametrize("where", WINDOWS)
    def test_it_is_the_definition_in_both_layouts(self, where: Window):
        generator = np.random.default_rng(0)
        x = generator.integers(-4, 5, (2, 6, 7, 4)).astype(np.float32)
        w = generator.integers(-4, 5, (8, 4 // where.groups, 3, 2)).astype(np.float32)
        named = {"stride": where.stride, "padding": where.padding, "dilation": where.dilation, "groups": where.groups}
        expected = definition(x, w, where)
        assert (ops.Conv2d().reference(x, w, **named) == expected).all()
        turned = ops.Conv2d(layout="nchw").reference(x.transpose(0, 3, 1, 2), w, **named)
        assert (turned.transpose(0, 2, 3, 1) == expected).all()


class TestExtents:
    def test_a_padding_of_two_numbers_is_symmetric(self):
        assert window(padding=(1, 2)).padding == (1, 1, 2, 2)
        assert window(padding=3).padding == (3, 3, 3, 3)

    def test_the_implicit_gemm_of_a_group(self):
        shape = ConvShape(2, 9, 7, 8, 6, 3, 2, window(2, (1, 0, 0, 1), 1, 2))
        assert (shape.out_h, shape.out_w) == (4, 4)
        assert shape.gemm == {"m": 32, "n": 3, "k": 24}
        assert shape.flops == 2 * 2 * 32 * 3 * 24

    def test_an_output_may_be_empty(self):
        assert ConvShape(0, 5, 5, 1, 1, 3, 3).gemm["m"] == 0

    def test_depthwise_is_a_channel_a_group(self):
        assert ConvShape(1, 5, 5, 4, 8, 3, 3, window(groups=4)).depthwise
        assert not ConvShape(1, 5, 5, 1, 8, 3, 3).depthwise


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            ({"stride": 0}, "stride=0"),
            ({"stride": (1, 2, 3)}, "stride=.*expected a number or 2"),
            ({"padding": -1}, "padding=-1"),
            ({"padding": (1, 2, 3)}, "2 or 4"),
            ({"dilation": 1.5}, "dilation=1.5"),
            ({"groups": True}, "groups=True"),
        ],
    )
    def test_what_no_window_is(self, arguments: dict, told: str):
        with pytest.raises(ShapeError, match=told):
            window(**arguments)

    def test_a_filter_larger_than_the_padded_input(self):
        with pytest.raises(ShapeError, match="larger than the padded input of 4 x 9"):
            ConvShape(1, 4, 9, 1, 1, 3, 3, window(dilation=2))

    @pytest.mark.parametrize(("channels", "filters"), [(6, 4), (4, 6)])
    def test_groups_that_do_not_divide(self, channels: int, filters: int):
        with pytest.raises(ShapeError, match="groups=4 does not divide"):
            ConvShape(1, 8, 8, channels, filters, 1, 1, window(groups=4))

    def test_channels_that_differ(self):
        with pytest.raises(ShapeError, match="x has 5 channels and w 4"):
            ops.Conv2d().shape((1, 8, 8, 5), (3, 4, 1, 1), window())

    def test_wrong_rank(self):
        with pytest.raises(ShapeError, match="w has shape"):
            ops.Conv2d().shape((1, 8, 8, 5), (3, 5), window())

    def test_settings_of_the_operator(self):
        with pytest.raises(DtypeError, match="int8"):
            ops.Conv2d(dtype="int8")
        with pytest.raises(UnknownNameError, match="nwhc"):
            ops.Conv2d(layout="nwhc")
        with pytest.raises(UnknownNameError, match="sloppy"):
            ops.Conv2d(accuracy="sloppy")

    def test_a_library_remembers_it(self):
        operator = ops.Conv2d("nchw", accuracy="strict", stride=2, padding=[0, 1, 2, 0])
        assert ops.rebuilt("conv2d", json.loads(json.dumps(ops.settings(operator)))) == operator


class TestFixed:
    def test_equal_windows_are_equal_operators(self):
        fixed = ops.Conv2d(stride=2, padding=(1, 3), groups=4)
        assert fixed == ops.Conv2d(stride=[2, 2], padding=(1, 1, 3, 3), groups=4) != ops.Conv2d(stride=2)
        assert fixed.fixed == {"stride": (2, 2), "padding": (1, 1, 3, 3), "groups": 4}
        assert fixed.open == ops.Conv2d() and ops.Conv2d().fixed == {}

    def test_what_a_call_leaves_out(self):
        fixed = ops.Conv2d(stride=2, padding=(0, 1, 2, 0))
        assert fixed.window() == window(2, (0, 1, 2, 0))
        assert fixed.window(stride=(2, 2), dilation=3, groups=2) == window(2, (0, 1, 2, 0), 3, 2)
        assert ops.Conv2d().window() == window()

    @pytest.mark.parametrize(
        ("given", "told"),
        [
            ({"stride": 1}, r"stride=1: this library is for stride=\(2, 2\) alone; leave stride out, or compile"),
            ({"padding": 0}, r"padding=0: .*padding=\(1, 1, 1, 1\) alone"),
            ({"dilation": (1, 2)}, r"dilation=\(1, 2\): .*dilation=\(1, 1\) alone"),
            ({"groups": 1}, "groups=1: .*groups=4 alone"),
            ({"stride": 0}, "at least 1"),
        ],
    )
    def test_another_window_is_refused(self, given: dict, told: str):
        with pytest.raises(ShapeError, match=told):
            ops.Conv2d(stride=2, padding=1, dilation=1, groups=4).window(**given)

    @pytest.mark.parametrize("given", [{"stride": 0}, {"padding": (1, 2, 3)}, {"dilation": "2"}, {"groups": 1.5}])
    def test_what_no_window_is_cannot_be_fixed(self, given: dict):
        with pytest.raises(ShapeError, match=f"{next(iter(given))}=.*expected"):
            ops.Conv2d(**given)
