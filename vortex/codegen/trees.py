"""What passes over lowered kernels share: nodes found and exchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm_ffi
from tvm import tirx


def mapped(node: Any, *rules: tuple[Any, Callable[[Any], Any]], order: str = "post") -> Any:
    return tvm_ffi.structural_map(node, list(rules), order=order)


def found(node: Any, kind: Any, accept: Callable[[Any], bool]) -> list[Any]:
    hits: list[Any] = []
    tvm_ffi.structural_walk(node, (kind, lambda x: hits.append(x) if accept(x) else None))
    return hits


def substitute(node: Any, values: Mapping[Any, Any]) -> Any:
    """Variables replaced by value; keys are compared by identity."""
    pairs = list(values.items())
    return mapped(node, (tirx.Var, lambda x: next((value for key, value in pairs if x.same_as(key)), x)))
