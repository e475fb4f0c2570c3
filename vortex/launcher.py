"""The callable the user holds: hands operands to the native door and puts a refusal into words. No TVM, no search."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vortex import explain as explaining
from vortex import regions as polymers
from vortex.axes import fixed
from vortex.candidates import WIDEST_PANEL, dot_tiles
from vortex.dtypes import WORDS
from vortex.errors import OperandError, ShapeError, VortexError
from vortex.library import Library, write
from vortex.native import native_module
from vortex.operands import (
    FIXED_EXTENT,
    OPERANDS,
    REASONS,
    UNREADABLE,
    PackedOperand,
    Refusal,
    aligned_zeros,
    described,
    exportable,
    extents,
    refuse_gradients,
    retry,
    unreadable,
)
from vortex.operators import rebuilt
from vortex.selector import Grid, LaunchPlan, Shape
from vortex.shapes import select_arguments, shape_of, thread_count
from vortex.threads import Listener, get_num_threads

TRANSPOSE_A, TRANSPOSE_B, ACCUMULATE = 1, 2, 4
_ARRAY = np.ndarray
MAKES_TENSORS = "__dlpack_c_exchange_api__"
"""The attribute of classes, torch.Tensor for one, whose tensors native code may be able to make."""
UNMADE = -1


class GemmKernel:
    """C (+)= A B for any shape: see `__call__`. Safe to call from several threads at once."""

    packing = "pack"
    """The native function that lays a B out."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.manifest = library.manifest
        self._identity = library.identity
        self.module = module = native_module(library)
        calls, asked = ("gemm", "gemm_new", "gemm_packed", "gemm_planned"), ("readable", "select", "time_selection")
        (
            self._gemm,
            self._gemm_new,
            self._gemm_packed,
            self._planned,
            self._pack,
            self._readable,
            self._select,
            self._time,
        ) = (module.get_function(name) for name in (*calls, self.packing, *asked))
        self._threads = Listener(module.get_function("set_threads"), module.get_function("borrow_threads"))
        self._selector = self.manifest.selector()
        dots = any(strategy.stage.dot for strategy in self.strategies)
        self._few = max(dot_tiles(round(self.manifest.rates.registers))) if dots else 0
        self._fixed = fixed(rebuilt(self.manifest.operator, self.manifest.settings))

    @property
    def strategies(self) -> tuple[Any, ...]:
        """Every strategy that the selector chooses from."""
        return self.manifest.strategies

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
        if out is None:
            if accumulate:
                raise OperandError("accumulate=True without out: expected the matrix to add to; pass out=")
            if type(a) is not _ARRAY and type(b) is not PackedOperand and hasattr(type(a), MAKES_TENSORS):
                if getattr(a, "requires_grad", 0) or getattr(b, "requires_grad", 0):
                    refuse_gradients(a, b, out)
                try:
                    made = self._gemm_new(a, b, flags)
                except UNREADABLE:
                    made = UNMADE
                if type(made) is not int:
                    return made
                if made != UNMADE:
                    raise self._refusal(made, a, b, out)
            out = self._allocate(a, b, transpose_a, transpose_b)
        if accumulate:
            flags |= ACCUMULATE
        if type(a) is not _ARRAY or type(b) is not _ARRAY or type(out) is not _ARRAY:
            if type(b) is PackedOperand:
                return self._with_packed(a, b, out, flags)
            if getattr(a, "requires_grad", 0) or getattr(b, "requires_grad", 0) or getattr(out, "requires_grad", 0):
                refuse_gradients(a, b, out)
        try:
            status = self._gemm(a, b, out, flags)
        except UNREADABLE:
            status = retry(self._gemm, a, b, out, flags)
        if status:
            raise self._refusal(status, a, b, out)
        return out

    def _with_packed(self, a: Any, b: PackedOperand, out: Any, flags: int) -> Any:
        if b.identity != self._identity:
            raise OperandError(f"b {b!r} was packed by another library; pack it again with this library's pack()")
        if type(a) is not _ARRAY or type(out) is not _ARRAY:
            refuse_gradients(a, out, names=("a", "out"))
        if flags & TRANSPOSE_B:
            raise OperandError("transpose_b with a packed operand: pack(b, transpose=True) has done it; drop the flag")
        run, sizes = (self._gemm, ()) if b.data.ndim == 2 else (self._gemm_packed, (b.n, b.k))
        if b.transposed:
            flags |= TRANSPOSE_B
        try:
            status = run(a, b.data, out, flags, *sizes)
        except UNREADABLE:
            status = retry(run, a, b.data, out, flags, *sizes)
        if status:
            raise self._refusal(status, a, b, out)
        return out

    def pack(self, b: Any, *, transpose: bool = False) -> PackedOperand:
        """Lay a constant `b` ([k, n], or [n, k] with `transpose`) out for this library; use it with any m."""
        refuse_gradients(b, names=("b",))
        rows, columns = extents(b, "b")
        n, k = (rows, columns) if transpose else (columns, rows)
        self._check_fixed(n=n, k=k)
        panel, lanes, words = self.manifest.panel, self.manifest.lanes, WORDS.get(self.manifest.words)
        few = 0 < n <= self._few and words is None
        narrow = n <= max(panel, WIDEST_PANEL * lanes) and words is None
        flags = TRANSPOSE_B * transpose
        try:
            if few or narrow:
                # No panels: few columns are best read along k, by the dot family, and those of one panel are rows as
                # they are. Both on cache lines, so that no vector straddles two.
                lines, columns = (n, k) if few else (k, n)
                line = -(-columns // lanes) * lanes
                data = aligned_zeros(lines * line).reshape(lines, line)[:, :columns]
                status = self._readable(exportable(b))
            else:
                lines = words.lines(k) if words else k
                data = aligned_zeros(-(-n // panel) * lines * panel)
                data = data.view(np.int32) if words else data
                status = self._pack(exportable(b), data, flags)
        except UNREADABLE as error:
            raise unreadable(error, b=b) from error
        if status:
            raise self._refusal(status, None, b, None)
        if few or narrow:
            matrix = b if isinstance(b, np.ndarray) else np.from_dlpack(b)
            data[:] = matrix if transpose == few else matrix.T
        return PackedOperand(data, n, k, self._identity, transposed=few)

    def plan(self, m: int, n: int, k: int, *, threads: int | None = None, **operands: Any) -> LaunchPlan:
        """The plan that a call of this shape runs, chosen by the native selector. `operands`: see `shape_of`."""
        shape, count = self._shape(m, n, k, **operands), thread_count(threads)
        pattern, regions = self.native_regions(shape, count)
        if regions:
            return polymers.priced(self._selector, shape, count, pattern, regions)
        return self._priced(shape, *self.native_choice(shape, count), count)

    def polymerize(self, on: bool) -> None:
        """Whether calls may be served by several micro-kernels, each for a region of the output; at first they may.

        For all callers of the library. The last bits of a result whose residue is a region may be others without.
        """
        self.module.get_function("polymerizing")(int(on))

    def native_regions(self, shape: Shape, threads: int) -> tuple[int, list[list[int]]]:
        """The regions that the native selector cuts a call into, as `polymerize.priced` takes them; none for most."""
        ask, arguments = self.module.get_function("regions"), (*select_arguments(shape), threads)
        return polymers.chosen(lambda place: int(ask(*arguments, place)))

    def native_choice(self, shape: Shape, threads: int) -> tuple[int, Grid]:
        """What the native selector picks without regions: the index of a strategy, and the grid."""
        choice = int(self._select(*select_arguments(shape), threads))
        return choice & 0xFFFF, Grid((choice >> 16) & 0xFFFF, (choice >> 32) & 0xFFFF, choice >> 48)

    def plans(self, m: int, n: int, k: int, *, threads: int | None = None, **operands: Any) -> list[LaunchPlan]:
        """Every plan the selector chooses from for this shape, and the polymerized one if that is its choice."""
        chosen = self.plan(m, n, k, threads=threads, **operands)
        found = explaining.plans(self._selector, self._shape(m, n, k, **operands), thread_count(threads))
        return [chosen, *found] if chosen.regions else found

    def run(
        self, plan: LaunchPlan, a: Any, b: Any, out: Any, *, transpose_a: bool = False, transpose_b: bool = False
    ) -> Any:
        """Run a given plan instead of the selected one; same operands as a call."""
        if not isinstance(plan, LaunchPlan):
            raise OperandError(f"plan is a {type(plan).__name__}; expected one of plans() or plan() of this library")
        refuse_gradients(a, b, out)
        if isinstance(b, PackedOperand) and b.data.ndim == 2:
            b, transpose_b = b.data, b.transposed
        packed = isinstance(b, PackedOperand)
        data, n, k = (b.data, b.n, b.k) if packed else (b, 0, 0)
        flags = transpose_a * TRANSPOSE_A + transpose_b * TRANSPOSE_B
        operands = exportable(a), exportable(data), out, flags, n, k, int(packed)
        status = self._run_plan(plan)(*operands, *polymers.planned(plan))
        if status:
            raise self._refusal(status, a, b, out)
        return out

    def _run_plan(self, plan: LaunchPlan) -> Any:
        return self._regions if plan.regions else self._planned

    @cached_property
    def _regions(self) -> Any:
        return self.module.get_function("gemm_regions")

    def predict(self, m: Any, n: Any, k: Any, *, threads: int | None = None, **operands: Any) -> Any:
        """Predicted seconds of a call; arrays of extents are broadcast and give an array."""
        if np.ndim(m) == np.ndim(n) == np.ndim(k) == 0:
            return self.plan(m, n, k, threads=threads, **operands).seconds
        try:
            shapes = np.broadcast_arrays(m, n, k)
        except ValueError as error:
            raise ShapeError(f"m, n, k: {error}; expected arrays that broadcast") from error
        flat = [
            self.plan(x, y, z, threads=threads, **operands).seconds
            for x, y, z in zip(*(e.ravel() for e in shapes), strict=True)
        ]
        return np.array(flat).reshape(shapes[0].shape)

    def explain(self, m: int, n: int, k: int, *, threads: int | None = None, **operands: Any) -> explaining.Explanation:
        """The chosen strategy with each cost term, the runners-up, and what the sieve admitted."""
        plan = self.plan(m, n, k, threads=threads, **operands)
        shape = self._shape(m, n, k, **operands)
        return explaining.explain(self.manifest, self._selector, shape, plan, thread_count(threads))

    def cost_terms(self, plan: LaunchPlan, m: int, n: int, k: int, **operands: Any) -> dict[str, float]:
        """Predicted seconds of one plan, term by term."""
        return explaining.terms(self._selector, self._shape(m, n, k, **operands), plan)

    def time_selection(self, m: int, n: int, k: int, repeats: int, **operands: Any) -> float:
        """Seconds per selection in native code, the mean of `repeats`."""
        arguments = select_arguments(self._shape(m, n, k, **operands))
        return int(self._time(*arguments, get_num_threads(), repeats)) * 1e-9 / repeats

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the library to one file, to be read by `vortex.load`."""
        write(self.library, Path(path))

    def __repr__(self) -> str:
        hardware = self.manifest.hardware["name"]
        count, basis = len(self.strategies), self.manifest.basis
        return f"<vortex {self.manifest.operator} for {hardware}: {count} strategies, L0 {basis}>"

    def _shape(self, m: int, n: int, k: int, **operands: Any) -> Shape:
        self._check_fixed(m=m, n=n, k=k)
        return shape_of(m, n, k, **operands)

    def _check_fixed(self, **extents: int) -> None:
        """Refuse an extent that no call of this library has."""
        for axis, extent in extents.items():
            if self._fixed.get(axis, extent) != extent:
                raise ShapeError(f"{axis}={extent}: this library is for {self._told_fixed()} alone; {FIXED_EXTENT[2]}")

    def _told_fixed(self) -> str:
        return ", ".join(f"{axis}={extent}" for axis, extent in self._fixed.items())

    def _priced(self, shape: Shape, index: int, grid: Grid, threads: int) -> LaunchPlan:
        total = np.asarray(self._selector.costs(shape, grid, threads).total)
        return LaunchPlan(
            index, self.strategies[index], grid, float(total[index]), min(threads, grid.m * grid.n * grid.k)
        )

    def _allocate(self, a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> Any:
        """An uninitialized result of the kind of `a`."""
        try:
            m = a.shape[1 if transpose_a else 0]
            n = b.n if type(b) is PackedOperand else b.shape[0 if transpose_b else 1]
        except (AttributeError, IndexError, TypeError, RuntimeError):
            extents(a, "a")
            extents(b, "b")
            raise
        if type(a) is _ARRAY:
            return np.empty((m, n), np.float32)
        if hasattr(a, "new_empty"):
            return a.new_empty(m, n)
        if hasattr(a, "__array_namespace__"):
            return a.__array_namespace__().empty((m, n), dtype=a.dtype)
        if hasattr(a, "__dlpack__"):
            return np.empty((m, n), np.float32)
        raise OperandError(f"a is a {type(a).__name__}; expected a tensor; {REASONS[0][2]}")

    def _reason(self, status: int) -> Refusal:
        """What a number of the native door means."""
        kind, problem, remedy = REASONS[(status & 0xFF) - 1]
        return (
            (kind, f"{problem} ({self._told_fixed()})", remedy)
            if problem == FIXED_EXTENT[1]
            else (kind, problem, remedy)
        )

    def _refusal(self, status: int, a: Any, b: Any, out: Any) -> VortexError:
        kind, problem, remedy = self._reason(status)
        place = status >> 8
        name, operand = OPERANDS[place], (a, b, out)[place]
        shapes = ", ".join(f"{n} {described(o)}" for n, o in zip(OPERANDS, (a, b, out), strict=True) if o is not None)
        return kind(f"{name} ({described(operand)}) {problem}; given {shapes}; {remedy}")
