"""The callable of a GPU library: hands CUDA tensors to the native door, which selects and launches. No TVM."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from vortex.cuda_driver import Driver
from vortex.errors import OperandError, ShapeError, UnknownNameError
from vortex.gpu_device import UNREADABLE, OnDevice, Operands, unreadable
from vortex.gpu_door import Plan, Regions, open_on
from vortex.gpu_library import GpuLibrary
from vortex.gpu_opened import Opened
from vortex.gpu_operands import NEEDS_WORKSPACE, REASONS, empty, refuse_gradients
from vortex.gpu_planner import GpuPlanner
from vortex.gpu_polymerize import GpuRegion
from vortex.gpu_selector import GpuPlan
from vortex.operands import OPERANDS

TRANSPOSE_A, TRANSPOSE_B = 1, 2


class GpuGemm(OnDevice, GpuPlanner):
    """C = A B for any shape on a CUDA device: see `__call__`."""

    _place_of_out = OPERANDS.index("out")

    def __init__(self, library: GpuLibrary, device: int | None = None, *, jit: bool = False) -> None:
        """Open the library on a device, 0 if none is named.

        Where no device can be used, an unnamed one is forgiven: the selector, `explain` and `save` work, and a call
        says what is missing. `jit` lets the driver translate the library's PTX for an architecture whose machine code
        it does not hold, which may take minutes.
        """
        super().__init__(library)
        self._gemm = self._door.calls.vx_gpu_gemm
        self._open(device, jit)

    def _open_door(self, driver: Driver, ordinal: int, images: dict[str, bytes]) -> Opened:
        return open_on(self._door, self.manifest, driver, ordinal, images)

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        *,
        transpose_a: bool = False,
        transpose_b: bool = False,
        stream: Any = None,
        workspace: Any = None,
    ) -> Any:
        """out = op(a) op(b), queued on `stream`; nothing is waited for.

        `a` is [m, k] ([k, m] with `transpose_a`), `b` is [k, n] ([n, k] with `transpose_b`): CUDA tensors of torch or
        CuPy, or anything with DLPack or `__cuda_array_interface__`, of the library's dtype; rows or columns must be
        contiguous, the other stride is free. `out` is [m, n] with contiguous rows; without it the framework of `a`
        allocates one. `stream` is the framework's current one if not given. Partial sums of a split reduction go to
        `workspace`, or to memory that the framework allocates once for each stream. Errors are VortexError and the
        built-in kind.
        """
        if not self._handle:
            raise self._unusable()
        if out is None:
            out = self._allocate(a, b, transpose_a, transpose_b)
        flags = TRANSPOSE_A if transpose_a else 0
        if transpose_b:
            flags |= TRANSPOSE_B
        if getattr(a, "requires_grad", 0) or getattr(b, "requires_grad", 0) or getattr(out, "requires_grad", 0):
            refuse_gradients((a, b, out), OPERANDS)
        known = self._exchange.get
        api = known(type(a))
        if api and stream is None and workspace is None and api == known(type(b)) == known(type(out)):
            try:
                status = self._gemm(self._handle, api, a, b, out, flags, None, 0)
            except UNREADABLE as error:
                raise unreadable(error, (a, b, out), OPERANDS) from error
        else:
            return self._in_full((a, b, out), flags, stream, workspace)
        if status:
            if status & 0xFF == NEEDS_WORKSPACE:
                return self._provided(status, (a, b, out), flags, self._stream_of(a, None))
            raise self._refusal(status, (a, b, out))
        return out

    @property
    def _names(self) -> tuple[str, ...]:
        return OPERANDS

    def _queue(self, operands: Operands, told: Any, stream: int, lent: Any) -> int:
        if lent is None:
            return super()._queue(operands, told, stream, None)
        a = operands[0]
        self._set_workspace(a, lent, stream)
        try:
            return super()._queue(operands, told, stream, None)
        finally:
            if own := self._workspaces.get(stream):
                self._set_workspace(a, own[-1], stream)
            else:
                self._door.calls.vx_gpu_set_workspace(self._handle, stream, None, 0)

    def _submit(self, operands: Operands, flags: Any, stream: int) -> int:
        calls = self._door.calls
        if api := self._api_of_all(operands):
            objects = (ctypes.py_object * len(operands))(*operands)
            return int(calls.vx_gpu_gemm_finished(self._handle, api, objects, flags, stream, 1))
        tensors, _keep = self._read(operands)
        return int(calls.vx_gpu_gemm_described(self._handle, tensors, flags, stream))

    def run_planned(
        self,
        plan: GpuPlan | Sequence[GpuRegion],
        a: Any,
        b: Any,
        out: Any,
        *,
        transpose_a: bool = False,
        transpose_b: bool = False,
        stream: Any = None,
        **operands: Any,
    ) -> Any:
        """Run a given plan, or the plans of two regions, instead of the selected one; same operands as a call."""
        if not self._handle:
            raise self._unusable()
        flags = transpose_a * TRANSPOSE_A + transpose_b * TRANSPOSE_B
        given = (a, b, out, *self._in_order(operands))
        tensors, _keep = self._read(given)
        native = _native(plan)
        handle = self._stream_of(a, stream)
        run = self._door.calls.vx_gpu_gemm_planned
        status = run(self._handle, tensors, flags, handle, ctypes.byref(native))
        if status & 0xFF == NEEDS_WORKSPACE:
            self._provide(a, status >> 16, handle)
            status = run(self._handle, tensors, flags, handle, ctypes.byref(native))
        if status:
            raise self._refusal(status, given)
        return out

    def polymerize(self, on: bool) -> None:
        """Whether calls may be served by two kernels, each for a region of the output; at first they may.

        For this object alone. Kernels may add in another order, so the last bits of a result may be others without.
        """
        self.polymerizes = on
        if self._handle:
            self._door.calls.vx_gpu_polymerizing(self._handle, on)

    def _in_order(self, operands: dict[str, Any]) -> Operands:
        """Tensors beyond A, B and C in the order in which the door takes them; a plain product has none."""
        if operands:
            raise UnknownNameError(f"unknown operand {min(operands)!r}; this library takes a, b and out")
        return ()

    def __repr__(self) -> str:
        m, where = self.manifest, self.device or f"no device ({self._refused})"
        return (
            f"<vortex {m.operator} {m.dtype} for {m.hardware['name']}: {len(m.kernels)} kernels, {m.spilled} left out "
            f"for spills, costs {m.basis}; on {where}, code {self.code}>"
        )

    def _allocate(self, a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> Any:
        """An uninitialized result of the kind of `a`."""
        try:
            (rows, columns), (depth, width) = a.shape, b.shape
        except (AttributeError, TypeError, ValueError) as error:
            for name, operand in (("a", a), ("b", b)):
                if not hasattr(operand, "shape"):
                    raise OperandError(f"{name} is a {type(operand).__name__}; {REASONS[0][2]}") from error
            shapes = f"a {tuple(a.shape)}, b {tuple(b.shape)}"
            raise ShapeError(f"given {shapes}; expected matrices; reshape or index the operands") from error
        return empty(a, (columns if transpose_a else rows, depth if transpose_b else width), self._out)

    @property
    def _out(self) -> str | None:
        """The element type of C, if it is not that of the operands."""
        return None


def native_plan(plan: GpuPlan) -> Plan:
    """A plan as the door takes it."""
    return Plan(plan.index, plan.splits, plan.chunk, plan.raster, plan.seconds)


def _native(plan: GpuPlan | Sequence[GpuRegion]) -> Regions:
    """Plans as the door takes them."""
    if isinstance(plan, GpuPlan):
        return Regions.of(native_plan(plan))
    return Regions.of(*(native_plan(region.plan) for region in plan), row=plan[-1].row, column=plan[-1].column)
