"""A product or convolution with constant weights: they are laid out once, and again if somebody changed them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakValueDictionary

import torch

from vortex.errors import ShapeError
from vortex.operands import viewed
from vortex.torch.libraries import Finish, Libraries

Stamp = tuple[int, int]


def stamp(tensor: torch.Tensor) -> Stamp:
    """Changes when the values may have: where they are, and how often they were written to."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version


@dataclass(frozen=True, eq=False)
class Constants:
    """Weights in the form of a library, and the bias that goes with them."""

    weight: Any
    bias: Any
    held: tuple[torch.Tensor, ...]
    """The memory they were made from: while it is not freed, no other tensor can come to have its stamps."""


_constants: WeakValueDictionary[Any, Constants] = WeakValueDictionary()
"""What layers hold: a weight that several layers or graphs use is laid out once."""


class Layer:
    """One place in a network where a library serves."""

    def __init__(self, kernel: Any, finish: Finish) -> None:
        self.kernel, self.finish = kernel, finish
        self._stamps: tuple[Stamp, ...] = ()
        self._constants: Constants

    def refreshed(self, given: Sequence[torch.Tensor]) -> Constants:
        """`given` in the form of the library; laid out unless they are those that were last time."""
        stamps = tuple([stamp(tensor) for tensor in given])
        if stamps != self._stamps:
            key = (self.kernel.library.identity, self.settings(), stamps)
            made = _constants.get(key)
            if made is None:
                held = tuple(tensor.detach() for tensor in given)
                made = _constants[key] = Constants(*self.lay_out(*held), held)
            self._stamps, self._constants = stamps, made
        return self._constants

    def settings(self) -> tuple[Any, ...]:
        """What decides how constants are laid out, beside the library."""
        raise NotImplementedError

    def lay_out(self, *constants: torch.Tensor) -> tuple[Any, Any]:
        """The packed weight, and the bias, or None."""
        raise NotImplementedError


class Dense(Layer):
    """x [..., k] -> epilogue(x W) [..., n]. Constants: the weight, [n, k] if `turned`, else [k, n]; a bias [n].

    Of several `parts` W is beside each other: first their weights, then their biases.
    """

    def __init__(self, libraries: Libraries, finish: Finish, turned: bool, parts: int = 1) -> None:
        super().__init__(libraries.product(finish), finish)
        self.turned, self.parts = turned, parts

    def settings(self) -> tuple[Any, ...]:
        return ("dense", self.turned, self.parts)

    def lay_out(self, *constants: torch.Tensor) -> tuple[Any, Any]:
        weights, biases = constants[: self.parts], constants[self.parts :]
        weight = torch.cat(weights, 0 if self.turned else 1) if self.parts > 1 else weights[0]
        return self.kernel.pack(weight, transpose=self.turned), viewed(torch.cat(biases)) if biases else None

    def extents(self, x: Sequence[Any], constants: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """The shape of the result."""
        return (*x[:-1], sum(weight.shape[0 if self.turned else 1] for weight in constants[: self.parts]))

    def __call__(self, x: torch.Tensor, given: Sequence[torch.Tensor]) -> torch.Tensor:
        constants = self.refreshed(given)
        extras = () if constants.bias is None else (constants.bias,)
        try:
            return cast(torch.Tensor, self.kernel.rows(x, constants.weight, *extras))
        except ShapeError:  # rows that are no constant distance apart
            return cast(torch.Tensor, self.kernel.rows(x.contiguous(), constants.weight, *extras))
