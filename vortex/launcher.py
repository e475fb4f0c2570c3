"""The callable the user holds: hands operands to the native door and puts a refusal into words. No TVM, no search."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vortex.candidates import WIDEST_PANEL
from vortex.dtypes import WORDS
from vortex.errors import OperandError, VortexError
from vortex.library import Library, write
from vortex.operands import (
    ACCUMULATE,
    FIXED_EXTENT,
    FOLDED,
    LAPS,
    OPERANDS,
    REASONS,
    TRANSPOSE_A,
    TRANSPOSE_B,
    UNREADABLE,
    PackedOperand,
    Refusal,
    allocated,
    described,
    exportable,
    extents,
    gradients,
    matrix_of,
    refuse_gradients,
    retry,
    tensors_alone,
    unreadable,
    zeros_for_constants,
)
from vortex.planner import Planner
from vortex.plans import LaunchPlan, planned
from vortex.threads import Listener

_ARRAY = np.ndarray
MAKES_TENSORS = "__dlpack_c_exchange_api__"
"""The attribute of classes, torch.Tensor for one, whose tensors native code may be able to make."""
_makers: set[type] = set()
"""Those met so far."""
UNREAD = -1
"""What native code answers where it leaves operands to the general way."""


def makes_tensors(kind: type) -> bool:
    """Whether native code may be able to make tensors of this kind."""
    if kind in _makers:
        return True
    if hasattr(kind, MAKES_TENSORS):
        _makers.add(kind)
    return kind in _makers


def product_extents(a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> tuple[int, int]:
    """Rows and columns of a product, before anything else is checked."""
    try:
        n = b.n if type(b) is PackedOperand else b.shape[0 if transpose_b else 1]
        return a.shape[1 if transpose_a else 0], n
    except (AttributeError, IndexError, TypeError, RuntimeError):
        extents(a, "a")
        extents(b, "b")
        raise


def have_addresses(reads_arrays: Callable[..., int]) -> bool:
    """Whether native code finds arrays of NumPy by their addresses, as it does in builds of CPython for release."""
    if sys.implementation.name != "cpython":
        return False
    matrix = np.zeros((3, 8), np.float32)[:, 1:6]
    return bool(reads_arrays(id(matrix), matrix.ctypes.data, *matrix.shape, *matrix.strides))


def left_unread(*_operands: Any) -> int:
    """Where arrays are not found by their addresses."""
    return UNREAD


class GemmKernel(Planner):
    """C (+)= A B for any shape: see `__call__`. Safe to call from several threads at once."""

    packing = "pack"
    """The native function that lays a B out."""

    def __init__(self, library: Library) -> None:
        super().__init__(library)
        self._identity = library.identity
        names = "gemm", "gemm_new", "gemm_packed", "gemm_new_packed", "gemm_planned", self.packing, "readable"
        calls = (self.module.get_function(name) for name in names)
        self._gemm, self._gemm_new, self._gemm_packed, self._gemm_new_packed, self._planned, *rest = calls
        self._pack, self._readable = rest
        self._arrays = self._packed_arrays = left_unread
        if have_addresses(self.module.get_function("reads_arrays")):
            self._arrays, self._packed_arrays = map(self.module.get_function, ("gemm_arrays", "gemm_packed_arrays"))
        self._threads = Listener(*map(self.module.get_function, ("set_threads", "borrow_threads")))
        self._held = max((strategy.l0.k for strategy in self.strategies if strategy.stage.held), default=0)
        dots = any(strategy.stage.dot for strategy in self.strategies)
        self._few = round(self.manifest.rates.dot_columns) if dots else 0

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        *,
        transpose_a: bool = False,
        transpose_b: bool = False,
        accumulate: bool = False,
    ) -> Any:
        """out (+)= op(a) op(b), float32.

        `a` is [m, k] ([k, m] with `transpose_a`), `b` is [k, n] ([n, k] with `transpose_b`) or the result of `pack`;
        rows or columns must be contiguous, the other stride is free. `out` is [m, n] with contiguous rows; without it
        one is allocated of the kind of `a`. With `accumulate` the product is added to `out`. Errors are VortexError and
        the built-in kind: ShapeError, DtypeError, ...
        """
        flags = TRANSPOSE_A if transpose_a else 0
        if transpose_b:
            flags |= TRANSPOSE_B
        if accumulate:
            if out is None:
                raise OperandError("accumulate=True without out: expected the matrix to add to; pass out=")
            flags |= ACCUMULATE
        if type(b) is PackedOperand:
            if (  # all that `_with_packed` asks of a call that succeeds: its two frames are a fifth of a small one
                type(a) is _ARRAY
                and type(out) is _ARRAY
                and b.identity is self._identity
                and not transpose_b
                and not self._packed_arrays(id(a), b.address, id(out), flags | b.flags, b.n, b.k)
            ):
                return out
            return self._with_packed(a, b, out, flags)
        if out is None:
            if type(a) in _makers or (type(a) is not _ARRAY and makes_tensors(type(a))):
                if gradients.recorded() and not tensors_alone(a, b, a):
                    refuse_gradients(a, b, out)
                try:
                    made = self._gemm_new(a, b, flags)
                except UNREADABLE:
                    made = UNREAD
                if type(made) is not int:
                    return made
                if made != UNREAD:
                    raise self._refusal(made, a, b, out)
            out = self._allocate(a, b, transpose_a, transpose_b)
        if type(a) is _ARRAY and type(b) is _ARRAY and type(out) is _ARRAY:
            status = self._arrays(id(a), id(b), id(out), flags)
            if not status:
                return out
            if status != UNREAD:
                raise self._refusal(status, a, b, out)
        elif gradients.recorded() and not tensors_alone(a, b, out):
            refuse_gradients(a, b, out)
        try:
            status = self._gemm(a, b, out, flags)
        except UNREADABLE:
            status = retry(self._gemm, a, b, out, flags)
        if status:
            raise self._refusal(status, a, b, out)
        return out

    def _with_packed(self, a: Any, b: PackedOperand, out: Any, flags: int) -> Any:
        flags = self._flags_with(b, flags)
        if out is None:
            if type(a) in _makers or (type(a) is not _ARRAY and makes_tensors(type(a))):
                if gradients.recorded() and not tensors_alone(a, a, a):
                    refuse_gradients(a, b, out)
                made = self.made(a, b, flags, ())
                if made is not None:
                    return made
            out = self._allocate(a, b, flags & TRANSPOSE_A != 0, False)
        if type(a) is _ARRAY and type(out) is _ARRAY:
            status = self._packed_arrays(id(a), b.address, id(out), flags, b.n, b.k)
            if not status:
                return out
            if status != UNREAD:
                raise self._refusal(status, a, b, out)
        elif gradients.recorded() and not tensors_alone(a, a, out):
            refuse_gradients(a, b, out)
        try:
            status = self._gemm_packed(a, b.memory, out, flags, b.n, b.k)
        except UNREADABLE:
            status = retry(self._gemm_packed, a, b.data, out, flags, b.n, b.k)
        if status:
            raise self._refusal(status, a, b, out)
        return out

    def _flags_with(self, b: PackedOperand, flags: int) -> int:
        """`flags`, and how `b` is packed."""
        if b.identity != self._identity:
            raise OperandError(f"b {b!r} was packed by another library; pack it again with this library's pack()")
        if flags & TRANSPOSE_B:
            raise OperandError("transpose_b with a packed operand: pack(b, transpose=True) has done it; drop the flag")
        return flags | b.flags

    def made(self, a: Any, b: Any, flags: int, extras: tuple[Any, ...]) -> Any:
        """The result in a tensor that native code makes, of the kind of `a`; None if it cannot read an operand."""
        data, n, k = (b.memory, b.n, b.k) if type(b) is PackedOperand else (b, 0, 0)
        try:
            made = self._gemm_new_packed(a, data, flags, n, k, *extras)
        except UNREADABLE:
            return None
        if type(made) is int:
            raise self._refusal(made, a, b, None, extras)
        return made

    def rows_by(self, b: PackedOperand, *extras: Any) -> Callable[[Any], Any]:
        """`a` [..., k], whose axes before the last are all rows, -> epilogue(a B) [..., n] in a new tensor.

        For layers of networks: no gradients are looked for, and `a` is of a kind that native code makes, as torch's
        tensors are. `extras` are the epilogue's operands per column. Raises ShapeError where the rows are no constant
        distance apart.
        """
        multiply, given = self._gemm_new_packed, (b.memory, self._flags_with(b, FOLDED), b.n, b.k, *extras)

        def rows(a: Any) -> Any:
            made = multiply(a, *given)
            if type(made) is int:
                raise self._refusal(made, a, b, None, extras)
            return made

        return rows

    def door_for(self, b: PackedOperand) -> tuple[Any, tuple[int, int, int]]:
        """The native function (a, b.memory, out, flags, n, k, operands of the epilogue...) -> status; its numbers."""
        return self._gemm_packed, (self._flags_with(b, 0), b.n, b.k)

    def pack(self, b: Any, *, transpose: bool = False) -> PackedOperand:
        """Lay a constant `b` ([k, n], or [n, k] with `transpose`) out for this library; use it with any m."""
        refuse_gradients(b, names=("b",))
        rows, columns = extents(b, "b")
        n, k = (rows, columns) if transpose else (columns, rows)
        self._check_fixed(n=n, k=k)
        panel, lanes, words = self.manifest.panel, self.manifest.lanes, WORDS.get(self.manifest.words)
        # A short k is for the held family, which reads rows of B; a single column is both.
        few = 0 < n <= self._few and words is None and (n == 1 or k > self._held)
        narrow = n <= max(panel, WIDEST_PANEL * lanes) and words is None
        flags = TRANSPOSE_B * transpose
        try:
            if few or narrow:
                # No panels: few columns are best read along k, by the dot family, and those of one panel are rows as
                # they are. Both on cache lines, so that no vector straddles two.
                lines, columns = (n, k) if few else (k, n)
                line = -(-columns // lanes) * lanes
                data = zeros_for_constants(lines * line).reshape(lines, line)[:, :columns]
                status = self._readable(exportable(b))
            else:
                lines = words.lines(k) if words else k
                data = zeros_for_constants(-(-n // panel) * lines * panel)
                data = data.view(np.int32) if words else data
                status = self._pack(exportable(b), data, flags)
        except UNREADABLE as error:
            raise unreadable(error, b=b) from error
        if status:
            raise self._refusal(status, None, b, None)
        if few or narrow:
            matrix = matrix_of(b)
            data[:] = matrix if transpose == few else matrix.T
        return PackedOperand(data, n, k, self._identity, transposed=few)

    def run(
        self,
        plan: LaunchPlan,
        a: Any,
        b: Any,
        out: Any,
        *,
        transpose_a: bool = False,
        transpose_b: bool = False,
        accumulate: bool = False,
        laps: bool = False,
    ) -> Any:
        """Run a plan instead of the selected one; same operands as a call, whose lines may overlap if it `laps`."""
        if not isinstance(plan, LaunchPlan):
            raise OperandError(f"plan is a {type(plan).__name__}; expected one of plans() or plan() of this library")
        refuse_gradients(a, b, out)
        if isinstance(b, PackedOperand) and b.data.ndim == 2:
            b, transpose_b = b.data, b.transposed
        data, n, k = (b.data, b.n, b.k) if isinstance(b, PackedOperand) else (b, 0, 0)
        flags = transpose_a * TRANSPOSE_A + transpose_b * TRANSPOSE_B + accumulate * ACCUMULATE + laps * LAPS
        operands = exportable(a), exportable(data), out, flags, n, k, int(data is not b)
        status = self._run_plan(plan)(*operands, *planned(plan))
        if status:
            raise self._refusal(status, a, b, out)
        return out

    def _run_plan(self, plan: LaunchPlan) -> Any:
        return self._regions if plan.regions else self._planned

    @cached_property
    def _regions(self) -> Any:
        return self.module.get_function("gemm_regions")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the library to one file, to be read by `vortex.load`."""
        write(self.library, Path(path))

    def __repr__(self) -> str:
        hardware, count, basis = self.manifest.hardware["name"], len(self.strategies), self.manifest.basis
        return f"<vortex {self.manifest.operator} for {hardware}: {count} strategies, L0 {basis}>"

    def _allocate(self, a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> Any:
        """An uninitialized result of the kind of `a`."""
        return allocated(a, product_extents(a, b, transpose_a, transpose_b))

    def _reason(self, status: int) -> Refusal:
        """What a number of the native door means."""
        kind, problem, remedy = REASONS[(status & 0xFF) - 1]
        return (
            (kind, f"{problem} ({self._told_fixed()})", remedy)
            if problem == FIXED_EXTENT[1]
            else (kind, problem, remedy)
        )

    def _refusal(self, status: int, a: Any, b: Any, out: Any, extras: tuple[Any, ...] = ()) -> VortexError:
        kind, problem, remedy = self._reason(status)
        place = status >> 8
        name, operand = OPERANDS[place], (a, b, out)[place]
        shapes = ", ".join(f"{n} {described(o)}" for n, o in zip(OPERANDS, (a, b, out), strict=True) if o is not None)
        return kind(f"{name} ({described(operand)}) {problem}; given {shapes}; {remedy}")
