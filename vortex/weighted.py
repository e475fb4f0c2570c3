"""The callable of GEMM with quantized weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from vortex import operators
from vortex.dtypes import Weights
from vortex.errors import OperandError, ShapeError, VortexError
from vortex.fused import FusedGemm
from vortex.library import Library
from vortex.operands import (
    UNREADABLE,
    PackedOperand,
    described,
    exportable,
    extents,
    refuse_gradients,
    unreadable,
    zeros_for_constants,
)
from vortex.plans import Shape

WRONG_SHAPE = 14
PLACES = {3: "scales", 4: "zeros"}
"""Of a refused operand beside q, see runtime/door.h."""


class WeightedGemm(FusedGemm):
    """out = epilogue(A B) for any shape and quantized weights B, which `pack` lays out: see `__call__`."""

    packing = "pack_weights"

    def __init__(self, library: Library) -> None:
        super().__init__(library)
        weights = getattr(operators.rebuilt(self.manifest.operator, self.manifest.settings), "weights", None)
        assert isinstance(weights, Weights)
        self.weights = weights

    def pack(self, q: Any, scales: Any = None, zeros: Any = None, *, transpose: bool = False) -> PackedOperand:
        """Lay weights out for this library: q[i, j] scales[i // group, j] is B[i, j]; use the result with any m.

        `q` is int8 [k, n] within the range of the weights, `scales` float32 [groups, n], groups = k / group rounded up,
        or 1 where columns share one. `zeros`, int8 like the scales, are the zero points of weights that have them: they
        are taken off q first. With `transpose` all are transposed, [n, k] and [n, groups]. Raises DtypeError,
        ShapeError, OperandError.
        """
        if scales is None:
            raise OperandError(f"pack(q) without scales: expected {self._scales(q, transpose)}; pass pack(q, scales)")
        if (zeros is not None) != self.weights.zeros:
            told = "without zeros" if zeros is None else "with zeros"
            remedy = "pass them" if zeros is None else "compile Weights(..., zeros=True), or drop them"
            raise OperandError(f"pack(q, scales) {told}, and the weights of this library are {self.weights}; {remedy}")
        refuse_gradients(q, scales, zeros, names=("q", "scales", "zeros"))
        rows, columns = extents(q, "q")
        n, k = (rows, columns) if transpose else (columns, rows)
        self._check_fixed(n=n, k=k)
        panel = self.manifest.panel
        data = zeros_for_constants(-(-n // panel) * self.weights.lines(k) * panel).view(np.int32)
        try:
            more = () if zeros is None else (exportable(zeros),)
            status = self._pack(exportable(q), exportable(scales), data, int(transpose) * 2, *more)
        except UNREADABLE as error:
            raise unreadable(error, q=q, scales=scales, zeros=zeros) from error
        if status:
            raise self._unpackable(status, {"q": q, "scales": scales, "zeros": zeros}, transpose)
        return PackedOperand(data, n, k, self._identity)

    def _scales(self, q: Any, transpose: bool, kind: str = "float32 scales") -> str:
        rows, columns = extents(q, "q")
        n, groups = (rows, self.weights.scales(columns)) if transpose else (columns, self.weights.scales(rows))
        return f"{kind} of shape {(n, groups) if transpose else (groups, n)}"

    def _unpackable(self, status: int, given: dict[str, Any], transpose: bool) -> VortexError:
        kind, problem, remedy = self._reason(status)
        name = PLACES.get(status >> 8, "q")
        operand, expected = given[name], f"int8 that {self.weights.dtype} can hold"
        if name != "q":
            expected = self._scales(given["q"], transpose, "float32 scales" if name == "scales" else "int8 zeros")
        if status & 0xFF == WRONG_SHAPE:
            kind, problem, remedy = ShapeError, "does not fit q", f"groups are of {self.weights.group or 'all'} along k"
        elif problem == "has the wrong dtype":
            remedy = "cast it"
        return kind(f"{name} ({described(operand)}) {problem}; expected {expected}; {remedy}")

    def _shape(self, m: int, n: int, k: int, **operands: Any) -> Shape:
        """B is always packed."""
        return super()._shape(m, n, k, **{"packed": True, **operands})
