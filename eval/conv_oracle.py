"""`python -m eval.conv_oracle`: how much of its best plan's performance the choice of a convolution reaches.

Every family, walk, Winograd blocking and grid that a library has for a case is run in turn over several rounds. The
best is chosen on the even rounds and scored on the odd ones. Every result is checked against float64. A 1x1 filter that
is a plain product has no plans of its own: `eval.oracle --packed` is about those. Cases that are in the file for that
number of threads are not run again.
"""

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from eval import machine, records
from eval.commands import command, ended, opened, rounds
from eval.operator_cases import OperatorCase, load_any_suite
from eval.operator_operands import check_operator, make_operator_operands, shapes
from eval.races import time_plans
from eval.stats import geometric_mean
from eval.suites import fresh_seed, sample

SUITES = ("vortex_deepbench_conv_107", "vortex_cnn_conv_584")
WORST = 8


def window_of(case: OperatorCase) -> dict[str, Any]:
    """The keywords of a call."""
    e = case.extents
    window = {"stride": (e["stride_h"], e["stride_w"]), "padding": (e["pad_h"], e["pad_w"])}
    return window | {"dilation": e["dilation"], "groups": e["groups"]}


def try_plans(conv: Any, case: OperatorCase, rounds: int) -> dict[str, Any]:
    """The share of the best plan's performance that the choice has on the odd rounds, and what both were."""
    of, window = make_operator_operands(case, seed=0), window_of(case)
    packed = conv.pack(of["w"], groups=window["groups"])
    extents = of["x"].shape, of["w"].shape
    ours = str(conv.plan(*extents, **window))
    plans = {str(plan): plan for plan in conv.plans(*extents, **window)}
    calls = {name: partial(conv.run, plan, of["x"], packed, of.out, **window) for name, plan in plans.items()}
    for call in calls.values():
        of.out.fill(np.nan)
        call()
        check_operator(of, of.out)
    times = time_plans(calls, rounds, ours)
    best = min(times, key=lambda name: times[name][0])
    return {"share": times[best][1] / times[ours][1], "chosen": ours, "best": best, "plans": len(plans)}


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Shares by number of threads, and the worst cases."""
    shown = ["| threads | cases | geometric mean | median | worst |", "|---:|---:|---:|---:|---:|"]
    for threads in sorted({line["threads"] for line in lines}):
        shares = [line["share"] for line in lines if line["threads"] == threads]
        figures = geometric_mean(shares), statistics.median(shares), min(shares)
        shown.append(f"| {threads} | {len(shares)} | " + " | ".join(f"{100 * f:.1f} %" for f in figures) + " |")
    shown += ["", "| case | threads | share | chosen | best |", "|---|---:|---:|---|---|"]
    for line in sorted(lines, key=lambda line: line["share"])[:WORST]:
        case = OperatorCase(line["suite"], line["id"], "conv2d", line["extents"])
        shown.append(
            f"| {case.shape} | {line['threads']} | {100 * line['share']:.1f} % | {line['chosen']} | {line['best']} |"
        )
    return "\n".join(shown)


def parser() -> argparse.ArgumentParser:
    top = command(__doc__ or "")
    top.add_argument("--suite", nargs="+", default=list(SUITES), help="stored suites of convolutions")
    top.add_argument("--sample", type=int, default=60, help="cases, every suite represented")
    top.add_argument("--max-flops", type=float, default=3e9, help="leave out cases above this")
    top.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="threads of a call")
    top.add_argument("--rounds", type=rounds, default=6, help="at least 2; half of them choose, half of them score")
    top.add_argument("--seed", type=int, help="of the sample (default: fresh)")
    top.add_argument("--max-seconds", type=float, default=900.0, help="begin no case after this long")
    top.add_argument("--library", help="a saved library of Conv2d() instead of vortex.compile()")
    top.add_argument("--out", type=Path, default=Path("results/conv_oracle.jsonl"), help="lines are added to it")
    top.add_argument("--allow-busy", action="store_true", help="measure on a busy machine too")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    vortex: Any = importlib.import_module("vortex")
    operators: Any = importlib.import_module("vortex.operators")
    conv = opened(options.library, max(options.threads), options.allow_busy, operators.Conv2d())
    seed = fresh_seed() if options.seed is None else options.seed
    every = [case for suite in options.suite for case in load_any_suite(suite) if isinstance(case, OperatorCase)]
    cases = sample([case for case in every if case.flops <= options.max_flops], options.sample, seed)
    lines = records.reopened(options.out)
    done = {(line["id"], line["threads"]) for line in lines}
    about = {"kind": "conv_oracle", "seed": seed, "commit": machine.commit(), "device": machine.device()}
    end, products = time.monotonic() + options.max_seconds, 0
    for case in cases:
        for threads in options.threads:
            vortex.set_num_threads(threads)
            extents = shapes(case)
            if conv.plan(extents["x"], extents["w"], **window_of(case)).family == "gemm":
                products += 1
            elif (case.id, threads) not in done and time.monotonic() < end:
                found = try_plans(conv, case, options.rounds)
                line = {"suite": case.suite, "id": case.id, "extents": case.extents, "threads": threads} | found
                records.append(options.out, [about | line])
                lines.append(line)
                print(f"{case}, {threads} thread(s): {100 * found['share']:.1f} %", file=sys.stderr)
    if not lines:
        parser().error("no case was measured: none is below --max-flops, or --max-seconds is too short")
    print(f"{len(cases)} cases sampled with seed {seed}, {products} of their runs plain products\n\n{table(lines)}")
    return 0


if __name__ == "__main__":
    ended(main)
