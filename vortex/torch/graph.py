"""PyTorch's graphs rewritten: what a library serves becomes one node, with all that it can do on store."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch.fx import GraphModule, Node

from vortex.batch_operands import MOST_RANK
from vortex.errors import DtypeError
from vortex.torch import patterns
from vortex.torch.layers import Dense, Layer
from vortex.torch.libraries import Finish, Libraries
from vortex.torch.operators import matmul_of, numbered
from vortex.torch.patterns import argument, is_constant, only_user, rank, value

ACTIVATIONS = {"relu": patterns.RELU, "silu": patterns.SILU, "gelu": patterns.GELU}


@dataclass
class Served:
    """What became of a graph."""

    layers: list[Layer] = field(default_factory=list)
    """To be held for as long as the graph is called."""
    counts: Counter[str] = field(default_factory=Counter)
    """Nodes of each kind, with their epilogue."""


def rewrite(module: GraphModule, libraries: Libraries) -> Served:
    """Replace all that `libraries` serve in the graph of `module`. Raises DtypeError."""
    served = Served()
    for node in list(module.graph.nodes):
        if node.target in patterns.DROPOUT and argument(node, 2, "training", True) is False:
            node.replace_all_uses_with(node.args[0])
    for node in list(module.graph.nodes):
        if node.target in patterns.TANH and (found := patterns.tanh_gelu(node)) is not None:
            _name_gelu(*found)
    module.graph.eliminate_dead_code()
    for node in list(module.graph.nodes):
        if node.target in patterns.LINEAR | patterns.ADDMM | patterns.MATMUL:
            _serve_product(node, libraries, served)
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()
    return served


def _name_gelu(x: Node, last: Node) -> None:
    """Written out, GELU's approximation is the one function that it is."""
    with last.graph.inserting_before(last):
        node = last.graph.call_function(torch._C._nn.gelu, (x,), {"approximate": "tanh"})
    node.meta.update(last.meta)
    last.replace_all_uses_with(node)


def _serve_product(node: Node, libraries: Libraries, served: Served) -> None:
    found = _operands(node)
    if found is None:
        return
    a, weight, bias, turned = found
    _check_dtype(node, (a, weight))
    if not is_constant(weight) or (bias is not None and not is_constant(bias)):
        if bias is None and not turned and rank(a) == rank(weight) <= MOST_RANK:
            _replace(node, torch.ops.vortex.matmul.default, (a, weight, matmul_of(libraries)))
            served.counts["matmul"] += 1
        return
    words, activation = _activation(node)
    finish: Finish = (*(("bias",) if bias is not None else ()), *words)
    layer = Dense(libraries, finish, turned)
    constants = [weight] if bias is None else [weight, bias]
    _replace(node, torch.ops.vortex.dense.default, (a, constants, numbered(layer)))
    if activation is not None:
        activation.replace_all_uses_with(activation.args[0])
    served.layers.append(layer)
    served.counts[" ".join(("dense", *finish))] += 1


def _operands(node: Node) -> tuple[Node, Node, Node | None, bool] | None:
    """x, the other factor, what is added per column, and whether the factor is to be transposed; None if not a product
    of float32 matrices."""
    if node.target in patterns.LINEAR:
        x, weight, bias = argument(node, 0, "input"), argument(node, 1, "weight"), argument(node, 2, "bias")
    elif node.target in patterns.ADDMM:
        bias, x, weight = argument(node, 0, "input"), argument(node, 1, "mat1"), argument(node, 2, "mat2")
        if "alpha" in node.kwargs or "beta" in node.kwargs or rank(bias) != 1:
            return None
    elif len(node.args) == 2 and not node.kwargs:
        (x, weight), bias = node.args, None
    else:
        return None
    if rank(x) < 2 or rank(weight) < 2 or (rank(weight) > 2 and is_constant(weight)):
        return None
    return x, weight, bias, node.target in patterns.LINEAR


def _activation(node: Node) -> tuple[Finish, Node | None]:
    """What is done to each element of the result right away, perhaps seen in another shape, and by which node."""
    last = only_user(node)
    while last is not None and last.target in patterns.VIEW and last.args[0] in (node, *node.users):
        node, last = last, only_user(last)
    if last is None or not last.args or last.args[0] is not node:
        return (), None
    for word, targets in ACTIVATIONS.items():
        if last.target in targets:
            tanh = word == "gelu" and argument(last, 1, "approximate", "none") == "tanh"
            return ("gelu_tanh" if tanh else word,), last
    return (), None


def _check_dtype(node: Node, operands: tuple[Node, ...]) -> None:
    for operand in operands:
        found = value(operand)
        if found is not None and found.dtype is not torch.float32:
            raise DtypeError(
                f"{node.format_node()}: {operand} is {found.dtype}; expected float32, in which Vortex serves networks; "
                "convert the model with .float(), or compile it with another backend"
            )


def _replace(node: Node, target: object, arguments: tuple[object, ...]) -> None:
    with node.graph.inserting_before(node):
        new = node.graph.call_function(target, arguments)
    new.meta.update(node.meta)
    node.replace_all_uses_with(new)
