"""Convolutions with constant filters, batch normalization folded into them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vortex.convolution import ConvShape, Window
from vortex.errors import ShapeError
from vortex.operands import viewed
from vortex.torch.layers import Constants, Layer, Serving
from vortex.torch.libraries import Finish, Libraries
from vortex.torch.program import LayerCall


class Convolution(Layer):
    """x [batch, channels, height, width] -> epilogue(convolution of x). Constants: filters [filters, channels, h, w];
    a bias [filters], if `has_bias`; and with `epsilon` what normalizes each filter: mean, variance, weight, bias.

    Filters of several shapes, which differ in their number alone, are one after the other, each with what is its own.
    """

    def __init__(
        self,
        libraries: Libraries,
        finish: Finish,
        window: Window,
        filters: Sequence[Sequence[int]],
        has_bias: bool,
        epsilon: float | None = None,
    ) -> None:
        super().__init__(libraries.convolution(finish), finish)
        self.window, self.has_bias, self.epsilon = window, has_bias, epsilon
        self.parts, self.filters = len(filters), (sum(shape[0] for shape in filters), *filters[0][1:])

    def settings(self) -> tuple[Any, ...]:
        return ("convolution", self.window.groups, self.parts, self.has_bias, self.epsilon)

    def lay_out(self, *constants: torch.Tensor) -> tuple[Any, torch.Tensor | None]:
        each = len(constants) // self.parts
        folded = [self._folded(*constants[part * each :][:each]) for part in range(self.parts)]
        packed = self.kernel.pack(torch.cat([filters for filters, _ in folded]), groups=self.window.groups)
        biases = [bias for _, bias in folded if bias is not None]
        return packed, torch.cat(biases) if biases else None

    def _folded(self, filters: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        rest = list(others)
        bias = rest.pop(0) if self.has_bias else None
        if self.epsilon is not None:
            mean, variance, weight, shift = (each.double() for each in rest)
            factor = weight / (variance + self.epsilon).sqrt()
            bias = (shift + ((0 if bias is None else bias.double()) - mean) * factor).float()
            filters = (filters.double() * factor[:, None, None, None]).float()
        return filters, bias

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

        def serve(x: torch.Tensor, *residual: torch.Tensor) -> torch.Tensor:
            added = [each.contiguous(memory_format=torch.channels_last) for each in residual]
            try:
                return convolve(x, *added)
            except ShapeError:  # neither its channels nor its columns are side by side
                return convolve(x.contiguous(memory_format=torch.channels_last), *added)

        return serve

    def call(self, constants: Constants) -> LayerCall:
        door, numbers = self.kernel.door_for(constants.weight, self.window)
        bias = [] if constants.bias is None else [viewed(constants.bias)]
        return LayerCall(door, [constants.weight.memory, *bias], numbers)


def _channels_last(shape: ConvShape) -> torch.Tensor:
    extents = shape.batch, shape.filters, shape.out_h, shape.out_w
    return torch.empty(extents, memory_format=torch.channels_last)
