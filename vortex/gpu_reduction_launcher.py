"""The callable of a GPU's library of reductions: hands CUDA tensors to the native door, which selects and launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vortex import gpu_reduction_explain as explaining
from vortex.cuda_driver import Driver
from vortex.errors import ShapeError, VortexError
from vortex.gpu_device import UNREADABLE, OnDevice, Operands, unreadable
from vortex.gpu_library import DOOR, GpuLibrary
from vortex.gpu_opened import Opened
from vortex.gpu_operands import (
    NEEDS_WORKSPACE,
    WRONG_AXES,
    WRONG_SHAPE,
    DLTensor,
    describe,
    described,
    empty,
    refuse_gradients,
)
from vortex.gpu_reduction import GpuReducePlan, ReduceSelector
from vortex.gpu_reduction_door import ReduceDoor, Runs, axis_bits, given_sweeps, open_on, reason
from vortex.gpu_reduction_explain import GpuReduceExplanation
from vortex.operands import Refusal
from vortex.reduction import normalized_axes
from vortex.reduction_plan import whole_extents

OPERANDS = ("x", "out")


@dataclass(frozen=True)
class Asked:
    """What the door is told beside the operands."""

    axis: Any
    keepdims: bool
    workspace: Any = None
    """Lent for this call alone."""
    plan: GpuReducePlan | None = None
    """Instead of the selected one."""


class GpuReduce(OnDevice):
    """Sum, maximum or mean over axes of a tensor on a CUDA device: see `__call__`."""

    _place_of_out = OPERANDS.index("out")
    _names = OPERANDS

    def __init__(self, library: GpuLibrary, device: int | None = None, *, jit: bool = False) -> None:
        """Open the library on a device, 0 if none is named; see `GpuGemm`."""
        self.library = library
        self.manifest = library.manifest
        self.kind: str = library.manifest.settings["kind"]
        self.selector = ReduceSelector.from_json(self.manifest.selector)
        """The native selector's mirror in Python."""
        self._door = ReduceDoor(library.parts[DOOR], self.selector.blocks)
        self._reduce = self._door.calls.vx_gpu_reduce
        self._open(device, jit)

    def _open_door(self, driver: Driver, ordinal: int, images: dict[str, bytes]) -> Opened:
        return open_on(self._door, self.manifest, driver, ordinal, images)

    @property
    def strategies(self) -> tuple[Any, ...]:
        """Every tile of the library."""
        return self.selector.blocks

    def __call__(
        self,
        x: Any,
        axis: Any = None,
        out: Any = None,
        *,
        keepdims: bool = False,
        stream: Any = None,
        workspace: Any = None,
    ) -> Any:
        """The reduction of `x`, float32 of up to 64 axes, over `axis`, queued on `stream`; nothing waits.

        `axis`: all axes for None, one, or several. `x` is a CUDA tensor of torch or CuPy, or anything with DLPack or
        `__cuda_array_interface__`. Its reduced axes must lie as one where they are neighbours, and so must the kept
        ones, but for the last of these if they are contiguous; strides are free otherwise. `out`, contiguous, has the
        result's shape; without it the framework of `x` allocates one. Empty axes give sum 0 and mean not-a-number; they
        have no maximum. `stream` is the framework's current one if not given. Results of chunks, and of axes that are
        no neighbours, go to `workspace`, or to memory that the framework allocates once for each stream. Errors are
        VortexError and the built-in kind.
        """
        if not self._handle:
            raise self._unusable()
        if getattr(x, "requires_grad", False) or getattr(out, "requires_grad", False):
            refuse_gradients((x, out), OPERANDS)
        if out is None:
            out = empty(x, self._shape(x, axis, keepdims))
        known = self._exchange.get
        api = known(type(x))
        if not (api and stream is None and workspace is None and api == known(type(out))):
            return self._in_full((x, out), Asked(axis, keepdims, workspace), stream, workspace)
        try:
            status = self._reduce(self._handle, api, x, out, *axis_bits(axis), 1 if keepdims else 0, None, 0)
        except UNREADABLE as error:
            raise unreadable(error, (x, out), OPERANDS) from error
        if status:
            if status & 0xFF == NEEDS_WORKSPACE:
                return self._provided(status, (x, out), Asked(axis, keepdims), self._stream_of(x, None))
            raise self._refusal(status, (x, out), Asked(axis, keepdims))
        return out

    def _submit(self, operands: Operands, told: Asked, stream: int) -> int:
        how = *axis_bits(told.axis), 1 if told.keepdims else 0, stream
        if told.workspace is None and told.plan is None and (api := self._api_of_all(operands)):
            return int(self._reduce(self._handle, api, *operands, *how, 1))
        lent = (None, -1) if told.workspace is None else self._lent(told.workspace)
        tensors, _keep = self._read(operands)
        return int(
            self._door.calls.vx_gpu_reduce_described(self._handle, tensors, *how, *lent, given_sweeps(told.plan))
        )

    def run_planned(
        self, plan: GpuReducePlan, x: Any, axis: Any, out: Any, *, keepdims: bool = False, stream: Any = None
    ) -> Any:
        """Run the sweeps of a given plan instead of the selected one; otherwise as a call."""
        if not self._handle:
            raise self._unusable()
        return self._in_full((x, out), Asked(axis, keepdims, plan=plan), stream, None)

    def _shape(self, x: Any, axis: Any, keepdims: bool) -> tuple[int, ...]:
        """Of the result. Raises ShapeError for axes that `x` has not."""
        if self._api_of(x):
            extents = tuple(x.shape)
        else:
            found = describe(x, "x")
            tensor = DLTensor.from_address(found.tensor)
            extents = tuple(tensor.shape[: tensor.rank])
        axes = normalized_axes(axis, len(extents))
        return tuple(1 if d in axes else e for d, e in enumerate(extents) if keepdims or d not in axes)

    def _reason(self, number: int) -> Refusal:
        return reason(number)

    def _refusal(self, status: int, operands: Operands, told: Any = None) -> VortexError:
        if status & 0xFF not in (WRONG_AXES, WRONG_SHAPE):
            return super()._refusal(status, operands, told)
        x, out = operands
        expected = self._shape(x, told.axis, told.keepdims)  # raises where it is the axes that are wrong
        given = f"x {described(x)}, axis={told.axis!r}"
        return ShapeError(f"out is {described(out)}; expected shape {expected} for {given}")

    def plan(self, shape: Sequence[int], axis: Any = None) -> GpuReducePlan:
        """What a call on a contiguous operand of this shape does. Raises ShapeError."""
        return self._runs(whole_extents(shape), axis).plan

    def predict(self, shape: Sequence[int], axis: Any = None) -> float:
        """Predicted seconds of a call; arguments as for `plan`."""
        return self.plan(shape, axis).seconds

    def explain(self, shape: Sequence[int], axis: Any = None) -> GpuReduceExplanation:
        """The plan with each cost term, the tiles it was preferred to, what the sieve admitted; as for `plan`."""
        extents = whole_extents(shape)
        axes, runs = normalized_axes(axis, len(extents)), self._runs(extents, axis).runs
        return explaining.explain(self.manifest, self.selector, extents, axes, runs)

    def time_selection(self, shape: Sequence[int], axis: Any = None, *, repeats: int) -> float:
        """Seconds that a call selects for in native code, the mean of `repeats`; other arguments as for `plan`."""
        views, room = [view for view, _ in self._runs(whole_extents(shape), axis).runs], self.manifest.workspace_bytes
        return sum(self._door.time_selection(view, room, place > 0, repeats) for place, view in enumerate(views))

    def _runs(self, extents: tuple[int, ...], axis: Any) -> Runs:
        """What a call does, run by run of neighbours among its axes."""
        return self._door.runs(extents, normalized_axes(axis, len(extents)), self.manifest.workspace_bytes)

    def __repr__(self) -> str:
        where, m = self.device or f"no device ({self._refused})", self.manifest
        about = f"{self.kind} for {m.hardware['name']}: {len(m.entries)} kernels, costs {m.basis}"
        return f"<vortex reduce {about}; on {where}, code {self.code}>"
