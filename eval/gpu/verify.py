"""Every kernel of a library, right on ragged shapes: integers bit by bit, random numbers against float64.

Operands are views into memory full of NaN, so that a value from outside shows; the result is a view into memory of
one value, which must stay. A kernel sees at least three tiles along each axis, and a reduction longer than its stages.
"""

from __future__ import annotations

import faulthandler
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from eval.gpu.budget import Budget, Journal, Row, read_journal
from eval.gpu.kinds import EPSILON, Place, arranged, is_plain, judged
from eval.gpu.torch_gpu import TorchGpu, product, sampled
from vortex.gpu_door import ITEM_BYTES
from vortex.gpu_selector import GpuPlan, parts_of
from vortex.operators import rebuilt, store_of

GUARD = 777.0
SAMPLES = 48
STUCK_S = 30.0
"""A trial that takes longer hangs: it ends the process, whose successor goes on behind it."""


@dataclass(frozen=True)
class Trial:
    """One shape for one kernel; extents and alignment are such that its class is exactly the kernel's."""

    m: int
    n: int
    k: int
    splits: int


def trials(kernel: Any, dtype: str, count: int, seed: int) -> Iterator[Trial]:
    """Ragged shapes: the last tile of every axis is partial where the alignment class allows."""
    draw = random.Random(f"{kernel.variant.name} {seed}")
    v, s = kernel.variant, kernel.variant.strategy
    step = max(1, v.vector_bytes // ITEM_BYTES[dtype])
    step_m = step if v.transpose_a else 1
    step_k = step if not v.transpose_a or v.transpose_b else 1
    for number in range(count):
        m = ragged(draw, s.l1.m, 2, step_m)
        n = ragged(draw, s.l1.n, 2, step)
        k = ragged(draw, s.l1.k, 2 * s.stages, step_k)
        yield Trial(m, n, k, 1)
        if kernel.split >= 0 and number == 0:
            yield Trial(m, n, k, min(3, -(-k // s.l1.k)))


def ragged(draw: random.Random, tile: int, whole: int, step: int) -> int:
    """More than `whole` tiles, a multiple of `step`."""
    rest = draw.randrange(1, max(2, tile))
    return -(-(whole * tile + rest) // step) * step


def shift_of(vector_bytes: int, item_bytes: int) -> tuple[int, int]:
    """Where a view starts and how much further apart its rows are, in elements, for exactly this class."""
    step = max(1, vector_bytes // item_bytes)
    return (0, 0) if vector_bytes == 16 else (step, 16 // item_bytes + step)


def check(gpu: TorchGpu, gemm: Any, index: int, trial: Trial, seed: int, integers: bool) -> dict[str, Any]:
    """One trial; the largest error over what rounding explains, and whether guards are whole."""
    kernel, dtype = gemm.kernels[index], gemm.manifest.dtype
    v, item = kernel.variant, ITEM_BYTES[dtype]
    shift, extra = shift_of(v.vector_bytes, item)
    if not is_plain(gemm.manifest):
        return check_kind(gpu, gemm, index, trial, Place(gpu, dtype, seed, integers, shift, extra))
    a, b = (
        gpu.operand(rows, columns, dtype, seed + place, integers)
        for place, (rows, columns) in enumerate(((trial.m, trial.k), (trial.k, trial.n)))
    )
    given_a, _ = gpu.guarded(a.T if v.transpose_a else a, shift, extra, float("nan"))
    given_b, _ = gpu.guarded(b.T if v.transpose_b else b, shift, extra, float("nan"))
    out, whole = gpu.guarded(gpu.operand(trial.m, trial.n, dtype, 0, True, 0) + GUARD, shift, extra, GUARD)
    out.fill_(float("nan"))
    plan = GpuPlan(index, v, *parts_of(trial.splits, trial.k, v.strategy.l1.k), raster_of(gemm, index), 0.0)
    gemm.run_planned(plan, given_a, given_b, out, transpose_a=v.transpose_a, transpose_b=v.transpose_b)
    gpu.synchronize()
    if integers:
        wrong = int((out != product(a, b).to(out.dtype)).sum().item())
        error = float(wrong)
    else:
        rows = torch.linspace(0, trial.m - 1, min(trial.m, SAMPLES), device=out.device).long()
        columns = torch.linspace(0, trial.n - 1, min(trial.n, SAMPLES), device=out.device).long()
        expected, size = sampled(a, b, rows, columns)
        slack = EPSILON[dtype] * (expected.abs() + (trial.k**0.5) * size / trial.k) + 2.0**-20 * size
        found = out[rows][:, columns].double()
        error = float(((found - expected).abs() / (4 * slack)).max().item())
        error = float("inf") if bool(out.isnan().any().item()) else error
    out.fill_(GUARD)
    outside = int((whole != GUARD).sum().item())
    return {"error": error, "outside": outside, "right": outside == 0 and (error == 0 if integers else error <= 1)}


def check_kind(gpu: TorchGpu, gemm: Any, index: int, trial: Trial, place: Place) -> dict[str, Any]:
    """The same for another operator, see `kinds`."""
    kernel, manifest = gemm.kernels[index], gemm.manifest
    case = arranged(place, gemm, kernel, trial)
    cut = parts_of(trial.splits, case.k, kernel.variant.strategy.l1.k)
    case.run(GpuPlan(index, kernel.variant, *cut, raster_of(gemm, index), 0.0))
    gpu.synchronize()
    return judged(case, store_of(rebuilt(manifest.operator, manifest.settings)), manifest.dtype, place.integers)


def raster_of(gemm: Any, index: int) -> int:
    """The walk that the selector gives this kernel."""
    table = gemm.manifest.selector
    return int(table["costs"][index][table["fields"].index("raster")]) if table else 1


def verify(gpu: TorchGpu, gemm: Any, name: str, journal: Journal, budget: Budget, count: int, seed: int) -> None:
    """All kernels of a library of products, or of what is computed as products."""
    queues = [list(trials(kernel, gemm.manifest.dtype, count, seed)) for kernel in gemm.kernels]

    def tried(index: int, turn: int, integers: bool) -> dict[str, Any]:
        return check(gpu, gemm, index, queues[index][turn], seed + turn, integers)

    in_turn(name, journal, budget, [kernel.variant.name for kernel in gemm.kernels], queues, tried)


def in_turn(
    name: str,
    journal: Journal,
    budget: Budget,
    kernels: Sequence[str],
    queues: Sequence[Sequence[Any]],
    tried: Callable[[int, int, bool], dict[str, Any]],
) -> None:
    """The queue of trials of each kernel, one of each first, so that a short run has seen every one.

    A kernel that faults or hangs takes the process with it. The next one finds that in the journal, calls the kernel
    wrong, and leaves out what is done.
    """
    done, lost = tried_before(read_journal(journal.path), name)
    order = [
        (index, turn)
        for turn in range(max(map(len, queues), default=0))
        for index in range(len(queues))
        if turn < len(queues[index]) and (kernels[index], turn) not in done and kernels[index] not in lost
    ]
    for kernel in lost:
        journal.add("verify", library=name, kernel=kernel, told="it ended the process", right=False)
    for index, turn in budget.within(order):
        journal.add("trying", library=name, kernel=kernels[index])
        for integers in (True, False):
            faulthandler.dump_traceback_later(STUCK_S, exit=True, file=sys.__stderr__ or sys.stderr)
            found = {**asdict(queues[index][turn]), "integers": integers, **tried(index, turn, integers)}
            faulthandler.cancel_dump_traceback_later()
            journal.add("verify", library=name, kernel=kernels[index], turn=turn, **found)
    planned = sum(map(len, queues))
    journal.add("verify_done", library=name, kernels=len(queues), trials=planned, finished=bool(budget.left))


def tried_before(rows: Sequence[Row], name: str) -> tuple[set[tuple[str, int]], list[str]]:
    """(kernel, turn) of all trials of a library in the journal of a part, and the kernels at which processes ended."""
    own = [row for row in rows if row.get("library") == name and row["kind"] in ("trying", "verify")]
    done = {(row["kernel"], row["turn"]) for row in own if "turn" in row}
    begun = Counter(row["kernel"] for row in own if row["kind"] == "trying")
    ended = Counter(row["kernel"] for row in own if "turn" in row)
    return done, [kernel for kernel, count in begun.items() if ended[kernel] < 2 * count]


def few(gemm: Any, count: int) -> list[int]:
    """Kernels of every backend and layout, for the slow checkers."""
    seen: dict[Any, int] = {}
    for index, kernel in enumerate(gemm.kernels):
        seen.setdefault((kernel.variant.strategy.backend, kernel.variant.vector_bytes), index)
    return list(seen.values())[:count]


def run_few(gpu: TorchGpu, gemm: Any, count: int) -> int:
    """One trial of a few kernels; how many were wrong. What compute-sanitizer watches."""
    wrong = 0
    for index in few(gemm, count):
        trial = next(trials(gemm.kernels[index], gemm.manifest.dtype, 1, 0))
        small = replace(trial, m=min(trial.m, 200), n=min(trial.n, 256), k=min(trial.k, 256))
        wrong += not check(gpu, gemm, index, small, 0, True)["right"]
    return wrong
