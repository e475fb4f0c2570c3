"""`python -m eval.regret`: where in the domain of shapes the selector's choice is how far from the best.

Shapes are sampled where the choice changes (eval/sampling.py), every plan of the library is run on each, and the
vendors take turns with the callable in processes of their own. Share: performance of the choice relative to the best
plan, or to the quickest vendor; regret is what is missing to 1. Median, worst twentieth and geometric mean are those of
the log-uniform domain, with 95 % bootstrap intervals. At each K of --map, a domain of its own over M x N is drawn: what
is chosen, and what it loses.
"""

import argparse
import importlib
import os
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from eval import machine, races, records
from eval.alternate import Effort, Run, measure
from eval.bench import start_workers
from eval.commands import command, ended, lines_file, opened, rounds
from eval.compare import markdown
from eval.process import WorkerProcess
from eval.records import Line
from eval.roofline import Limits
from eval.sampling import Domain, samples
from eval.stats import bootstrap, weighted_mean, weighted_quantile

VENDORS = {"plain": ("mkl", "onednn", "openblas"), "packed": ("onednn_packed", "onnxruntime")}
EFFORT = Effort(rounds=3, seconds=0.02, modes=("warm",))
"""How long the systems are measured on a shape."""
PANELS_FROM = 128
"""Columns from which a packed operand is panels: narrower ones are packed as they are."""


def domain_of(options: argparse.Namespace, k: int | None) -> Domain:
    """All three axes, or M x N at one K."""
    narrow = PANELS_FROM if options.layout == "packed" else 1
    ends = (1, options.most) if k is None else (k, k)
    return Domain((1, narrow, ends[0]), (options.most, options.most, ends[1]), options.max_flops)


def operands_of(layout: str) -> dict[str, bool]:
    """As `vortex.shapes.shape_of` takes them."""
    return {"transposed": {"transpose_b": True}, "packed": {"packed": True}}.get(layout, {})


def choice(gemm: Any, layout: str, threads: int, m: int, n: int, k: int) -> object:
    """Strategy and grid that the native selector picks."""
    shapes: Any = importlib.import_module("vortex.shapes")
    return gemm.native_choice(shapes.shape_of(m, n, k, **operands_of(layout)), threads)


def parts_of(options: argparse.Namespace) -> list[tuple[str, int | None, int]]:
    """(name, K where it is fixed, shapes) of the whole domain and of every map."""
    maps = ((f"map at K={k}", k, options.map_samples) for k in options.map)
    return [part for part in (("domain", None, options.samples), *maps) if part[2]]


def identity(part: str, seed: int, number: int) -> str:
    """The id of a shape of a part. Which shape it is depends on the library, where whose choice changes."""
    return f"{part}/{seed}/{number:04d}"


def todo(gemm: Any, options: argparse.Namespace) -> list[tuple[Any, dict[str, Any]]]:
    """(case, what its line says of the sample) of the whole domain and of every map, taking turns."""
    parts: list[list[tuple[Any, dict[str, Any]]]] = []
    pick = partial(choice, gemm, options.layout, options.threads)
    for name, k, count in parts_of(options):
        drawn = samples(domain_of(options, k), pick, count, options.seed)
        parts.append(
            [
                (
                    races.case_at("regret", identity(name, options.seed, number), sample.shape, options.layout),
                    {"part": name, "weight": sample.weight, "impurity": sample.impurity},
                )
                for number, sample in enumerate(drawn)
            ]
        )
    spread = [((place + 0.5) / len(part), item) for part in parts for place, item in enumerate(part)]
    return [item for _, item in sorted(spread, key=lambda pair: pair[0])]


def against(case: Any, workers: dict[str, WorkerProcess], effort: Effort, run: Run) -> dict[str, float | None]:
    """Warm seconds of every system on a case; None for one that failed."""
    outcomes = measure(case, workers, effort, run, resident=True)
    return {
        name: None if outcome.error else statistics.median(timing.best for timing in outcome.rounds["warm"])
        for name, outcome in outcomes.items()
    }


def vendor_share(line: Line) -> float | None:
    """Performance of the callable relative to the quickest vendor; None where nobody else was measured."""
    seconds = {name: value for name, value in line["systems"].items() if value}
    ours = [value for name, value in seconds.items() if name.startswith("vortex")]
    theirs = [value for name, value in seconds.items() if not name.startswith("vortex")]
    return min(theirs) / ours[0] if ours and theirs else None


def summary(lines: Sequence[Line]) -> str:
    """A table a part of the domain, and the shapes that lose most."""
    texts = []
    for part in dict.fromkeys(line["part"] for line in lines):
        here = [line for line in lines if line["part"] == part]
        rows = [row("the library's best plan", [(races.share(line), line["weight"]) for line in here])]
        vendors = [(found, line["weight"]) for line in here if (found := vendor_share(line)) is not None]
        if vendors:
            rows.append(row("the quickest vendor", vendors))
        first = here[0]
        head = ("performance relative to", "shapes", "geometric mean", "median", "worst twentieth from", "worst")
        title = f"### {part}, {'packed' if first['packed'] else 'transposed' if first['trans_b'] else 'plain'} B"
        texts += [f"{title}, {first['threads']} thread(s)", markdown(head, rows), *races.unsteady(here)]
    worst = sorted(lines, key=races.share)[: max(3, len(lines) // 25)]
    rows = [
        [
            f"{line['m']}x{line['n']}x{line['k']}",
            f"{races.share(line):.3f}",
            line["chosen"],
            min(line["plans"], key=lambda entry: entry["even"])["label"],
        ]
        for line in worst
    ]
    return "\n\n".join([*texts, "Where the choice loses most:", markdown(("shape", "share", "chosen", "best"), rows)])


def row(name: str, pairs: Sequence[tuple[float, float]]) -> list[str]:
    values, weights = [value for value, _ in pairs], [weight for _, weight in pairs]
    statistics_ = (weighted_mean, partial(weighted_quantile, at=0.5), partial(weighted_quantile, at=0.05))
    told = [str(bootstrap(statistic, values, weights)) for statistic in statistics_]
    return [name, str(len(pairs)), *told, f"{min(values):.3f}"]


def parser() -> argparse.ArgumentParser:
    top = command(__doc__)
    top.add_argument("--samples", type=int, default=150, help="shapes of the whole domain")
    top.add_argument("--map", type=int, nargs="*", default=[768], metavar="K", help="draw M x N at these K")
    top.add_argument("--map-samples", type=int, default=60, help="shapes of each map")
    top.add_argument("--layout", choices=races.LAYOUTS, default="plain", help="how B reaches the call")
    top.add_argument("--threads", type=int, default=1, help="threads of a call")
    top.add_argument("--most", type=int, default=8192, help="largest extent")
    top.add_argument("--max-flops", type=float, default=2e9, help="shapes above this are no part of the domain")
    top.add_argument("--rounds", type=rounds, default=races.ROUNDS, help="of all plans of a shape, at least 2")
    top.add_argument(
        "--vendors", nargs="*", help="systems to compare with (default: those of the layout; none: leave empty)"
    )
    top.add_argument("--seed", type=int, default=0, help="of the samples")
    top.add_argument("--minutes", type=float, default=15.0, help="begin no shape after this long; repeat to go on")
    top.add_argument("--library", help="a saved library instead of vortex.compile()")
    top.add_argument(
        "--out", type=lines_file, default=Path("results/regret.jsonl"), help="lines are added; done ones are kept"
    )
    top.add_argument("--allow-busy", action="store_true", help="measure on a busy machine too")
    return top


def measured(gemm: Any, options: argparse.Namespace) -> list[Line]:
    """Measures what the result file lacks, as far as the time goes; all lines of this library and these options."""
    packed, library = options.layout == "packed", gemm.library.identity
    known = records.reopened(options.out)
    items = todo(gemm, options)
    about = {"library": library, "commit": machine.commit(), "device": machine.device(), "layout": options.layout}

    def key(line: Line) -> tuple[Any, ...]:
        return line["id"], line["m"], line["n"], line["k"], line["threads"], line["layout"], line["library"]

    done = {key(line): line for line in known if line.get("kind") == "race" and "part" in line}
    keys = [(case.id, case.m, case.n, case.k, options.threads, options.layout, library) for case, _ in items]
    left = [item for item, at in zip(items, keys, strict=True) if at not in done]
    names = VENDORS["packed" if packed else "plain"] if options.vendors is None else options.vendors
    names = [*(("vortex_packed" if packed else "vortex",) if names else ()), *names]
    end, begun = time.monotonic() + 60 * options.minutes, time.monotonic()
    with ExitStack() as stack:
        workers = start_workers(names, options.threads, stack)[0] if left else {}
        run = Run(options.threads, options.seed, Limits(machine.peak(options.threads), ()), about, options.allow_busy)
        for number, (case, sample) in enumerate(left, 1):
            if time.monotonic() > end:
                print(f"out of time: {len(left) - number + 1} shapes left; the same command goes on", file=sys.stderr)
                break
            try:
                line = races.race(gemm, case, options.threads, packed, options.rounds, allow_busy=options.allow_busy)
            except machine.BusyError as error:
                print(f"left for another time: {error}", file=sys.stderr)
                continue
            line |= sample | about | {"systems": against(case, workers, EFFORT, run) if workers else {}}
            records.append(options.out, [line])
            done[key(line)] = line
            remaining = (time.monotonic() - begun) / number * (len(left) - number)
            print(f"[{number}/{len(left)}] {case}: {races.share(line):.3f}, {remaining:.0f} s left", file=sys.stderr)
    return [done[at] for at in keys if at in done]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    gemm = opened(options.library, options.threads, options.allow_busy)
    if options.library:
        os.environ["VORTEX_EVAL_LIBRARY"] = str(Path(options.library).resolve())
    try:
        lines = measured(gemm, options)
    except ValueError as error:
        parser().error(str(error))
    if not lines:
        parser().error("nothing was measured: --samples and --map-samples are 0, or --minutes is too short")
    text = summary(lines)
    print(text)
    options.out.with_suffix(".md").write_text(f"# Regret\n\n{text}\n")
    from eval.regret_map import draw

    for k in options.map:
        here = [line for line in lines if line["part"] == f"map at K={k}"]
        if here:
            pick = partial(choice, gemm, options.layout, options.threads)
            name = f"{options.out.stem}-{options.layout}-{options.threads}t-k{k}.png"
            draw(gemm, domain_of(options, k), pick, here, options.out.with_name(name))
    return 0


if __name__ == "__main__":
    ended(main)
