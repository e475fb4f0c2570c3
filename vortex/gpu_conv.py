"""The callable of a GPU library of convolutions."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vortex.conv_operands import NAMES, WORDS
from vortex.convolution import LAYOUTS, WINDOW, Conv2d, ConvShape
from vortex.errors import OperandError
from vortex.gpu_device import Operands
from vortex.gpu_door import ITEM_BYTES, Filter, Shape, alignment
from vortex.gpu_explain import GpuExplanation
from vortex.gpu_fused import FusedGpuGemm
from vortex.gpu_launcher import native_plan
from vortex.gpu_operands import REASONS, described, empty, refuse_gradients
from vortex.gpu_polymerize import GpuRegion
from vortex.gpu_selector import Extents, GpuPlan
from vortex.operands import Refusal
from vortex.operators import rebuilt


@dataclass(frozen=True)
class Call:
    """What the door is told beside the operands."""

    filter: Filter
    plan: GpuPlan | None = None


class GpuConv(FusedGpuGemm):
    """A convolution of any extents on a CUDA device: see `__call__`."""

    @cached_property
    def operator(self) -> Conv2d:
        found = rebuilt(self.manifest.operator, self.manifest.settings)
        assert isinstance(found, Conv2d)
        return found

    def __call__(  # type: ignore[override]  # another operator
        self,
        x: Any,
        w: Any,
        out: Any = None,
        *,
        stride: Any = None,
        padding: Any = None,
        dilation: Any = None,
        groups: Any = None,
        stream: Any = None,
        workspace: Any = None,
        **operands: Any,
    ) -> Any:
        """out = epilogue(convolution of x with w), queued on `stream`.

        `x` is [batch, height, width, channels], or [batch, channels, height, width] for layout "nchw"; its channels
        must be contiguous in memory whatever the layout (torch: `memory_format=torch.channels_last`), as those of `w`
        [filters, channels / groups, height, width] and of `out`, whose pixels are evenly apart. `stride`, `dilation`:
        a number or (height, width); `padding`: a number, (height, width) or (top, bottom, left, right); without them
        what the operator fixes, else 1, no padding, 1 group. `operands` are the tensors that the epilogue names:
        [filters] per column, per element of the shape of `out`. Everything else as for a plain product.
        """
        given: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return self._run(x, w, out, given, operands, stream, workspace, None)

    def run_planned(self, plan: GpuPlan, x: Any, w: Any, out: Any = None, **given: Any) -> Any:  # type: ignore[override]
        """Run a given plan instead of the selected one; same operands as a call."""
        walk: dict[str, Any] = {name: given.pop(name) for name in WINDOW if name in given}
        return self._run(x, w, out, walk, given, given.pop("stream", None), given.pop("workspace", None), plan)

    def _run(
        self,
        x: Any,
        w: Any,
        out: Any,
        given: dict[str, Any],
        operands: dict[str, Any],
        stream: Any,
        workspace: Any,
        plan: GpuPlan | None,
    ) -> Any:
        if not self._handle:
            raise self._unusable()
        for name, operand in (("x", x), ("w", w)):
            if not hasattr(operand, "shape"):
                raise OperandError(f"{name} is a {type(operand).__name__}; {REASONS[0][2]}")
        extras, where = self._in_order(operands), self.operator.window(**given)
        shape = self.operator.shape(tuple(x.shape), tuple(w.shape), where)
        if out is None:
            out = self._made(x, shape)
        every = (x, w, out, *extras)
        refuse_gradients(every, self._names)
        if tuple(getattr(out, "shape", ())) != self._extents(shape):
            kind, problem, remedy = WORDS["is not m x n"]
            raise kind(f"out ({described(out)}) {problem}; expected {self._extents(shape)}; {remedy}")
        pads = where.padding[0], where.padding[2]
        told = Filter(self.operator.layout == "nchw", where.stride, pads, where.dilation, where.groups)
        return self._in_full(every, Call(told, plan), stream, workspace)

    def _submit(self, operands: Operands, flags: Call, stream: int) -> int:
        tensors, _keep = self._read(operands)
        plan = None if flags.plan is None else ctypes.byref(native_plan(flags.plan))
        return int(self._door.calls.vx_gpu_conv(self._handle, tensors, ctypes.byref(flags.filter), stream, plan))

    def _extents(self, shape: ConvShape) -> tuple[int, ...]:
        extents = shape.batch, shape.out_h, shape.out_w, shape.filters
        return tuple(extents[LAYOUTS[self.operator.layout].index(axis)] for axis in range(4))

    def _made(self, x: Any, shape: ConvShape) -> Any:
        """An uninitialized result whose channels are contiguous."""
        made = empty(x, (shape.batch, shape.out_h, shape.out_w, shape.filters))
        return made if self.operator.layout == "nhwc" else made.permute(0, 3, 1, 2)

    def plan(self, x: tuple[int, ...], w: tuple[int, ...], **given: Any) -> GpuPlan:  # type: ignore[override]
        """The plan of a call with dense channels-last operands of these shapes; `given`: stride, padding, ..."""
        return self._plan(self._selected(self._shape_of(x, w, given), cut=False).plans[0])

    def regions(self, x: tuple[int, ...], w: tuple[int, ...], **given: Any) -> tuple[GpuRegion, ...]:  # type: ignore[override]
        """What such a call runs: one kernel for all of the output."""
        s = self._shape_of(x, w, given)
        return (GpuRegion(0, 0, Extents(s.m, s.n, s.k, s.batch, s.seen), self.plan(x, w, **given)),)

    def explain(self, x: tuple[int, ...], w: tuple[int, ...], **given: Any) -> GpuExplanation:  # type: ignore[override]
        """The plan of the implicit product of such a call with each cost term, and the best of every core type."""
        return self._explained(self._shape_of(x, w, given), self.regions(x, w, **given))

    def predict(self, x: tuple[int, ...], w: tuple[int, ...], **given: Any) -> float:  # type: ignore[override]
        """Predicted seconds of such a call."""
        return self.plan(x, w, **given).seconds

    def _shape_of(self, x: tuple[int, ...], w: tuple[int, ...], given: dict[str, Any]) -> Shape:
        """The implicit product as the native selector sees it."""
        shape = self.operator.shape(x, w, self.operator.window(**given))
        gemm, groups = shape.gemm, shape.window.groups
        depth, item = shape.channels // groups, ITEM_BYTES[self.manifest.dtype]
        out = ITEM_BYTES[self.store.out]
        least = min(
            alignment(self.manifest.dtype, 0, shape.channels, depth),
            alignment(self.store.out, 0, 0, gemm["n"]) * item // out,
        )
        seen = shape.batch * shape.height * shape.width * depth / max(1, gemm["m"] * gemm["k"])
        return Shape(gemm["m"], gemm["n"], gemm["k"], groups, 0, 1, least, min(seen, 1.0))

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return (*NAMES, *(operand.name for operand in self.operands))

    def _reason(self, number: int) -> Refusal:
        reason = super()._reason(number)
        return WORDS.get(reason[1], reason)
