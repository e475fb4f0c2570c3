"""The choice among GPU kernels as native code: `gpu_cost.predict` on TVM expressions, one kernel per vector lane.

    vortex_gpu_costs(columns, totals, cuts, ideals, blocks, <fields of gpu_figures.GpuProblem>)

fills `totals[kernel]` with the least predicted seconds over all cuts of the reduction, `cuts[kernel]` with the cut, and
`ideals[kernel]` with `gpu_cost.ideal` of the seconds.
`runtime/gpu_select.c` and `runtime/gpu_polymerize.c` do the rest. It is compiled for plain x86-64, and once more for
processors with AVX2 and for those with AVX-512, with the same results to the bit: no product is fused into an addition,
and no quotient replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import PointerType, PrimType

from vortex.arithmetic import Array
from vortex.codegen.link import RUNTIME, link
from vortex.codegen.lower import compile_object, cpu_target
from vortex.codegen.terms import LaneArithmetic, Term, constant, fenced
from vortex.codegen.trees import substitute
from vortex.errors import VortexError
from vortex.gpu_cost import cuts, ideal, predict, steady, tiling
from vortex.gpu_figures import BlockCosts, GpuProblem, GpuRates
from vortex.gpu_selector import ALIGNMENTS, LAYOUTS, GpuSelector

SYMBOLS = {
    "x86-64": ("vortex_gpu_costs", 8, False),
    "x86-64-v3": ("vortex_gpu_costs_avx2", 8, True),
    "x86-64-v4": ("vortex_gpu_costs_avx512", 16, True),
}
"""What the cost is called, how many kernels a turn of its loop prices, and whether an instruction makes numbers whole:
by the processors that it runs on."""
FIELDS = tuple(field.name for field in fields(BlockCosts))
ARGUMENTS = tuple(field.name for field in fields(GpuProblem))
LANES = 16
"""Kernels whose figures lie together, field by field: what the widest loop prices in a turn."""
MOST = 512
"""Kernels that one layout and alignment may have: the room that selecting takes on the stack."""
INTERMEDIATES = 256
WHOLE = 2.0**23
"""From here on every float32 is a whole number."""


class GpuTirArithmetic(LaneArithmetic):
    """With what each processor has to make numbers whole, and the statements in parts."""

    def __init__(self, lane: tirx.Var, lanes: int, rounds: bool) -> None:
        super().__init__(lane, lanes, INTERMEDIATES)
        self.rounds = rounds

    def floor(self, x: Any) -> Term:
        if self.rounds:
            return super().floor(x)
        near = self._near(x)
        return self.where(near > x, near - 1.0, near)

    def ceil(self, x: Any) -> Term:
        if self.rounds:
            return super().ceil(x)
        near = self._near(x)
        return self.where(x > near, near + 1.0, near)

    def _near(self, x: Any) -> Term:
        """The nearest whole number, without an instruction for it. The fence keeps both additions."""
        near = fenced(constant(x) + constant(WHOLE)) - constant(WHOLE)
        return self.name("near", self.where(x > WHOLE, x, near))

    def across(self, x: Any) -> Any:
        """The largest of a named intermediate over all lanes: an expression outside the loop over them."""
        (slot,) = x.expression.indices
        every = [self.kept[substitute(slot, {self.lane: tirx.IntImm("int32", at)})] for at in range(self.lanes)]
        while len(every) > 1:
            every = [tirx.max(one, other) for one, other in zip(every[::2], every[1::2], strict=True)]
        return every[0]

    def taken(self) -> list[tirx.Stmt]:
        """The statements since the last time."""
        found, self.statements = self.statements, []
        return found


def costs(rates: GpuRates, symbol: str, lanes: int, rounds: bool) -> tirx.PrimFunc:
    """The cost of `blocks` x LANES kernels, `lanes` of them at a time; of cuts only where one of them may be cut."""
    pointer = PointerType(PrimType("float32"))
    data = [tirx.Var(name, pointer) for name in ("columns", "totals", "cuts", "ideals")]
    blocks, block, lane = tirx.Var("blocks", "int32"), tirx.Var("block", "int32"), tirx.Var("lane", "int32")
    sizes = (blocks * len(FIELDS) * LANES, *(blocks * LANES for _ in data[1:]))
    buffers = [
        tirx.decl_buffer((size,), "float32", name=f"{variable.name}_buffer")
        for variable, size in zip(data, sizes, strict=True)
    ]
    arguments = [tirx.Var(name, "float32") for name in ARGUMENTS]

    ops, turns = GpuTirArithmetic(lane, lanes, rounds), LANES // lanes
    first, inside = tirx.truncdiv(block, turns) * len(FIELDS), tirx.truncmod(block, turns) * lanes + lane
    columns = BlockCosts(
        **{
            name: ops.name(name, Term(buffers[0][(first + place) * LANES + inside]))
            for place, name in enumerate(FIELDS)
        }
    )
    problem = GpuProblem(**{name: Term(variable) for name, variable in zip(ARGUMENTS, arguments, strict=True)})
    shape = tiling(ops, columns, problem)
    always = steady(ops, rates, columns, problem, shape)
    least = ops.name("least", predict(ops, rates, columns, problem, shape, always).total)
    asked = cuts(ops, columns, problem, shape)
    chosen = ops.slot()
    ops.change(chosen, 1.0)
    found = tirx.For(lane, 0, lanes, tirx.ForKind.VECTORIZED, tirx.SeqStmt(ops.taken()))
    turn: list[tirx.Stmt] = []
    for cut in asked:  # from the last, which are more parts than those before: where it is one for all, so are they
        total = ops.name("total", predict(ops, rates, columns, problem, shape, always, cut).total)
        ops.change(chosen, ops.where(least > total, cut, ops.where(total <= least, ops.least(chosen, cut), chosen)))
        ops.change(least, ops.least(total, least))
        priced = tirx.For(lane, 0, lanes, tirx.ForKind.VECTORIZED, tirx.SeqStmt(ops.taken()))
        steps = tirx.SeqStmt([priced, *turn]) if turn else priced
        turn = [tirx.IfThenElse(ops.across(cut) > tirx.FloatImm("float32", 1.5), steps, None)]
    results = least, chosen, ideal(ops, columns, problem, least)
    index = block * lanes + lane
    stores = [tirx.BufferStore(buffer, constant(x), [index]) for buffer, x in zip(buffers[1:], results, strict=True)]
    last = tirx.For(lane, 0, lanes, tirx.ForKind.VECTORIZED, tirx.SeqStmt([*ops.taken(), *stores]))
    loop = tirx.For(block, 0, blocks * turns, tirx.ForKind.SERIAL, tirx.SeqStmt([found, *turn, last]))
    declared = [tirx.DeclBuffer(buffer, data=variable) for buffer, variable in zip(buffers, data, strict=True)]
    function = tirx.PrimFunc([*data, blocks, *arguments], tirx.SeqStmt([*declared, tirx.AllocBuffer(ops.kept), loop]))
    return function.with_attr("global_symbol", symbol).with_attr("tirx.noalias", True)


def padded(columns: BlockCosts) -> Array:
    """Figures as the native selector reads them: LANES kernels at a time, field by field, the last one repeated."""
    table = np.stack([getattr(columns, name) for name in FIELDS])
    missing = -table.shape[1] % LANES
    table = np.concatenate([table, np.repeat(table[:, -1:], missing, axis=1)], axis=1)
    return np.ascontiguousarray(table.reshape(len(FIELDS), -1, LANES).transpose(1, 0, 2))


def tables(selector: GpuSelector) -> str:
    """C source of what `gpu_select.c` needs to know of the kernels, layout by layout and alignment by alignment."""
    figures: list[str] = []
    indices: list[int] = []
    groups: list[str] = []
    seen: dict[tuple[int, ...], str] = {}
    for layout in LAYOUTS:
        for alignment in ALIGNMENTS:
            members = selector.groups[layout, alignment]
            if members and members not in seen:
                seen[members] = f"{{{len(figures)}, {len(indices)}, {len(members)}}}"
                figures += [f"{float(value).hex()}f" for value in padded(selector.columns[layout, alignment]).ravel()]
                indices += members
            groups.append(seen.get(members, "{0, 0, 0}"))
    tiles = [
        f"{{{tile.m}, {tile.n}, {tile.k}, {row.tiles_at_once}, {int(row.raster)}}}"
        for variant, row in zip(selector.variants, selector.costs, strict=True)
        for tile in (variant.strategy.grid_tile,)
    ]
    return "\n".join(
        [
            '#include "gpu_select.h"',
            f"const float vx_gpu_figures[] = {{{', '.join(figures)}}};",
            f"const int32_t vx_gpu_indices[] = {{{', '.join(map(str, indices))}}};",
            f"const vx_gpu_group vx_gpu_groups[{len(groups)}] = {{{', '.join(groups)}}};",
            f"const vx_gpu_tile vx_gpu_tiles[] = {{{', '.join(tiles)}}};",
            f"const int32_t vx_gpu_fields = {len(FIELDS)};",
            f"const float vx_gpu_launch = {float(np.float32(selector.rates.launch)).hex()}f;",
            f'_Static_assert(VX_GPU_MOST >= {MOST} && VX_GPU_LANES == {LANES}, "gpu_select.h has other sizes");',
            "",
        ]
    )


def emit(selector: GpuSelector, folder: Path) -> tuple[list[Path], list[Path]]:
    """Write the selector into `folder`: objects and C sources to link with whatever calls `vx_gpu_divide`."""
    largest = max(map(len, selector.groups.values()))
    if largest > MOST:
        raise VortexError(f"{largest} kernels for one layout and alignment; the selector takes at most {MOST}")
    compiled = []
    for cpu, (symbol, lanes, rounds) in SYMBOLS.items():
        compiled.append(folder / f"{symbol}.o")
        compile_object([costs(selector.rates, symbol, lanes, rounds)], cpu_target(cpu), compiled[-1], share=False)
    source = folder / "gpu_tables.c"
    source.write_text(tables(selector))
    return compiled, [source, RUNTIME / "gpu_select.c", RUNTIME / "gpu_polymerize.c"]


def build(selector: GpuSelector, target: Path, sources: Sequence[Path] = ()) -> None:
    """Link the selector, and `sources` that call it, into the shared library `target`."""
    objects, own = emit(selector, target.parent)
    link(target, objects, [*own, *sources])
