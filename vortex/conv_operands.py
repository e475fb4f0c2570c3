"""Operands of a convolution: results of their kind, and what the door refuses put into words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vortex.convolution import LAYOUTS, ConvShape
from vortex.errors import OperandError, ShapeError, VortexError
from vortex.operands import REASONS, described, empty

NAMES = ("x", "w", "out")
WORDS = {
    "has the wrong rank": (ShapeError, "has the wrong rank", "expected four dimensions; reshape it"),
    "is not m x n": (ShapeError, "has the wrong shape", "allocate it with one pixel for each position of the filter"),
    "overlaps out": (OperandError, "overlaps out", "write to memory of its own"),
}
ODD_STRIDES = (
    ShapeError,
    "has strides that this library does not read (negative, overlapping, or neither channels nor columns contiguous)",
    "make a contiguous copy",
)
FIRST_MORE = 64
MORE = (
    (OperandError, "comes without the operands of the epilogue", "pass each of them by its keyword"),
    (ShapeError, "does not fit the output", "pass [filters] per column, the shape of out per element"),
    (ShapeError, "lies in memory as out does not", "pass both with the same strides"),
)
"""In the order of the numbers of runtime/conv_door.c, from `FIRST_MORE` on."""


def allocated(x: Any, shape: ConvShape, layout: str) -> Any:
    """An uninitialized result of the kind of `x`, its channels contiguous if those of x are."""
    extents = shape.batch, shape.out_h, shape.out_w, shape.filters
    if layout == "nhwc":
        if isinstance(x, np.ndarray) or not hasattr(x, "new_empty"):
            return empty(extents)
        return x.new_empty(extents)
    order = [LAYOUTS[layout].index(axis) for axis in range(4)]
    dense = tuple(extents[axis] for axis in order)
    strides = x.strides if isinstance(x, np.ndarray) else x.stride() if hasattr(x, "stride") else None
    channels_last = strides is not None and strides[1] < strides[3] and shape.channels > 1
    if not hasattr(x, "new_empty"):
        return empty(extents).transpose(order) if channels_last else empty(dense)
    return x.new_empty(extents).permute(order) if channels_last else x.new_empty(dense)


def refusal(status: int, operands: Sequence[Any], extras: Sequence[str] = ()) -> VortexError:
    """What the door answered on x, w, out and the epilogue's operands of these names."""
    code, place = status & 0xFF, status >> 8
    kind, problem, remedy = MORE[code - FIRST_MORE] if code >= FIRST_MORE else REASONS[code - 1]
    if code < FIRST_MORE and "strides" in problem:
        kind, problem, remedy = ODD_STRIDES
    kind, problem, remedy = WORDS.get(problem, (kind, problem, remedy))
    names = (*NAMES, *extras)
    given = ", ".join(f"{n} {described(o)}" for n, o in zip(names, operands, strict=False) if o is not None)
    return kind(f"{names[place]} ({described(operands[place])}) {problem}; given {given}; {remedy}")
