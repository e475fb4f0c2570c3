"""Store stage of L0 on CPUs: an epilogue on sums that are still in registers.

Where all of k is one step nobody needs the sums themselves: they are not written and read again, which takes a third
of the time of a short k. The steps are those of `cpu_store`, in the same order: bitwise the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.script import tirx as T

from vortex.codegen.cpu_store import SLOTS, Source, Vectors, apply, memory_type
from vortex.epilogue import MOST_OPERANDS, Store
from vortex.steps import Gelu, Silu

EXTRAS = ", const void *, int64_t" * MOST_OPERANDS
"""Of a function in C: the tensors that the steps read and their strides."""


def in_registers(store: Store) -> bool:
    """Whether there are kernels for it: a gelu or a silu has more constants than sums leave registers for."""
    return store.needed and not any(isinstance(step, Gelu | Silu) for step in store.chain.steps)


class Statements(Vectors):
    """The same as statements of the kernel in TVMScript that is being built."""

    def __init__(self, lanes: int, slots: Any) -> None:
        super().__init__(lanes)
        self.slots = slots

    def put(self, buffer: Any, value: Any, at: Any) -> None:
        T.buffer_store(buffer, value, [at])

    def do(self, call: Any) -> None:
        T.evaluate(call)


class Finish:
    """Statements in TVMScript that store vectors of sums, all rows of a vector of columns one after the other."""

    def __init__(self, store: Store, lanes: int) -> None:
        self.chain, self.lanes, self._out = store.chain, lanes, store.out
        dtypes = [operand.dtype for operand in self.chain.operands]
        self.memory = [memory_type(dtype) for dtype in (*dtypes, *["float32"] * (MOST_OPERANDS - len(dtypes)))]
        """Element types of the tensors that the steps read, of as many as there can be."""
        self.memory_out = memory_type(store.out)
        self.room = SLOTS * lanes, max(1, len(dtypes)) * lanes
        """Elements of two local buffers: of intermediates, and of what all rows share."""

    def begin(
        self, slots: Any, shared: Any, out: Any, ldo: Any, tensors: Sequence[Any], strides: Sequence[Any]
    ) -> None:
        """With the buffers of `room`, the output, and the tensors that the steps read, of as many as there can be."""
        self.vectors, self.shared, self.target = Statements(self.lanes, slots), shared, Source(self._out, out, ldo)
        found = zip(self.chain.operands, tensors, strides, strict=False)  # the steps read the first ones
        self.extras = [(operand, Source(operand.dtype, tensor, stride)) for operand, tensor, stride in found]

    def columns(self, column: Any, mask: Any) -> None:
        """Load what all rows share of the vector of columns from `column` on."""
        for place, (operand, tensor) in enumerate(self.extras):
            if operand.per == "column":
                self.vectors.put(self.shared, tensor.load(self.vectors, column, mask), self._at(place))

    def row(self, i: Any, column: Any, mask: Any, sums: Any) -> None:
        """Store the vector of row `i`."""
        operands = {
            operand.name: self.shared[self._at(place)]
            if operand.per == "column"
            else tensor.vector(self.vectors, operand.per, i, column, mask)
            for place, (operand, tensor) in enumerate(self.extras)
        }
        value = apply(self.vectors, self.chain, sums, operands)
        self.target.store(self.vectors, i * self.target.stride + column, mask, value)
        self.vectors.used = 0

    def _at(self, place: int) -> Any:
        return T.ramp(place * self.lanes, 1, self.lanes)
