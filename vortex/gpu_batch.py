"""The callable of a GPU library of many products in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from vortex.errors import OperandError, ShapeError
from vortex.gpu_explain import GpuExplanation
from vortex.gpu_fused import FusedGpuGemm
from vortex.gpu_launcher import TRANSPOSE_A, TRANSPOSE_B
from vortex.gpu_operands import REASONS, WRONG_EXTRA, empty, refuse_gradients
from vortex.gpu_polymerize import GpuRegion
from vortex.gpu_selector import GpuPlan
from vortex.operands import Refusal

MOST_RANK = 4


class GpuBatchGemm(FusedGpuGemm):
    """out = epilogue(A B) for any shape and batch on a CUDA device: see `__call__`."""

    _shapes: ClassVar = {"column": "[..., n]", "row": "[..., m]", "element": "[..., m, n]"}

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        *,
        transpose_a: bool | None = None,
        transpose_b: bool | None = None,
        stream: Any = None,
        workspace: Any = None,
        **operands: Any,
    ) -> Any:
        """out = epilogue(op(a) op(b)) for every product of the batch, queued on `stream` in one launch.

        `a` is [..., m, k] ([..., k, m] with `transpose_a`), `b` is [..., k, n] ([..., n, k] with `transpose_b`), each
        with up to two batch axes, which broadcast; transposes are the operator's unless given. Of the last two axes one
        must be contiguous; all other strides are free. `out` is [..., m, n] with contiguous rows; without it one is
        allocated. `operands` are the tensors that the epilogue names: [..., n] per column, [..., m] per row,
        [..., m, n] per element, with the batch axes of `out` in front, which may be 1 or missing. Products that share
        one B, with rows of A, of C and of such tensors that follow each other, run as one with more rows. Everything
        else as for a plain product.
        """
        if not self._handle:
            raise self._unusable()
        turned, extras = self._turned(transpose_a, transpose_b), self._in_order(operands)
        if out is None:
            out = self._allocate(a, b, *turned)
        given = (a, b, out, *extras)
        refuse_gradients(given, self._names)
        return self._in_full(given, TRANSPOSE_A * turned[0] + TRANSPOSE_B * turned[1], stream, workspace)

    def _turned(self, transpose_a: bool | None, transpose_b: bool | None) -> tuple[bool, bool]:
        """How operands lie: as the operator says, unless the call does."""
        own = self.manifest.settings
        return (
            bool(own.get("transpose_a", False) if transpose_a is None else transpose_a),
            bool(own.get("transpose_b", False) if transpose_b is None else transpose_b),
        )

    def run_planned(self, plan: GpuPlan | Sequence[GpuRegion], a: Any, b: Any, out: Any, **flags: Any) -> Any:
        """Run a given plan instead of the selected one; same operands as a call."""
        turned = self._turned(flags.pop("transpose_a", None), flags.pop("transpose_b", None))
        return super().run_planned(plan, a, b, out, transpose_a=turned[0], transpose_b=turned[1], **flags)

    def plan(self, m: int, n: int, k: int, **operands: Any) -> GpuPlan:
        """The plan that a call of this shape runs, `batch=` products of it; `operands`: see `gpu_door.shape_of`."""
        return super().plan(m, n, k, **self._described(operands))

    def regions(self, m: int, n: int, k: int, **operands: Any) -> tuple[GpuRegion, ...]:
        """What a call of this shape runs: a single product may be cut in two, a batch is not."""
        return super().regions(m, n, k, **self._described(operands))

    def explain(self, m: int, n: int, k: int, **operands: Any) -> GpuExplanation:
        """The chosen plan with each cost term, and the best of every core type."""
        return super().explain(m, n, k, **self._described(operands))

    def _reason(self, number: int) -> Refusal:
        kind, problem, remedy = super()._reason(number)
        if number == WRONG_EXTRA:
            remedy = "pass " + ", ".join(f"{shape} per {per}" for per, shape in self._shapes.items())
        return kind, problem, remedy

    def _described(self, operands: dict[str, Any]) -> dict[str, Any]:
        turned = self._turned(operands.get("transpose_a"), operands.get("transpose_b"))
        return operands | {"transpose_a": turned[0], "transpose_b": turned[1]}

    def _allocate(self, a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> Any:
        for name, operand in (("a", a), ("b", b)):
            if not hasattr(operand, "shape"):
                raise OperandError(f"{name} is a {type(operand).__name__}; {REASONS[0][2]}")
        left, right = tuple(a.shape), tuple(b.shape)
        if not (2 <= len(left) <= MOST_RANK and 2 <= len(right) <= MOST_RANK):
            raise ShapeError(f"given a {left}, b {right}; expected [..., m, k] and [..., k, n] of up to four axes")
        rank = max(len(left), len(right)) - 2
        axes = zip((1,) * (rank + 2 - len(left)) + left[:-2], (1,) * (rank + 2 - len(right)) + right[:-2], strict=True)
        batch = tuple(y if x == 1 else x for x, y in axes)
        return empty(a, (*batch, left[-1 if transpose_a else -2], right[-2 if transpose_b else -1]), self._out)
