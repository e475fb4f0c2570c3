"""The callable of a GPU's library of reductions: refuses bad operands, chooses, and launches on the caller's stream."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod
from threading import Lock
from typing import Any

from vortex import gpu_reduction_explain as explaining
from vortex.cuda_driver import Driver, Modules
from vortex.errors import ShapeError, VortexError
from vortex.gpu_device import OnDevice
from vortex.gpu_library import DOOR, Entry, GpuLibrary
from vortex.gpu_operands import (
    CUDA,
    CUDA_MANAGED,
    DTYPES,
    REASONS,
    DLTensor,
    current_stream,
    describe,
    described,
    empty,
    refuse_gradients,
    room_of,
    stream_handle,
)
from vortex.gpu_reduction import ITEM, NARROW, WIDE, GpuReducePlan, ReduceSelector, Sweep, View
from vortex.gpu_reduction_explain import GpuReduceExplanation
from vortex.gpu_reduction_native import NativeSelector
from vortex.operands import Refusal
from vortex.reduction import normalized_axes
from vortex.reduction_plan import views, whole_extents

OPERANDS = ("x", "out")
NOT_CONTIGUOUS: Refusal = (ShapeError, "is not contiguous", "make a contiguous copy")
NOTHING: Refusal = (ShapeError, "has no element to take the maximum of", "reduce over axes that are not empty")
_, _, WRONG_DTYPE, ON_HOST, ON_OTHER, _, MISALIGNED, _, _, OVERLAPS, _, TOO_SMALL = REASONS[:12]
PLACE = 256
"""Bytes on multiples of which results begin that are read again."""
MOST_PLANS = 4096
"""Shapes whose plans are remembered."""
EXTENTS = ("outer", "depth", "inner", "chunk", "chunks")
"""Of a sweep, those that a kernel is told."""
PARAMETERS = 24
"""Room for pointers to a kernel's parameters."""


@dataclass(frozen=True)
class Prepared:
    """What a call of one shape does: a plan for each run of neighbours among the reduced axes, in their order."""

    runs: tuple[tuple[View, GpuReducePlan], ...]
    plan: GpuReducePlan
    places: tuple[int | None, ...]
    """Where in the workspace each sweep writes, None for the last, which writes the result."""
    need: int
    """Bytes of the workspace."""


@dataclass(frozen=True)
class Loaded:
    """A kernel on the device, with the arguments of its launch that no call changes."""

    function: ctypes.c_void_p
    geometry: tuple[ctypes.c_uint, ...]
    args: tuple[str, ...]


@dataclass(frozen=True)
class Tensor:
    """An operand as the checks read it."""

    address: int
    shape: tuple[int, ...]
    keep: Any

    @property
    def bytes(self) -> int:
        return ITEM * prod(self.shape)


class GpuReduce(OnDevice):
    """Sum, maximum or mean over axes of a contiguous tensor on a CUDA device: see `__call__`."""

    def __init__(self, library: GpuLibrary, device: int | None = None, *, jit: bool = False) -> None:
        """Open the library on a device, 0 if none is named; see `GpuGemm`."""
        self.library = library
        self.manifest = library.manifest
        self.kind: str = library.manifest.settings["kind"]
        self.selector = ReduceSelector.from_json(self.manifest.selector)
        """The native selector's mirror in Python."""
        self._native = NativeSelector(library.parts[DOOR], self.selector.blocks)
        self._prepared = lru_cache(MOST_PLANS)(partial(prepared, self._native, self.manifest.workspace_bytes))
        self._workspaces: dict[int, list[tuple[int, int, Any]]] = {}
        self._sharing = Lock()
        self._open(device, jit)

    def _load(self, driver: Driver, ordinal: int, images: dict[str, bytes]) -> None:
        context, entries = driver.retain_context(ordinal), self.manifest.entries
        symbols = [(entry.file, entry.symbol, entry.shared_bytes) for entry in entries]
        modules = driver.load_modules(context, images, symbols)
        self._driver, self._context = driver, context
        kernels = {e.symbol: loaded(e, handle) for e, handle in zip(entries, modules.functions, strict=True)}
        self._kernels = [
            tuple(kernels[block.symbol(self.kind, vector)] for vector in (NARROW, WIDE))
            for block in self.selector.blocks
        ]
        weakref.finalize(self, _close, driver, context, modules, ordinal)

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
        """The reduction of `x`, contiguous float32 of any rank, over `axis`, queued on `stream`; nothing is waited for.

        `axis`: all axes for None, one, or several. `x` is a CUDA tensor of torch or CuPy, or anything with DLPack or
        `__cuda_array_interface__`. `out`, contiguous, has the result's shape; without it the framework of `x` allocates
        one. Empty axes give sum 0 and mean not-a-number; they have no maximum. `stream` is the framework's current one
        if not given. Results of chunks, and of axes that are no neighbours, go to `workspace`, or to memory that the
        framework allocates once for each stream. Errors are VortexError and the built-in kind.
        """
        if self.device is None:
            raise self._unusable()
        if getattr(x, "requires_grad", False) or getattr(out, "requires_grad", False):
            refuse_gradients((x, out), OPERANDS)
        source = self._read(x, "x")
        axes = normalized_axes(axis, len(source.shape))
        expected = tuple(1 if d in axes else e for d, e in enumerate(source.shape) if keepdims or d not in axes)
        if out is None:
            out = empty(x, expected)
        target = self._read(out, "out")
        if target.shape != expected:
            raise ShapeError(f"out is {described(out)}; expected shape {expected} for x {described(x)}, axis={axis!r}")
        depth = prod(source.shape[d] for d in axes)
        if not prod(expected):
            return out
        if not depth and self.kind == "max":
            raise self._refusal(NOTHING, "x", x)
        if source.address < target.address + target.bytes and target.address < source.address + source.bytes:
            raise self._refusal(OVERLAPS, "x", x)
        found = self._prepared(source.shape, axes) if depth else of_nothing(self._native, prod(expected))
        handle = current_stream(x, self.device.ordinal) if stream is None else stream_handle(stream)
        room = self._room(x, found.need, handle, workspace) if found.need else 0
        scale = (1.0 / depth if depth else float("inf")) if self.kind == "mean" else 1.0
        # Sweeps of two threads' calls on one stream must not mix: they share its workspace.
        with self._sharing if found.need else nullcontext():
            self._queue(found, source.address, target.address, room, scale, handle)
        return out

    def _read(self, operand: Any, name: str) -> Tensor:
        """An operand of this library's element type, contiguous, on its device."""
        found = self._on_device(operand, name)
        tensor = DLTensor.from_address(found.tensor)
        if (tensor.code, tensor.bits, tensor.lanes) != (*DTYPES[self.manifest.dtype], 1):
            raise self._refusal(WRONG_DTYPE, name, operand)
        address, rank = (tensor.data or 0) + tensor.offset, tensor.rank
        if address % ITEM:
            raise self._refusal(MISALIGNED, name, operand)
        shape, strides = tuple(tensor.shape[:rank]), tensor.strides[:rank] if tensor.strides else None
        if strides is not None and not is_dense(shape, strides):
            raise self._refusal(NOT_CONTIGUOUS, name, operand)
        return Tensor(address, shape, found)

    def _on_device(self, operand: Any, name: str) -> Any:
        assert self.device is not None
        found = describe(operand, name)
        tensor = DLTensor.from_address(found.tensor)
        if tensor.device_type not in (CUDA, CUDA_MANAGED):
            raise self._refusal(ON_HOST, name, operand)
        if tensor.device != self.device.ordinal:
            raise self._refusal(ON_OTHER, name, operand, tensor.device)
        return found

    def _refusal(self, reason: Refusal, name: str, operand: Any, detail: int = 0) -> VortexError:
        kind, problem, remedy = reason
        told = {"detail": detail, "dtype": self.manifest.dtype, "device": self.device}
        return kind(f"{name} ({described(operand)}) {problem.format(**told)}; {remedy.format(**told)}")

    def _room(self, x: Any, need: int, stream: int, lent: Any) -> int:
        """The address of `need` bytes: lent for this call, or this stream's own, which live on for captured graphs."""
        own = self._workspaces.setdefault(stream, [])
        if lent is None and own and own[-1][1] >= need:
            return own[-1][0]
        size = max(need, self.manifest.workspace_bytes)
        memory = empty(x, (-(-size // ITEM), 1)) if lent is None else lent
        found = self._on_device(memory, "workspace")
        address, bytes = room_of(DLTensor.from_address(found.tensor))
        if bytes < need:
            raise self._refusal(TOO_SMALL, "x", x, need)
        if lent is None:
            own.append((address, bytes, memory))
        return address

    def _queue(self, call: Prepared, x: int, out: int, room: int, scale: float, stream: int) -> None:
        """Every sweep onto the stream, with the device's primary context current."""
        before, driver = ctypes.c_void_p(), self._driver
        driver.call("cuCtxGetCurrent", ctypes.byref(before))
        is_foreign = before.value != self._context
        if is_foreign:
            driver.call("cuCtxPushCurrent_v2", ctypes.c_void_p(self._context))
        try:
            for sweep, place in zip(call.plan.sweeps, call.places, strict=True):
                to = out if place is None else room + place
                self._launch(sweep, x, to, scale if place is None else 1.0, stream)
                x = to
        finally:
            if is_foreign:
                driver.call("cuCtxPopCurrent_v2", ctypes.byref(before))

    def _launch(self, sweep: Sweep, x: int, y: int, scale: float, stream: int) -> None:
        kernel = self._kernels[sweep.index][sweep.suits_wide and (x | y) % WIDE == 0]
        numbers = {name: ctypes.c_int64(getattr(sweep, name)) for name in EXTENTS}
        known = {"*X": ctypes.c_void_p(x), "*Y": ctypes.c_void_p(y), "scale": ctypes.c_float(scale), **numbers}
        given = [known[name] for name in kernel.args]
        parameters = (ctypes.c_void_p * PARAMETERS)(*map(ctypes.addressof, given))
        grid, handle = ctypes.c_uint(sweep.blocks), ctypes.c_void_p(stream)
        self._driver.call("cuLaunchKernel", kernel.function, grid, *kernel.geometry, handle, parameters, None)

    def plan(self, shape: Sequence[int], axis: Any = None) -> GpuReducePlan:
        """What a call on an operand of this shape does. Raises ShapeError."""
        extents = whole_extents(shape)
        return self._prepared(extents, normalized_axes(axis, len(extents))).plan

    def predict(self, shape: Sequence[int], axis: Any = None) -> float:
        """Predicted seconds of a call; arguments as for `plan`."""
        return self.plan(shape, axis).seconds

    def explain(self, shape: Sequence[int], axis: Any = None) -> GpuReduceExplanation:
        """The plan with each cost term, the tiles it was preferred to, what the sieve admitted; as for `plan`."""
        extents = whole_extents(shape)
        axes = normalized_axes(axis, len(extents))
        return explaining.explain(self.manifest, self.selector, extents, axes, self._prepared(extents, axes).runs)

    def time_selection(self, shape: Sequence[int], axis: Any = None, *, repeats: int) -> float:
        """Seconds that a call selects for in native code, the mean of `repeats`; other arguments as for `plan`."""
        every, room = enumerate(views(whole_extents(shape), axis)), self.manifest.workspace_bytes
        return sum(self._native.time_selection(view, room, place > 0, repeats) for place, view in every)

    def __repr__(self) -> str:
        where, m = self.device or f"no device ({self._refused})", self.manifest
        about = f"{self.kind} for {m.hardware['name']}: {len(m.entries)} kernels, costs {m.basis}"
        return f"<vortex reduce {about}; on {where}, code {self.code}>"


def prepared(selector: NativeSelector, room: int, shape: tuple[int, ...], axes: tuple[int, ...]) -> Prepared:
    """The cheapest plans for a shape; chunks of a depth may take `room` bytes."""
    every = enumerate(views(shape, axes))
    runs = tuple((view, selector.choose(view, room, is_warm=place > 0)) for place, view in every)
    plan = GpuReducePlan.of([plan for _, plan in runs])
    return Prepared(runs, plan, *laid_out(plan.sweeps))


def of_nothing(selector: NativeSelector, outputs: int) -> Prepared:
    """What writes the sum of no elements so many times."""
    plan = selector.choose((outputs, 1, 1), 0)
    (sweep,) = plan.sweeps
    return Prepared((), GpuReducePlan((replace(sweep, depth=0),), plan.seconds), (None,), 0)


def laid_out(sweeps: Sequence[Sweep]) -> tuple[tuple[int | None, ...], int]:
    """Where in the workspace each sweep writes, and the bytes of all."""
    places: list[int | None] = []
    end = 0
    for sweep in sweeps[:-1]:
        places.append(end)
        end += -(-ITEM * sweep.outputs // PLACE) * PLACE
    return (*places, None), end


def loaded(entry: Entry, function: int) -> Loaded:
    sizes = (1, 1, *entry.block, entry.shared_bytes)
    return Loaded(ctypes.c_void_p(function), tuple(map(ctypes.c_uint, sizes)), entry.args)


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements lie one after the other; strides of an empty tensor or of an axis of one element say nothing."""
    if 0 in shape:
        return True
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


def _close(driver: Driver, context: int, modules: Modules, ordinal: int) -> None:
    driver.unload(context, modules)
    driver.release_context(ordinal)
