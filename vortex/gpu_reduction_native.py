"""The native selector of a GPU's library of reductions, through ctypes. It needs no device."""

from __future__ import annotations

import ctypes

from vortex.errors import ShapeError
from vortex.gpu_reduction import GpuReducePlan, ReduceBlock, Sweep, View
from vortex.native import Signatures, host_code

ABI = 1


class _View(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int64) for name in ("outer", "depth", "inner"))


class _Sweep(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_int64) for name in ("outer", "depth", "inner", "chunk", "chunks", "blocks", "tile")
    )


class _Plan(ctypes.Structure):
    _fields_ = (("count", ctypes.c_int64), ("seconds", ctypes.c_double), ("sweeps", _Sweep * 2))


class NativeSelector:
    """Chooses as `ReduceSelector.choose` does, with the same figures: see runtime/gpu_reduce.h."""

    def __init__(self, code: bytes, blocks: tuple[ReduceBlock, ...]) -> None:
        view, long, number = ctypes.POINTER(_View), ctypes.c_int64, ctypes.c_int32
        signatures: Signatures = {
            "vx_gpu_reduce_abi": (number, ()),
            "vx_gpu_reduce_choose": (None, (view, long, number, ctypes.POINTER(_Plan))),
            "vx_gpu_reduce_time_selection": (ctypes.c_double, (view, long, number, long)),
        }
        calls = host_code(code, signatures, "vx_gpu_reduce_abi", ABI)
        self._choose, self._timed, self.blocks = calls.vx_gpu_reduce_choose, calls.vx_gpu_reduce_time_selection, blocks

    def choose(self, view: View, room: int, is_warm: bool = False) -> GpuReducePlan:
        """The cheapest plan, the first of equals. Raises ShapeError where no grid is large enough."""
        plan = _Plan()
        self._choose(_View(*view), room, is_warm, plan)
        if not plan.count:
            raise ShapeError(f"no tile of the library serves {view}; reduce parts of it")
        sweeps = []
        for place, s in enumerate(plan.sweeps[: plan.count]):
            extents = (s.outer, s.depth, s.inner, s.chunk, s.chunks)
            sweeps.append(Sweep(s.tile, self.blocks[s.tile], *extents, is_warm or place > 0))
        return GpuReducePlan(tuple(sweeps), plan.seconds)

    def time_selection(self, view: View, room: int, is_warm: bool, repeats: int) -> float:
        """Seconds of one selection, the mean of `repeats`."""
        return float(self._timed(_View(*view), room, is_warm, repeats)) / repeats
