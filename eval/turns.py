"""`python -m eval.turns`: this checkout against another one, call by call in turns.

The other is a folder of sources, as `git worktree add ../before COMMIT` makes; what it calls, they compile. Each side
is a process that is stopped while the other is at work. A figure is the median over rounds of the other's seconds over
ours: two turns that follow each other meet the same moment of a machine that others use too.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from eval import machine, records
from eval.alternate import rotated
from eval.commands import command
from eval.compare import markdown
from eval.networks.models import NETWORKS
from eval.networks.models import SYSTEMS as RUNNERS
from eval.operator_cases import load_any_suite
from eval.process import ROOT, WorkerError, WorkerProcess
from eval.records import Line
from eval.registry import SYSTEMS
from eval.reproduce.networks import OPEN_TIMEOUT
from eval.reproduce.run import spread
from eval.stats import geometric_mean
from eval.suites import Case, fitting, sample

MEMORY_SHARE = 0.3  # of what is available now, for the operands of one case of one side
HERE, OTHER = "here", "other"
MOST = 5
"""Cases that are named at either end."""


@dataclass(frozen=True)
class Contest:
    """What both sides do: `opens` before the first of several that say the same there."""

    id: str
    prepare: Line
    measure: Line
    opens: Line | None = None


def product(text: str) -> tuple[int, int, int]:
    """The type of an option: M,N,K."""
    parts = text.split(",")
    if len(parts) != 3 or not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text}: expected M,N,K of at least 1")
    m, n, k = map(int, parts)
    return m, n, k


def parser() -> argparse.ArgumentParser:
    top = command(__doc__)
    top.add_argument("other", type=Path, help="folder of the other checkout")
    top.add_argument("--suite", nargs="+", default=[], help="stored suites")
    top.add_argument("--shape", nargs="+", default=[], type=product, metavar="M,N,K", help="products")
    top.add_argument("--transpose-b", action="store_true", help="B of each --shape is stored [n, k]")
    top.add_argument("--network", nargs="+", default=[], choices=NETWORKS, metavar="NAME", help="networks of fig13")
    top.add_argument("--inputs", type=int, default=3, help="of each network, spread over all it has")
    top.add_argument("--system", default="vortex", help="what is called, as eval.bench and fig13 name it")
    top.add_argument("--sample", type=int, help="a seeded sample of so many cases of the suites")
    top.add_argument("--threads", nargs="+", type=int, default=[1], help="numbers of threads, one run for each")
    top.add_argument("--rounds", type=int, default=7, help="turns of each side at a case")
    top.add_argument("--seconds", type=float, default=0.05, help="of a turn")
    top.add_argument("--seed", type=int, default=0, help="of operands and of the sample")
    top.add_argument("--out", type=Path, default=Path("results/turns.jsonl"), help="file to add result lines to")
    return top


def products(options: argparse.Namespace) -> Iterator[Contest]:
    """Those of the suites and the shapes that fit in memory."""
    cases = [case for name in options.suite for case in load_any_suite(name)]
    if others := sorted({case.suite for case in cases if not isinstance(case, Case)}):
        parser().error(f"{', '.join(others)}: no products; expected suites of products, or networks (--network)")
    if options.sample:
        cases = sample(cases, options.sample, options.seed)
    cases += (Case("given", "", m, n, k, trans_b=options.transpose_b) for m, n, k in options.shape)
    kept, left_out = fitting(cases, psutil.virtual_memory().available * MEMORY_SHARE)
    for case, reason in left_out:
        print(f"left out: {case}: {reason}", file=sys.stderr)
    measure = {"do": "measure", "mode": "warm", "seconds": options.seconds}
    for case in kept:
        yield Contest(str(case).strip(), {"do": "prepare", "case": asdict(case), "seed": options.seed}, measure)


def networks(options: argparse.Namespace, folder: Path) -> Iterator[Contest]:
    measure = {"do": "measure", "seconds": options.seconds}
    for name in options.network:
        for extents in spread(NETWORKS[name].inputs)[: options.inputs]:
            label = f"{name} {'x'.join(map(str, extents))}"
            prepare = {"do": "prepare", "input": extents, "seed": options.seed, "expected": str(folder / f"{label}.pt")}
            yield Contest(label, prepare, measure, {"do": "open", "network": name, "small": False})


def raced(contest: Contest, sides: Mapping[str, WorkerProcess], rounds: int) -> Line:
    """Medians of the seconds of both, and of the ratios of neighbouring turns, whose extremes are told too."""
    for worker in sides.values():
        worker.ask(contest.prepare)
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(rounds):
        for side in rotated(list(sides), turn):
            seconds[side].append(sides[side].ask(contest.measure)["best"])
    ratios = [other / here for here, other in zip(seconds[HERE], seconds[OTHER], strict=True)]
    return {
        "id": contest.id,
        "here_s": statistics.median(seconds[HERE]),
        "other_s": statistics.median(seconds[OTHER]),
        "ratio": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
    }


def run(contests: Sequence[Contest], module: str, threads: int, options: argparse.Namespace) -> list[Line]:
    """The result lines of all contests, written as they come."""
    roots = {HERE: ROOT, OTHER: options.other.resolve()}
    about = {"kind": "turns", "system": options.system, "threads": threads, "device": machine.device()}
    about |= {f"{side}_commit": machine.commit(root) for side, root in roots.items()}
    lines, opened = list[Line](), None
    with ExitStack() as stack:
        sides = {
            side: stack.enter_context(WorkerProcess(options.system, threads, module=module, root=root))
            for side, root in roots.items()
        }
        for number, contest in enumerate(contests, 1):
            if contest.opens and contest.opens != opened:
                opened = contest.opens
                for worker in sides.values():
                    worker.ask(opened, OPEN_TIMEOUT)
            now = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "host_load": machine.load()}
            lines.append(about | now | raced(contest, sides, options.rounds))
            records.append(options.out, lines[-1:])
            print(f"[{number}/{len(contests)}] {' | '.join(row(lines[-1]))}", file=sys.stderr)
    return lines


def row(line: Line) -> list[str]:
    figures = f"{line['other_s'] * 1e3:.4g}", f"{line['here_s'] * 1e3:.4g}"
    return [line["id"], *figures, f"{line['ratio']:.3f}", f"{line['least']:.2f} to {line['most']:.2f}"]


def summary(lines: Sequence[Line]) -> str:
    """The mean of all, and the cases at either end."""
    ordered = sorted(lines, key=lambda line: line["ratio"])
    shown = ordered if len(ordered) <= 2 * MOST else [*ordered[:MOST], *ordered[-MOST:]]
    first, mean = lines[0], geometric_mean(line["ratio"] for line in lines)
    told = (
        f"{first['threads']} thread(s), {len(lines)} cases: {first['here_commit']} is {mean:.3f} times as fast as "
        f"{first['other_commit']} in the geometric mean\n\n"
    )
    return told + markdown(("case", "other ms", "here ms", "times as fast", "turns"), map(row, shown))


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if not (options.other / "eval" / "worker.py").is_file():
        parser().error(f"{options.other}: expected a checkout of vortex, which has eval/worker.py")
    if options.rounds < 1 or max(options.threads) > len(machine.available_cpus()):
        parser().error(f"--rounds of at least 1, --threads of at most {len(machine.available_cpus())}")
    known = RUNNERS if options.network else tuple(SYSTEMS)
    if options.system not in known:
        parser().error(f"--system {options.system}: expected one of {' '.join(known)}")
    if bool(options.network) == bool(options.suite or options.shape):
        parser().error("expected products (--suite, --shape) or networks (--network)")
    records.mend(options.out)
    with tempfile.TemporaryDirectory() as folder:
        try:
            contests = list(networks(options, Path(folder)) if options.network else products(options))
        except LookupError as error:
            parser().error(str(error))
        if not contests:
            parser().error("no case fits in memory")
        module = "eval.networks.worker" if options.network else "eval.worker"
        for threads in options.threads:
            try:
                print(summary(run(contests, module, threads, options)))
            except WorkerError as error:
                print(f"error: {error}", file=sys.stderr)
                return 4
    return 0


if __name__ == "__main__":
    sys.exit(main())
