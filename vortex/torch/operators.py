"""The operators that stand in PyTorch's graphs, and what they do: find their layer by its number, and call it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from itertools import count
from types import MappingProxyType
from typing import Any
from weakref import WeakValueDictionary

import torch

from vortex.torch import pools
from vortex.torch.convolutions import Convolution
from vortex.torch.layers import Dense, Layer, Serving
from vortex.torch.libraries import Libraries


class Running(threading.local):
    """Of the program that a thread runs, each layer with its constants, by number."""

    layers: Mapping[int, Serving] = MappingProxyType({})


running = Running()
_numbers = count()
_layers: WeakValueDictionary[int, Layer] = WeakValueDictionary()
_products: dict[int, Any] = {}

_library = torch.library.Library("vortex", "DEF")
_library.define("dense(Tensor x, int layer) -> Tensor")
_library.define("convolution(Tensor x, Tensor? residual, int layer) -> Tensor")
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


def _dense(x: torch.Tensor, layer: int) -> Any:
    return running.layers[layer](x)


def _dense_shape(x: torch.Tensor, layer: int) -> Any:
    found = _layers[layer]
    assert isinstance(found, Dense)
    return x.new_empty((*x.shape[:-1], found.columns))


def _convolution(x: torch.Tensor, residual: Any, layer: int) -> Any:
    serving = running.layers[layer]
    return serving(x) if residual is None else serving(x, residual)


def _convolution_shape(x: torch.Tensor, residual: Any, layer: int) -> Any:
    found = _layers[layer]
    assert isinstance(found, Convolution)
    shape = found.extents(x.shape)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _matmul(a: torch.Tensor, b: torch.Tensor, library: int) -> Any:
    return _products[library](a, b)


def _matmul_shape(a: torch.Tensor, b: torch.Tensor, library: int) -> Any:
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*batch, a.shape[-2], b.shape[-1]))


for _name, _run, _shape in (
    ("dense", _dense, _dense_shape),
    ("convolution", _convolution, _convolution_shape),
    ("matmul", _matmul, _matmul_shape),
    ("average", pools.average, pools.average_shape),
    ("total", pools.total, pools.total_shape),
):
    _library.impl(_name, _run, "CPU")
    _library.impl(_name, torch.library.fallthrough_kernel, "AutogradCPU")  # no gradients: the backend has refused them
    torch.library.register_fake(f"vortex::{_name}", _shape, lib=_library)
