"""The callable of grouped products. No TVM, no search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vortex import explain as explaining
from vortex.batch_launcher import Products
from vortex.batch_operands import matrix_extents, product_shape, whole_numbers
from vortex.errors import OperandError, ShapeError
from vortex.library import Library
from vortex.operators import GroupedGemm
from vortex.plans import LaunchPlan, Shape
from vortex.shapes import thread_count


class GroupedGemmKernel(Products):
    """C (+)= A B in groups of rows that share n and k: see `__call__`. Safe to call from several threads at once."""

    operator: GroupedGemm

    def __init__(self, library: Library) -> None:
        super().__init__(library)
        self._grouped_gemm = self.gemm.module.get_function("grouped_gemm")

    def __call__(
        self,
        a: Any,
        b: Any,
        rows: Any,
        out: Any = None,
        *,
        transpose_a: bool | None = None,
        transpose_b: bool | None = None,
        accumulate: bool = False,
        zero_a: int = 0,
        **operands: Any,
    ) -> Any:
        """out[group g] (+)= op(a)[group g] op(b[g]), then its epilogue; element types are the operator's.

        `a` is [m, k] ([k, m] with `transpose_a`), its rows in groups of `rows[g]`, one after the other, which are m in
        sum; some may be 0. `b` is [groups, k, n] ([groups, n, k] with `transpose_b`) or the result of `pack`; `out` is
        [m, n] with contiguous rows. `operands` are the tensors that the epilogue names: [n], or [groups, n] for one of
        each group, per column, [m] per row, [m, n] per element. Strides, allocation, `accumulate`, `zero_a` and errors
        are as for BatchGemm.
        """
        extras = self._stage.in_order(operands)
        flags = self._flags(transpose_a, transpose_b, accumulate, zero_a, b)
        counts = whole_numbers(rows)
        if out is None:
            if accumulate:
                raise OperandError("accumulate=True without out: expected the matrix to add to; pass out=")
            out = self._stage.allocated(a, _result_shape(a, b, flags))
        return self._run(self._grouped_gemm, a, b, out, flags, extras, counts)

    def plans(
        self, rows: Sequence[int], n: int, k: int, *, threads: int | None = None, **operands: Any
    ) -> dict[int, LaunchPlan]:
        """The plan of every group by its number of rows, tallest first.

        A group is priced as one of as many of its kind as all rows would make up. `operands`: see `shapes.shape_of`.
        """
        count = thread_count(threads)
        return {shape.m: self.plan_of(shape, count) for shape in self.shapes(rows, n, k, **operands)}

    def explain(
        self, rows: Sequence[int], n: int, k: int, *, threads: int | None = None, **operands: Any
    ) -> dict[int, explaining.Explanation]:
        """For every number of rows of a group, tallest first: its plan with each cost term, and the runners-up."""
        count = thread_count(threads)
        return {
            shape.m: explaining.explain(self.manifest, self._selector, shape, self.plan_of(shape, count), count)
            for shape in self.shapes(rows, n, k, **operands)
        }

    def time_selection(self, rows: Sequence[int], n: int, k: int, repeats: int, **operands: Any) -> float:
        """Seconds that a call selects for in native code, the mean of `repeats`: groups of one height share a plan."""
        return sum(self.seconds_to_select(shape, repeats) for shape in self.shapes(rows, n, k, **operands))

    def shapes(self, rows: Sequence[int], n: int, k: int, **operands: Any) -> list[Shape]:
        """The shape of every different height of a group as the selector sees it, tallest first."""
        counts = whole_numbers(rows)
        if (counts < 0).any():
            raise ShapeError(f"rows={rows!r}: expected whole numbers of at least 0, one for each group")
        total = int(counts.sum())
        shape = self._shape(total, n, k, operands)
        shape = replace(shape, lda=shape.stride_a, items_b=len(counts))
        heights = [int(height) for height in np.unique(counts[counts > 0])[::-1]]
        return [replace(shape, m=m, batch=alike_groups(total, m), items_a=alike_groups(total, m)) for m in heights]


def alike_groups(total: int, m: int) -> int:
    """How many groups of `m` rows would make up all rows, rounded."""
    return (total + m // 2) // m


def _result_shape(a: Any, b: Any, flags: int) -> tuple[int, ...]:
    extents = matrix_extents(a, "a")
    if len(extents) != 2:
        raise ShapeError(f"a has shape {extents}; expected two dimensions: the rows of all groups; reshape it")
    return product_shape(a, b, flags)[-2:]
