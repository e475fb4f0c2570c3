"""PyTorch's graphs rewritten: what a library serves becomes one node, with all that it can do on store."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch.fx import GraphModule, Node

from vortex.batch_operands import MOST_RANK
from vortex.convolution import Window, window
from vortex.errors import DtypeError
from vortex.torch import patterns
from vortex.torch.between import serve_between
from vortex.torch.convolutions import Convolution
from vortex.torch.layers import Dense
from vortex.torch.libraries import Finish, Libraries
from vortex.torch.merge import beside_each_other, to_heads
from vortex.torch.operators import matmul_of
from vortex.torch.patterns import argument, is_constant, is_fixed, only_user, rank, same_extents, value
from vortex.torch.replaced import drop_unused, erase, replace
from vortex.torch.served import Served

WINDOW = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
"""The further arguments of a convolution, in their order."""
ACTIVATIONS = {"relu": patterns.RELU, "silu": patterns.SILU, "gelu": patterns.GELU}


def rewrite(module: GraphModule, libraries: Libraries) -> Served:
    """Replace all that `libraries` serve in the graph of `module`. Raises DtypeError."""
    served = Served(module)
    for node in list(module.graph.nodes):
        if node.target in patterns.DROPOUT and argument(node, 2, "training", True) is False:
            erase([node], node.args[0])
    for node in list(module.graph.nodes):
        if node.target in patterns.TANH and (found := patterns.tanh_gelu(node)) is not None:
            _name_gelu(*found)
    drop_unused(module)
    for group in beside_each_other(module.graph):
        _serve_group(group, libraries, served)
    for node in list(module.graph.nodes):
        if node.target in patterns.LINEAR | patterns.ADDMM | patterns.MATMUL:
            _serve_product(node, libraries, served)
    done: set[Node] = set()
    for node in list(module.graph.nodes):
        if node.target in patterns.CONVOLUTION:
            _serve_convolution(node, libraries, served, done)
    drop_unused(module)
    serve_between(served)
    drop_unused(module)
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
            replace([node], torch.ops.vortex.matmul.default, (a, weight, matmul_of(libraries)))
            served.counts["matmul"] += 1
        return
    words, activation = _activation(node)
    finish: Finish = (*(("bias",) if bias is not None else ()), *words)
    layer = Dense(libraries, finish, turned, value(weight).shape)  # type: ignore[union-attr]  # a constant has one
    number = served.add("dense", layer, [weight] if bias is None else [weight, bias])
    replace([node], torch.ops.vortex.dense.default, (a, number))
    if activation is not None:
        erase([activation], activation.args[0])


def _serve_group(group: list[Node], libraries: Libraries, served: Served) -> None:
    """One product for several of the same x, each of whose results is heads of it."""
    x, weights = group[0].args[0], [argument(node, 1, "weight") for node in group]
    biases = [bias for node in group if (bias := argument(node, 2, "bias")) is not None]
    _check_dtype(group[0], (x, *weights))
    shapes = [value(weight).shape for weight in weights]  # type: ignore[union-attr]  # constants have one
    layer = Dense(libraries, ("bias",) if biases else (), True, *shapes)
    number = served.add("dense", layer, [*weights, *biases])
    with group[0].graph.inserting_before(group[0]):
        everything = group[0].graph.call_function(torch.ops.vortex.dense.default, (x, number))
    to_heads(group, everything)


@dataclass(frozen=True)
class Filtered:
    """A convolution with all that can be done on store."""

    nodes: list[Node]
    """The convolution, and what is done to its result in turn."""
    constants: list[Node]
    words: Finish
    where: Window
    has_bias: bool
    epsilon: float | None
    residual: Node | None

    @property
    def filters(self) -> tuple[int, ...]:
        """Their shape, OIHW."""
        found = value(self.constants[0])
        assert found is not None
        return tuple(map(int, found.shape))

    @property
    def node(self) -> Node:
        """The convolution."""
        return self.nodes[0]

    @property
    def alike(self) -> Any:
        """What convolutions have in common that may be one of more filters; itself for one that may not."""
        if self.residual is not None or self.where.groups > 1:
            return self.node
        x, count = argument(self.node, 0, "input"), len(self.constants)
        return x, count, self.filters[1:], self.words, self.where, self.has_bias, self.epsilon


def _filtered(node: Node) -> Filtered | None:
    x, filters, bias = argument(node, 0, "input"), argument(node, 1, "weight"), argument(node, 2, "bias")
    given = [argument(node, 3 + place, name, default) for place, (name, default) in enumerate(WINDOW.items())]
    if rank(x) != 4 or not is_constant(filters) or not (bias is None or is_constant(bias)) or not is_fixed(given):
        return None
    _check_dtype(node, (x, filters))
    constants, nodes, epsilon = [filters, *([] if bias is None else [bias])], [node], None
    if (found := _normalization(node)) is not None:
        normalization, normalizers, epsilon = found
        nodes.append(normalization)
        constants += normalizers
    words = ["bias"] if bias is not None or epsilon is not None else []
    residual = None
    if (user := only_user(nodes[-1])) is not None and user.target in patterns.ADD and not user.kwargs:
        other = user.args[1] if user.args[0] is nodes[-1] else user.args[0]
        if other is not nodes[-1] and same_extents(nodes[-1], other):
            residual = other
            nodes.append(user)
            words.append("residual")
    if (user := only_user(nodes[-1])) is not None and user.target in patterns.RELU:
        nodes.append(user)
        words.append("relu")
    return Filtered(nodes, constants, tuple(words), window(*given), bias is not None, epsilon, residual)


def _serve_convolution(node: Node, libraries: Libraries, served: Served, done: set[Node]) -> None:
    """One, or with it those of the same x whose filters differ in their number alone: their channels in turn.

    All of them are `done`. What a convolution may take with it is seen once those before are replaced.
    """
    one = None if node in done else _filtered(node)
    if one is None:
        return
    x, group = argument(node, 0, "input"), [one]
    for other in x.users if one.alike is not node else ():
        if other.target in patterns.CONVOLUTION and other is not node and other not in done:
            found = _filtered(other)
            group += [found] if found is not None and found.alike == one.alike else []
    done.update(each.node for each in group)
    shapes = [each.filters for each in group]
    layer = Convolution(libraries, one.words, one.where, shapes, one.has_bias, one.epsilon)
    number = served.add("convolution", layer, [constant for each in group for constant in each.constants])
    if len(group) == 1:
        if one.residual is None:
            replace(one.nodes, torch.ops.vortex.convolve.default, (x, number))
        else:
            replace(one.nodes, torch.ops.vortex.convolve_added.default, (x, one.residual, number))
        return
    with node.graph.inserting_before(node):
        everything = node.graph.call_function(torch.ops.vortex.convolve.default, (x, number))
    for each, first in zip(group, accumulate((shape[0] for shape in shapes), initial=0), strict=False):
        replace(each.nodes, torch.narrow, (everything, 1, first, each.filters[0]))


def _normalization(node: Node) -> tuple[Node, list[Node], float] | None:
    """What normalizes each channel of the result right away: the node, its constants, and its epsilon."""
    user = only_user(node)
    if user is None or user.target not in patterns.NORMALIZATION or argument(user, 0, "input") is not node:
        return None
    names = ("running_mean", "running_var", "weight", "bias")
    constants = [argument(user, 1 + place, name) for place, name in enumerate(names)]
    epsilon = argument(user, 7, "eps", 1e-5)
    if argument(user, 5, "training", False) is not False or not all(map(is_constant, constants)):
        return None
    return (user, constants, patterns.hold(epsilon)) if patterns.number(epsilon) is not None else None


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
