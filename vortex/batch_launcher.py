"""The callable of batched products, and what it has in common with that of grouped ones. No TVM, no search."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vortex import explain as explaining
from vortex.batch_operands import MANY_SHAPES, MOST_RANK, PackedMatrices, product_shape, refusal
from vortex.candidates import Strategy
from vortex.errors import OperandError, ShapeError
from vortex.fused import FusedGemm
from vortex.launcher import GemmKernel
from vortex.library import Library, write
from vortex.operands import (
    ACCUMULATE,
    OPERANDS,
    TRANSPOSE_A,
    TRANSPOSE_B,
    UNREADABLE,
    exportable,
    matrix_of,
    refuse_gradients,
    unreadable,
    zero_flags,
    zeros_for_constants,
)
from vortex.operators import BatchGemm, rebuilt, store_of
from vortex.plans import Grid, LaunchPlan, Shape
from vortex.shapes import select_arguments, shape_of, thread_count
from vortex.stored import Stored
from vortex.threads import get_num_threads

ZEROS = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "int8": np.int8}
"""What no B at all is packed as."""


class Products:
    """What both callables have: a library, packing, prediction."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.manifest = library.manifest
        self.operator: Any = rebuilt(self.manifest.operator, self.manifest.settings)
        self._stage = Stored(store_of(self.operator), self.manifest.dtype, MANY_SHAPES)
        plain = self.manifest.dtype == "float32" and not self._stage.store.needed
        self.gemm = GemmKernel(library) if plain else FusedGemm(library)
        self._identity = library.identity
        self._selector = self.manifest.selector()
        self._select, self._time = map(self.gemm.module.get_function, ("select_batch", "time_select_batch"))

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        """Every strategy that the selector chooses from."""
        return self.manifest.strategies

    def pack(self, b: Any, *, transpose: bool | None = None) -> PackedMatrices:
        """Lay constant B's ([..., k, n], or [..., n, k] with `transpose`) out for this library; use them with any m."""
        refuse_gradients(b, names=("b",))
        transpose = self.operator.transpose_b if transpose is None else transpose
        if not hasattr(b, "__getitem__") or not hasattr(b, "shape"):
            try:
                b = matrix_of(b)
            except (*UNREADABLE, AttributeError) as error:
                raise unreadable(error, b=b) from error
        if not 2 <= len(b.shape) <= MOST_RANK:
            raise ShapeError(f"b has shape {tuple(b.shape)}; expected 2 to {MOST_RANK} dimensions; reshape it")
        batch, places = tuple(b.shape[:-2]), list(np.ndindex(*b.shape[:-2]))
        one = self.gemm.pack(
            b[places[0]] if places else np.zeros(b.shape[-2:], ZEROS[self.manifest.dtype]), transpose=transpose
        )
        shape = one.data.shape
        line = one.data.strides[0] // 4 if len(shape) == 2 and shape[1] else shape[-1]
        room = zeros_for_constants(len(places) * int(np.prod(shape[:-1])) * line).view(one.data.dtype)
        data = room.reshape(*batch, *shape[:-1], line)[..., : shape[-1]]
        for place in places:
            data[place] = self.gemm.pack(b[place], transpose=transpose).data
        return PackedMatrices(data, batch, one.n, one.k, self._identity, one.transposed)

    def native_choice(self, shape: Shape, threads: int) -> tuple[int, Grid, int]:
        """What the native selector picks: the index of a strategy, the grid, and how many threads share the tasks."""
        choice = int(self._select(*asked(shape, threads)))
        grid = Grid((choice >> 16) & 0xFFFF, (choice >> 32) & 0xFFFF, choice >> 48)
        workers = min(threads, shape.batch * grid.m * grid.n * grid.k) if choice & 0x8000 else 1
        return choice & 0x7FFF, grid, workers

    def seconds_to_select(self, shape: Shape, repeats: int) -> float:
        """Seconds of one choice in native code with the threads of a call, the mean of `repeats`."""
        return int(self._time(*asked(shape, get_num_threads()), repeats)) * 1e-9 / repeats

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the library to one file, to be read by `vortex.load`."""
        write(self.library, Path(path))

    def __repr__(self) -> str:
        hardware, count, basis = self.manifest.hardware["name"], len(self.strategies), self.manifest.basis
        return f"<vortex {self.manifest.operator} for {hardware}: {count} strategies, L0 {basis}>"

    def _flags(self, transpose_a: bool | None, transpose_b: bool | None, accumulate: bool, zero_a: int, b: Any) -> int:
        flags = (ACCUMULATE if accumulate else 0) + zero_flags(zero_a)
        if self.operator.transpose_a if transpose_a is None else transpose_a:
            flags |= TRANSPOSE_A
        if type(b) is PackedMatrices:
            if b.identity != self._identity:
                raise OperandError(f"b {b!r} was packed by another library; pack it again with this library's pack()")
            if transpose_b:
                raise OperandError(
                    "transpose_b with packed operands: pack(b, transpose=True) has done it; drop the flag"
                )
            return flags | (TRANSPOSE_B if b.transposed else 0)
        if self.operator.transpose_b if transpose_b is None else transpose_b:
            flags |= TRANSPOSE_B
        return flags

    def _run(self, function: Any, a: Any, b: Any, out: Any, flags: int, extras: tuple[Any, ...], *more: Any) -> Any:
        data, packed, n, k = (b.data, int(b.has_panels), b.n, b.k) if type(b) is PackedMatrices else (b, 0, 0, 0)
        if extras or not type(a) is type(data) is type(out) is np.ndarray:
            refuse_gradients(a, data, out, *extras, names=(*OPERANDS, *self._stage.names))
        numbers = flags, packed, n, k, *more
        try:
            status = function(a, data, out, *numbers, *extras)
        except UNREADABLE:
            if isinstance(out, np.ndarray) and not out.flags.writeable:
                raise OperandError(
                    "out is read-only; expected a writable array; pass a copy or set its writeable flag"
                ) from None
            try:
                status = function(*map(exportable, (a, data, out)), *numbers, *map(exportable, extras))
            except UNREADABLE as error:
                named = dict(zip(self._stage.names, extras, strict=True))
                raise unreadable(error, a=a, b=b, out=out, **named) from error
        if status:
            raise refusal(status, a, b, out, self._stage, extras)
        return out

    def plan_of(self, shape: Shape, threads: int) -> LaunchPlan:
        """The native selector's choice and what it is predicted to take."""
        index, grid, workers = self.native_choice(shape, threads)
        total = np.asarray(self._selector.costs(shape, grid, workers).total)
        return LaunchPlan(index, self.strategies[index], grid, float(total[index]), workers)

    def _shape(self, m: int, n: int, k: int, operands: dict[str, Any]) -> Shape:
        """The shape of one product, lying as the operator says unless `operands` say otherwise."""
        lie = {"transpose_a": self.operator.transpose_a, "transpose_b": self.operator.transpose_b}
        return shape_of(m, n, k, **{**lie, **operands})


def asked(shape: Shape, threads: int) -> tuple[int, ...]:
    """What the native selector is told of products side by side."""
    return *select_arguments(shape), threads, shape.batch, shape.items_a or shape.batch, shape.items_b or shape.batch


class BatchGemmKernel(Products):
    """C (+)= A B for any shape and batch: see `__call__`. Safe to call from several threads at once."""

    operator: BatchGemm

    def __init__(self, library: Library) -> None:
        super().__init__(library)
        self._batch_gemm = self.gemm.module.get_function("batch_gemm")
        self._planned = self.gemm.module.get_function("batch_gemm_planned")

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        *,
        transpose_a: bool | None = None,
        transpose_b: bool | None = None,
        accumulate: bool = False,
        zero_a: int = 0,
        **operands: Any,
    ) -> Any:
        """out (+)= op(a) op(b), then its epilogue; element types are the operator's.

        `a` is [..., m, k] ([..., k, m] with `transpose_a`), `b` is [..., k, n] ([..., n, k] with `transpose_b`) or the
        result of `pack`, each with up to two batch axes, which broadcast. Of the last two axes one must be contiguous;
        all other strides are free, so that [batch, seq, heads, dim] may be permuted to [batch, heads, seq, dim].
        `out` is [..., m, n] with contiguous rows; without it one is allocated of the kind of `a`. With `accumulate` the
        products are added to `out`. `operands` are the tensors that the epilogue names, [..., n] per column, [..., m]
        per row, [..., m, n] per element, whose batch axes broadcast as those of `a` do. `zero_a` is the element of an
        int8 or uint8 `a` that stands for 0.
        Errors are VortexError and the built-in kind: ShapeError, DtypeError, ...
        """
        extras = self._stage.in_order(operands)
        flags = self._flags(transpose_a, transpose_b, accumulate, zero_a, b)
        if out is None:
            if accumulate:
                raise OperandError("accumulate=True without out: expected matrices to add to; pass out=")
            out = self._stage.allocated(a, product_shape(a, b, flags))
        return self._run(self._batch_gemm, a, b, out, flags, extras)

    def plan(self, batch: int, m: int, n: int, k: int, *, threads: int | None = None, **operands: Any) -> LaunchPlan:
        """The plan of `batch` products, chosen by the native selector.

        `items_a`, `items_b`: how many A's and B's there are, if some are shared. `operands`: see `shapes.shape_of`;
        without transposes they lie as the operator says. Axes that a call folds into rows or columns (products that all
        share one B, with rows of A and of C that follow each other) are to be given as such.
        """
        return self.plan_of(self.shape(batch, m, n, k, **operands), thread_count(threads))

    def plans(
        self, batch: int, m: int, n: int, k: int, *, threads: int | None = None, **operands: Any
    ) -> list[LaunchPlan]:
        """Every plan the selector chooses from for these products, cheapest first; arguments as for `plan`."""
        shape = self.shape(batch, m, n, k, **operands)
        return explaining.plans(self._selector, shape, thread_count(threads))

    def explain(
        self, batch: int, m: int, n: int, k: int, *, threads: int | None = None, **operands: Any
    ) -> explaining.Explanation:
        """The chosen strategy with each cost term, the runners-up, what the sieve admitted; arguments as for `plan`."""
        shape, count = self.shape(batch, m, n, k, **operands), thread_count(threads)
        return explaining.explain(self.manifest, self._selector, shape, self.plan_of(shape, count), count)

    def predict(self, batch: int, m: int, n: int, k: int, **operands: Any) -> float:
        """Predicted seconds of a call; arguments as for `plan`."""
        return self.plan(batch, m, n, k, **operands).seconds

    def time_selection(self, batch: int, m: int, n: int, k: int, repeats: int, **operands: Any) -> float:
        """Seconds per selection in native code, the mean of `repeats`; other arguments as for `plan`."""
        return self.seconds_to_select(self.shape(batch, m, n, k, **operands), repeats)

    def run(
        self,
        plan: LaunchPlan,
        a: Any,
        b: Any,
        out: Any,
        *,
        transpose_a: bool | None = None,
        transpose_b: bool | None = None,
        accumulate: bool = False,
        zero_a: int = 0,
        **operands: Any,
    ) -> Any:
        """Run a given plan on every product as it is, none of them folded; same operands as a call."""
        flags = self._flags(transpose_a, transpose_b, accumulate, zero_a, b)
        how = plan.index, plan.grid.m, plan.grid.n, plan.workers
        return self._run(self._planned, a, b, out, flags, self._stage.in_order(operands), *how)

    def shape(self, batch: int, m: int, n: int, k: int, items_a: int = 0, items_b: int = 0, **operands: Any) -> Shape:
        """The shape of a batch as the selector sees it; an empty one is priced as one product."""
        shape, products = self._shape(m, n, k, operands), max(batch, 1)
        if batch < 0 or not (0 <= items_a <= products and 0 <= items_b <= products):
            raise ShapeError(
                f"batch={batch!r}, items_a={items_a!r}, items_b={items_b!r}: expected a batch of at least 0, and no "
                "more A's and B's than products"
            )
        return replace(shape, batch=products, items_a=items_a, items_b=items_b)
