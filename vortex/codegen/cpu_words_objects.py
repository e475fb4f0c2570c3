"""What a library of dot instructions is made of: its objects, and the C tables by which `runtime/` finds them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from vortex.codegen.cpu_amx import Placement, amx_ir, amx_kernel, leave_kernel, placements
from vortex.codegen.cpu_weight_dots import weight_dot_kernel
from vortex.codegen.cpu_weights import weight_kernel
from vortex.codegen.cpu_word_dots import emit_word_dots
from vortex.codegen.cpu_words import WordTile, imported_ir, word_kernel
from vortex.codegen.cpu_words_load import (
    COLUMNS_SYMBOL,
    INTERLEAVE_SYMBOL,
    ROWS_SYMBOL,
    TURN_SYMBOL,
    columns_kernel,
    interleave_kernel,
    rows_kernel,
    turn_kernel,
)
from vortex.codegen.cpu_words_nest import DISPATCH_SYMBOL, WORD_STAGES, WordStage, word_dispatch, word_nest
from vortex.codegen.emission import Task
from vortex.codegen.lower import compile_object, cpu_target
from vortex.dtypes import Weights, WordFormat
from vortex.epilogue import Epilogue
from vortex.errors import CodegenError

BATCH = 8


def _emit_tiles(words: WordFormat, tiles: Sequence[WordTile], lanes: int, llvm_cpu: str, path: Path) -> None:
    weighted = weight_kernel if words.per_word == 1 else weight_dot_kernel
    kernel, functions = weighted if words.weights else word_kernel, []
    for tile in tiles:
        try:
            functions.append(kernel(tile, lanes, words))
        except Exception as error:
            raise CodegenError(
                f"L0 {words.name} {tile.rows}x{tile.vectors} vectors did not tensorize: {error}"
            ) from error
    compile_object(functions, cpu_target(llvm_cpu), path, llvm_ir=imported_ir(words, lanes))


def _emit_amx(words: WordFormat, kernels: Sequence[Placement], lanes: int, llvm_cpu: str, path: Path) -> None:
    functions = [amx_kernel(kernel, lanes, words) for kernel in kernels]
    compile_object(functions, cpu_target(llvm_cpu), path, llvm_ir=amx_ir(kernels, words))


def _emit_nests(words: WordFormat, stages: Sequence[WordStage], lanes: int, llvm_cpu: str, path: Path) -> None:
    compile_object([word_nest(stage, lanes, words) for stage in stages], cpu_target(llvm_cpu), path, simplify=False)


def _emit_loads(
    words: WordFormat, prologue: Epilogue, tiles: Sequence[WordTile], lanes: int, llvm_cpu: str, path: Path
) -> None:
    of_a = [kernel(words, lanes, prologue) for kernel in (rows_kernel, columns_kernel)]
    of_b = [kernel(words, lanes) for kernel in (interleave_kernel, turn_kernel) if not words.weights]
    functions = [word_dispatch(tiles, words), *of_b, *of_a]
    leave, text = ([leave_kernel()], amx_ir([], words)) if words.tiles else ([], "")
    compile_object([*functions, *leave], cpu_target(llvm_cpu), path, llvm_ir=text)


def word_stages(words: WordFormat) -> list[WordStage]:
    """The nests of a format: an A that is widened cannot be read as it lies, and quantized weights come packed."""
    of_a = [stage for stage in WORD_STAGES if stage.load_a != "none" or not words.widened]
    return [stage for stage in of_a if stage.load_b == "none" or not words.weights]


def word_tasks(shapes: Iterable[tuple[int, int]], words: WordFormat, prologue: Epilogue) -> list[Task]:
    """What to emit for the (rows, vectors) micro-kernels and the load stages, that of A with the steps in it."""
    tiles = sorted(WordTile(rows, vectors) for rows, vectors in shapes)
    loads: Task = (partial(_emit_loads, words, prologue), tiles)
    if words.tiles:
        return [loads, (partial(_emit_amx, words), placements(tiles))]
    batches = (tiles[start : start + BATCH] for start in range(0, len(tiles), BATCH))
    return [loads, *((partial(_emit_tiles, words), batch) for batch in batches)]


def word_stage_tasks(words: WordFormat, dots: Sequence[tuple[int, int]]) -> list[Task]:
    """What to emit for the nests and the dot family."""
    family: list[Task] = [(partial(emit_word_dots, words), dots)] if dots else []
    return [(partial(_emit_nests, words), word_stages(words)), *family]


LOAD = "(const void *, void *, int64_t, int64_t, int64_t, int64_t, int64_t)"
LOAD_A = "(const void *, void *, int64_t, int64_t, int64_t, int64_t)"
KERNEL = (
    "(int32_t, int32_t, const void *, const void *, void *, const void *, int64_t, int64_t, int64_t, int64_t, int32_t, "
    "int32_t, int32_t{ahead})"
)
NEST = (
    "(const void *, const void *, void *, void *, void *, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, "
    "int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int32_t, const vx_store *, int32_t, "
    "int32_t, int32_t)"
)


def word_measuring_table(words: WordFormat, lanes: int) -> str:
    """C source that hands the emitted functions to `runtime/measure.c`, which counts in words."""
    per = words.per_word
    loads = f"""extern int32_t {INTERLEAVE_SYMBOL}{LOAD};
extern int32_t {TURN_SYMBOL}{LOAD};
static int32_t copy(const void *source, void *target, int64_t rows, int64_t columns, int64_t stride, int64_t width) {{
  return {INTERLEAVE_SYMBOL}(source, target, rows * {per}, columns, stride, width, width * (rows + 1));
}}
static int32_t turn(const void *source, void *target, int64_t rows, int64_t columns, int64_t stride, int64_t width) {{
  return {TURN_SYMBOL}(source, target, rows * {per}, columns, stride * {per}, width, width * (rows + 1));
}}"""
    if words.weights:  # only A passes load stages
        loads = f"""extern int32_t {ROWS_SYMBOL}{LOAD_A}, {COLUMNS_SYMBOL}{LOAD_A};
static int32_t copy(const void *source, void *target, int64_t rows, int64_t columns, int64_t stride, int64_t width) {{
  return {ROWS_SYMBOL}(source, target, columns, rows, stride, width);
}}
static int32_t turn(const void *source, void *target, int64_t rows, int64_t columns, int64_t stride, int64_t width) {{
  return {COLUMNS_SYMBOL}(source, target, columns, rows, stride, width);
}}"""
    declared, ahead = (", const void *, int32_t", ", b, 0") if words.tiles else ("", "")
    return f"""#include <stdint.h>
extern int32_t {DISPATCH_SYMBOL}{KERNEL.format(ahead=declared)};
typedef int32_t (*any)();
{loads}
static int32_t compute(int32_t rows, int32_t vectors, const void *a, const void *b, void *c, int64_t depth, int64_t lda,
                       int64_t ldb, int64_t ldc, int32_t last, int32_t accumulate) {{
  return {DISPATCH_SYMBOL}(rows, vectors, a, b, c, b, depth, lda * {per}, ldb, ldc, last, accumulate, 0{ahead});
}}
static any const layouts[] = {{(any)compute, (any)compute}}, loads[] = {{(any)copy, (any)turn}};
any const *vx_l0_layouts(void) {{ return layouts; }}
any const *vx_load_stages(void) {{ return loads; }}
int64_t vx_measured_lanes(void) {{ return {lanes}; }}
"""


def word_table(words: WordFormat) -> list[str]:
    """C source of the nests by [rows first][A: none, rows, columns][B: none, interleaved, turned]; 0 for none."""
    there = word_stages(words)
    entries = ", ".join(stage.symbol if stage in there else "0" for stage in WORD_STAGES)
    return [
        *(f"extern int32_t {stage.symbol}{NEST};" for stage in there),
        f"const vx_word_nest vx_word_nests[2][3][3] = {{{entries}}};",
    ]


def word_defines(words: WordFormat) -> list[str]:
    """Macros of `runtime/`: how many elements a word has, how many bytes an element, whether A may be unsigned and have
    a zero point, whether elements are widened, of how many words panels of B have a multiple, and whether there is a
    held family."""
    return [
        "VX_WORDS=1", f"VX_PER_WORD={words.per_word}", f"VX_ITEM={words.item_bytes}",
        f"VX_FLIPS={int(words.accumulator == 'int32')}", f"VX_WIDENED={int(words.widened)}", f"VX_WHOLE={words.whole}",
        f"VX_HELD={int(words.held)}",
        *weight_defines(words.weights),
    ]  # fmt: skip


def weight_defines(weights: Weights | None) -> list[str]:
    """Macros of `runtime/`: how many weights a word of B has, how many share a scale, the largest, the lines before."""
    if not weights:
        return []
    return [
        f"VX_PER_LINE={weights.per_word}",
        f"VX_GROUP={weights.group}",
        f"VX_LARGEST={weights.largest}",
        f"VX_HEADS={weights.heads}",
    ]
