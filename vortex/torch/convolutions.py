"""Convolutions with constant filters, batch normalization folded into them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vortex.convolution import Window
from vortex.torch.layers import Layer
from vortex.torch.libraries import Finish, Libraries


class Convolution(Layer):
    """x [batch, channels, height, width] -> epilogue(convolution of x). Constants: filters [filters, channels, h, w];
    a bias [filters], if `has_bias`; and with `epsilon` what normalizes each filter: mean, variance, weight, bias."""

    def __init__(
        self, libraries: Libraries, finish: Finish, window: Window, has_bias: bool, epsilon: float | None = None
    ) -> None:
        super().__init__(libraries.convolution(finish), finish)
        self.window, self.has_bias, self.epsilon = window, has_bias, epsilon
        where = window.stride, window.padding, window.dilation, window.groups
        self._where = dict(zip(("stride", "padding", "dilation", "groups"), where, strict=True))

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

    def extents(self, x: Sequence[Any], filters: Sequence[Any]) -> tuple[Any, ...]:
        """The shape of the result; extents of x may be symbols."""
        top, bottom, left, right = self.window.padding
        height, width = (
            (size + around - (taps - 1) * dilation - 1) // stride + 1
            for size, around, taps, dilation, stride in zip(
                x[2:], (top + bottom, left + right), filters[2:], self.window.dilation, self.window.stride, strict=True
            )
        )
        return (x[0], filters[0], height, width)

    def __call__(
        self, x: torch.Tensor, given: Sequence[torch.Tensor], residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The result lies channels last. `residual` has its shape, if the epilogue has one."""
        constants = self.refreshed(given)
        shape = self.extents(x.shape, constants.weight.shape)
        out = torch.empty(shape, memory_format=torch.channels_last)
        operands: dict[str, torch.Tensor] = {}
        if constants.bias is not None:
            operands["bias"] = constants.bias
        if residual is not None:
            operands["residual"] = residual.contiguous(memory_format=torch.channels_last)
        return self.kernel(x, constants.weight, out, **self._where, **operands)
