"""Nodes of a graph exchanged for others."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node

from vortex.torch import patterns


def replace(nodes: list[Node], target: object, arguments: tuple[object, ...]) -> None:
    """One node for several, each of which is the only one that reads the one before."""
    with nodes[-1].graph.inserting_before(nodes[-1]):
        new = nodes[-1].graph.call_function(target, arguments)
    new.meta.update(nodes[-1].meta)
    erase(nodes, new)


def erase(nodes: list[Node], new: Any) -> None:
    """Whoever reads the last of them reads `new`."""
    nodes[-1].replace_all_uses_with(new)
    for node in reversed(nodes):
        node.graph.erase_node(node)


def drop_unused(module: GraphModule) -> None:
    """Nodes whose results nobody reads, unless they change an operand: of that PyTorch knows some."""
    module.graph.eliminate_dead_code(lambda node: node.is_impure() or patterns.may_write(node))
