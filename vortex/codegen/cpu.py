"""Strategies in, an object file out: every micro-kernel, load stage and nest that a CPU library needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi
from tvm import tirx

from vortex.arithmetic import Array
from vortex.axes import fixed
from vortex.candidates import Strategy
from vortex.codegen.cpu_dot import dot_shapes, dot_table, emit_dots
from vortex.codegen.cpu_finish import EXTRAS, finish_table, finishing_shapes
from vortex.codegen.cpu_held import emit_held, held_table, held_tile
from vortex.codegen.cpu_kernels import LAYOUTS, RegisterTile, dispatch, dispatch_symbol, finishing_kernel, micro_kernel
from vortex.codegen.cpu_load import COPY_SYMBOL, TRANSPOSE_SYMBOL, copy_kernel, transpose_kernel
from vortex.codegen.cpu_nest import EITHER_IR, PACK_B, LoadStage, nest
from vortex.codegen.cpu_rows import compile_tiles
from vortex.codegen.cpu_store import PROLOGUE_SYMBOL, load_stage, store_stages, store_symbols
from vortex.codegen.cpu_streamed import emit_streamed, streamed_table, streamed_tile
from vortex.codegen.cpu_tile import stream_ir
from vortex.codegen.cpu_words_objects import word_defines, word_stage_tasks, word_table, word_tasks
from vortex.codegen.emission import Task
from vortex.codegen.link import RUNTIME, link
from vortex.codegen.lower import compile_object, cpu_target
from vortex.codegen.selector import padded_columns
from vortex.dtypes import WordFormat
from vortex.epilogue import Epilogue, Store
from vortex.errors import CodegenError
from vortex.families import PANELS
from vortex.operators import prologue_of, store_of
from vortex.selector import Selector
from vortex.steps import PER

SOURCES = (
    "threads.c", "threads_door.c", "scratch.c", "store.c", "finish.c", "split.c", "execute.c", "dot.c", "held.c",
    "streamed.c", "ahead.c", "regions.c", "batch.c", "grouped.c", "select.c", "polymerize.c", "recall.c", "door.c",
    "pack_door.c", "plans_door.c", "batch_door.c",
)  # fmt: skip
"""Of `runtime/`: every library of products has the doors of all of them, so that one serves a batch as well."""
WORD_SOURCES = (
    "threads.c", "threads_door.c", "scratch.c", "store.c", "split.c", "words.c", "dot.c", "batch.c", "grouped.c",
    "select.c", "recall.c", "door.c", "pack_door.c", "plans_door.c", "batch_door.c",
)  # fmt: skip
WEIGHT_SOURCES = (*WORD_SOURCES, "weights.c")
BATCH = 16
STAGES = tuple(
    LoadStage(layout, rows_first, pack_a, pack_b)
    for layout, rows_first, pack_a, pack_b in product(LAYOUTS, (False, True), (False, True), PACK_B)
)


@dataclass(frozen=True)
class Parts:
    """What a library has besides micro-kernels, and what its door is told."""

    layouts: Sequence[str]
    """Of A."""
    nests: tuple[LoadStage, ...]
    dots: tuple[tuple[int, int], ...]
    store: Store
    prologue: Epilogue
    fixed: Mapping[str, int]
    """Extents that every call has; others are refused."""
    held: tuple[int, int] | None
    """Rows and depth of the kernel of the held family."""
    streamed: tuple[int, int, int] | None
    """Rows, vectors and depth of the kernels of the streamed family."""
    finishing: tuple[tuple[int, int], ...]
    """Rows and vectors of the micro-kernels that have the store stage in them."""


def parts_of(
    operator: Any, strategies: Sequence[Strategy], shapes: Sequence[tuple[int, int]], layouts: Sequence[str],
    nests: tuple[LoadStage, ...], registers: int, lanes: int,
) -> Parts:  # fmt: skip
    """What an operator needs for these strategies, with (rows, vectors) micro-kernels of these `shapes`."""
    dots, store = dot_shapes(registers, strategies), store_of(operator)
    held, streamed, finishing = held_tile(strategies), streamed_tile(strategies, lanes), finishing_shapes(shapes, store)
    return Parts(layouts, nests, dots, store, prologue_of(operator), fixed(operator), held, streamed, finishing)


def load_stages(strategies: Sequence[Strategy], layouts: Sequence[str]) -> tuple[LoadStage, ...]:
    """The nests that strategies run, for these layouts of A and any B."""
    wanted = {(s.stage.rows_first, s.stage.pack_a, s.stage.pack_b) for s in strategies if s.stage.tiled}
    of_layout = [stage for stage in STAGES if stage.layout in layouts]
    return tuple(stage for stage in of_layout if (stage.rows_first, stage.pack_a, stage.pack_b != "none") in wanted)


def _emit_kernels(batch: Sequence[RegisterTile], lanes: int, llvm_cpu: str, path: Path) -> None:
    functions = []
    for tile in batch:
        try:
            functions.append(micro_kernel(tile, lanes))
        except Exception as error:
            raise CodegenError(
                f"L0 {tile.layout} {tile.rows}x{tile.vectors} vectors did not tensorize: {error}"
            ) from error
    compile_tiles(functions, max(tile.rows for tile in batch), lanes, llvm_cpu, path)


def _emit_stages(stages: Sequence[tuple[LoadStage, Store, str]], lanes: int, llvm_cpu: str, path: Path) -> None:
    nests = [nest(stage, lanes, store, copy_a) for stage, store, copy_a in stages]
    compile_object(nests, cpu_target(llvm_cpu), path, llvm_ir=EITHER_IR, simplify=False)


def _emit_prologues(chains: Sequence[Epilogue], lanes: int, llvm_cpu: str, path: Path) -> None:
    compile_object([load_stage(chain, lanes) for chain in chains], cpu_target(llvm_cpu), path)


def _emit_stores(stores: Sequence[Store], lanes: int, llvm_cpu: str, path: Path) -> None:
    stages = [stage for store in stores for stage in store_stages(store, lanes)]
    compile_object(stages, cpu_target(llvm_cpu), path, llvm_ir=stream_ir(lanes))


def _emit_finishing(store: Store, batch: Sequence[RegisterTile], lanes: int, llvm_cpu: str, path: Path) -> None:
    kernels = [finishing_kernel(tile, lanes, store) for tile in batch]
    compile_tiles(kernels, max(tile.rows for tile in batch), lanes, llvm_cpu, path)


def _emit_rest(tiles: list[RegisterTile], lanes: int, llvm_cpu: str, path: Path) -> None:
    functions = [dispatch(tiles, layout) for layout in sorted({tile.layout for tile in tiles})]
    compile_object([*functions, copy_kernel(lanes), transpose_kernel(lanes)], cpu_target(llvm_cpu), path)


@dataclass(frozen=True)
class Tasks:
    """What to emit, in two rounds: strategies can be chosen once the first has been measured."""

    measured: list[Task]
    rest: list[Task]


def product_tasks(shapes: Iterable[tuple[int, int]], parts: Parts, words: WordFormat | None = None) -> Tasks:
    """Objects of the (rows, vectors) micro-kernels for the layouts of A, and of dispatch; then the nests and stages."""
    stored: list[Task] = [(_emit_stores, [parts.store])] if parts.store.needed else []
    if words:
        return Tasks(word_tasks(shapes, words, parts.prologue), [*word_stage_tasks(words, parts.dots), *stored])
    tiles = sorted(RegisterTile(rows, vectors, layout) for rows, vectors in shapes for layout in parts.layouts)
    batches = [tiles[start : start + BATCH] for start in range(0, len(tiles), BATCH)]
    kernels: list[Task] = [(_emit_rest, tiles), *((_emit_kernels, batch) for batch in batches)]
    return Tasks(kernels, [*float_stages(parts), *finishing_tasks(parts), *stored])


def finishing_tasks(parts: Parts) -> list[Task]:
    """The same micro-kernels for A by rows, with the store stage in them."""
    tiles = [RegisterTile(rows, vectors, LAYOUTS[0]) for rows, vectors in parts.finishing]
    batches = (tiles[start : start + BATCH] for start in range(0, len(tiles), BATCH))
    return [(partial(_emit_finishing, parts.store), batch) for batch in batches]


def float_stages(parts: Parts) -> list[Task]:
    """Nests, families without a nest and prologues of float32 operands, what takes longest first."""
    copy_a = PROLOGUE_SYMBOL if parts.prologue else COPY_SYMBOL
    nests = [(stage, parts.store, copy_a) for stage in parts.nests]
    half = len(nests) // 2
    return [
        (_emit_stages, nests[:half]),
        (_emit_stages, nests[half:]),
        *([(emit_dots, parts.dots)] if parts.dots else []),
        *([(partial(emit_held, parts.store), parts.held)] if parts.held else []),
        *([(emit_streamed, parts.streamed)] if parts.streamed else []),
        *([(_emit_prologues, [parts.prologue])] if parts.prologue else []),
    ]


def measuring_table(lanes: int) -> str:
    """C source that hands the emitted functions to `runtime/measure.c`, which times A by rows."""
    timed = dispatch_symbol(LAYOUTS[0])
    return "\n".join(
        [
            "#include <stdint.h>",
            f"extern int32_t {timed}(), {COPY_SYMBOL}(), {TRANSPOSE_SYMBOL}();",
            "typedef int32_t (*any)();",
            "static int32_t compute(int32_t rows, int32_t vectors, const void *a, const void *b, void *c,",
            "    int64_t depth, int64_t lda, int64_t ldb, int64_t ldc, int32_t last, int32_t accumulate) {",
            f"  return {timed}(rows, vectors, a, b, c, depth, lda, ldb, ldc, last, accumulate, b, depth);",
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
    columns = padded_columns(selector.columns, lanes)
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
            f"const float vx_columns[] __attribute__((aligned(64))) = {{{c_floats(columns)}}};",
            f"const float vx_slopes[] __attribute__((aligned(64))) = {{{c_floats(selector.table.seconds)}}};",
            f"const int64_t vx_fixed[3] = {{{extents}}};",
            *store_table(parts.store),
            *factor_table(words.element if words else "float32", words),
            *dot_table(parts.dots, selector.rates, bool(words)),
            *(word_table(words) if words else float_table(parts, selector.lanes)),
            "",
        ]
    )


LIMITS = (
    "room", "l1_span", "cores", "l3_bytes", "outer_bytes", "narrow_rows", "crowded_span", "crowded_rows", "reach",
    "page_bytes", "roomy",
)  # fmt: skip
"""Rates that the runtime looks at itself."""


def float_table(parts: Parts, lanes: int) -> list[str]:
    """C source of the kernels and nests of float32 operands."""
    families = [*held_table(parts.held, lanes, parts.store), *streamed_table(parts.streamed)]
    return [*families, *finish_table(parts.finishing), *nest_table(parts.nests)]


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
    addition: Addition = Addition(),
) -> Path:  # fmt: skip
    """Link micro-kernels, nests, the cost and the runtime into one shared library."""
    blocks = -(-len(selector.strategies) // selector.lanes)
    more, table, library = folder / "more_costs.o", folder / "table.c", folder / "library.so"
    if addition.costs:
        compile_object([*addition.costs], cpu_target(llvm_cpu), more, share=False)
        objects = [*objects, more]
    declared = library_table(selector, parts, least_parallel)
    table.write_text("\n".join([declared, *addition.table, ""]))
    words = selector.words
    runtime = (WEIGHT_SOURCES if words.weights else WORD_SOURCES) if words else SOURCES
    sources = [RUNTIME / name for name in (*runtime, *addition.sources)]
    sizes = f"VX_BLOCKS={blocks}", f"VX_PRICED={blocks * selector.lanes}"
    defines = [*sizes, *(word_defines(words) if words else []), *addition.defines]
    headers = Path(tvm_ffi.libinfo.find_include_path())
    link(library, objects, [table, *sources], [headers], defines)
    return library
