"""The operators that stand in PyTorch's graphs. Layers are called by number, from C (`vortex/torch/layers.c`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch

from vortex.torch import pools
from vortex.torch.convolutions import Convolution
from vortex.torch.layers import Dense, Layer
from vortex.torch.libraries import Libraries

_numbers = count()
_layers: WeakValueDictionary[int, Layer] = WeakValueDictionary()
_products: dict[int, Any] = {}

_library = torch.library.Library("vortex", "DEF")
_library.define("dense(Tensor x, int layer) -> Tensor")
_library.define("convolve(Tensor x, int layer) -> Tensor")
_library.define("convolve_added(Tensor x, Tensor residual, int layer) -> Tensor")
_library.define("gather_channels(Tensor[] x, int[] layers) -> Tensor")
_library.define("pool(Tensor x, int tall, int wide, int down, int across, int above, int before) -> Tensor")
_library.define("matmul(Tensor a, Tensor b, int library) -> Tensor")
_library.define("average(Tensor x, int height, int width) -> Tensor")
_library.define("total(Tensor x, int[] axes, bool kept, bool mean) -> Tensor")


def numbered(layer: Layer) -> int:
    """The number by which a graph calls `layer`, good for as long as somebody holds it."""
    number = next(_numbers)
    _layers[number] = layer
    return number


def matmul_of(libraries: Libraries) -> int:
    """The number by which a graph multiplies with kernels of these libraries; good for the process."""
    kernel = libraries.products()
    for number, known in _products.items():
        if known is kernel:
            return number
    number = next(_numbers)
    _products[number] = kernel
    return number


def _dense_shape(x: torch.Tensor, layer: int) -> Any:
    found = _layers[layer]
    assert isinstance(found, Dense)
    return x.new_empty((*x.shape[:-1], found.columns))


def _convolution_shape(x: torch.Tensor, layer: int) -> Any:
    found = _layers[layer]
    assert isinstance(found, Convolution)
    return pools.channels_last(x, *found.extents(x.shape))


def _added_shape(x: torch.Tensor, residual: torch.Tensor, layer: int) -> Any:
    return _convolution_shape(x, layer)


def _gather(x: Sequence[torch.Tensor], layers: Sequence[int]) -> torch.Tensor:
    convolve = torch.ops.vortex.convolve.default
    parts = [given if layer < 0 else convolve(given, layer) for given, layer in zip(x, layers, strict=True)]
    return torch.cat(parts, 1).contiguous(memory_format=torch.channels_last)


def _gathered_shape(x: Sequence[torch.Tensor], layers: Sequence[int]) -> Any:
    parts = [given if layer < 0 else _convolution_shape(given, layer) for given, layer in zip(x, layers, strict=True)]
    batch, _, height, width = parts[0].shape
    return pools.channels_last(x[0], batch, sum(part.shape[1] for part in parts), height, width)


def _matmul(a: torch.Tensor, b: torch.Tensor, library: int) -> Any:
    return _products[library](a, b)


def _matmul_shape(a: torch.Tensor, b: torch.Tensor, library: int) -> Any:
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*batch, a.shape[-2], b.shape[-1]))


for _name, _run in (
    ("gather_channels", _gather),
    ("pool", pools.largest),
    ("matmul", _matmul),
    ("average", pools.average),
    ("total", pools.total),
):
    _library.impl(_name, _run, "CPU")
for _name, _shape in (
    ("dense", _dense_shape),
    ("convolve", _convolution_shape),
    ("convolve_added", _added_shape),
    ("gather_channels", _gathered_shape),
    ("pool", pools.largest_shape),
    ("matmul", _matmul_shape),
    ("average", pools.average_shape),
    ("total", pools.total_shape),
):
    _library.impl(_name, torch.library.fallthrough_kernel, "AutogradCPU")  # no gradients: the backend has refused them
    torch.library.register_fake(f"vortex::{_name}", _shape, lib=_library)
