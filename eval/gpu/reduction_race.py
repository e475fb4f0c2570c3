"""Reductions of the suite against torch, memory's bandwidth beside them, and the choice against every plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch

from eval.gpu.budget import Budget, Journal, covered, median, spread
from eval.gpu.race import host_seconds, timed
from eval.gpu.reduction_verify import judged
from eval.gpu.torch_gpu import TorchGpu
from eval.operator_cases import OperatorCase
from vortex.gpu_reduction import GpuReducePlan, ReduceSelector, Seconds, View

TORCH = {"sum": "sum", "max": "amax", "mean": "mean"}
"""What torch calls each kind."""
AXIS = 1
"""Every case is x[outer, depth, inner]."""
COPIED_BYTES = 512 << 20
"""More than any L2 holds, several times."""


def bandwidth(gpu: TorchGpu, journal: Journal, size: int = COPIED_BYTES) -> None:
    """What a copy of torch's reads and writes in a second: the memory that the device of this run has."""
    source, target = gpu.empty(1, size // 4, "float32"), gpu.empty(1, size // 4, "float32")
    source.zero_()
    times = gpu.warm(lambda: target.copy_(source))
    journal.add("bandwidth", bytes=2 * size, seconds=median(times), spread=spread(times))


def operands(gpu: TorchGpu, case: OperatorCase) -> tuple[Any, Any]:
    x = gpu.operand(case["outer"] * case["depth"], case["inner"], "float32", 1, False)
    return x.view(case["outer"], case["depth"], case["inner"]), gpu.empty(case["outer"], case["inner"], "float32")


def about(reduce: Any, name: str, case: OperatorCase) -> dict[str, Any]:
    """What rows of a case have in common."""
    return {
        "library": name,
        "dtype": "float32",
        **asdict(case),
        "reduction": reduce.kind,
        "bytes": case.footprint_bytes,
    }


def suite(
    gpu: TorchGpu, reduce: Any, name: str, cases: Sequence[OperatorCase], journal: Journal, budget: Budget
) -> None:
    """Warm and cold medians of both on every case, in turn, as long as time is left."""
    for case in covered(journal, budget, name, "suite over torch", cases):
        x, out = operands(gpu, case)
        plan, rival = reduce.plan(tuple(x.shape), AXIS), getattr(x, TORCH[reduce.kind])
        reduce(x, AXIS, out)
        calls: dict[str, Any] = {
            "vortex": lambda x=x, out=out: reduce(x, AXIS, out),
            "torch": lambda rival=rival: rival(AXIS),
        }
        ours = {**judged(reduce.kind, plan, x, (AXIS,), out), "plan": str(plan), "predicted_s": plan.seconds}
        timed(gpu, "suite", calls, about(reduce, name, case), ours, journal)


def considered(selector: ReduceSelector, view: View, room: int) -> Iterator[GpuReducePlan]:
    """Every tile with every cut that the selector prices, each with the best sweep over its chunks."""
    seconds: Seconds = {}
    for index in selector.serving(view):
        for taken, first in dict.fromkeys(selector.firsts(index, view, room, False)):  # cuts may come to the same
            yield selector.completed(taken, first, seconds)


def oracle(
    gpu: TorchGpu, reduce: Any, name: str, cases: Sequence[OperatorCase], journal: Journal, budget: Budget
) -> None:
    """How much of the fastest plan's speed the choice has, with x in memory, as plans are priced; the soonest first."""
    for case in covered(journal, budget, name, "oracle", cases):
        x, out = operands(gpu, case)

        def seconds(plan: GpuReducePlan, x: Any = x, out: Any = out) -> float:
            return median(gpu.cold(lambda: reduce.run_planned(plan, x, AXIS, out)))

        chosen = reduce.plan(tuple(x.shape), AXIS)
        ours, rows, finished = seconds(chosen), [], True
        every = considered(
            reduce.selector, (case["outer"], case["depth"], case["inner"]), reduce.manifest.workspace_bytes
        )
        for plan in sorted(every, key=lambda plan: plan.seconds):
            if not budget.left:
                finished = False
                break
            rows.append({"kernel": str(plan), "predicted_s": plan.seconds, "s": seconds(plan)})
        row = {"chosen": str(chosen), "chosen_s": ours, "plans": rows, "all": finished}
        journal.add("oracle", **about(reduce, name, case), **row)


def overhead(gpu: TorchGpu, reduce: Any, name: str, cases: Sequence[OperatorCase], journal: Journal) -> None:
    """Seconds of the host for a call, ours and torch's, with a given result and without; and of the selection alone."""
    x, out = gpu.operand(64, 64, "float32", 1, False), gpu.empty(1, 64, "float32")[0]
    theirs = getattr(torch, TORCH[reduce.kind])
    calls = {
        "vortex(out=)": lambda: reduce(x, AXIS, out),
        "torch(out=)": lambda: theirs(x, AXIS, out=out),
        "vortex": lambda: reduce(x, AXIS),
        "torch": lambda: theirs(x, AXIS),
    }
    host_seconds(gpu, calls, name, "64x64", journal)
    for case in cases:
        seconds = reduce.time_selection(tuple(case.extents.values()), AXIS, repeats=2000)
        journal.add("selection", **about(reduce, name, case), seconds=seconds)
