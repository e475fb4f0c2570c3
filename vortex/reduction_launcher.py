"""The callable of a library of reductions: hands operands to the native door and puts a refusal into words."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vortex import reduction_explain as explaining
from vortex.errors import DtypeError, OperandError, ShapeError, VortexError
from vortex.library import Library, ReduceManifest, write
from vortex.native import native_module
from vortex.operands import (
    MISALIGNED,
    REASONS,
    UNREADABLE,
    Refusal,
    allocated,
    described,
    exportable,
    refuse_gradients,
)
from vortex.reduction import neighbours, normalized_axes
from vortex.reduction_explain import ReduceExplanation
from vortex.reduction_plan import ReducePlan, planned, sweeps, views, whole_extents
from vortex.reduction_tiles import Measured
from vortex.shapes import thread_count
from vortex.threads import Listener

OPERANDS = ("x", "out")
NOT_A_TENSOR, _, WRONG_DTYPE, WRONG_DEVICE = REASONS[:4]
REFUSALS: tuple[Refusal, ...] = (
    NOT_A_TENSOR,
    (ShapeError, "has too many axes", "reshape it to at most 64"),
    WRONG_DTYPE,
    WRONG_DEVICE,
    (
        ShapeError,
        "has strides that no reduction reads (negative; axes before, among or after the reduced ones that do not "
        "lie as one; neither the reduced nor the last axes contiguous)",
        "make a contiguous copy",
    ),
    MISALIGNED,
    (ShapeError, "has not the shape of the result", "leave it out, or allocate it with that shape"),
    (ShapeError, "is not contiguous", "leave it out, or allocate it contiguous"),
    (OperandError, "overlaps out", "write to memory of its own"),
    (OperandError, "needs scratch memory, and there is none left", "free memory"),
    (ShapeError, "has no element to take the maximum of", "reduce over axes that are not empty"),
)
"""In the order of the numbers of runtime/reduce_door.c."""


class ReduceKernel:
    """Sum, maximum or mean over axes of any tensor: see `__call__`. Safe to call from several threads at once."""

    def __init__(self, library: Library[ReduceManifest]) -> None:
        self.library = library
        self.manifest = library.manifest
        self.kind: str = library.manifest.settings["kind"]
        module = native_module(library)
        self._reduce, self._sweeps, self._time = map(module.get_function, ("reduce", "sweeps", "time_sweeps"))
        self._threads = Listener(module.get_function("set_threads"), module.get_function("borrow_threads"))

    @property
    def strategies(self) -> tuple[Measured, ...]:
        """Every tile of the library with its cost."""
        return self.manifest.strategies

    def __call__(self, x: Any, axis: Any = None, out: Any = None, *, keepdims: bool = False) -> Any:
        """The reduction of `x`, float32 of any rank, over `axis`: all axes for None, one, or several.

        The axes before the reduced ones must lie as one, and so must those after, as they do in a contiguous tensor;
        strides are free otherwise. `out`, contiguous, has the result's shape; without it one is allocated of the kind
        of `x`. Empty axes give sum 0 and mean not-a-number; they have no maximum. Axes that are no neighbours are
        reduced one run of neighbours after the other. Errors are VortexError and the built-in kind.
        """
        if getattr(x, "requires_grad", False) or getattr(out, "requires_grad", False):
            refuse_gradients(x, out, names=OPERANDS)
        try:
            shape = tuple(x.shape)
        except (AttributeError, TypeError, RuntimeError) as error:
            raise OperandError(f"x is a {type(x).__name__}; expected a tensor; {NOT_A_TENSOR[2]}") from error
        axes = normalized_axes(axis, len(shape))
        expected = tuple(1 if d in axes else e for d, e in enumerate(shape) if keepdims or d not in axes)
        if out is None:
            out = allocated(x, expected)
        elif tuple(getattr(out, "shape", ())) != expected:
            raise ShapeError(f"out is {described(out)}; expected shape {expected} for x {described(x)}, axis={axis!r}")
        first, *others = neighbours(axes) or [(len(shape), len(shape))]
        for run in reversed(others):  # the last axes first: what is left for the others lies as one
            shape = tuple(1 if run[0] <= d < run[1] else e for d, e in enumerate(shape))
            x = self._run(x, allocated(x, shape), *run)
        return self._run(x, out, *first)

    def _run(self, x: Any, out: Any, first: int, end: int) -> Any:
        try:
            status = self._reduce(x, out, first, end)
        except UNREADABLE:
            status = self._retry(x, out, first, end)
        if status:
            raise self._refusal(status, x, out)
        return out

    def plan(self, shape: Sequence[int], axis: Any = None, *, threads: int | None = None) -> ReducePlan:
        """What a call on a contiguous operand of this shape does, as its native choice says. Raises ShapeError."""
        count, extents = thread_count(threads), whole_extents(shape)
        found = [sweep for view in views(extents, axis) for sweep in sweeps(self._sweeps, view, count)]
        return planned(self.manifest, found, count)

    def predict(self, shape: Sequence[int], axis: Any = None, *, threads: int | None = None) -> float:
        """Predicted seconds of a call; arguments as for `plan`."""
        return self.plan(shape, axis, threads=threads).seconds

    def explain(self, shape: Sequence[int], axis: Any = None, *, threads: int | None = None) -> ReduceExplanation:
        """The plan with each cost term, the tiles it was preferred to, what the sieve admitted; as for `plan`."""
        plan, extents = self.plan(shape, axis, threads=threads), whole_extents(shape)
        axes = normalized_axes(axis, len(extents))
        return explaining.explain(self.manifest, extents, axes, plan, thread_count(threads))

    def time_selection(self, shape: Sequence[int], axis: Any = None, *, repeats: int) -> float:
        """Seconds that a call selects for in native code, the mean of `repeats`; other arguments as for `plan`."""
        threads = thread_count(None)
        taken = (int(self._time(*view, threads, repeats)) for view in views(whole_extents(shape), axis))
        return sum(taken) * 1e-9 / repeats

    def _retry(self, x: Any, out: Any, *numbers: int) -> Any:
        """DLPack cannot carry read-only arrays: unlock the input, which is only read, and refuse such an output."""
        if isinstance(out, np.ndarray) and not out.flags.writeable:
            raise OperandError("out is read-only; expected a writable array; pass a copy or set its writeable flag")
        try:
            return self._reduce(exportable(x), out, *numbers)
        except UNREADABLE as error:
            raise DtypeError(
                f"an operand cannot be read ({error}); given x {described(x)}, out {described(out)}; "
                "expected float32 on the CPU"
            ) from error

    def _refusal(self, status: int, x: Any, out: Any) -> VortexError:
        kind, problem, remedy = REFUSALS[(status & 0xFF) - 1]
        place = status >> 8
        name, operand = OPERANDS[place], (x, out)[place]
        return kind(f"{name} ({described(operand)}) {problem}; given x {described(x)}, out {described(out)}; {remedy}")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the library to one file, to be read by `vortex.load`."""
        write(self.library, Path(path))

    def __repr__(self) -> str:
        hardware, count = self.manifest.hardware["name"], len(self.strategies)
        return f"<vortex {self.manifest.operator} {self.kind} for {hardware}: {count} tiles, L0 {self.manifest.basis}>"
