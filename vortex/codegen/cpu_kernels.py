"""L0 on CPUs: a register tile of `rows` x `vectors`, its stages (load, compute, store) each placed by `tensorize`.

The accumulators are one chain of fused multiply-adds per output element, in the order of k, whatever the tile: that is
why every strategy, blocking and thread count of the outer-product family gives bitwise the same result.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from tvm import tirx
from tvm.script import tirx as T

from vortex.codegen.cpu_finish import Finish, finishing_symbol
from vortex.codegen.cpu_steps import NARROW, QUAD, loads_quads, reduction, step_blocks, steps_of
from vortex.codegen.cpu_tile import (
    ADDS,
    STREAMS,
    filled,
    placed,
    tile_stages,
    vector_intrinsics,
    with_extents,
)
from vortex.epilogue import Store

LAYOUTS = ("row", "col")
"""How L0 walks A: `row` has k contiguous and rows `lda` apart, `col` has rows contiguous and k `lda` apart."""


@dataclass(frozen=True, order=True)
class RegisterTile:
    """One L0 micro-kernel: `rows` broadcasts of A against `vectors` vectors of B."""

    rows: int
    vectors: int
    layout: str
    keeps: bool = False
    """Whether it copies the panel of B that it reads, of whole vectors, for tiles that read it next."""

    @property
    def symbol(self) -> str:
        return f"{dispatch_symbol(self.layout, self.keeps)}_{self.rows}x{self.vectors}"


def micro_kernel(tile: RegisterTile, lanes: int) -> tirx.PrimFunc:
    """The L0 rKernel of `tile` as a scheduled function

    `symbol(a, b, c, depth, lda, ldb, ldc, last, how, ahead, every, beyond, kept)`: C[rows, columns] (+)= A[rows, depth]
    B[depth, columns], where columns = (vectors - 1) * lanes + last; strides in elements; `how` says whether C is read
    first, whether whole lines of it are written past the caches, whether A is loaded in quads where it can be, and
    whether rows of B end with whole vectors, which are then read without a mask. For each `every` / STEP steps of k it
    asks for one row, `columns` wide and `beyond` apart, of what comes next at `ahead`: whole rows, since lines that do
    not follow each other come from memory at half the rate. If `every` is 0 it asks for one at each step, and into the
    first cache. One that keeps B writes it to `kept`, row after row; its last vector is whole. Tiles of AVX2 have no
    register for another distance: none keeps B, and what they ask for is as far apart as rows of B.
    """
    strides = (1, 0) if tile.layout == "row" else (0, 1)
    steps = 1 if tile.keeps else steps_of(tile.rows, lanes)
    quads = tile.layout == "row" and not tile.keeps and loads_quads(tile.rows, tile.vectors, lanes)
    form = _form(tile.rows >= tile.vectors, lanes, steps, tile.keeps, quads)
    kernel = filled(form, tile.symbol, tile.rows, tile.vectors, *strides)
    names = vector_intrinsics(lanes)
    return placed(
        kernel,
        (
            ("load", names.load, 0),
            ("zero", names.zero, 0),
            *step_blocks(names, tile.keeps),
            ("store", names.store, 0),
        ),
    ).mod["main"]


def dispatch_symbol(layout: str, keeps: bool = False) -> str:
    return f"vortex_l0_{layout}{'_keep' if keeps else ''}"


ARGUMENTS = (
    "const float *a", "const float *b", "float *c", "int64_t depth", "int64_t lda", "int64_t ldb", "int64_t ldc",
    "int32_t last", "int32_t how", "const float *ahead", "int64_t every", "int64_t beyond", "float *kept",
)  # fmt: skip
"""Of a micro-kernel, in C."""


def dispatch_table(tiles: Sequence[RegisterTile]) -> list[str]:
    """C source of `vortex_l0_<layout>(<arguments of L0>, rows, vectors)`, which goes on to the micro-kernel of that
    register tile, of those of one layout, all or none of which keep B.

    What it looks at comes last, and arguments stay where they are: where it made a call of its own, a tile of 8 steps
    of k by 11 x 2 vectors took a twentieth longer (an Emerald Rapids: 410236 x 22 x 8 2.24 ms and 2.14).
    """
    symbol, declared = dispatch_symbol(tiles[0].layout, tiles[0].keeps), ", ".join(ARGUMENTS)
    given = ", ".join(argument.split()[-1].lstrip("*") for argument in ARGUMENTS)
    entries = ", ".join(f"[{tile.vectors}][{tile.rows}] = {tile.symbol}" for tile in tiles)
    size = f"[{max(tile.vectors for tile in tiles) + 1}][{max(tile.rows for tile in tiles) + 1}]"
    return [
        *(f"extern int32_t {tile.symbol}({declared});" for tile in tiles),
        f"static int32_t (*const {symbol}_tiles{size})({declared}) = {{{entries}}};",
        f"int32_t {symbol}({declared}, int32_t rows, int32_t vectors) {{",
        f"  return {symbol}_tiles[vectors][rows]({given});",
        "}",
    ]


def finishing_kernel(tile: RegisterTile, lanes: int, store: Store) -> tirx.PrimFunc:
    """The same with A by rows, all of k at once, and sums that go through the store stage in registers

    `symbol(a, b, out, depth, lda, ldb, ldo, last, ahead, every, how, x0, stride0, ..., x3, stride3)`: `out` and the
    tensors of the chain from the tile's first row and column on, as `cpu_store.store_stage` reads them.
    """
    quads = loads_quads(tile.rows, tile.vectors, lanes)
    form = _finishing_form(tile.rows >= tile.vectors, lanes, steps_of(tile.rows, lanes), store, quads)
    kernel = filled(form, finishing_symbol(tile.rows, tile.vectors), tile.rows, tile.vectors)
    names = vector_intrinsics(lanes)
    stages = ("zero", names.zero, 0), *step_blocks(names)
    return placed(kernel, stages).mod["main"]


@cache
def _form(tall: bool, lanes: int, steps: int, keeps: bool, quads: bool) -> tirx.PrimFunc:
    """The kernel of every tile that is `tall`, or that is not, with `steps` of k in a turn, and `keeps` B or does not,
    or can load `quads`; its last parameters are those that `micro_kernel` fills in."""
    rows, vectors = (tirx.Var(name, "int32") for name in ("rows", "vectors"))
    row_stride, depth_stride = (tirx.Var(name, "int64") for name in ("row_stride", "depth_stride"))
    columns = vectors * lanes
    stages, reduce = tile_stages(rows, vectors, lanes), reduction(rows, vectors, lanes, tall, steps, keeps, quads)

    @T.prim_func(s_tir=True, check_well_formed=False)  # its extents are free until `with_extents`
    def kernel(
        a: T.handle,
        b: T.handle,
        c: T.handle,
        depth: T.int64,
        lda: T.int64,
        ldb: T.int64,
        ldc: T.int64,
        last: T.int32,
        how: T.int32,
        ahead: T.handle,
        every: T.int64,
        beyond: T.int64,
        kept: T.handle,
    ):
        T.func_attr({"tirx.noalias": True})
        A = T.match_buffer(
            a,
            (rows, depth),
            "float32",
            align=4,
            strides=[lda * row_stride + (1 - row_stride), lda * depth_stride + (1 - depth_stride)],
        )
        B = T.match_buffer(b, (depth, columns), "float32", align=4, strides=[ldb, T.int64(1)])
        C = T.match_buffer(c, (rows, columns), "float32", align=4, strides=[ldc, T.int64(1)])
        asked = T.meta_var(beyond if lanes > NARROW else ldb)
        F = T.match_buffer(ahead, (depth, columns), "float32", align=4, strides=[asked, T.int64(1)])
        K = T.match_buffer(kept, (depth, columns), "float32", align=4)
        with T.sblock("root"):
            mask = T.sblock_alloc_buffer((vectors * lanes,), "int32", scope="local")
            acc = T.sblock_alloc_buffer((rows, columns), "float32", scope="local")
            row = T.sblock_alloc_buffer((columns,), "float32", scope="local")
            turn = T.sblock_alloc_buffer((2,), "int64", scope="local")
            stages.masks(mask, last)
            stages.begin(acc, mask, C, T.bitwise_and(how, ADDS) != 0)
            four = T.sblock_alloc_buffer((QUAD, lanes), "float32", scope="local")
            quad = T.sblock_alloc_buffer((lanes,), "float32", scope="local")
            reduce(A, B, F, K, mask, row, acc, turn, depth, every, ldb, asked, last, how, four, quad)
            if T.bitwise_and(how, STREAMS) != 0:
                stages.stream(C, acc)
            else:
                stages.end(C, mask, acc)

    return with_extents(kernel, rows, vectors, row_stride, depth_stride)


@cache
def _finishing_form(tall: bool, lanes: int, steps: int, store: Store, quads: bool) -> tirx.PrimFunc:
    """The same for `finishing_kernel`."""
    rows, vectors = (tirx.Var(name, "int32") for name in ("rows", "vectors"))
    columns = vectors * lanes
    stages, reduce = tile_stages(rows, vectors, lanes), reduction(rows, vectors, lanes, tall, steps, quads=quads)
    finish = Finish(store, lanes)

    @T.prim_func(s_tir=True, check_well_formed=False)  # its extents are free until `with_extents`
    def kernel(
        a: T.handle,
        b: T.handle,
        out: T.handle,
        depth: T.int64,
        lda: T.int64,
        ldb: T.int64,
        ldo: T.int64,
        last: T.int32,
        ahead: T.handle,
        every: T.int64,
        how: T.int32,
        x0: T.handle,
        stride0: T.int64,
        x1: T.handle,
        stride1: T.int64,
        x2: T.handle,
        stride2: T.int64,
        x3: T.handle,
        stride3: T.int64,
    ):
        T.func_attr({"tirx.noalias": True})
        A = T.match_buffer(a, (rows, depth), "float32", align=4, strides=[lda, T.int64(1)])
        B = T.match_buffer(b, (depth, columns), "float32", align=4, strides=[ldb, T.int64(1)])
        F = T.match_buffer(ahead, (depth, columns), "float32", align=4, strides=[ldb, T.int64(1)])
        finish.match(rows, out, ldo, (x0, x1, x2, x3), (stride0, stride1, stride2, stride3))
        with T.sblock("root"):
            mask = T.sblock_alloc_buffer((vectors * lanes,), "int32", scope="local")
            acc = T.sblock_alloc_buffer((rows, columns), "float32", scope="local")
            row = T.sblock_alloc_buffer((columns,), "float32", scope="local")
            turn = T.sblock_alloc_buffer((2,), "int64", scope="local")
            finish.allocate()
            stages.masks(mask, last)
            stages.zero(acc)
            four = T.sblock_alloc_buffer((QUAD, lanes), "float32", scope="local")
            quad = T.sblock_alloc_buffer((lanes,), "float32", scope="local")
            reduce(A, B, F, None, mask, row, acc, turn, depth, every, ldb, ldb, last, how, four, quad)
            for j in T.unroll(vectors):
                with T.sblock("finish"):
                    T.reads(acc[0:rows, 0:columns], mask[0:columns])
                    T.writes(acc[0:rows, 0:columns])
                    finish.columns(j * lanes, mask[T.ramp(j * lanes, 1, lanes)] != T.broadcast(0, lanes))
                    for i in T.unroll(rows):
                        finish.row(
                            i,
                            j * lanes,
                            mask[T.ramp(j * lanes, 1, lanes)] != T.broadcast(0, lanes),
                            acc[i, T.ramp(j * lanes, 1, lanes)],
                            T.bitwise_and(how, STREAMS) != 0,
                        )

    return with_extents(kernel, rows, vectors)
