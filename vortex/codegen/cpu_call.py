"""What a nest calls of L0: a register tile, and the store stage of it."""

from collections.abc import Callable
from typing import Any

from tvm.script import tirx as T

from vortex.codegen.cpu_finish import in_registers
from vortex.codegen.cpu_kernels import dispatch_symbol
from vortex.epilogue import Store

STORE_SYMBOL, FINISH_SYMBOL = "vortex_store", "vortex_finish"
"""The store stage on sums in memory, of `runtime/`, and a finishing micro-kernel."""


def tile_called(layout: str, lanes: int, stored: Store) -> Callable[..., None]:
    """Statements in TVMScript: a register tile of A by `layout`, by a micro-kernel that keeps B if `keeping` holds, and
    if `stored` is needed the store stage of it, from `row` and `column` of C on unless `finish` is 0."""
    one, keeping_one = dispatch_symbol(layout), dispatch_symbol(layout, True)
    stores, finishes = stored.needed, in_registers(stored) and layout != "col"

    def through_memory(finish: Any) -> Any:
        return finish != 2 if finishes else True

    @T.inline
    def call(
        of_a: Any,
        of_b: Any,
        of_c: Any,
        height: Any,
        wide: Any,
        kb: Any,
        step: Any,
        apart: Any,
        ldc: Any,
        how: Any,
        coming: Any,
        every: Any,
        beyond: Any,
        keeping: Any,
        kept: Any,
        finish: Any,
        store: Any,
        row: Any,
        column: Any,
    ) -> None:
        vecs: T.let[T.int64] = T.truncdiv(wide + lanes - 1, T.int64(lanes))
        last: T.let[T.int32] = T.Cast("int32", wide - (vecs - 1) * lanes)
        size = T.meta_var((T.Cast("int32", height), T.Cast("int32", vecs)))
        if finishes:  # noqa: SIM102
            if finish == 2:
                inputs = T.meta_var((of_a, of_b, kb, step, apart, last, coming, every))
                T.evaluate(T.call_extern("int32", FINISH_SYMBOL, *size, *inputs, store, row, column))
        if through_memory(finish):
            tile = T.meta_var((of_a, of_b, of_c, kb, step, apart, ldc, last, how, coming, every, beyond, kept))
            if keeping:
                T.evaluate(T.call_extern("int32", keeping_one, *tile, *size))
            else:
                T.evaluate(T.call_extern("int32", one, *tile, *size))
            if stores:  # noqa: SIM102
                if finish != 0:
                    T.evaluate(T.call_extern("int32", STORE_SYMBOL, store, of_c, ldc, row, column, height, wide))

    return call
