"""Sums, means and largest elements over extents that vary, by PyTorch's own kernels.

Inductor would write loops for them, and guard the program by how much there is to sum up; nothing asks these. Where C
runs a graph, `pools.c` finds the largest of windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional


def channels_last(x: torch.Tensor, *shape: Any) -> torch.Tensor:
    """A tensor of this shape, of the type and device of x, channels last, without values."""
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def largest(x: torch.Tensor, tall: int, wide: int, down: int, across: int, above: int, before: int) -> torch.Tensor:
    """x [batch, channels, h, w] -> the largest of each window, `tall` x `wide`, channels last.

    Windows are `down` rows and `across` columns apart, and may reach `above` rows and `before` columns out of x.
    """
    found = functional.max_pool2d(x, (tall, wide), (down, across), (above, before))
    return found.contiguous(memory_format=torch.channels_last)


def largest_shape(
    x: torch.Tensor, tall: int, wide: int, down: int, across: int, above: int, before: int
) -> torch.Tensor:
    """What `largest` makes, without values."""
    rows, columns = (x.shape[2] + 2 * above - tall) // down + 1, (x.shape[3] + 2 * before - wide) // across + 1
    return channels_last(x, x.shape[0], x.shape[1], rows, columns)


def average(x: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """x [batch, channels, h, w] -> [batch, channels, height, width], channels last: means of windows of any size."""
    return functional.adaptive_avg_pool2d(x, (height, width)).contiguous(memory_format=torch.channels_last)


def average_shape(x: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """What `average` makes, without values."""
    return channels_last(x, x.shape[0], x.shape[1], height, width)


def total(x: torch.Tensor, axes: Sequence[int], kept: bool, mean: bool) -> torch.Tensor:
    """The sum, or the mean, of x over axes (none below zero), which stay with an extent of one if `kept`."""
    found = torch.mean(x, axes, kept) if mean else torch.sum(x, axes, kept)
    return found.contiguous()


def total_shape(x: torch.Tensor, axes: Sequence[int], kept: bool, mean: bool) -> Any:
    """What `total` makes, without values."""
    extents = [1 if axis in axes else extent for axis, extent in enumerate(x.shape) if kept or axis not in axes]
    return x.new_empty(extents)
