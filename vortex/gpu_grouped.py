"""The callable of a GPU library of products in groups of rows."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from vortex.batch_operands import whole_numbers
from vortex.errors import OperandError, ShapeError
from vortex.gpu_batch import GpuBatchGemm
from vortex.gpu_device import Operands
from vortex.gpu_door import Shape
from vortex.gpu_explain import GpuExplanation
from vortex.gpu_launcher import TRANSPOSE_A, TRANSPOSE_B, native_plan
from vortex.gpu_operands import REASONS, empty, refuse_gradients
from vortex.gpu_polymerize import GpuRegion
from vortex.gpu_selector import Extents, GpuPlan


@dataclass(frozen=True)
class Call:
    """What the door is told beside the operands."""

    flags: int
    counts: Any
    """Rows of every group, int64."""
    plan: GpuPlan | None = None


class GpuGroupedGemm(GpuBatchGemm):
    """out = epilogue(A B) in groups of rows that share n and k, on a CUDA device: see `__call__`."""

    _shapes: ClassVar = {"column": "[n] or [groups, n]", "row": "[m]", "element": "[m, n]"}

    def __call__(  # type: ignore[override]  # one operand more
        self,
        a: Any,
        b: Any,
        rows: Any,
        out: Any = None,
        *,
        transpose_a: bool | None = None,
        transpose_b: bool | None = None,
        stream: Any = None,
        **operands: Any,
    ) -> Any:
        """out[group g] = epilogue(op(a)[group g] op(b[g])), queued on `stream` in one launch for each 256 groups.

        `a` is [m, k] ([k, m] with `transpose_a`), its rows in groups of `rows[g]`, one after the other, which are m in
        sum; some may be 0. `rows` are numbers of the host: they travel as parameters of the launch, so that nothing is
        copied or waited for, and a captured graph keeps them. `b` is [groups, k, n] ([groups, n, k] with
        `transpose_b`), `out` [m, n] with contiguous rows. `operands` are the tensors that the epilogue names: [n], or
        [groups, n] for one of each group, per column, [m] per row, [m, n] per element. Reductions are not split, so no
        workspace is needed. Everything else as for a plain product.
        """
        return self._grouped((a, b, rows, out), (transpose_a, transpose_b), stream, None, operands)

    def run_planned(  # type: ignore[override]  # one operand more
        self, plan: GpuPlan, a: Any, b: Any, rows: Any, out: Any = None, **flags: Any
    ) -> Any:
        """Run a given plan instead of the selected one; same operands as a call."""
        turned = flags.pop("transpose_a", None), flags.pop("transpose_b", None)
        return self._grouped((a, b, rows, out), turned, flags.pop("stream", None), plan, flags)

    def _grouped(
        self,
        operands: tuple[Any, Any, Any, Any],
        turned: tuple[bool | None, bool | None],
        stream: Any,
        plan: GpuPlan | None,
        named: dict[str, Any],
    ) -> Any:
        if not self._handle:
            raise self._unusable()
        a, b, rows, out = operands
        extras, (left, right) = self._in_order(named), self._turned(*turned)
        counts = np.ascontiguousarray(whole_numbers(rows), np.int64)
        if out is None:
            out = self._allocate(a, b, left, right)
        given = (a, b, out, *extras)
        refuse_gradients(given, self._names)
        return self._in_full(given, Call(TRANSPOSE_A * left + TRANSPOSE_B * right, counts, plan), stream, None)

    def _submit(self, operands: Operands, flags: Call, stream: int) -> int:
        tensors, _keep = self._read(operands)
        counts = flags.counts.ctypes.data_as(ctypes.POINTER(ctypes.c_int64))
        plan = None if flags.plan is None else ctypes.byref(native_plan(flags.plan))
        run = self._door.calls.vx_gpu_grouped
        return int(run(self._handle, tensors, counts, len(flags.counts), flags.flags, stream, plan))

    def plan(self, rows: Sequence[int], n: int, k: int, **operands: Any) -> GpuPlan:  # type: ignore[override]
        """The plan of a call: that of as many groups of their mean height. `operands`: see `gpu_door.shape_of`."""
        return self._plan(self._selected(self._alike(rows, n, k, operands), cut=False).plans[0])

    def regions(self, rows: Sequence[int], n: int, k: int, **operands: Any) -> tuple[GpuRegion, ...]:  # type: ignore[override]
        """What a call runs: one kernel for all groups."""
        shape = self._alike(rows, n, k, operands)
        plan = self.plan(rows, n, k, **operands)
        return (GpuRegion(0, 0, Extents(shape.m, n, k, shape.batch), plan),)

    def explain(self, rows: Sequence[int], n: int, k: int, **operands: Any) -> GpuExplanation:  # type: ignore[override]
        """The chosen plan with each cost term, and the best of every core type, for groups of the mean height."""
        return self._explained(self._alike(rows, n, k, operands), self.regions(rows, n, k, **operands))

    def _alike(self, rows: Sequence[int], n: int, k: int, operands: dict[str, Any]) -> Shape:
        """As many groups of one height as there are groups with rows: what the selector sees."""
        counts = whole_numbers(rows)
        filled, total = int((counts > 0).sum()), int(counts.sum())
        if not filled or (counts < 0).any():
            raise ShapeError(f"rows={rows!r}: expected whole numbers from 0 on, one for each group, not all of them 0")
        return self._shape(-(-total // filled), n, k, self._described(operands) | {"batch": filled})

    @property
    def _room(self) -> int:
        """Partial sums of groups would need a place for each."""
        return 0

    def _allocate(self, a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> Any:
        for name, operand, rank in (("a", a, 2), ("b", b, 3)):
            if not hasattr(operand, "shape"):
                raise OperandError(f"{name} is a {type(operand).__name__}; {REASONS[0][2]}")
            if len(operand.shape) != rank:
                raise ShapeError(
                    f"given {name} {tuple(operand.shape)}; expected {rank} axes: a [m, k], b [groups, k, n]"
                )
        return empty(a, (a.shape[1 if transpose_a else 0], b.shape[1 if transpose_b else 2]), self._out)
