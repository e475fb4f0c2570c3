"""Convolutions with constant filters, batch normalization folded into them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vortex.convolution import ConvShape, Window
from vortex.torch.layers import Constants, Layer, Serving
from vortex.torch.libraries import Finish, Libraries


class Convolution(Layer):
    """x [batch, channels, height, width] -> epilogue(convolution of x). Constants: filters [filters, channels, h, w];
    a bias [filters], if `has_bias`; and with `epsilon` what normalizes each filter: mean, variance, weight, bias."""

    def __init__(
        self,
        libraries: Libraries,
        finish: Finish,
        window: Window,
        filters: Sequence[int],
        has_bias: bool,
        epsilon: float | None = None,
    ) -> None:
        super().__init__(libraries.convolution(finish), finish)
        self.window, self.filters, self.has_bias, self.epsilon = window, tuple(map(int, filters)), has_bias, epsilon

    def settings(self) -> tuple[Any, ...]:
        return ("convolution", self.window.groups, self.has_bias, self.epsilon)

    def lay_out(self, *constants: torch.Tensor) -> tuple[Any, torch.Tensor | None]:
        filters, *rest = constants
        bias = rest.pop(0) if self.has_bias else None
        if self.epsilon is not None:
            mean, variance, weight, shift = (each.double() for each in rest)
            factor = weight / (variance + self.epsilon).sqrt()
            bias = (shift + ((0 if bias is None else bias.double()) - mean) * factor).float()
            filters = (filters.double() * factor[:, None, None, None]).float()
        packed = self.kernel.pack(filters.contiguous(), groups=self.window.groups)
        return packed, None if bias is None else bias.contiguous()

    def extents(self, x: Sequence[Any]) -> tuple[Any, ...]:
        """The shape of the result; extents of x may be symbols."""
        where, (top, bottom, left, right) = self.window, self.window.padding
        along = zip(x[2:], (top + bottom, left + right), self.filters[2:], where.dilation, where.stride, strict=True)
        height, width = (
            (size + around - (taps - 1) * dilation - 1) // stride + 1 for size, around, taps, dilation, stride in along
        )
        return (x[0], self.filters[0], height, width)

    def serving(self, constants: Constants) -> Serving:
        """The result lies channels last. A residual has its shape."""
        bias = () if constants.bias is None else (constants.bias,)
        convolve: Serving = self.kernel.images_by(constants.weight, self.window, _channels_last, *bias)

        def add(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
            return convolve(x, residual.contiguous(memory_format=torch.channels_last))

        return add if "residual" in self.finish else convolve


def _channels_last(shape: ConvShape) -> torch.Tensor:
    extents = shape.batch, shape.filters, shape.out_h, shape.out_w
    return torch.empty(extents, memory_format=torch.channels_last)
