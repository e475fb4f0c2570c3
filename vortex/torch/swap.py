"""Modules exchanged for ones that Vortex serves: for models that are not to be compiled by torch."""

from __future__ import annotations

import torch
from torch import nn

from vortex.errors import DeviceError, DtypeError, OperandError
from vortex.torch.layers import Dense
from vortex.torch.libraries import NATIVE, Libraries
from vortex.torch.openmp import share_threads


class ServedLinear(nn.Module):
    """A linear layer whose product a library computes; parameters have the names that they had."""

    def __init__(self, given: nn.Module, turned: bool, libraries: Libraries) -> None:
        super().__init__()
        self.weight, self.bias = given.weight, given.bias
        self.layer = Dense(libraries, ("bias",) if self.bias is not None else (), turned)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [..., k]; raises OperandError where gradients are wanted."""
        if torch.is_grad_enabled() and (x.requires_grad or self.weight.requires_grad):
            raise OperandError(
                "a served layer has no gradients; call the model under torch.no_grad() or torch.inference_mode()"
            )
        return self.layer(x, (self.weight,) if self.bias is None else (self.weight, self.bias))


def optimize(model: nn.Module, libraries: Libraries = NATIVE) -> nn.Module:
    """Exchange all linear layers inside `model` (also those of GPT-2, which keep [k, n]) for served ones; returns it.

    The model is changed in place; its parameters, and their names, stay. Inference in float32 on CPUs: raises
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
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, ServedLinear(child, True, libraries))
            elif type(child).__name__ == "Conv1D" and hasattr(child, "nf"):
                setattr(parent, name, ServedLinear(child, False, libraries))
    return model
