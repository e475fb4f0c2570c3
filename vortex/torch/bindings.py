"""Which constants layers were given: looked at once for all of them, before the first one runs.

A layer's weights push all else out of a core's own caches. What is asked between two layers of a text of one token is
asked of memory farther away, and takes ten times as long as it would alone: so nothing is that can be known before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Generic, TypeVar
from weakref import ref

import torch

from vortex.torch.layers import Constants, Layer, Stamp, stamps_of

Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class Binding(Generic[Made]):
    """Layers with their constants."""

    stamps: list[Stamp]
    made: Made
    """Of all of them."""
    constants: tuple[Constants, ...]
    watched: tuple[ref[torch.Tensor], ...]
    """The tensors: with the first that is gone the binding goes."""


class Bindings(Generic[Made]):
    """Layers by number, each with so many constants: a binding for each set of tensors that they come with.

    Several blocks of a network may run the same program with weights of their own. `make` is given the layers with
    their constants, by number.
    """

    def __init__(
        self, layers: Mapping[int, tuple[Layer, int]], make: Callable[[Mapping[int, tuple[Layer, Constants]]], Made]
    ) -> None:
        self._make = make
        self._layers = {number: layer for number, (layer, _) in layers.items()}
        self._cuts = list(pairwise(accumulate((count for _, count in layers.values()), initial=0)))
        self._bound: dict[tuple[int, ...], Binding[Made]] = {}

    def __call__(self, given: Sequence[torch.Tensor]) -> Made:
        """Of the layers with these constants, one layer's after the other's; laid out unless they were already."""
        stamps, key = stamps_of(given), tuple([id(tensor) for tensor in given])
        bound = self._bound.get(key)
        if bound is None or bound.stamps != stamps:
            bound = self._bound[key] = self._bind(given, stamps, self._forget(key))
        return bound.made

    def _forget(self, key: tuple[int, ...]) -> Callable[[Any], None]:
        bound = self._bound

        def forget(_: Any) -> None:
            bound.pop(key, None)

        return forget

    def _bind(self, given: Sequence[torch.Tensor], stamps: list[Stamp], forget: Callable[[Any], None]) -> Binding[Made]:
        constants = [
            layer.laid_out(given[start:end], stamps[start:end])
            for layer, (start, end) in zip(self._layers.values(), self._cuts, strict=True)
        ]
        bound = {number: (layer, one) for (number, layer), one in zip(self._layers.items(), constants, strict=True)}
        return Binding(stamps, self._make(bound), tuple(constants), tuple(ref(tensor, forget) for tensor in given))
