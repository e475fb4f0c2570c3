"""Linear layers that read the same x, as query, key and value do: one product of more columns reads x once."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import is_concrete_int, statically_known_true

from vortex.torch import patterns
from vortex.torch.patterns import argument, is_constant, value


def beside_each_other(graph: Graph) -> list[list[Node]]:
    """The groups of two and more whose results may become heads of one."""
    groups: dict[Any, list[Node]] = {}
    for node in graph.nodes:
        if node.target in patterns.LINEAR and node.args and (size := _head_size(node)):
            weight, bias = argument(node, 1, "weight"), argument(node, 2, "bias")
            given = (weight, *(() if bias is None else (bias,)))
            if all(is_constant(each) and each.op == "placeholder" for each in given):
                groups.setdefault((node.args[0], bias is None, size), []).append(node)
    return [group for group in groups.values() if len(group) > 1]


def to_heads(group: list[Node], everything: Node) -> None:
    """Make all who read the results of a group read heads of `everything`, which has them beside each other.

    Heads are told apart in what is contiguous: only then PyTorch asks nothing about the extents before them.
    """
    graph, size = everything.graph, _head_size(group[0])
    columns = [value(argument(node, 1, "weight")).shape[0] for node in group]  # type: ignore[union-attr]  # constants
    begin = 0
    for node, mine in zip(group, columns, strict=True):
        for user in list(node.users):
            given = user.args[1:]
            shape = given[0] if isinstance(given[0], tuple | list) else given
            with graph.inserting_before(user):
                split = graph.call_method("view", (everything, *shape[:-2], sum(columns) // size, size))
                heads = graph.call_function(torch.narrow, (split, -2, begin // size, mine // size))
            heads.meta.update(user.meta)
            user.replace_all_uses_with(heads)
            graph.erase_node(user)
        begin += mine
        graph.erase_node(node)


def _head_size(node: Node) -> int:
    """Elements of a head, if all that happens to a result is that its rows are split into heads of one size; else 0."""
    sizes = {_split_into(node, user) for user in node.users}
    return sizes.pop() if len(sizes) == 1 else 0


def _split_into(node: Node, user: Node) -> int:
    rows, split = value(node), value(user)
    if user.target not in patterns.VIEW or user.kwargs or rows is None or split is None or split.ndim != rows.ndim + 1:
        return 0
    leading = zip(rows.shape[:-1], split.shape[:-2], strict=True)
    same = all(statically_known_true(one == other) for one, other in leading)
    return int(split.shape[-1]) if same and is_concrete_int(split.shape[-1]) else 0
