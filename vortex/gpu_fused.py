"""The callable of a GPU library whose store stage does more than store: an epilogue, or another output type."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

from vortex import operators
from vortex.epilogue import Store
from vortex.errors import UnknownNameError
from vortex.gpu_device import Operands
from vortex.gpu_launcher import TRANSPOSE_A, TRANSPOSE_B, GpuGemm
from vortex.gpu_operands import refuse_gradients
from vortex.operands import OPERANDS
from vortex.steps import Operand

SHAPES = {"column": "[n]", "row": "[m]", "element": "[m, n]"}


class FusedGpuGemm(GpuGemm):
    """out = epilogue(A B) for any shape on a CUDA device: see `__call__`."""

    _shapes: ClassVar[Mapping[str, str]] = SHAPES
    """Of the tensors that an epilogue reads, by what they are given for."""

    @cached_property
    def store(self) -> Store:
        """What becomes of finished sums."""
        return operators.store_of(operators.rebuilt(self.manifest.operator, self.manifest.settings))

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """The tensors that a call must bring, in the order of the epilogue."""
        return self.store.chain.operands

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
        **operands: Any,
    ) -> Any:
        """out = epilogue(op(a) op(b)), queued on `stream`; everything else as for a plain product.

        `operands` are the tensors that the epilogue names: [n] per column, [m] per row, [m, n] per element, of any
        strides, none of which may overlap `out`. Sums are float32 up to the end of the epilogue.
        """
        if not self._handle:
            raise self._unusable()
        extras = self._in_order(operands)
        if out is None:
            out = self._allocate(a, b, transpose_a, transpose_b)
        given = (a, b, out, *extras)
        refuse_gradients(given, self._names)
        flags = TRANSPOSE_A * bool(transpose_a) + TRANSPOSE_B * bool(transpose_b)
        return self._in_full(given, flags, stream, workspace)

    def _in_order(self, operands: dict[str, Any]) -> Operands:
        """The tensors of the epilogue in the order of its steps; refuses missing and unknown ones."""
        names = [operand.name for operand in self.operands]
        unknown, missing = sorted(operands.keys() - set(names)), [name for name in names if name not in operands]
        if unknown or missing:
            expected = ", ".join(f"{x.name} {self._shapes[x.per]} {x.dtype}" for x in self.operands) or "none"
            what = f"unknown operand {unknown[0]!r}" if unknown else f"{missing[0]} is missing"
            raise UnknownNameError(f"{what}; the epilogue ({self.store.chain}) expects {expected}; pass just these")
        return tuple(operands[name] for name in names)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return (*OPERANDS, *(operand.name for operand in self.operands))

    @property
    def _out(self) -> str | None:
        return None if self.store.out == self._dtype(0) else self.store.out

    def _dtype(self, place: int) -> str:
        if place == OPERANDS.index("out"):
            return self.store.out
        if place < len(OPERANDS):
            return operators.rebuilt(self.manifest.operator, self.manifest.settings).storage
        return self.operands[place - len(OPERANDS)].dtype
