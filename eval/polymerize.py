"""`python -m eval.polymerize`: several micro-kernels in one call, on against off.

On: the plan that the library chooses. Off: its best plan of one strategy, residues by micro-kernels of other heights
and widths. Masks: what a library with one micro-kernel for each strategy would do (MikPoly's baseline): the product of
the extents rounded up to that register tile, by the strategy and grid of least predicted time. Masking itself costs
nothing here: rows are as far apart as those of the product, whole tiles read on into the next row and write over its
beginning, and behind the last row is memory enough. (Padded operands would have other alignments, and other sets of the
caches.) Short rows of C that are not dense are not asked for ahead; so the same runs with rows of C as long as whole
tiles, dense and often whole lines, and the quicker of the two is what counts. All run as given plans, in turn; results
are checked against float64, those of the masks where no row is written over. Loss is the share of the cores' time that
the masks plan spends outside the output or idle in its last wave.
A shape that is not cut has the same plan on and off: that is not timed twice, its ratio is 1.

Lines already in the file, of the same threads and packing, are not measured again.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from eval import machine, records
from eval.alternate import rotated
from eval.commands import command, ended, opened
from eval.operands import Operands, WrongResultError, aligned, check, make_operands
from eval.oracle import choose_cases
from eval.plans import label
from eval.races import runner
from eval.stats import Timing, geometric_mean, summarize
from eval.suites import MAIN_SUITES, Case
from eval.worker import measure_warm

QUARTER = 4
TURN_SECONDS = 0.03


def padded(plan: Any, m: int, n: int) -> tuple[int, int]:
    """The extents of C rounded up to the register tile of a plan."""
    tile = plan.strategy.l0
    rows, columns = (tile.n, tile.m) if plan.strategy.stage.swap else (tile.m, tile.n)
    return -(-m // rows) * rows, -(-n // columns) * columns


def masks_plan(gemm: Any, case: Case, threads: int, kind: dict[str, Any]) -> tuple[Any, tuple[int, int]]:
    """The plan of least predicted time if every strategy had its register tile alone, and the extents it runs on."""
    options = [p for p in gemm.plans(case.m, case.n, case.k, threads=threads, **kind) if not p.regions]
    extents = {padded(p, case.m, case.n) for p in options if p.strategy.stage.tiled}
    found = []
    for m, n in extents:
        for plan in gemm.plans(m, n, case.k, threads=threads, **kind):
            if not plan.regions and plan.strategy.stage.tiled and padded(plan, case.m, case.n) == (m, n):
                found.append((plan.seconds, plan, (m, n)))
    _, plan, size = min(found, key=lambda entry: (entry[0], label(entry[1])))
    return plan, size


def loss(plan: Any, m: int, n: int, threads: int) -> float:
    """1 - useful / (cores x largest task): what padding and the last wave of one register tile leave unused."""
    if not plan.strategy.stage.tiled:
        return 0.0
    tile, grid = plan.strategy.l0, plan.grid
    if plan.strategy.stage.swap:
        m, n = n, m
    rows, columns = -(-m // tile.m), -(-n // tile.n)
    largest = -(-rows // grid.m) * tile.m * -(-columns // grid.n) * tile.n
    waves = -(-grid.m * grid.n // threads)
    cores = min(threads, grid.m * grid.n)
    return 1.0 - m * n / (waves * cores * largest)


def lapped(array: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """A matrix with more rows and columns, its rows as far apart as before: behind all but the last ones comes the next
    row, behind those zeros."""
    stride = array.shape[1]
    held = aligned((rows - 1) * stride + columns)
    held[: array.size] = array.ravel()
    held[array.size :] = 0
    return np.lib.stride_tricks.as_strided(held, (rows, columns), (stride * held.itemsize, held.itemsize))


def masked(operands: Operands, m: int, n: int, packed: bool) -> Operands:
    """What kernels with masks touch of a product: whole tiles, up to these extents; of a B to be packed a matrix."""
    case = operands.case
    a = lapped(operands.a, case.k, m) if case.trans_a else lapped(operands.a, m, case.k)
    b = lapped(operands.b, n, case.k) if case.trans_b else lapped(operands.b, case.k, n)
    wide = Case(case.suite, case.id, m, n, case.k, case.trans_a, case.trans_b)
    return Operands(wide, a, np.ascontiguousarray(b) if packed else b, lapped(operands.out, m, n))


def measured(gemm: Any, case: Case, threads: int, packed: bool, rounds: int) -> records.Line:
    """One line: seconds of the three, the loss of the masks plan, and what the call is cut into.

    Seconds are the median over rounds of each round's fastest call. WrongResultError if a result is wrong.
    """
    operands = make_operands(case, 0)
    how, shape = runner(gemm, operands, packed), (case.m, case.n, case.k)
    on = gemm.plan(*shape, threads=threads, **how.kind)
    gemm.polymerize(False)
    off = gemm.plan(*shape, threads=threads, **how.kind)
    gemm.polymerize(True)
    masks, (m, n) = off, (case.m, case.n)
    if off.strategy.stage.tiled:  # kernels of the other families have every height, and compute no more than there is
        apart_as_here = {"lda": case.m if case.trans_a else 0, "ldb": 0 if packed or case.trans_b else case.n}
        masks, (m, n) = masks_plan(gemm, case, threads, how.kind | apart_as_here)
    large = masked(operands, m, n, packed)
    apart = replace(large, out=aligned(m * n).reshape(m, n))
    calls = {"off": partial(how.run, off)}
    if on.regions:
        calls["on"] = partial(how.run, on)
    for call in calls.values():
        operands.out.fill(np.nan)
        call()
        check(operands, operands.out)
    calls["apart"] = partial(runner(gemm, apart, packed, laps=True).run, masks)
    calls["apart"]()
    check(operands, apart.out[: case.m, : case.n])
    calls["lapped"] = partial(runner(gemm, large, packed, laps=True).run, masks)
    turns: dict[str, list[Timing]] = {name: [] for name in calls}
    for number in range(rounds):
        for name in rotated(list(calls), number):
            turns[name].append(measure_warm(calls[name], TURN_SECONDS))
    figures = {name: summarize(timings, "warm") for name, timings in turns.items()}
    seconds = {name: summary.seconds for name, summary in figures.items()}
    return asdict(case) | {
        "kind": "polymerize",
        "threads": threads,
        "packed": packed,
        "on_s": seconds.get("on", seconds["off"]),
        "off_s": seconds["off"],
        "masks_s": min(seconds["apart"], seconds["lapped"]),
        "loss": loss(masks, case.m, case.n, threads),
        "on": label(on),
        "off": label(off),
        "masks": label(masks),
        "cut": bool(on.regions),
        "spread": max(summary.spread for summary in figures.values()),
        "predicted": off.seconds / on.seconds,
    }


def report(lines: Sequence[records.Line]) -> str:
    """What polymerization gives over all shapes, over those it cuts, and over the quarter of the worst loss."""
    by_loss = sorted(lines, key=lambda line: -line["loss"])
    quarter = by_loss[: max(1, len(lines) // QUARTER)]
    cut = [line for line in lines if line["cut"]]
    rows = [
        "| shapes | cases | cut | mean loss | off / on | worst | masks / on | worst |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, some in (("all", lines), ("quarter of the worst loss", quarter), ("cut into regions", cut)):
        if not some:
            continue
        gains, over = [x["off_s"] / x["on_s"] for x in some], [x["masks_s"] / x["on_s"] for x in some]
        rows.append(
            f"| {name} | {len(some)} | {sum(x['cut'] for x in some)} | {np.mean([x['loss'] for x in some]):.0%} "
            f"| {geometric_mean(gains):.3f} | {min(gains):.3f} | {geometric_mean(over):.3f} | {min(over):.3f} |"
        )
    for line in sorted(cut, key=lambda line: line["off_s"] / line["on_s"]):
        layout = ("t" if line["trans_a"] else "n") + ("t" if line["trans_b"] else "n")
        rows.append(
            f"{line['off_s'] / line['on_s']:.3f} (predicted {line['predicted']:.3f}) "
            f"{line['m']}x{line['n']}x{line['k']} {layout}: {line['on']}"
        )
    return "\n".join(rows)


def parser() -> argparse.ArgumentParser:
    top = command(__doc__)
    top.add_argument("--suite", nargs="+", default=[*MAIN_SUITES, "random"], help="stored suites, or `random`")
    top.add_argument("--sample", type=int, default=200, help="shapes, every suite represented")
    top.add_argument("--max-flops", type=float, default=2e9, help="leave out shapes above this")
    top.add_argument("--min-flops", type=float, default=1e6, help="leave out shapes below this")
    top.add_argument("--threads", type=int, default=2, help="threads of a call")
    top.add_argument("--packed", action="store_true", help="B packed before the calls")
    top.add_argument("--rounds", type=int, default=5, help="turns of each plan")
    top.add_argument("--seed", type=int, default=1, help="of the sample and the random shapes")
    top.add_argument("--cut", action="store_true", help="only shapes that the library cuts into regions")
    top.add_argument("--library", help="a saved library instead of vortex.compile()")
    top.add_argument("--minutes", type=float, default=10.0, help="begin no shape after this long")
    top.add_argument("--out", type=Path, default=Path("results/polymerize.jsonl"), help="lines are added to it")
    top.add_argument("--allow-busy", action="store_true", help="measure on a busy machine too")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    gemm = opened(options.library, options.threads, options.allow_busy)
    cases = [case for case in choose_cases(options, options.seed) if case.flops >= options.min_flops]
    known = records.reopened(options.out)
    asked = {"kind": "polymerize", "threads": options.threads, "packed": options.packed, "device": machine.device()}
    lines = [line for line in known if all(line.get(name) == value for name, value in asked.items())]
    done = {line["id"] for line in lines}
    about = {"commit": machine.commit(), "device": machine.device(), "date": time.strftime("%Y-%m-%d")}
    end = time.monotonic() + 60 * options.minutes
    for case in cases:
        if case.id in done or (options.cut and not is_cut(gemm, case, options)):
            continue
        if time.monotonic() > end:
            print(f"out of time after {len(lines)} of {len(cases)} shapes", file=sys.stderr)
            break
        lines.append(measured(gemm, case, options.threads, options.packed, options.rounds) | about)
        records.append(options.out, lines[-1:])
    if not lines:
        parser().error("no shape was measured: none is within the limits, or --minutes is too short")
    print(report(lines))
    return 0


def is_cut(gemm: Any, case: Case, options: argparse.Namespace) -> bool:
    """Whether the library serves a shape by regions."""
    kind = {"transpose_a": case.trans_a, "transpose_b": case.trans_b, "packed": options.packed}
    return bool(gemm.plan(case.m, case.n, case.k, threads=options.threads, **kind).regions)


if __name__ == "__main__":
    try:
        ended(main)
    except WrongResultError as error:
        sys.exit(f"error: {error}")
