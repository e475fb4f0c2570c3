"""What became of a graph: the layers that libraries serve in it, and how they come to their constants at a call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any

import torch
from torch.fx import GraphModule, Node

from vortex.torch.bindings import Bindings
from vortex.torch.layers import Constants, Layer
from vortex.torch.operators import numbered
from vortex.torch.patterns import is_constant
from vortex.torch.program import Program, native, refusal


@dataclass
class Served:
    """What became of a graph."""

    module: GraphModule
    layers: dict[int, tuple[Layer, list[int | torch.Tensor]]] = field(default_factory=dict)
    """By number; constants are arguments of the graph, by their places, or its own."""
    counts: Counter[str] = field(default_factory=Counter)
    """Nodes of each kind, with their epilogue."""

    def add(self, kind: str, layer: Layer, constants: list[Node]) -> int:
        """The number by which the graph calls a layer."""
        given = [self.places[x] if x in self.places else attrgetter(x.target)(self.module) for x in constants]
        number = numbered(layer)
        self.layers[number] = layer, given
        parts = (f"of {layer.parts}",) if layer.parts > 1 else ()
        self.counts[" ".join((kind, *layer.finish, *parts))] += 1
        return number

    @cached_property
    def places(self) -> dict[Node, int]:
        """Of the arguments of the graph."""
        inputs = (node for node in self.module.graph.nodes if node.op == "placeholder")
        return {node: place for place, node in enumerate(inputs)}

    def without_constants(self) -> tuple[GraphModule, list[int]]:
        """The graph without what layers alone use of its arguments, and which of them it still has.

        A copy: Dynamo passes what its own has.
        """
        graph = deepcopy(self.module.graph)
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        unused = {place for place, node in enumerate(inputs) if is_constant(node) and not node.users}
        for place in unused:
            graph.erase_node(inputs[place])
        return GraphModule(self.module, graph), [place for place in range(len(inputs)) if place not in unused]

    def program(self, compile: Callable[[GraphModule, list[int]], Callable[..., Any]]) -> Callable[..., Any]:
        """What `compile` makes of the graph and the places of its arguments, for all that it had.

        Its layers are bound to the constants that it is called with.
        """
        graph, places = self.without_constants()
        compiled = compile(graph, places)
        given = [constant for _, constants in self.layers.values() for constant in constants]
        layers = {number: (layer, len(constants)) for number, (layer, constants) in self.layers.items()}
        bindings, begin = Bindings(layers, _called), native().vortex_run

        def run(*arguments: Any) -> Any:
            program = bindings([arguments[one] if type(one) is int else one for one in given])
            before = begin(program.address)
            try:
                return compiled(*[arguments[place] for place in places])
            except RuntimeError as error:
                if (refused := refusal()) is not None:
                    raise refused from error
                raise
            finally:
                begin(before)

        return run


def _called(layers: Mapping[int, tuple[Layer, Constants]]) -> Program:
    """What C is told of layers and their constants."""
    return Program({number: layer.call(constants) for number, (layer, constants) in layers.items()})
