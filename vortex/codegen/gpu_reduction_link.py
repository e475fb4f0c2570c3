"""The host code of a GPU's library of reductions: selector and door in one shared library for any x86-64 processor."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path

import tvm_ffi

from vortex.codegen.link import RUNTIME, link
from vortex.errors import VortexError
from vortex.gpu_reduction import ReduceRates, ReduceSelector
from vortex.reduction_tiles import Family

MOST = 64
"""Tiles that a library may have: the room that selecting takes on the stack."""
RATES = tuple(field.name for field in fields(ReduceRates) if field.name != "fold")
"""Figures of the device that the selector reads, in the order of runtime/gpu_reduce.h."""
SOURCES = tuple(RUNTIME / name for name in ("gpu_reduce_select.c", "gpu_reduce.c", "gpu_opened.c"))


def tables(selector: ReduceSelector) -> str:
    """C source of the tiles and the figures of the device; what no view changes is computed here as the mirror does."""
    rates, rows = selector.rates, []
    if len(selector.blocks) > MOST:
        raise VortexError(f"{len(selector.blocks)} tiles of reductions; the selector takes at most {MOST}")
    for block, resident in zip(selector.blocks, selector.resident, strict=True):
        powers = [extent.bit_length() - 1 for extent in (block.rows, block.along, block.across)]
        edge = rates.start + rates.fold * math.log2(block.along)
        seconds = (edge.hex(), (edge * (1 / resident)).hex())
        numbers = (int(block.family is Family.COLUMNS), *powers, block.threads // 32, resident * rates.sms, *seconds)
        rows.append(f"{{{', '.join(map(str, numbers))}}}")
    figures = ", ".join(float(getattr(rates, name)).hex() for name in RATES)
    return "\n".join(
        [
            '#include "gpu_reduce.h"',
            f"const vx_gpu_reduce_tile vx_gpu_reduce_tiles[] = {{{', '.join(rows)}}};",
            f"const int32_t vx_gpu_reduce_count = {len(rows)};",
            f"const vx_gpu_reduce_rates vx_gpu_reduce_figures = {{{figures}}};",
            f'_Static_assert(VX_REDUCE_MOST == {MOST}, "gpu_reduce.h has another size");',
            "",
        ]
    )


def build(selector: ReduceSelector, folder: Path) -> bytes:
    """Link selector and door inside the working `folder`. Only DLPack's header is used of tvm-ffi."""
    table, target = folder / "gpu_reduce_tables.c", folder / "door.so"
    table.write_text(tables(selector))
    link(target, [], [table, *SOURCES], [Path(tvm_ffi.libinfo.find_include_path())])
    return target.read_bytes()
