"""CUDA-core kernels: thread tiles of fused multiply-adds, fed from shared memory by the same multi-stage copy.

A thread's rows and columns lie so that a warp reads shared memory without two lanes meeting on a bank, in vectors: an
operand whose k is contiguous is read along k, and a thread's lines are as far apart as there are lanes; the other is
read across, and a thread's lines lie in runs of one vector. Half precision is widened as it is read.

Where registers must be read at the full rate (`cuda_ports`), float32 whose k is contiguous is turned over on its way
into shared memory, element by element, and read across. Read along k, all lines of one k would lie on one bank, and on
the other for the next: a sum would meet them in every other step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx

from vortex.codegen.cuda_lower import KernelSource, has_full_rate, lowered
from vortex.codegen.cuda_pipeline import STAGE, STEP
from vortex.codegen.cuda_ports import PORTS
from vortex.codegen.cuda_program import copy_stage, gemm
from vortex.errors import CodegenError
from vortex.gpu_candidates import WARP, BlockStrategy, Variant

VECTOR_BYTES = 16
MOST_FRAGMENT = 64
"""32-bit registers that the fragments of one step may take: the accumulators need the rest."""
DOUBLED = 32
"""Fragments up to this many registers are kept twice, so that the next step is read while one multiplies."""
MOST_TURNED = 16
"""Elements of a stage that a thread may bring one by one to turn an operand over: more cost more than they save, and
one operand alone is not worth it either."""
TURNED = 8
"""Of these elements, how many of one row lie side by side in a warp: a sector of global memory."""
MOST_UNROLLED = 2048
"""Multiply-adds of one turn of the innermost loop that is not unrolled: more only fill the instruction cache."""


@dataclass(frozen=True)
class Lines:
    """How the lines (rows of A, or columns of B) of a warp's tile are dealt out to lanes and registers."""

    warp: int
    """Lines of a warp."""
    each: int
    """Lines of a thread."""
    run: int
    """Of these, how many lie side by side."""

    @property
    def lanes(self) -> int:
        return self.warp // self.each

    def split(self, line: Any) -> tuple[Any, ...]:
        """(warp tile, turn, lane, place in the run) of a line, less turn or place where there is but one."""
        period = self.lanes * self.run
        turn = (line % self.warp // period,) if self.each > self.run else ()
        place = (line % self.run,) if self.run > 1 else ()
        return line // self.warp, *turn, line % period // self.run, *place


def _by_line(lines: Lines, along_k: bool, step: int) -> Any:
    """Index map of a fragment [splits, line, k], or [splits, k, line]: what one thread reads at once comes last."""
    if along_k:
        return lambda s, line, k: (s, *lines.split(line), k // step, k % step)
    return lambda s, k, line: (s, k // step, k % step, *lines.split(line))


def _step(strategy: BlockStrategy, along: bool) -> int:
    """k of one step: as long as a vector if an operand is read along k, halved until fragments fit."""
    tile, item = strategy.thread, strategy.item_bytes
    if not along:
        return 1
    step = min(VECTOR_BYTES // item, strategy.l1.k)
    while step > 1 and (tile.m + tile.n) * step > MOST_FRAGMENT:
        step //= 2
    return step


def kernel(variant: Variant, ports: bool = False) -> tuple[tirx.PrimFunc, dict[str, bool], set[str]]:
    """The scheduled kernel of a `cuda_core` variant, and the operands to swizzle and to pad.

    `ports`: it is made for registers that are read at the full rate.
    """
    strategy = variant.strategy
    l0, l1, thread, item = strategy.l0, strategy.l1, strategy.thread, strategy.item_bytes
    if l1.m % l0.m or l1.n % l0.n or l0.m % thread.m or l0.n % thread.n:
        raise CodegenError("tiles are no multiples of each other")
    if (l0.m // thread.m) * (l0.n // thread.n) != WARP:
        raise CodegenError(f"{l0.m // thread.m} x {l0.n // thread.n} lanes are no warp")
    along_a, along_b = not variant.transpose_a, variant.transpose_b
    widest = max(l1.m * along_a, l1.n * along_b)
    turns = ports and widest * l1.k <= MOST_TURNED * strategy.threads
    turned_a, turned_b = along_a and turns, along_b and turns
    along_a, along_b = along_a and not turns, along_b and not turns
    rows = Lines(l0.m, thread.m, 1 if along_a else min(4, thread.m))
    columns = Lines(l0.n, thread.n, 1 if along_b else min(4, thread.n))
    step, vector = _step(strategy, along_a or along_b), variant.vector_bytes // item

    schedule = s_tir.Schedule(gemm(variant.name, strategy.dtype, l1, variant.transpose_a, variant.transpose_b))
    product = schedule.get_sblock("product")
    split, i, j, k = schedule.get_loops(product)
    block_i, warp_i, i = schedule.split(i, [None, l1.m // l0.m, l0.m])
    block_j, warp_j, j = schedule.split(j, [None, l1.n // l0.n, l0.n])
    stage, loop, depth = schedule.split(k, [None, l1.k // step, step])
    schedule.reorder(block_i, block_j, warp_i, warp_j, stage, loop, depth, i, j)
    schedule.bind(split, "blockIdx.z")
    schedule.bind(block_i, "blockIdx.y")
    schedule.bind(block_j, "blockIdx.x")
    warp = schedule.fuse(warp_i, warp_j)
    schedule.bind(warp, "threadIdx.z")
    result = schedule.cache_write(product, 0, "local")
    schedule.reverse_compute_at(result, warp)

    threads = (strategy.warps, rows.lanes, columns.lanes)
    for which, pad, lines, along, turned, axis in (
        (0, "A_pad", rows, along_a, turned_a, "threadIdx.y"),
        (1, "B_pad", columns, along_b, turned_b, "threadIdx.x"),
    ):
        copy = schedule.cache_read(product, which, "shared.dyn")
        schedule.compute_at(copy, stage)
        schedule.compute_inline(schedule.get_sblock(pad))
        copy_stage(schedule, copy, threads, 1 if turned else vector, TURNED if turned else None)
        if turned:
            schedule.transform_layout(copy, ("write", 0), lambda s, line, k: (s, k, line))
        fragment = schedule.cache_read(product, which, "local")
        schedule.compute_at(fragment, loop, preserve_unit_loops=True)
        outer, last = schedule.get_loops(fragment)[-2:]
        line, k_of = (outer, last) if along else (last, outer)
        turn, run = _dealt(schedule, line, lines, axis)
        schedule.reorder(*((turn, run, k_of) if along else (k_of, turn, run)))
        schedule.unroll(turn)
        schedule.unroll(run if along else k_of)
        wide = k_of if along else run
        if int(schedule.get(wide).extent) > 1:
            schedule.vectorize(wide)
        schedule.transform_layout(fragment, ("write", 0), _by_line(lines, along, step))

    turn_i, run_i = _dealt(schedule, i, rows, "threadIdx.y")
    turn_j, run_j = _dealt(schedule, j, columns, "threadIdx.x")
    # Of the orders tried, ptxas keeps the one by columns best; where an operand is read along k it may spill.
    by_column = ports and not (along_a or along_b)
    inner = (depth, *((turn_j, run_j, turn_i, run_i) if by_column else (turn_i, run_i, turn_j, run_j)))
    schedule.reorder(*inner)
    a, b = schedule.get_loops(result)[-2:]
    out = (*_dealt(schedule, a, rows, "threadIdx.y"), *_dealt(schedule, b, columns, "threadIdx.x"))
    schedule.reorder(*out)
    if columns.run > 1 and vector > 1:
        run, wide = schedule.split(out[3], [None, min(columns.run, vector)])
        schedule.vectorize(wide)
        out = (*out[:3], run)
    for at in out:
        schedule.unroll(at)
    schedule.transform_layout(result, ("read", 0), lambda s, i, j: (s, *rows.split(i), *columns.split(j)))

    clear = schedule.decompose_reduction(product, stage)
    for at in (*schedule.get_loops(clear)[-6:], *inner):
        if schedule.get(at).kind == tirx.ForKind.SERIAL:
            schedule.unroll(at)
    schedule.reverse_compute_inline(schedule.get_sblock("C"))
    schedule.annotate(stage, STAGE, strategy.stages)
    fits = l1.k * thread.m * thread.n <= MOST_UNROLLED
    doubled = fits and (thread.m + thread.n) * step <= DOUBLED
    schedule.annotate(loop, STEP, 2 if doubled else int(fits))
    if ports:
        schedule.annotate(loop, PORTS, 1)
    swizzles = {name: False for name, along in (("A_shared", along_a), ("B_shared", along_b)) if along}
    return schedule.mod["main"], swizzles, {n for n, t in (("A_shared", turned_a), ("B_shared", turned_b)) if t}


def _dealt(schedule: s_tir.Schedule, line: Any, lines: Lines, axis: str) -> tuple[Any, Any]:
    """The loop over a warp's lines as turns and runs of each lane."""
    turn, lane, run = schedule.split(line, [lines.each // lines.run, lines.lanes, lines.run])
    schedule.bind(lane, axis)
    return turn, run


def source(variant: Variant, arch: str) -> KernelSource:
    """CUDA of a `cuda_core` variant."""
    dtype = variant.strategy.dtype
    function, swizzles, padded = kernel(variant, dtype == "float32" and has_full_rate(arch))
    return lowered(function, dtype, arch, variant.strategy.stages, swizzles, padded=padded)
