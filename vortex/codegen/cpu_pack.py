"""B at L1 of CPUs: where it lies, and the load stage of a plain or transposed one, a cache tile into panels of the
CacheBuffer."""

from typing import Any

from tvm.script import tirx as T

from vortex.codegen.cpu_load import COPY_SYMBOL, TRANSPOSE_SYMBOL
from vortex.codegen.cpu_tile import LINE, fetch

COPIED_AHEAD = 4096
"""Elements of B that its copy is ahead of itself: each row is a page of its own, which hardware does not follow."""
ROWS = 8
"""Rows of B that are copied at once where a vector is half a line: as many streams, and as many lines of a panel that
follow each other. A Zen 2 takes, with what is asked for ahead or nothing, for 8 MB of rows 8 KiB apart in pieces of
2 and 4 KiB 0.35 to 0.46 ns an element one after the other and 0.23 to 0.27 so, for 67 MB of rows 16 KiB apart in pieces
of 0.5 to 4 KiB 1.0 to 0.55 and 0.88 to 0.40; 4 and 16 rows take up to 1.3 times as long. Other cores were not asked."""
EITHER_SYMBOL = "vortex_either"
EITHER_IR = f"""define weak_odr hidden ptr @{EITHER_SYMBOL}(i32 %first, ptr %one, ptr %other) #0 {{
  %is_first = icmp ne i32 %first, 0
  %chosen = select i1 %is_first, ptr %one, ptr %other
  ret ptr %chosen
}}
attributes #0 = {{ alwaysinline nounwind }}
"""
"""LLVM text that a module of nests needs: TVM's own choice is of numbers."""


def place_of_b(column: Any, row: Any, panel: Any, panel_stride: Any, ldb: Any) -> Any:
    """Where an element of B is: in panels, or in a plain matrix, whose `panel` is past its last column."""
    return T.truncdiv(column, panel) * panel_stride + row * ldb + T.truncmod(column, panel)


def either(first: Any, one: Any, other: Any) -> Any:
    """Where the element `one` is if `first` holds, else where `other` is."""
    return T.call_extern("handle", EITHER_SYMBOL, T.Cast("int32", first), T.address_of(one), T.address_of(other))


@T.inline
def copy_b(B: Any, SB: Any, ldb: Any, p0: Any, j0: Any, kb: Any, nb: Any, width: Any, row: Any, stride: Any) -> None:
    """kb x nb elements of B from (p0, j0) on into panels `stride` apart: row by row over all of them, as B lies in
    memory, not in runs one panel wide."""
    whole: T.let[T.int64] = T.truncdiv(nb, width)
    lead: T.let[T.int64] = T.truncdiv(COPIED_AHEAD, nb) + 1
    for p in T.serial(kb):
        for q in T.serial(T.truncdiv(nb + LINE - 1, LINE)):
            T.evaluate(fetch(T.address_of(B[(p0 + p + lead) * ldb + j0 + q * LINE]), cache=2))
        T.evaluate(
            T.call_extern(
                "int32",
                COPY_SYMBOL,
                T.address_of(B[(p0 + p) * ldb + j0]),
                T.address_of(SB[p * row]),
                whole,
                width,
                width,
                stride,
            )
        )
        if whole * width < nb:
            T.evaluate(
                T.call_extern(
                    "int32",
                    COPY_SYMBOL,
                    T.address_of(B[(p0 + p) * ldb + j0 + whole * width]),
                    T.address_of(SB[whole * stride + p * row]),
                    T.int64(1),
                    nb - whole * width,
                    width,
                    width,
                )
            )


@T.inline
def copy_rows(B: Any, SB: Any, ldb: Any, p0: Any, j0: Any, kb: Any, nb: Any, width: Any, row: Any, stride: Any) -> None:
    """The same, ROWS at once."""
    for p in T.serial(T.truncdiv(kb + ROWS - 1, ROWS)):
        for t in T.serial(T.truncdiv(nb + width - 1, width)):
            T.evaluate(
                T.call_extern(
                    "int32",
                    COPY_SYMBOL,
                    T.address_of(B[(p0 + p * ROWS) * ldb + j0 + t * width]),
                    T.address_of(SB[t * stride + p * ROWS * row]),
                    T.min(T.int64(ROWS), kb - p * ROWS),
                    T.min(width, nb - t * width),
                    ldb,
                    row,
                )
            )


@T.inline
def transpose_b(
    B: Any, SB: Any, ldb: Any, p0: Any, j0: Any, kb: Any, nb: Any, width: Any, row: Any, stride: Any
) -> None:
    """The same of a transposed B, panel by panel."""
    for t in T.serial(T.truncdiv(nb + width - 1, width)):
        T.evaluate(
            T.call_extern(
                "int32",
                TRANSPOSE_SYMBOL,
                T.address_of(B[(j0 + t * width) * ldb + p0]),
                T.address_of(SB[t * stride]),
                kb,
                T.min(width, nb - t * width),
                ldb,
                row,
            )
        )
