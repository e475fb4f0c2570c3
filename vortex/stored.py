"""What a call brings to the store stage of its products and gets from it: operands in order, a result of its type."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from vortex.epilogue import Store
from vortex.errors import DtypeError, UnknownNameError
from vortex.operands import allocated

WRONG_DTYPE = 3
"""The number of a refusal, see runtime/refusals.h."""


@dataclass(frozen=True)
class Stored:
    """The store stage of one library, as calls see it."""

    store: Store
    factor: str
    """The element type of A and B."""
    shapes: tuple[str, str, str] = ("[n]", "[m]", "[m, n]")
    """Of operands per column, per row, per element, in words."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(operand.name for operand in self.store.chain.operands)

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """Of a, b, out, and each operand of the epilogue."""
        operands = (operand.dtype for operand in self.store.chain.operands)
        return "int8 or uint8" if self.factor == "int8" else self.factor, self.factor, self.store.out, *operands

    def in_order(self, operands: dict[str, Any]) -> tuple[Any, ...]:
        """The operands of the epilogue in the order of its steps; refuses missing and unknown ones."""
        if tuple(operands) == self.names:
            return tuple(operands.values())
        unknown = sorted(operands.keys() - set(self.names))
        missing = [name for name in self.names if name not in operands]
        if unknown or missing:
            shapes = dict(zip(("column", "row", "element"), self.shapes, strict=True))
            chain = self.store.chain
            expected = ", ".join(f"{x.name} {shapes[x.per]} {x.dtype}" for x in chain.operands) or "none"
            what = f"unknown operand {unknown[0]!r}" if unknown else f"{missing[0]} is missing"
            raise UnknownNameError(f"{what}; the epilogue ({chain}) expects {expected}; pass just these")
        return tuple(operands[name] for name in self.names)

    def allocated(self, like: Any, shape: Sequence[int]) -> Any:
        """An uninitialized result of the kind of `like`, in the element type of the output."""
        wanted = self.store.out
        if wanted == self.factor == "float32":
            return allocated(like, shape)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(like, torch.Tensor):
            return like.new_empty(tuple(shape), dtype=getattr(torch, wanted))
        if wanted == "bfloat16" and getattr(getattr(like, "dtype", None), "name", "") == wanted:
            return np.empty(shape, like.dtype)
        if wanted == "bfloat16":
            raise DtypeError("out would be bfloat16, which NumPy does not know; pass out= of uint16 or of ml_dtypes")
        return np.empty(shape, wanted)
