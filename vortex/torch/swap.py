"""Modules exchanged for ones that Vortex serves: for models that are not to be compiled by torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from vortex.convolution import window
from vortex.errors import DeviceError, DtypeError, OperandError
from vortex.torch.bindings import Bindings
from vortex.torch.convolutions import Convolution
from vortex.torch.layers import Constants, Dense, Layer, Serving
from vortex.torch.libraries import NATIVE, Libraries
from vortex.torch.openmp import share_threads

NORMALIZERS = ("running_mean", "running_var", "weight", "bias")
"""What batch normalization reads, in the order of the constants of a convolution."""


def _refuse_gradients(x: torch.Tensor, weight: torch.Tensor) -> None:
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        raise OperandError(
            "a served layer has no gradients; call the model under torch.no_grad() or torch.inference_mode()"
        )


def _alone(layers: Mapping[int, tuple[Layer, Constants]]) -> Serving:
    """The one layer of a module, for Python."""
    layer, constants = layers[0]
    return layer.serving(constants)


class ServedLinear(nn.Module):
    """A linear layer whose product a library computes; parameters have the names that they had."""

    def __init__(self, given: nn.Module, turned: bool, libraries: Libraries) -> None:
        super().__init__()
        self.weight, self.bias = given.weight, given.bias
        layer = Dense(libraries, ("bias",) if self.bias is not None else (), turned, given.weight.shape)
        self.bindings = Bindings({0: (layer, 1 if self.bias is None else 2)}, _alone)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [..., k]; raises OperandError where gradients are wanted."""
        _refuse_gradients(x, self.weight)
        return self.bindings((self.weight,) if self.bias is None else (self.weight, self.bias))(x)


class Folded(nn.Module):
    """Batch normalization that the convolution before it does; parameters and buffers have the names that they had."""

    def __init__(self, given: nn.BatchNorm2d) -> None:
        super().__init__()
        self.weight, self.bias = given.weight, given.bias
        for name, buffer in given.named_buffers():
            self.register_buffer(name, buffer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class ServedConvolution(nn.Module):
    """A convolution that a library computes, with normalization and ReLU if they follow; names as for ServedLinear."""

    def __init__(
        self, given: nn.Conv2d, folded: Folded | None, epsilon: float | None, relu: bool, libraries: Libraries
    ) -> None:
        super().__init__()
        self.weight, self.bias = given.weight, given.bias
        self.folded = (folded,)  # no module of this one: its parameters have names of their own
        words = ("bias",) * (folded is not None or given.bias is not None) + ("relu",) * relu
        where = window(given.stride, given.padding, given.dilation, given.groups)
        layer = Convolution(libraries, words, where, [given.weight.shape], given.bias is not None, epsilon)
        self.bindings = Bindings({0: (layer, len(self._constants()))}, _alone)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [batch, channels, height, width], or without a batch; raises OperandError where gradients are wanted."""
        _refuse_gradients(x, self.weight)
        if x.ndim == 3:
            return self.forward(x[None])[0]
        return self.bindings(self._constants())(x)

    def _constants(self) -> list[torch.Tensor]:
        (folded,) = self.folded
        normalizers = [] if folded is None else [getattr(folded, name) for name in NORMALIZERS]
        return [self.weight, *([] if self.bias is None else [self.bias]), *normalizers]


def optimize(model: nn.Module, libraries: Libraries = NATIVE) -> nn.Module:
    """Exchange linear layers (also those of GPT-2, which keep [k, n]) and convolutions inside `model` for served ones.

    Where batch normalization and ReLU follow a convolution in an nn.Sequential, the convolution does them on store. Its
    results lie channels last: what then reads them as rows of NCHW is to call flatten, not view. The model is changed
    in place, and returned; its parameters, buffers, and their names, stay. Inference in float32 on CPUs: raises
    DtypeError and DeviceError for other parameters, and OperandError for a model in training mode.
    """
    if model.training:
        raise OperandError("the model is in training mode; expected one for inference; call model.eval() first")
    for name, parameter in model.named_parameters():
        if parameter.device.type != "cpu":
            raise DeviceError(f"{name} is on {parameter.device}; expected the CPU; move the model with .cpu()")
        if parameter.dtype is not torch.float32:
            raise DtypeError(f"{name} is {parameter.dtype}; expected float32; convert the model with .float()")
    share_threads()
    for parent in list(model.modules()):
        for name, served in list(_served(parent, libraries)):
            setattr(parent, name, served)
    return model


def _served(parent: nn.Module, libraries: Libraries) -> Iterator[tuple[str, nn.Module]]:
    """What the children of a module are exchanged for."""
    children = list(parent._modules.items())  # one that is there twice too
    for place, (name, child) in enumerate(children):
        if type(child) is nn.Linear:
            yield name, ServedLinear(child, True, libraries)
        elif type(child).__name__ == "Conv1D" and hasattr(child, "nf"):
            yield name, ServedLinear(child, False, libraries)
        elif type(child) is nn.Conv2d and child.padding_mode == "zeros" and not isinstance(child.padding, str):
            following = children[place + 1 :] if type(parent) is nn.Sequential else []
            folded = epsilon = None
            if following and _is_folded(following[0][1]):
                (other, normalization), *following = following
                folded, epsilon = Folded(normalization), normalization.eps
                yield other, folded
            relu = bool(following) and type(following[0][1]) is nn.ReLU
            if relu:
                yield following[0][0], nn.Identity()
            yield name, ServedConvolution(child, folded, epsilon, relu, libraries)


def _is_folded(module: nn.Module) -> bool:
    """Whether a module normalizes each channel by constants."""
    constants = (getattr(module, name, None) for name in NORMALIZERS)
    return type(module) is nn.BatchNorm2d and all(constant is not None for constant in constants)
