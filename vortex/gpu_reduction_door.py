"""The native door of a GPU's library of reductions through ctypes: selector and plans need no device."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

from vortex.cuda_driver import Driver
from vortex.errors import LibraryError, ShapeError
from vortex.gpu_library import GpuManifest
from vortex.gpu_opened import SIGNATURES, Opened, Place, load, opened, opening
from vortex.gpu_operands import REASONS
from vortex.gpu_reduction import NARROW, PARAMETERS, WIDE, GpuReducePlan, ReduceBlock, Sweep, View
from vortex.native import Signatures, host_code
from vortex.operands import Refusal

ABI = 4
MOST_RANK = 64
"""Axes that an operand may have: the door keeps a bit for each."""
MOST_RUNS = MOST_RANK // 2
BAD_RANK, BAD_STRIDES, TOO_LARGE, NO_KERNEL = 2, 6, 11, 17
WORDS: dict[int, Refusal] = {
    BAD_RANK: (ShapeError, "has too many axes", f"reshape it to at most {MOST_RANK}"),
    BAD_STRIDES: (
        ShapeError,
        "has strides that no reduction reads (negative; neighbouring reduced axes that do not lie as one; kept axes "
        "that neither lie as one nor end in contiguous ones with the others as one)",
        "make a contiguous copy",
    ),
    TOO_LARGE: (ShapeError, "has too many elements", "reduce parts of fewer than 2^40"),
    NO_KERNEL: (ShapeError, "is served by no tile of the library", "reduce parts of it"),
}
"""What numbers of runtime/gpu_refusals.h mean that mean something else for products."""


class _View(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int64) for name in ("outer", "depth", "inner"))


class _Sweep(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_int64) for name in ("outer", "depth", "inner", "chunk", "chunks", "blocks", "tile")
    )


class _Plan(ctypes.Structure):
    _fields_ = (("count", ctypes.c_int64), ("seconds", ctypes.c_double), ("sweeps", _Sweep * 2))


class _Run(ctypes.Structure):
    _fields_ = (("view", _View), ("plan", _Plan))


class _Runs(ctypes.Structure):
    _fields_ = (("count", ctypes.c_int64), ("need", ctypes.c_int64), ("runs", _Run * MOST_RUNS))


class _GivenSweep(ctypes.Structure):
    _fields_ = (("tile", ctypes.c_int64), ("chunk", ctypes.c_int64))


class _Given(ctypes.Structure):
    _fields_ = (("sweeps", ctypes.POINTER(_GivenSweep)), ("count", ctypes.c_int64))


class _Kernel(ctypes.Structure):
    _fields_ = (("function", ctypes.c_void_p), ("block", ctypes.c_uint32 * 3), ("shared_bytes", ctypes.c_uint32))


class _Setup(ctypes.Structure):
    _fields_ = (
        ("place", Place),
        ("kernels", ctypes.POINTER(_Kernel)),
        ("is_mean", ctypes.c_int32),
        ("needs_one", ctypes.c_int32),
        ("workspace_bytes", ctypes.c_int64),
    )


@dataclass(frozen=True)
class Runs:
    """What a call of one shape does: a plan for each run of neighbours among the reduced axes, in their order."""

    runs: tuple[tuple[View, GpuReducePlan], ...]
    need: int
    """Bytes of the workspace."""

    @property
    def plan(self) -> GpuReducePlan:
        """All of it."""
        return GpuReducePlan.of([plan for _, plan in self.runs])


class ReduceDoor:
    """Functions of a library's `door.so`; chooses as `ReduceSelector.choose` does, with the same figures."""

    def __init__(self, code: bytes, blocks: tuple[ReduceBlock, ...]) -> None:
        pointer, long, number, thing = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.py_object
        view, axes = ctypes.POINTER(_View), (ctypes.c_uint64, ctypes.c_uint64, number)
        signatures: Signatures = {
            **SIGNATURES,
            "vx_gpu_reduce_abi": (number, ()),
            "vx_gpu_reduce_choose": (None, (view, long, number, ctypes.POINTER(_Plan))),
            "vx_gpu_reduce_runs": (long, (ctypes.POINTER(long), number, *axes, long, ctypes.POINTER(_Runs))),
            "vx_gpu_reduce_time_selection": (ctypes.c_double, (view, long, number, long)),
            "vx_gpu_reduce_open": opening(_Setup),
            "vx_gpu_reduce": (long, (pointer, pointer, thing, thing, *axes, number, pointer, number)),
            "vx_gpu_reduce_described": (
                long,
                (pointer, pointer, *axes, number, pointer, pointer, long, ctypes.POINTER(_Given)),
            ),
        }
        self.calls, self.blocks = host_code(code, signatures, "vx_gpu_reduce_abi", ABI), blocks

    def choose(self, view: View, room: int, is_warm: bool = False) -> GpuReducePlan:
        """The cheapest plan, the first of equals. Raises ShapeError where no grid is large enough."""
        plan = _Plan()
        self.calls.vx_gpu_reduce_choose(_View(*view), room, is_warm, plan)
        if not plan.count:
            raise ShapeError(f"no tile of the library serves {view}; reduce parts of it")
        return self._plan(plan, is_warm)

    def _plan(self, plan: _Plan, is_warm: bool) -> GpuReducePlan:
        sweeps = []
        for place, s in enumerate(plan.sweeps[: plan.count]):
            extents = (s.outer, s.depth, s.inner, s.chunk, s.chunks)
            sweeps.append(Sweep(s.tile, self.blocks[s.tile], *extents, is_warm or place > 0))
        return GpuReducePlan(tuple(sweeps), plan.seconds)

    def runs(self, shape: tuple[int, ...], axis: Any, room: int) -> Runs:
        """What a call does; results of chunks may take `room` bytes. Raises ShapeError."""
        found, extents = _Runs(), (ctypes.c_int64 * len(shape))(*shape)
        status = self.calls.vx_gpu_reduce_runs(extents, len(shape), *axis_bits(axis), room, found)
        if status:
            kind, problem, remedy = reason(status & 0xFF)
            raise kind(f"shape={shape} {problem}; {remedy}")
        runs = []
        for place, run in enumerate(found.runs[: found.count]):
            view = run.view.outer, run.view.depth, run.view.inner
            runs.append((view, self._plan(run.plan, place > 0)))
        return Runs(tuple(runs), found.need)

    def time_selection(self, view: View, room: int, is_warm: bool, repeats: int) -> float:
        """Seconds of one selection, the mean of `repeats`."""
        return float(self.calls.vx_gpu_reduce_time_selection(_View(*view), room, is_warm, repeats)) / repeats


def given_sweeps(plan: GpuReducePlan | None) -> Any:
    """The sweeps of a plan as the door takes them; None for the selected ones."""
    if plan is None:
        return None
    rows = [_GivenSweep(sweep.index, sweep.chunk) for sweep in plan.sweeps]
    return _Given((_GivenSweep * len(rows))(*rows), len(rows))


def axis_bits(axis: Any) -> tuple[int, int, int]:
    """Axes as the door takes them: a bit for each counted from the front, or from the back; how many, -1 for all.

    What is no axis, or is named twice, leaves fewer bits than there are names, and is refused by the door.
    """
    if axis is None:
        return 0, 0, -1
    front = back = 0
    given = axis if isinstance(axis, Sequence) and not isinstance(axis, str) else (axis,)
    for each in given:
        try:
            place = index(each)
        except TypeError:
            continue
        if 0 <= place < MOST_RANK:
            front |= 1 << place
        elif -MOST_RANK <= place < 0:
            back |= 1 << ~place
    return front, back, len(given)


def reason(number: int) -> Refusal:
    """What a refusal of the door means."""
    return WORDS.get(number) or REASONS[number - 1]


def open_on(door: ReduceDoor, manifest: GpuManifest, driver: Driver, ordinal: int, images: dict[str, bytes]) -> Opened:
    """Load the device code and give the door what it launches."""
    kind, entries = manifest.settings["kind"], manifest.entries
    for entry in entries:
        if entry.args != PARAMETERS:
            raise LibraryError(f"the kernel {entry.symbol} takes {entry.args}, unknown here; compile it again")
    loaded = load(manifest, driver, ordinal, images)
    rows = {
        entry.symbol: _Kernel(function, (ctypes.c_uint32 * 3)(*entry.block), entry.shared_bytes)
        for entry, function in zip(entries, loaded.modules.functions, strict=True)
    }
    every = [rows[block.symbol(kind, vector)] for block in door.blocks for vector in (NARROW, WIDE)]
    kernels = (_Kernel * len(every))(*every)
    setup = _Setup(loaded.place(ABI), kernels, kind == "mean", kind == "max", manifest.workspace_bytes)
    return opened(door.calls, "vx_gpu_reduce_open", loaded, setup, kernels)
