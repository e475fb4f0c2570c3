"""What is looked for in a graph: which nodes are the same operation, constants, and chains that one kernel can do."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn import functional

LINEAR = {functional.linear, torch._C._nn.linear}
ADDMM = {torch.addmm}
MATMUL: set[Any] = {torch.matmul, torch.mm, torch.bmm, operator.matmul, "matmul", "mm", "bmm"}
RELU: set[Any] = {functional.relu, functional.relu_, torch.relu, torch.relu_, "relu", "relu_"}
SILU: set[Any] = {functional.silu, torch._C._nn.silu}
GELU: set[Any] = {functional.gelu, torch._C._nn.gelu}
ADD: set[Any] = {operator.add, operator.iadd, torch.add, "add", "add_"}
MULTIPLY: set[Any] = {operator.mul, operator.imul, torch.mul, "mul", "mul_"}
POWER: set[Any] = {operator.pow, torch.pow, "pow"}
TANH: set[Any] = {torch.tanh, functional.tanh, "tanh"}
IN_PLACE = {"iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "setitem"}
VIEW: set[Any] = {"view", "reshape", torch.reshape}
DROPOUT: set[Any] = {functional.dropout}
CONVOLUTION: set[Any] = {torch.conv2d, functional.conv2d}
NORMALIZATION: set[Any] = {functional.batch_norm}
AVERAGE: set[Any] = {functional.adaptive_avg_pool2d, torch._C._nn.adaptive_avg_pool2d}
LARGEST: set[Any] = {functional.max_pool2d, torch.max_pool2d}
CONCATENATION: set[Any] = {torch.cat, torch.concat, torch.concatenate}
MEAN: set[Any] = {torch.mean, "mean"}
SUM: set[Any] = {torch.sum, "sum"}


def argument(node: Node, place: int, name: str, default: Any = None) -> Any:
    """An argument of a call, wherever it stands."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def value(node: Any) -> torch.Tensor | None:
    """The tensor without values that stands for the result of a node, if it is one."""
    found = node.meta.get("example_value") if isinstance(node, Node) else None
    return found if isinstance(found, torch.Tensor) else None


def rank(node: Any) -> int:
    """How many dimensions the result of a node has; 0 if it is no tensor."""
    found = value(node)
    return 0 if found is None else found.ndim


def is_constant(node: Any) -> bool:
    """Whether a node is a parameter or a buffer of the model."""
    if not isinstance(node, Node) or value(node) is None:
        return False
    marked = "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})
    return node.op == "get_attr" or (
        node.op == "placeholder" and (marked or isinstance(value(node), torch.nn.Parameter))
    )


def same_extents(one: Node, other: Any) -> bool:
    """Whether two results have the same shape for all inputs."""
    left, right = value(one), value(other)
    if left is None or right is None or left.ndim != right.ndim:
        return False
    return all(statically_known_true(x == y) for x, y in zip(left.shape, right.shape, strict=True))


def only_user(node: Node) -> Node | None:
    """The one node that reads this one."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def pair(node: Any, targets: set[Any]) -> tuple[Any, Any] | None:
    """The operands of one of these operations of two, if the node is one and does nothing else."""
    if isinstance(node, Node) and node.target in targets and len(node.args) == 2 and not node.kwargs:
        return node.args[0], node.args[1]
    return None


def without(node: Any, targets: set[Any], is_wanted: Callable[[Any], bool]) -> Any:
    """The other operand of a commutative operation, one of whose operands is wanted; None otherwise."""
    found = pair(node, targets)
    for one, other in (found, found[::-1]) if found else ():
        if is_wanted(one):
            return other
    return None


def is_fixed(given: list[Any]) -> bool:
    """Whether stride, padding, dilation and groups are whole numbers, or tuples of them."""
    return all(isinstance(each, int) for one in given for each in (one if isinstance(one, tuple | list) else [one]))


def may_write(node: Node) -> bool:
    """Whether a node changes one of its operands: by the ways in which PyTorch names that."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    given = (*node.args, *node.kwargs.values())
    in_place = name in IN_PLACE or (name.endswith("_") and not name.endswith("__"))
    return node.op.startswith("call") and (in_place or "out" in node.kwargs or any(one is True for one in given))


def number(given: Any) -> float | None:
    """A number written into the graph, or what one that the graph is told, or computes from such, is now."""
    if isinstance(given, int | float) and not isinstance(given, bool):
        return float(given)
    symbol = given.meta.get("example_value") if isinstance(given, Node) else None
    return symbol.node.hint if isinstance(symbol, torch.SymFloat) else None


def hold(given: Any) -> float:
    """The number, and a promise: with another one, PyTorch compiles the graph anew."""
    if isinstance(given, Node):
        return float(given.meta["example_value"])
    return float(given)


def _close(expected: float) -> Callable[[Any], bool]:
    def found(given: Any) -> bool:
        written = number(given)
        return written is not None and math.isclose(written, expected, rel_tol=1e-6)

    return found


def tanh_gelu(tanh: Node) -> tuple[Node, Node] | None:
    """x and the last node of 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) around this tanh, in any order."""
    inner = without(tanh.args[0], MULTIPLY, _close(math.sqrt(2 / math.pi)))
    terms = pair(inner, ADD)
    plus = only_user(tanh)
    last = only_user(plus) if plus is not None and without(plus, ADD, _close(1.0)) is tanh else None
    half = without(last, MULTIPLY, lambda one: one is plus)
    x = without(half, MULTIPLY, _close(0.5))
    if last is None or terms is None or x is None or x not in terms:
        return None
    cubic = terms[1] if terms[0] is x else terms[0]
    cube = without(cubic, MULTIPLY, _close(0.044715))
    power = pair(cube, POWER)
    if power is None or power[0] is not x or number(power[1]) != 3:
        return None
    if any(map(may_write, (tanh, tanh.args[0], inner, plus, half, cubic, cube, last))):
        return None
    for node in (tanh.args[0], plus, half, cubic, cube):
        for part in node.args:  # type: ignore[union-attr]  # nodes of a pattern that was found
            if number(part) is not None:
                hold(part)
    return x, last
