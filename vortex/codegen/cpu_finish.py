"""Store stage of L0 on CPUs: an epilogue on sums that are still in registers.

Where all of k is one step nobody needs the sums themselves: they are not written and read again, which takes a third
of the time of a short k. The steps are those of `cpu_store`, in the same order: bitwise the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tvm.script import tirx as T

from vortex.codegen.cpu_store import SLOTS, Source, Vectors, apply, memory_type
from vortex.epilogue import MOST_OPERANDS, Store
from vortex.steps import Gelu, Silu

EXTRAS = ", const void *, int64_t" * MOST_OPERANDS
"""Of a function in C: the tensors that the steps read and their strides."""


def in_registers(store: Store) -> bool:
    """Whether there are kernels for it. A gelu or a silu takes as many instructions as 16 steps of k, and has more
    constants than sums leave registers for: nothing is gained (1.2 to 2.0 of a plain product of k <= 64 either way)."""
    return store.needed and not any(isinstance(step, Gelu | Silu) for step in store.chain.steps)


def finishing_shapes(shapes: Iterable[tuple[int, int]], store: Store) -> tuple[tuple[int, int], ...]:
    """Of these (rows, vectors), those of micro-kernels that finish their sums: all or none."""
    return tuple(sorted(shapes)) if in_registers(store) else ()


def finishing_symbol(rows: int, vectors: int) -> str:
    return f"vortex_l0_finish_{rows}x{vectors}"


def finish_table(shapes: Sequence[tuple[int, int]]) -> list[str]:
    """C source that hands the micro-kernels of these (rows, vectors) to `runtime/finish.c`."""
    sizes = "int64_t, int64_t, int64_t, int64_t, int32_t"
    arguments = f"(const float *, const float *, void *, {sizes}, const float *, int64_t, int32_t{EXTRAS})"
    entries = ", ".join(f"[{vectors}][{rows}] = {finishing_symbol(rows, vectors)}" for rows, vectors in shapes)
    largest = max((extent for shape in shapes for extent in shape), default=0)
    return [
        *(f"extern int32_t {finishing_symbol(*shape)}{arguments};" for shape in shapes),
        f"const vx_finish vx_finish_tiles[VX_FINISH_MOST][VX_FINISH_MOST] = {{{entries or 0}}};",
        f"const int32_t vx_finishes = {int(bool(shapes))};",
        f'_Static_assert({largest} < VX_FINISH_MOST, "a register tile larger than the table of those that finish");',
    ]


class Statements(Vectors):
    """The same as statements of the kernel in TVMScript that is being built."""

    def __init__(self, lanes: int, slots: Any, rounds: bool = False) -> None:
        super().__init__(lanes, rounds)
        self.slots = slots

    def put(self, buffer: Any, value: Any, at: Any) -> None:
        T.buffer_store(buffer, value, [at])

    def do(self, call: Any) -> None:
        T.evaluate(call)


class Finish:
    """Statements in TVMScript that store vectors of sums, all rows of a vector of columns one after the other."""

    def __init__(self, store: Store, lanes: int, rounds: bool = False) -> None:
        self.chain, self.lanes, self.out, self.rounds = store.chain, lanes, store.out, rounds

    def match(self, rows: Any, out: Any, ldo: Any, tensors: Sequence[Any], strides: Sequence[Any]) -> None:
        """The output and what the steps read, the first ones of `tensors`: parameters of the kernel."""

        def source(dtype: str, tensor: Any, stride: Any) -> Source:
            return Source(dtype, T.match_buffer(tensor, (rows * stride,), memory_type(dtype), align=1), stride)

        self.target = source(self.out, out, ldo)
        found = zip(self.chain.operands, tensors, strides, strict=False)
        self.extras = [(operand, source(operand.dtype, tensor, stride)) for operand, tensor, stride in found]

    def allocate(self) -> None:
        """Room for intermediates, and for what all rows share."""
        shared = max(1, len(self.chain.operands))
        slots = T.sblock_alloc_buffer((SLOTS * self.lanes,), "float32", scope="local")
        self.vectors = Statements(self.lanes, slots, self.rounds)
        self.shared = T.sblock_alloc_buffer((shared * self.lanes,), "float32", scope="local")

    def columns(self, column: Any, mask: Any) -> None:
        """Load what all rows share of the vector of columns from `column` on."""
        for place, (operand, tensor) in enumerate(self.extras):
            if operand.per == "column":
                self.vectors.put(self.shared, tensor.load(self.vectors, column, mask), self._at(place))

    def row(self, i: Any, column: Any, mask: Any, sums: Any, past: Any = None) -> None:
        """Store the vector of row `i`; past the caches where `past` holds and outputs are float32."""
        operands = {
            operand.name: self.shared[self._at(place)]
            if operand.per == "column"
            else tensor.vector(self.vectors, operand.per, i, column, mask)
            for place, (operand, tensor) in enumerate(self.extras)
        }
        value, place = apply(self.vectors, self.chain, sums, operands), i * self.target.stride + column
        if self.out == "float32" and past is not None:
            value = self.vectors.keep(value)
            with T.If(past):
                with T.Then():
                    self.target.stream(self.vectors, place, value)
                with T.Else():
                    self.target.store(self.vectors, place, mask, value)
        else:
            self.target.store(self.vectors, place, mask, value)
        self.vectors.used = 0

    def address(self, i: Any, column: Any) -> Any:
        """Of an element of the output."""
        return self.target.address(i * self.target.stride + column)

    def _at(self, place: int) -> Any:
        return T.ramp(place * self.lanes, 1, self.lanes)
