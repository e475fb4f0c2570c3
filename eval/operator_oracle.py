"""`python -m eval.operator_oracle`: how much of its best plan's performance an operator's choice reaches.

Every plan that the library has for a case is run in turn over several rounds: of a convolution every family, walk,
Winograd blocking and grid, of products every strategy and grid. The best is chosen on the even rounds and scored on the
odd ones. Every result is checked against float64. A 1x1 filter that is a plain product has no plans of its own:
`eval.oracle --packed` is about those. Of products, seconds are those of the call in native code. Cases that are in the
file for that number of threads are not run again.
"""

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from eval import machine, plans, records
from eval.commands import command, ended, opened, rounds
from eval.operator_cases import OperatorCase, as_variant, load_any_suite
from eval.operator_libraries import operator_named
from eval.operator_operands import OperatorOperands, check_operator, make_operator_operands, shapes
from eval.races import python_seconds, time_plans
from eval.stats import geometric_mean
from eval.suites import MAIN_SUITES, fresh_seed, sample

CONV_SUITES = ("vortex_deepbench_conv_107", "vortex_cnn_conv_584")
SUITES: dict[str, tuple[str, ...]] = {
    "conv2d": CONV_SUITES,
    "batch": ("dietcode_bmm_nn", "dietcode_bmm_nt"),
    "bfloat16": tuple(MAIN_SUITES),
    "int8": tuple(MAIN_SUITES),
}
"""Of each operator whose choice is measured; plain products in float32 are those of `eval.oracle`."""
WORST = 8


@dataclass(frozen=True, slots=True)
class Plans:
    """All plans of one case by name, the name of the chosen one, a call by one of them, and what checks its output."""

    named: Mapping[str, Any]
    chosen: str
    run: Callable[[Any], Any]
    out: np.ndarray
    check: Callable[[], Any]

    def spoil(self) -> None:
        """No result that was there before passes the check."""
        self.out.fill(np.iinfo(self.out.dtype).min if self.out.dtype.kind == "i" else np.nan)


def window_of(case: OperatorCase) -> dict[str, Any]:
    """The keywords of a call of a convolution."""
    e = case.extents
    window = {"stride": (e["stride_h"], e["stride_w"]), "padding": (e["pad_h"], e["pad_w"])}
    return window | {"dilation": e["dilation"], "groups": e["groups"]}


def convolution(conv: Any, of: OperatorOperands) -> Plans:
    window = window_of(of.case)
    packed, extents = conv.pack(of["w"], groups=window["groups"]), (of["x"].shape, of["w"].shape)

    def run(plan: Any) -> None:
        conv.run(plan, of["x"], packed, of.out, **window)

    named = {str(plan): plan for plan in conv.plans(*extents, **window)}
    return Plans(named, str(conv.plan(*extents, **window)), run, of.out, lambda: check_operator(of, of.out))


def batch(bmm: Any, of: OperatorOperands) -> Plans:
    e = of.case.extents
    flags = {"transpose_a": bool(e["trans_a"]), "transpose_b": bool(e["trans_b"])}
    extents = e["batch"], e["m"], e["n"], e["k"]

    def label(plan: Any) -> str:
        return f"{plans.label(plan)}, {plan.workers} thread(s)"  # products may be shared where a grid cuts nothing

    def run(plan: Any) -> None:
        bmm.run(plan, of["a"], of["b"], of.out, **flags)

    named = {label(plan): plan for plan in bmm.plans(*extents, **flags)}
    return Plans(named, label(bmm.plan(*extents, **flags)), run, of.out, lambda: check_operator(of, of.out))


def product(gemm: Any, of: OperatorOperands) -> Plans:
    e, a, b, out = of.case.extents, of["a"], of["b"], of.out
    if of.case.op == "bfloat16":
        import ml_dtypes

        a, b = a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16)
        out = np.empty(out.shape, ml_dtypes.bfloat16)
    extents = e["m"], e["n"], e["k"]

    def run(plan: Any) -> None:
        gemm.run(plan, a, b, out)

    def check() -> float:
        return check_operator(of, out if of.case.op == "int8" else out.astype(np.float32))

    named = {plans.label(plan): plan for plan in gemm.plans(*extents)}
    return Plans(named, plans.label(gemm.plan(*extents)), run, out, check)


PREPARED: dict[str, Callable[[Any, OperatorOperands], Plans]] = {"conv2d": convolution, "batch_gemm": batch}


def prepared(run: Any, case: OperatorCase) -> Plans:
    """The plans of a case, on operands that are the same in every run."""
    return PREPARED.get(case.op, product)(run, make_operator_operands(case, seed=0))


def empty_call(run: Any, case: OperatorCase) -> tuple[Callable[[], Any], float] | None:
    """A call of a single element, and the seconds that it is expected to take; None of a convolution."""
    if case.op == "conv2d":
        return None
    ones = {name: 1 for name in ("batch", "m", "n", "k") if name in case.extents}
    of = prepared(run, OperatorCase("empty", "empty", case.op, case.extents | ones))
    plan = of.named[of.chosen]
    return partial(of.run, plan), float(plan.seconds)


def try_plans(run: Any, case: OperatorCase, rounds: int) -> dict[str, Any]:
    """The share of the best plan's performance that the choice has on the odd rounds, and what both were."""
    of, empty = prepared(run, case), empty_call(run, case)
    added: list[float] = []

    def after_round() -> None:
        if empty is not None:
            added.append(python_seconds(*empty))

    calls = {name: partial(of.run, plan) for name, plan in of.named.items()}
    for call in calls.values():
        of.spoil()
        call()
        of.check()
    times = time_plans(calls, rounds, of.chosen, after_round)
    best = min(times, key=lambda name: times[name][0])
    outside, least = min(added[1::2], default=0.0), run.manifest.rates.call
    scored = {name: max(times[name][1] - outside, least) for name in (best, of.chosen)}
    found = {"share": scored[best] / scored[of.chosen], "seconds": scored[of.chosen], "plans": len(of.named)}
    return found | {"chosen": of.chosen, "best": best}


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Shares by operator and number of threads, and the worst cases."""
    head = "| operator | threads | cases | geometric mean | median | worst |"
    shown = [head, "|---|---:|---:|---:|---:|---:|"]
    for op, threads in sorted({(line["op"], line["threads"]) for line in lines}):
        shares = [line["share"] for line in lines if (line["op"], line["threads"]) == (op, threads)]
        figures = geometric_mean(shares), statistics.median(shares), min(shares)
        shown.append(f"| {op} | {threads} | {len(shares)} | " + " | ".join(f"{100 * f:.1f} %" for f in figures) + " |")
    shown += ["", "| case | threads | share | chosen | best |", "|---|---:|---:|---|---|"]
    for line in sorted(lines, key=lambda line: line["share"])[:WORST]:
        case = OperatorCase(line["suite"], line["id"], line["op"], line["extents"])
        shown.append(
            f"| {case.op} {case.shape} | {line['threads']} | {100 * line['share']:.1f} % | {line['chosen']} "
            f"| {line['best']} |"
        )
    return "\n".join(shown)


def cases_of(operator: str, suites: Sequence[str]) -> list[OperatorCase]:
    """Cases of stored suites, products as those of the operator."""
    every = [case for suite in suites for case in load_any_suite(suite)]
    return [case if isinstance(case, OperatorCase) else as_variant(case, operator) for case in every]


def parser() -> argparse.ArgumentParser:
    top = command(__doc__ or "")
    top.add_argument("--operator", choices=SUITES, default="conv2d", help="whose choice is measured")
    top.add_argument("--suite", nargs="+", help="stored suites of its cases; default: those of the operator")
    top.add_argument("--sample", type=int, default=60, help="cases, every suite represented")
    top.add_argument("--max-flops", type=float, default=3e9, help="leave out cases above this")
    top.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="threads of a call")
    top.add_argument("--rounds", type=rounds, default=6, help="at least 2; half of them choose, half of them score")
    top.add_argument("--seed", type=int, help="of the sample (default: fresh)")
    top.add_argument("--max-seconds", type=float, default=900.0, help="begin no case after this long")
    top.add_argument("--library", help="a saved library of the operator instead of vortex.compile()")
    top.add_argument("--out", type=Path, default=Path("results/operator_oracle.jsonl"), help="lines are added to it")
    top.add_argument("--allow-busy", action="store_true", help="measure on a busy machine too")
    return top


def is_product(run: Any, case: OperatorCase) -> bool:
    """Whether a convolution runs as a plain product."""
    if case.op != "conv2d":
        return False
    extents = shapes(case)
    return bool(run.plan(extents["x"], extents["w"], **window_of(case)).family == "gemm")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    vortex: Any = importlib.import_module("vortex")
    run = opened(options.library, max(options.threads), options.allow_busy, operator_named(options.operator))
    seed = fresh_seed() if options.seed is None else options.seed
    every = cases_of(options.operator, options.suite or SUITES[options.operator])
    cases = sample([case for case in every if case.flops <= options.max_flops], options.sample, seed)
    lines = records.reopened(options.out)
    done = {(line["id"], line["threads"]) for line in lines}
    about = {"kind": "operator_oracle", "seed": seed, "commit": machine.commit(), "device": machine.device()}
    end, products = time.monotonic() + options.max_seconds, 0
    for case in cases:
        for threads in options.threads:
            vortex.set_num_threads(threads)
            if is_product(run, case):
                products += 1
            elif (case.id, threads) not in done and time.monotonic() < end:
                found = try_plans(run, case, options.rounds)
                line = {"suite": case.suite, "id": case.id, "op": case.op, "extents": case.extents, "threads": threads}
                records.append(options.out, [about | line | found])
                lines.append(line | found)
                print(f"{case}, {threads} thread(s): {100 * found['share']:.1f} %", file=sys.stderr)
    if not lines:
        parser().error("no case was measured: none is below --max-flops, or --max-seconds is too short")
    told = f", {products} of their runs plain products" if options.operator == "conv2d" else ""
    print(f"{len(cases)} cases sampled with seed {seed}{told}\n\n{table(lines)}")
    return 0


if __name__ == "__main__":
    ended(main)
