"""Every kernel of a library of reductions, on ragged shapes: whole, cut in chunks, over axes that are no neighbours.

Operands are views into memory of NaN and of one value, as in `verify`. Sums of integers and every maximum are exact;
other sums may be off by what so many additions in float32 round. All calls of a trial must give the same bits.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from eval.gpu.budget import Budget, Journal
from eval.gpu.torch_gpu import TorchGpu
from eval.gpu.verify import GUARD, in_turn, ragged
from vortex.gpu_reduction import NARROW, PIECE, STEPS, WIDE, GpuReducePlan, ReduceBlock, Sweep
from vortex.reduction_plan import views
from vortex.reduction_tiles import Family

UNIT = 2.0**-24
"""What one operation in float32 rounds by, at most."""
CHUNKS = 4
"""Of a depth that is cut: the sweep over them takes wide accesses too."""
APART = 3
"""Extent of the first axis where the reduced ones are no neighbours."""
WARP = 32


@dataclass(frozen=True)
class ReduceTrial:
    """One shape for one kernel, which is that of narrow or wide accesses by the extents and the shift."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    parts: int
    """Chunks of the depth."""
    shift: int
    """Elements by which the operands lie off multiples of 16 bytes."""


def trials(block: ReduceBlock, vector: int, count: int, seed: int) -> Iterator[ReduceTrial]:
    """More than two blocks along the kept axes and three steps; for narrow accesses ragged extents, or a shift.

    The first shape whole, cut and with its axes apart, the others cut or whole in turn.
    """
    draw = random.Random(f"{block.symbol('', vector)} {seed}")
    is_rows = block.family is Family.ROWS
    for number in range(count):
        shift = int(vector == NARROW and number % 2 == 1)
        ragged_by = draw.randrange(1, PIECE) if vector == NARROW and not shift else 0
        outer = ragged(draw, block.rows, 2, 1)
        depth = (CHUNKS - 1) * block.step + PIECE * draw.randint(1, block.step // PIECE)
        depth -= ragged_by if is_rows else draw.randrange(PIECE)
        inner = () if is_rows else (ragged(draw, block.columns, 2, PIECE) + ragged_by,)
        if number % 2 == 0:
            yield ReduceTrial((outer, depth, *inner), (1,), 1, shift)
        if number == 0 or number % 2 == 1:
            yield ReduceTrial((outer, depth, *inner), (1,), CHUNKS, shift)
        if number == 0:
            yield ReduceTrial((APART, -(-outer // APART), depth, *inner), (0, 2), 1, shift)


def plan_of(reduce: Any, index: int, trial: ReduceTrial) -> GpuReducePlan:
    """A tile wherever it serves, the selected ones elsewhere."""
    selector, sweeps = reduce.selector, []
    for place, view in enumerate(views(trial.shape, trial.axes)):
        if index not in selector.serving(view):
            sweeps += selector.choose(view, reduce.manifest.workspace_bytes, place > 0).sweeps
            continue
        first = selector.cut(index, view, trial.parts, place > 0)
        sweeps.append(first)
        if first.chunks > 1:
            sweeps.append(selector.cut(index, (first.outer, first.chunks, first.inner), 1, True))
    return GpuReducePlan(tuple(sweeps), 0.0)


def additions(sweep: Sweep) -> int:
    """The longest chain of them in a sweep: a thread's own, then where lanes and warps, or rows of threads, meet."""
    block = sweep.block
    own = STEPS * -(-sweep.chunk // block.step)
    if block.family is Family.COLUMNS:
        return own + int(math.log2(block.along))
    return own + int(math.log2(PIECE * min(block.along, WARP))) + max(0, block.along // WARP - 1)


def judged(
    kind: str, plan: GpuReducePlan, x: Any, axes: tuple[int, ...], found: Any, integers: bool = False
) -> dict[str, Any]:
    """The largest error over what rounding explains, or of what is exact how many results are anything else."""
    error = over_bound(kind, plan, x, axes, found, integers)
    return {"error": error, "right": error <= (0 if integers or kind == "max" else 1)}


def over_bound(kind: str, plan: GpuReducePlan, x: Any, axes: tuple[int, ...], found: Any, integers: bool) -> float:
    wide, depth = x.double(), math.prod(x.shape[axis] for axis in axes)
    if kind == "max":
        return float((found.double() != wide.amax(axes)).sum().item())
    expected, size = wide.sum(axes), wide.abs().sum(axes)
    if integers:
        exact = expected.float() * (torch.tensor(1 / depth, dtype=torch.float32) if kind == "mean" else 1)
        return float((found != exact).sum().item())
    if kind == "mean":
        expected, size = expected / depth, size / depth
    count = sum(map(additions, plan.sweeps)) + 2  # the factor of a mean is rounded, and so is what it makes
    bound = count * UNIT / (1 - count * UNIT) * size + torch.finfo(torch.float32).tiny
    error = ((found.double() - expected).abs() / bound).max().item()
    return float("inf") if math.isnan(error) else float(error)


def laid(gpu: TorchGpu, flat: Any, shape: tuple[int, ...], shift: int, around: float) -> tuple[Any, Any]:
    """A contiguous tensor a few elements off a multiple of 16 bytes, and the memory around it."""
    inside, whole = gpu.guarded(flat, shift, 0, around)
    return inside.view(shape), whole


def check(gpu: TorchGpu, reduce: Any, index: int, trial: ReduceTrial, seed: int, integers: bool) -> dict[str, Any]:
    """One trial: twice, and once more with the operand at another alignment, which changes no order of additions."""
    kept = tuple(extent for axis, extent in enumerate(trial.shape) if axis not in trial.axes)
    flat = gpu.operand(1, math.prod(trial.shape), "float32", seed, integers)
    x, _ = laid(gpu, flat, trial.shape, trial.shift, float("nan"))
    moved, _ = laid(gpu, flat, trial.shape, 1 - trial.shift, float("nan"))
    out, whole = laid(gpu, torch.zeros((1, math.prod(kept)), device=flat.device), kept, trial.shift, GUARD)
    plan, results = plan_of(reduce, index, trial), []
    for operand in (x, x, moved):
        out.fill_(float("nan"))
        reduce.run_planned(plan, operand, trial.axes, out)
        gpu.synchronize()
        results.append(out.clone())
    row = judged(reduce.kind, plan, x, trial.axes, results[0], integers)
    same = all(torch.equal(results[0].view(torch.int32), other.view(torch.int32)) for other in results[1:])
    out.fill_(GUARD)
    outside = int((whole != GUARD).sum().item())
    return {**row, "same": same, "outside": outside, "right": row["right"] and same and outside == 0}


def verify(gpu: TorchGpu, reduce: Any, name: str, journal: Journal, budget: Budget, count: int, seed: int) -> None:
    """Every kernel of a library of reductions."""
    every = entries(reduce)
    queues = [list(trials(reduce.selector.blocks[tile], vector, count, seed)) for tile, vector in every]

    def tried(index: int, turn: int, integers: bool) -> dict[str, Any]:
        return check(gpu, reduce, every[index][0], queues[index][turn], seed + turn, integers)

    names = [reduce.selector.blocks[tile].symbol(reduce.kind, vector) for tile, vector in every]
    in_turn(name, journal, budget, names, queues, tried)


def entries(reduce: Any) -> list[tuple[int, int]]:
    """Tiles with the bytes of their accesses: the kernels of a library."""
    return [(tile, vector) for tile in range(len(reduce.selector.blocks)) for vector in (WIDE, NARROW)]


def run_few(gpu: TorchGpu, reduce: Any) -> int:
    """One cut trial of the first kernel of each family and access; how many were wrong."""
    seen: dict[tuple[Family, int], int] = {}
    for tile, vector in entries(reduce):
        seen.setdefault((reduce.selector.blocks[tile].family, vector), tile)
    wrong = 0
    for (_, vector), tile in seen.items():
        cut = next(trial for trial in trials(reduce.selector.blocks[tile], vector, 1, 0) if trial.parts > 1)
        wrong += not check(gpu, reduce, tile, cut, 0, True)["right"]
    return wrong
