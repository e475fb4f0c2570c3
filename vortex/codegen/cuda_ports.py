"""Multiply-adds in an order, and on registers, that a register file can feed where one of them issues in every cycle.

A register lies in the bank of its number's parity, and a bank gives one operand a cycle. A multiply-add reads three, so
one must be left over from the instruction before, in the same place, and the other two must lie in different banks:

- `serpentine`: of a thread's tile, neighbours in time share a row or a column. ptxas keeps that order where fragments
  have arrived before they are needed;
- `untied`: sums that are stored as vectors would get registers in a row, hence the parity of the columns of B, which
  come in vectors too. What is stored is therefore another value than what the loop accumulates.
"""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import Any

from tvm import ir, tirx

from vortex.codegen.trees import found, mapped, substitute
from vortex.errors import CodegenError

PORTS = "vortex.ports"
"""Annotation of the loop over the steps of a stage: their product is meant for such a register file."""


def serpentine(product: Any) -> Any:
    """Loops over one operand's lines run backwards in every other turn of the loops over the other's around them."""
    spatial, store = _spatial(product)
    rows = found(store.value, ir.expr.TensorLoad, lambda x: x.source.name.startswith("A_"))
    groups = [list(group) for _, group in groupby(spatial, lambda loop: _within(rows, loop))]
    values = {}
    for around, group in pairwise(groups):
        is_odd = tirx.EQ(tirx.floormod(around[-1].loop_var, 2), 1)
        for loop in group:
            values[loop.loop_var] = tirx.Select(is_odd, loop.extent - 1 - loop.loop_var, loop.loop_var)
    return mapped(product, (tirx.BufferStore, lambda x: substitute(x, values)))


def untied(product: Any, count: Any) -> Any:
    """Every sum that `product` adds to, replaced by itself through a function; `count` is never negative."""
    spatial, store = _spatial(product)
    again = {loop.loop_var: tirx.Var(str(loop.loop_var.name), "int32") for loop in spatial}
    at = [substitute(index, again) for index in store.indices]
    value = tirx.call_extern(str(store.buffer.dtype), "untied", tirx.BufferLoad(store.buffer, at), count)
    body: Any = tirx.BufferStore(store.buffer, value, at)
    for loop in reversed(spatial):
        body = tirx.For(again[loop.loop_var], loop.min, loop.extent, loop.kind, body)
    return body


def _spatial(product: Any) -> tuple[list[Any], Any]:
    """The loops over sums, outermost first, and the store inside of them and of the loop over k."""
    loops, store = [], product
    while isinstance(store, tirx.For):
        loops.append(store)
        store = store.body
    if not isinstance(store, tirx.BufferStore):
        raise CodegenError("a product must be loops around one store")
    return [loop for loop in loops if _within(list(store.indices), loop)], store


def _within(nodes: list[Any], loop: Any) -> bool:
    return any(found(node, tirx.Var, lambda x: x.same_as(loop.loop_var)) for node in nodes)
