"""A product or convolution with constant weights, which are laid out once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch

from vortex.errors import ShapeError
from vortex.operands import viewed
from vortex.torch.libraries import Finish, Libraries
from vortex.torch.program import LayerCall

Stamp = tuple[int, int]
Serving = Callable[..., torch.Tensor]
"""A layer with its constants: called with x, and with a residual where the epilogue adds one."""


def stamps_of(tensors: Sequence[torch.Tensor]) -> list[Stamp]:
    """Each changes when the values may have: where they are, and how often they were written to."""
    return [(tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version) for tensor in tensors]


@dataclass(frozen=True, eq=False)
class Constants:
    """Weights in the form of a library, and the bias that goes with them."""

    weight: Any
    bias: Any
    held: tuple[torch.Tensor, ...]
    """The memory they were made from: while it is not freed, no other tensor can come to have its stamps."""


_constants: WeakValueDictionary[Any, Constants] = WeakValueDictionary()
"""What is in use: a weight that several layers or graphs have is laid out once."""


class Layer:
    """One place in a network where a library serves."""

    parts = 1
    """Layers of the network that it stands for."""

    def __init__(self, kernel: Any, finish: Finish) -> None:
        self.kernel, self.finish = kernel, finish

    def laid_out(self, given: Sequence[torch.Tensor], stamps: Sequence[Stamp]) -> Constants:
        """Constants with these stamps in the form of the library."""
        key = (self.kernel.library.identity, self.settings(), *stamps)
        made = _constants.get(key)
        if made is None:
            held = tuple(tensor.detach() for tensor in given)
            made = _constants[key] = Constants(*self.lay_out(*held), held)
        return made

    def settings(self) -> tuple[Any, ...]:
        """What decides how constants are laid out, beside the library."""
        raise NotImplementedError

    def lay_out(self, *constants: torch.Tensor) -> tuple[Any, Any]:
        """The packed weight, and the bias, or None."""
        raise NotImplementedError

    def serving(self, constants: Constants) -> Serving:
        """What computes the layer with these constants, in Python."""
        raise NotImplementedError

    def call(self, constants: Constants) -> LayerCall:
        """The same for C: of one input, and of a residual where the epilogue adds one."""
        raise NotImplementedError


class Dense(Layer):
    """x [..., k] -> epilogue(x W) [..., n]. Constants: the weight, [n, k] if `turned`, else [k, n]; a bias [n].

    Weights of several shapes are beside each other: first all of them, then their biases.
    """

    def __init__(self, libraries: Libraries, finish: Finish, turned: bool, *weights: Sequence[int]) -> None:
        super().__init__(libraries.product(finish), finish)
        self.turned, self.parts = turned, len(weights)
        self.columns = sum(int(shape[0 if turned else 1]) for shape in weights)
        """Of the result."""

    def settings(self) -> tuple[Any, ...]:
        return ("dense", self.turned, self.parts)

    def lay_out(self, *constants: torch.Tensor) -> tuple[Any, Any]:
        weights, biases = constants[: self.parts], constants[self.parts :]
        weight = torch.cat(weights, 0 if self.turned else 1) if self.parts > 1 else weights[0]
        return self.kernel.pack(weight, transpose=self.turned), viewed(torch.cat(biases)) if biases else None

    def serving(self, constants: Constants) -> Serving:
        rows: Serving = self.kernel.rows_by(constants.weight, *(() if constants.bias is None else (constants.bias,)))

        def multiply(x: torch.Tensor) -> torch.Tensor:
            try:
                return rows(x)
            except ShapeError:  # rows that are no constant distance apart
                return rows(x.contiguous())

        return multiply

    def call(self, constants: Constants) -> LayerCall:
        door, numbers = self.kernel.door_for(constants.weight)
        return LayerCall(
            door, [constants.weight.memory, *([] if constants.bias is None else [constants.bias])], numbers
        )
