"""What stands between products and convolutions and is done better than by Inductor's loops: pools, sums, and channels
beside each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import is_concrete_int

from vortex.torch import patterns
from vortex.torch.patterns import argument, is_fixed, rank, value
from vortex.torch.replaced import replace
from vortex.torch.served import Served


def serve_between(served: Served) -> None:
    """Replace what is known of the graph, whose convolutions were replaced before."""
    for node in list(served.module.graph.nodes):
        for targets, serve in SERVED:
            if node.target in targets:
                serve(node, served)


def _serve_concatenation(node: Node, served: Served) -> None:
    """Convolutions whose results lie beside each other, and nowhere else, are put there on store."""
    parts, axis = argument(node, 0, "tensors"), argument(node, 1, "dim", 0)
    if axis not in (1, -3) or not isinstance(parts, list | tuple) or any(rank(part) != 4 for part in parts):
        return
    if any(value(part).dtype is not torch.float32 for part in parts):  # type: ignore[union-attr]  # of rank 4
        return
    nodes = list(node.graph.nodes)
    mine = [_may_wait(part, nodes[nodes.index(part) + 1 : nodes.index(node)]) for part in parts]
    if not any(mine):
        return
    given = [part.args[0] if stored else part for part, stored in zip(parts, mine, strict=True)]
    layers = [part.args[1] if stored else -1 for part, stored in zip(parts, mine, strict=True)]
    replace([node], torch.ops.vortex.gather_channels.default, (given, layers))
    served.counts[f"side by side {sum(mine)} of {len(mine)}"] += 1


def _may_wait(part: Node, until: list[Node]) -> bool:
    """Whether a node is a convolution that may as well be done after those: nothing reads or writes in between."""
    convolves = part.target is torch.ops.vortex.convolve.default and len(part.users) == 1
    return convolves and not any(map(patterns.may_write, until))


def _serve_largest(node: Node, served: Served) -> None:
    x, size = argument(node, 0, "input"), argument(node, 1, "kernel_size")
    given = [size, argument(node, 2, "stride") or size, argument(node, 3, "padding", 0)]
    plain = argument(node, 4, "dilation", 1) in (1, (1, 1), [1, 1]) and not argument(node, 5, "ceil_mode", False)
    if rank(x) != 4 or not plain or argument(node, 6, "return_indices", False) or not is_fixed(given):
        return
    if value(x).dtype is torch.float32:  # type: ignore[union-attr]  # of rank 4
        pairs = [[one, one] if isinstance(one, int) else [*one, *one][:2] for one in given]
        replace([node], torch.ops.vortex.pool.default, (x, *pairs[0], *pairs[1], *pairs[2]))
        served.counts["pool"] += 1


def _serve_average(node: Node, served: Served) -> None:
    x, size = argument(node, 0, "input"), argument(node, 1, "output_size")
    wanted = [size, size] if isinstance(size, int) else list(size)
    if rank(x) == 4 and is_fixed(wanted) and _varies(x, (2, 3)):
        replace([node], torch.ops.vortex.average.default, (x, *wanted))
        served.counts["average"] += 1


def _serve_total(node: Node, served: Served) -> None:
    x, axes, kept = argument(node, 0, "input"), argument(node, 1, "dim"), argument(node, 2, "keepdim", False)
    axes = [axes] if isinstance(axes, int) else axes
    known = isinstance(axes, tuple | list) and is_fixed(list(axes)) and isinstance(kept, bool)
    if not known or "dtype" in node.kwargs or len(node.args) > 3 or not rank(x):
        return
    places = [axis % rank(x) for axis in axes]
    if _varies(x, places):
        mean = node.target in patterns.MEAN
        replace([node], torch.ops.vortex.total.default, (x, places, kept, mean))
        served.counts["mean" if mean else "sum"] += 1


def _varies(x: Node, axes: Sequence[int]) -> bool:
    """Whether x are real numbers, and the program is for more than one extent of an axis."""
    found = value(x)
    if found is None or not found.is_floating_point():
        return False
    return any(not is_concrete_int(found.shape[axis]) for axis in axes)


SERVED: tuple[tuple[set[Any], Callable[[Node, Served], None]], ...] = (
    (patterns.CONCATENATION, _serve_concatenation),
    (patterns.LARGEST, _serve_largest),
    (patterns.AVERAGE, _serve_average),
    (patterns.MEAN | patterns.SUM, _serve_total),
)
