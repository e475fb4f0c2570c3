"""The callable of GEMM with an epilogue, or of operands and outputs that are not float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from vortex import operators
from vortex.errors import DtypeError, OperandError, VortexError
from vortex.launcher import UNREAD, GemmKernel, makes_tensors, product_extents
from vortex.library import Library
from vortex.operands import (
    ACCUMULATE,
    OPERANDS,
    PACKED,
    TRANSPOSE_A,
    TRANSPOSE_B,
    UNREADABLE,
    PackedOperand,
    described,
    exportable,
    gradients,
    refuse_gradients,
    tensors_alone,
    zero_flags,
)
from vortex.plans import LaunchPlan, planned
from vortex.steps import Operand
from vortex.stored import WRONG_DTYPE, Stored


class FusedGemm(GemmKernel):
    """out = epilogue(A B) for any shape: see `__call__`. Safe to call from several threads at once."""

    def __init__(self, library: Library) -> None:
        super().__init__(library)
        store = operators.store_of(operators.rebuilt(self.manifest.operator, self.manifest.settings))
        self._stage = Stored(store, self.manifest.dtype)
        self._names = self._stage.names

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        *,
        transpose_a: bool = False,
        transpose_b: bool = False,
        accumulate: bool = False,
        zero_a: int = 0,
        **operands: Any,
    ) -> Any:
        """out = epilogue(op(a) op(b)); `a`, `b` and the flags as for a plain product.

        `operands` are the tensors that the epilogue names: contiguous [n] per column, [m] per row, [m, n] per element
        (rows any distance apart), none of which may overlap `out`. With `accumulate` the product is added to `out`
        before the epilogue; that needs an output of the sums' own type. `zero_a` is the element of an int8 or uint8 `a`
        that stands for 0: out = epilogue((a - zero_a) b). Integers and bfloat16 of `out` in NumPy:
        int8, uint8, int32, and uint16 or ml_dtypes for bfloat16. Raises as a plain product does.
        """
        extras = self._stage.in_order(operands)
        flags = TRANSPOSE_A * transpose_a + TRANSPOSE_B * transpose_b + ACCUMULATE * accumulate
        if zero_a:
            flags += zero_flags(zero_a)
        data, run = b, self._gemm
        sizes: tuple[int, ...] = ()
        if type(b) is PackedOperand:
            data, flags = b.memory, self._flags_with(b, flags)
            run, sizes = self._gemm_packed, (b.n, b.k)
        if out is None:
            if accumulate:
                raise OperandError("accumulate=True without out: expected the matrix to add to; pass out=")
            if makes_tensors(type(a)):
                if self._may_record(a, b, a, extras):
                    self._refuse_gradients(a, b, None, extras)
                made = self.made(a, b, flags, extras)
                if made is not None:
                    return made
            out = self._allocate(a, b, transpose_a, transpose_b)
        status = self._by_address(a, b, out, flags, sizes, extras)
        if not status:
            return out
        if status != UNREAD:
            raise self._refusal(status, a, b, out, extras)
        return self._stored(run, (a, data, out, flags, *sizes), extras, (a, b, out))

    def _by_address(self, a: Any, b: Any, out: Any, flags: int, sizes: tuple[int, ...], extras: tuple[Any, ...]) -> int:
        """The status of the call where all operands are arrays, and B one or packed (of these `sizes`); else UNREAD."""
        for operand in (a, out, *extras):
            if type(operand) is not np.ndarray:
                return UNREAD
        if sizes:
            status = self._packed_arrays(id(a), b.address, id(out), flags, *sizes, *map(id, extras))
        else:
            status = self._arrays(id(a), id(b), id(out), flags, *map(id, extras)) if type(b) is np.ndarray else UNREAD
        return int(status)

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
        zero_a: int = 0,
        **operands: Any,
    ) -> Any:
        """Run a given plan instead of the selected one; same operands as a call."""
        extras = self._stage.in_order(operands)
        flags = transpose_a * TRANSPOSE_A + transpose_b * TRANSPOSE_B + accumulate * ACCUMULATE + zero_flags(zero_a)
        data, n, k = b, 0, 0
        if type(b) is PackedOperand:
            data, flags, n, k = b.memory, self._flags_with(b, flags), b.n, b.k
        given = n, k, flags & PACKED != 0, *planned(plan)
        return self._stored(self._run_plan(plan), (a, data, out, flags, *given), extras, (a, b, out))

    def _stored(self, run: Any, arguments: tuple[Any, ...], extras: tuple[Any, ...], given: tuple[Any, ...]) -> Any:
        """Call the native door and return the output."""
        a, b, out = given
        if self._may_record(a, b, out, extras):
            self._refuse_gradients(a, b, out, extras)
        try:
            status = run(*arguments, *extras)
        except UNREADABLE:
            status = self._retry(run, arguments, extras, given)
        if status:
            raise self._refusal(status, a, b, out, extras)
        return out

    def _retry(self, run: Any, arguments: tuple[Any, ...], extras: tuple[Any, ...], given: tuple[Any, ...]) -> Any:
        """The same with arrays unlocked that are only read, and bfloat16 as its bits: DLPack carries neither."""
        if isinstance(out := given[2], np.ndarray) and not out.flags.writeable:
            raise OperandError("out is read-only; expected a writable array; pass a copy or set its writeable flag")
        try:
            return run(*map(exportable, arguments), *map(exportable, extras))
        except UNREADABLE as error:
            named = zip((*OPERANDS, *self._names), (*given, *extras), strict=True)
            told = ", ".join(f"{name} {described(operand)}" for name, operand in named)
            raise DtypeError(f"an operand cannot be read ({error}); given {told}; expected dense tensors") from error

    def _may_record(self, a: Any, b: Any, out: Any, extras: tuple[Any, ...]) -> bool:
        """Whether operations are recorded, and perhaps one of the operands is."""
        known = a if type(b) is PackedOperand else b
        return gradients.recorded() and (bool(extras) or not tensors_alone(a, known, out))

    def _refuse_gradients(self, a: Any, b: Any, out: Any, extras: tuple[Any, ...]) -> None:
        refuse_gradients(a, b, out, *extras, names=(*OPERANDS, *self._names))

    def _allocate(self, a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> Any:
        """An uninitialized result of the kind of `a`, in the element type of the output."""
        m, n = product_extents(a, b, transpose_a, transpose_b)
        return self._stage.allocated(a, (m, n))

    def _refusal(self, status: int, a: Any, b: Any, out: Any, extras: tuple[Any, ...] = ()) -> VortexError:
        """A refusal of the native door in words."""
        kind, problem, remedy = self._reason(status)
        given = (a, b, out, *(extras or (None,) * len(self._names)))
        place, names = status >> 8, (*OPERANDS, *self._names)
        if status & 0xFF == WRONG_DTYPE:
            remedy = f"{names[place]} is {self._stage.dtypes[place]} in this library; cast the operand"
        shapes = ", ".join(
            f"{name} {described(value)}" for name, value in zip(names, given, strict=True) if value is not None
        )
        return kind(f"{names[place]} ({described(given[place])}) {problem}; given {shapes}; {remedy}")

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The tensors that a call must bring, in the order of the epilogue."""
        return self._stage.store.chain.operands
