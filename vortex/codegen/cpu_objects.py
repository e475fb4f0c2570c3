"""What a CPU library is made of, and what is emitted for it: micro-kernels, load stages, nests and other families."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from vortex.axes import fixed
from vortex.candidates import Strategy
from vortex.codegen.cpu_abreast import ROWS, emit_abreast
from vortex.codegen.cpu_dot import dot_shapes, emit_dots
from vortex.codegen.cpu_finish import finishing_shapes
from vortex.codegen.cpu_held import emit_held, held_tile
from vortex.codegen.cpu_kernels import LAYOUTS, RegisterTile, finishing_kernel, micro_kernel
from vortex.codegen.cpu_load import COPY_SYMBOL, PAST_IR, copy_kernel, transpose_kernel
from vortex.codegen.cpu_nest import PACK_B, LoadStage, nest
from vortex.codegen.cpu_pack import EITHER_IR
from vortex.codegen.cpu_round import rounding_ir, rounds_bare_sums
from vortex.codegen.cpu_rows import compile_tiles
from vortex.codegen.cpu_steps import NARROW
from vortex.codegen.cpu_store import PROLOGUE_SYMBOL, load_stage, store_stages
from vortex.codegen.cpu_streamed import emit_streamed, streamed_tile
from vortex.codegen.cpu_tile import stream_ir
from vortex.codegen.cpu_words_objects import word_stage_tasks, word_tasks
from vortex.codegen.emission import Task
from vortex.codegen.lower import compile_object, cpu_target
from vortex.dtypes import WordFormat
from vortex.epilogue import Epilogue, Store
from vortex.errors import CodegenError
from vortex.operators import prologue_of, store_of
from vortex.rates import KEPT_ROWS, KEPT_TILES

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
    shapes: tuple[tuple[int, int], ...]
    """Rows and vectors of the micro-kernels."""
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
    abreast: range
    """Rows of A that panels of a packed B have kernels to pass abreast."""
    quads: bool = False
    """Whether micro-kernels that can load four elements of A at once shall."""


def parts_of(
    operator: Any, strategies: Sequence[Strategy], shapes: Sequence[tuple[int, int]], layouts: Sequence[str],
    registers: int, lanes: int, small_pages: bool,
) -> Parts:  # fmt: skip
    """What an operator needs for these strategies, with (rows, vectors) micro-kernels of these `shapes`, on a core that
    finds all translations again or not, if its `small_pages` are too many."""
    dots, store = dot_shapes(registers, strategies), store_of(operator)
    held, streamed, finishing = held_tile(strategies), streamed_tile(strategies, lanes), finishing_shapes(shapes, store)
    begins, known = prologue_of(operator), fixed(operator)
    # A chain on A is done where it is copied, which these kernels do not.
    abreast = range(1, ROWS + 1 if small_pages and lanes > NARROW and not begins else 1)
    return Parts(layouts, tuple(shapes), dots, store, begins, known, held, streamed, finishing, abreast)


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
    compile_tiles(functions, max(tile.rows for tile in batch), lanes, llvm_cpu, path, clears=lanes != NARROW)


def tiles_of(layout: str, shapes: Iterable[tuple[int, int]]) -> list[RegisterTile]:
    return [RegisterTile(*shape, layout) for shape in sorted(shapes)]


def keeping_tiles(strategies: Sequence[Strategy], lanes: int, keeps: bool) -> list[RegisterTile]:
    """The micro-kernels that copy what they read of B, if L1 `keeps` panels of it: as many rows as the first of
    KEPT_TILES or more, about alike, may have."""
    many = int(KEPT_TILES)
    return sorted(
        {
            RegisterTile(rows, s.vectors(lanes), LAYOUTS[0], keeps=True)
            for s in strategies
            if s.stage.tiled and not (s.stage.rows_first or s.stage.pack_b or s.stage.swap)
            if keeps and lanes > NARROW and s.l0.m >= KEPT_ROWS
            for rows in range(-(-((many - 1) * s.l0.m + 1) // many), s.l0.m + 1)
        }
    )


def _emit_stages(stages: Sequence[tuple[LoadStage, Store, str, bool]], lanes: int, llvm_cpu: str, path: Path) -> None:
    nests = [nest(stage, lanes, store, copy_a, keeping) for stage, store, copy_a, keeping in stages]
    compile_object(nests, cpu_target(llvm_cpu), path, llvm_ir=EITHER_IR, simplify=False)


def _emit_prologues(chains: Sequence[Epilogue], lanes: int, llvm_cpu: str, path: Path) -> None:
    compile_object([load_stage(chain, lanes) for chain in chains], cpu_target(llvm_cpu), path)


def _emit_stores(words: WordFormat | None, stores: Sequence[Store], lanes: int, llvm_cpu: str, path: Path) -> None:
    stages = [stage for store in stores for stage in store_stages(store, lanes, rounds_bare_sums(store, words))]
    rounding = rounding_ir(lanes) if any(rounds_bare_sums(store, words) for store in stores) else ""
    compile_object(stages, cpu_target(llvm_cpu), path, llvm_ir=stream_ir(lanes) + rounding)


def _emit_finishing(store: Store, batch: Sequence[RegisterTile], lanes: int, llvm_cpu: str, path: Path) -> None:
    kernels = [finishing_kernel(tile, lanes, store) for tile in batch]
    compile_tiles(kernels, max(tile.rows for tile in batch), lanes, llvm_cpu, path)


def _emit_loads(_: Sequence[object], lanes: int, llvm_cpu: str, path: Path) -> None:
    compile_object([copy_kernel(lanes), transpose_kernel(lanes)], cpu_target(llvm_cpu), path, llvm_ir=PAST_IR)


@dataclass(frozen=True)
class Tasks:
    """What to emit whatever strategies are chosen: they can be once the first round has been measured."""

    measured: list[Task]
    rest: list[Task]


def product_tasks(parts: Parts, words: WordFormat | None = None) -> Tasks:
    """Objects of the load stages and the micro-kernels that are timed; then of the others."""
    stored: list[Task] = [(partial(_emit_stores, words), [parts.store])] if parts.store.needed else []
    if words:
        rest = [*word_stage_tasks(words, parts.dots), *held_tasks(parts, words), *stored]
        return Tasks(word_tasks(parts.shapes, words, parts.prologue), rest)
    timed, *others = (tiles_of(layout, parts.shapes) for layout in parts.layouts)
    rest = [*families(parts), *(task for tiles in others for task in _tile_tasks(tiles)), *finishing_tasks(parts)]
    return Tasks([(_emit_loads, []), *_tile_tasks(timed)], [*rest, *stored])


def batches(tiles: Sequence[Any]) -> list[Sequence[Any]]:
    """As many as one object has."""
    return [tiles[start : start + BATCH] for start in range(0, len(tiles), BATCH)]


def _tile_tasks(tiles: list[RegisterTile]) -> list[Task]:
    return [(_emit_kernels, batch) for batch in batches(tiles)]


def finishing_tasks(parts: Parts) -> list[Task]:
    """The same micro-kernels for A by rows, with the store stage in them."""
    tiles = [RegisterTile(rows, vectors, LAYOUTS[0]) for rows, vectors in parts.finishing]
    return [(partial(_emit_finishing, parts.store), batch) for batch in batches(tiles)]


def held_tasks(parts: Parts, words: WordFormat | None) -> list[Task]:
    """The kernels of the held family, of floats or of words."""
    return [(partial(emit_held, parts.store, words), parts.held)] if parts.held else []


def families(parts: Parts) -> list[Task]:
    """Families without a nest and prologues of float32 operands."""
    return [
        *([(emit_dots, parts.dots)] if parts.dots else []),
        *([(emit_streamed, parts.streamed)] if parts.streamed else []),
        *([(emit_abreast, parts.abreast)] if parts.abreast else []),
        *held_tasks(parts, None),
        *([(_emit_prologues, [parts.prologue])] if parts.prologue else []),
    ]


def nest_tasks(strategies: Sequence[Strategy], parts: Parts, lanes: int, keeps: bool) -> list[Task]:
    """The nests of these strategies of float32 operands, and if L1 `keeps` panels of B the micro-kernels for that."""
    keeping = keeping_tiles(strategies, lanes, keeps)
    copy_a = PROLOGUE_SYMBOL if parts.prologue else COPY_SYMBOL
    nests = [(stage, parts.store, copy_a, bool(keeping)) for stage in load_stages(strategies, parts.layouts)]
    half = -(-len(nests) // 2)
    emitted: list[Task] = [(_emit_stages, part) for part in (nests[:half], nests[half:]) if part]
    return [*emitted, *_tile_tasks(keeping)]
