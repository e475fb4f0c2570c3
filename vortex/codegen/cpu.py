"""Objects and strategies in, a shared library out: tables that the runtime finds by name, and the link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import tvm_ffi
from tvm import tirx

from vortex.arithmetic import Array
from vortex.codegen.cpu_abreast import abreast_table
from vortex.codegen.cpu_dot import dot_table
from vortex.codegen.cpu_finish import EXTRAS, finish_table
from vortex.codegen.cpu_held import held_table
from vortex.codegen.cpu_kernels import LAYOUTS, dispatch_symbol, dispatch_table
from vortex.codegen.cpu_load import COPY_SYMBOL, TRANSPOSE_SYMBOL
from vortex.codegen.cpu_nest import LoadStage
from vortex.codegen.cpu_objects import STAGES, Parts, keeping_tiles, load_stages, tiles_of
from vortex.codegen.cpu_store import store_symbols
from vortex.codegen.cpu_streamed import streamed_table
from vortex.codegen.cpu_tile import QUADS
from vortex.codegen.cpu_words_objects import word_defines, word_table
from vortex.codegen.link import RUNTIME, link
from vortex.codegen.lower import compile_object, cpu_target
from vortex.codegen.object_cache import ObjectCache
from vortex.codegen.selector import Shortlist, padded_columns, ways
from vortex.dtypes import WordFormat
from vortex.epilogue import Store
from vortex.families import PANELS
from vortex.plans import OperandB
from vortex.selector import Selector
from vortex.steps import PER

SOURCES = (
    "threads.c", "threads_door.c", "scratch.c", "store.c", "finish.c", "split.c", "execute.c", "nest.c", "dot.c",
    "held.c", "streamed.c", "abreast.c", "ahead.c", "regions.c", "batch.c", "grouped.c", "select.c", "ways.c",
    "polymerize.c", "recall.c", "door.c", "pack_door.c", "plans_door.c", "batch_door.c",
)  # fmt: skip
"""Of `runtime/`: every library of products has the doors of all of them, so that one serves a batch as well."""
WORD_SOURCES = (
    "threads.c", "threads_door.c", "scratch.c", "store.c", "split.c", "words.c", "held.c", "dot.c", "ahead.c",
    "batch.c", "grouped.c", "select.c", "ways.c", "recall.c", "door.c", "pack_door.c", "plans_door.c", "batch_door.c",
)  # fmt: skip
WEIGHT_SOURCES = (*WORD_SOURCES, "weights.c")


def measuring_table(shapes: Sequence[tuple[int, int]], lanes: int) -> str:
    """C source that hands the emitted functions to `runtime/measure.c`, which times A by rows, by micro-kernels of
    these (rows, vectors)."""
    timed = dispatch_symbol(LAYOUTS[0])
    return "\n".join(
        [
            "#include <stdint.h>",
            *dispatch_table(tiles_of(LAYOUTS[0], shapes)),
            f"extern int32_t {COPY_SYMBOL}(), {TRANSPOSE_SYMBOL}();",
            "typedef int32_t (*any)();",
            "static int32_t compute(int32_t rows, int32_t vectors, const void *a, const void *b, void *c,",
            "    int64_t depth, int64_t lda, int64_t ldb, int64_t ldc, int32_t last, int32_t accumulate) {",
            f"  return {timed}(a, b, c, depth, lda, ldb, ldc, last, accumulate, b, depth, ldb, 0, rows, vectors);",
            "}",
            f"static any const layouts[] = {{(any)compute}}, loads[] = {{{COPY_SYMBOL}, {TRANSPOSE_SYMBOL}}};",
            "any const *vx_l0_layouts(void) { return layouts; }",
            "any const *vx_load_stages(void) { return loads; }",
            f"int64_t vx_measured_lanes(void) {{ return {lanes}; }}",
            "",
        ]
    )


ELEMENTS = {
    "float32": (2, 32), "float16": (2, 16), "bfloat16": (4, 16), "int8": (0, 8), "uint8": (1, 8), "int32": (0, 32)
}  # fmt: skip
"""Code and bits of an element type, as DLPack numbers them."""


def store_table(store: Store) -> list[str]:
    """C source of what the store stage takes and gives."""
    operands = store.chain.operands
    entries = [f"{{{code}, {bits}, {PER.index(x.per)}}}" for x in operands for code, bits in [ELEMENTS[x.dtype]]]
    code, bits = ELEMENTS[store.out]
    signature = f"(const void *, void *, int64_t, int64_t, int64_t, int64_t{EXTRAS})"
    stage, past, *_ = *store_symbols(store), "0", "0"
    return [
        *(f"extern int32_t {symbol}{signature};" for symbol in store_symbols(store)),
        f"const vx_epilogue vx_store_stage = {stage}, vx_store_past = {past};",
        f"const int32_t vx_apart = {int(store.apart)};",
        f"const vx_operand vx_out = {{{code}, {bits}, VX_PER_ELEMENT}};",
        f"const vx_operand vx_operands[VX_EXTRAS] = {{{', '.join(entries) or '{0}'}}};",
        f"const int64_t vx_operand_count = {len(operands)};",
    ]


def library_table(selector: Selector, parts: Parts, least_parallel: float) -> str:
    """C source of everything `runtime/` finds in its library by name: strategies, cost columns, slopes, nests."""
    lanes, count = selector.lanes, len(selector.strategies)
    rows = ", ".join(
        f"{{{s.l0.m}, {s.vectors(lanes)}, {s.l1.m}LL, {s.l1.n}LL, {s.l1.k}LL, "
        f"{', '.join(str(int(flag)) for flag in astuple(s.stage))}}}"
        for s in selector.strategies
    )
    words = selector.words
    extents = ", ".join(str(parts.fixed.get(axis, 0)) for axis in "mnk")
    return "\n".join(
        [
            '#include "vortex_runtime.h"',
            f"const vx_strategy vx_strategies[] = {{{rows}}};",
            f"const int64_t vx_strategy_count = {count}, vx_lanes = {lanes}, vx_panel = {selector.panel};",
            f"const int64_t vx_panels_rows = {max(PANELS)};",
            *(f"const int64_t vx_{name} = {getattr(selector.rates, name):.0f};" for name in LIMITS),
            f"const float vx_least_parallel = {c_float(least_parallel)};",
            f"const float vx_call_seconds = {c_float(selector.rates.call)};",
            *shortlist_table(selector),
            f"const float vx_slopes[] __attribute__((aligned(64))) = {{{c_floats(selector.table.seconds)}}};",
            f"const int64_t vx_fixed[3] = {{{extents}}};",
            f"const int32_t vx_quads = {QUADS * parts.quads};",
            *store_table(parts.store),
            *factor_table(words.element if words else "float32", words),
            *dot_table(parts.dots, selector.rates, bool(words), parts.store.needed),
            *held_table(parts.held, lanes, parts.store, words),
            *(word_table(words) if words else float_table(parts, selector)),
            "",
        ]
    )


def blocks_of(selector: Selector) -> int:
    """Vectors of strategies in the longest shortlist."""
    return max(1, *(-(-len(those) // selector.lanes) for those in selector.listed))


def shortlists(selector: Selector) -> list[Shortlist]:
    return [Shortlist(b, selector.columns, those) for b, those in zip(OperandB, selector.listed, strict=True)]


def shortlist_table(selector: Selector) -> list[str]:
    """C source of what each kind of B is chosen from."""
    lines, entries = [], []
    for place, one in enumerate(shortlists(selector)):
        columns = padded_columns(one.columns, selector.lanes, one.listed, blocks_of(selector))
        lines += [
            f"static const float columns_{place}[] __attribute__((aligned(64))) = {{{c_floats(columns)}}};",
            f"static const int32_t listed_{place}[] = {{{', '.join(map(str, one.listed)) or '0'}}};",
            f"extern vx_ways {', '.join(one.symbols)};",
        ]
        dots = next((at for at, index in enumerate(one.listed) if one.columns.dot[index]), -1)
        entries.append(f"{{columns_{place}, listed_{place}, {len(one.listed)}, {dots}, {', '.join(one.symbols)}}}")
    return [*lines, f"const vx_shortlist vx_shortlists[] = {{{', '.join(entries)}}};"]


LIMITS = (
    "room", "l1_span", "l2_buffer", "cores", "l3_bytes", "outer_bytes", "narrow_rows", "crowded_span",
    "crowded_rows", "crammed_rows", "reach", "page_bytes", "roomy", "pieced", "panel_room",
)  # fmt: skip
"""Rates that the runtime looks at itself."""


def float_table(parts: Parts, selector: Selector) -> list[str]:
    """C source of the kernels and nests of float32 operands."""
    nests = nest_table(load_stages(selector.strategies, parts.layouts))
    keeping = keeping_tiles(selector.strategies, selector.lanes, bool(selector.rates.panel_room))
    every = [*(tiles_of(layout, parts.shapes) for layout in parts.layouts), keeping]
    tables = [line for tiles in every if tiles for line in dispatch_table(tiles)]
    families = *streamed_table(parts.streamed), *abreast_table(parts.abreast)
    return [*tables, *families, *finish_table(parts.finishing), *nests]


def factor_table(dtype: str, words: WordFormat | None) -> list[str]:
    """C source of what A, B and a packed B are made of."""
    (code, bits), (held, wide) = ELEMENTS[dtype], ELEMENTS["int32" if words else "float32"]
    return [
        f"const vx_operand vx_factor = {{{code}, {bits}, VX_PER_ELEMENT}};",
        f"const vx_operand vx_packed = {{{held}, {wide}, VX_PER_ELEMENT}};",
    ]


def nest_table(emitted: Sequence[LoadStage]) -> list[str]:
    """C source of the nests of float32 operands by what they load."""
    signature = (
        "(const float *, const float *, float *, float *, float *, int64_t, int64_t, int64_t, int64_t, int64_t, "
        "int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int32_t, const vx_store *, "
        "int32_t)"
    )
    nests = ", ".join(stage.symbol if stage in emitted else "0" for stage in STAGES)
    return [
        *(f"extern int32_t {stage.symbol}{signature};" for stage in emitted),
        f"const vx_nest vx_nests[2][2][2][3] = {{{nests}}};",
    ]


def c_float(value: float) -> str:
    return f"{float(np.float32(value)).hex()}f"


def c_floats(values: Array) -> str:
    return ", ".join(c_float(float(value)) for value in np.asarray(values).ravel())


@dataclass(frozen=True)
class Addition:
    """What an operator brings into a library beside the GEMM: sources of `runtime/`, tables and costs."""

    sources: tuple[str, ...] = ()
    table: tuple[str, ...] = ()
    costs: tuple[tirx.PrimFunc, ...] = ()
    defines: tuple[str, ...] = ()


def emit_library(
    selector: Selector, objects: Sequence[Path], parts: Parts, llvm_cpu: str, folder: Path, least_parallel: float,
    addition: Addition = Addition(), cache: ObjectCache | None = None,
) -> Path:  # fmt: skip
    """Link micro-kernels, nests, the cost and the runtime, perhaps from `cache`, into one shared library."""
    blocks = blocks_of(selector)
    more, table, library = folder / "more_costs.o", folder / "table.c", folder / "library.so"
    every = [
        ways(one, selector.rates, selector.table, selector.lanes, llvm_cpu, blocks, dot)
        for one in shortlists(selector)
        for dot in (False, True)
    ]
    compile_object([*every, *addition.costs], cpu_target(llvm_cpu), more, share=False, simplify=False)
    declared = library_table(selector, parts, least_parallel)
    table.write_text("\n".join([declared, *addition.table, ""]))
    words = selector.words
    runtime = (WEIGHT_SOURCES if words.weights else WORD_SOURCES) if words else SOURCES
    sources = [RUNTIME / name for name in (*runtime, *addition.sources)]
    sizes = f"VX_BLOCKS={blocks}", f"VX_LANES={selector.lanes}"
    defines = [*sizes, *(word_defines(words) if words else []), *addition.defines]
    headers = Path(tvm_ffi.libinfo.find_include_path())
    link(library, [*objects, more], [table, *sources], [headers], defines, cache)
    return library
