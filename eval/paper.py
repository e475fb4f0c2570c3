"""`python -m eval.paper`: tables and figures of the paper, measured on this machine, beside what the paper prints.

Each result leaves NAME.jsonl (one line a case, with machine, commit and time), NAME.md and NAME.png in --out. What is
there is not measured again: a run that was stopped goes on. With --minutes the time is shared out among the results,
and each runs as many cases as its share allows, spread evenly over all; the page says how many. --docs writes the
summary of all results, losing cases first, into docs/performance.md (of those not in --out it keeps what stands there),
and what table5 comes to into README.md as well.

Exit codes: 0 done (or out of time: run again), 2 wrong usage, 3 the machine was busy, 4 a result could not be measured.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from eval import machine
from eval.commands import command
from eval.process import ROOT
from eval.reproduce import headline, summary
from eval.reproduce.pages import write
from eval.reproduce.registry import RESULTS, result
from eval.reproduce.result import Options, Result
from eval.reproduce.run import lines_of, measure, minutes, state, states_of
from eval.suites import CONV_SUITES, MAIN_SUITES


def parser() -> argparse.ArgumentParser:
    top = command(__doc__)
    top.add_argument(
        "results", nargs="+", choices=("all", *RESULTS), metavar="RESULT", help=f"{' '.join(RESULTS)}; or all"
    )
    top.add_argument("--threads", type=int, help="threads of a call (default: all cores)")
    top.add_argument("--minutes", type=float, help="of this run; run again to go on (default: until all is done)")
    top.add_argument(
        "--out", type=Path, help="folder of the results (default: results/paper, smoke: results/paper-smoke)"
    )
    top.add_argument("--smoke", action="store_true", help="small cases, short measurements, also on a busy machine")
    top.add_argument("--fresh", action="store_true", help="forget what was measured of these results")
    top.add_argument("--draw", action="store_true", help="measure nothing: pages and pictures of what there is")
    top.add_argument("--docs", action="store_true", help="write the summary into docs/performance.md and README.md")
    top.add_argument("--library", help="a saved library of products instead of vortex.compile()")
    top.add_argument("--inputs", type=int, help="of each network of fig13, spread evenly (default: all)")
    suites = (*MAIN_SUITES, *CONV_SUITES)
    top.add_argument(
        "--suites", nargs="+", default=(), choices=suites, metavar="SUITE", help="of table5 (default: all)"
    )
    top.add_argument("--seed", type=int, default=0, help="of the operands")
    top.add_argument("--allow-busy", action="store_true", help="measure on a busy machine; every row says so")
    return top


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def shares(results: Sequence[Result], options: Options, folder: Path, seconds: float) -> dict[str, float]:
    """Seconds for each result, the one that needs least first: what it needs, or an equal share of what is left."""
    needed = {r.name: 0.0 if r.same_lines_as else state(r, options, folder).left_seconds for r in results}
    given = {}
    for place, name in enumerate(sorted(needed, key=lambda name: needed[name])):
        given[name] = min(needed[name], max(0.0, seconds) / (len(needed) - place))
        seconds -= given[name]
    return given


def run_all(results: Sequence[Result], options: Options, folder: Path, seconds: float) -> list[str]:
    """Measures one result after the other; those that could not be measured, with the reason."""
    end, failed, waiting = time.monotonic() + seconds, [], {found.name: found for found in results}
    while waiting:
        left = end - time.monotonic()
        given = shares(list(waiting.values()), options, folder, left)  # what one did not use is for those after it
        name, share = next(iter(given.items()))
        tell(f"{name}: {minutes(share)}; with all that follow: {minutes(sum(given.values()))}")
        found = waiting.pop(name)
        # The last one has all that is left: what it needs is a guess.
        stop = time.monotonic() + share if waiting and left < float("inf") else end
        try:
            measure(found, options, folder, stop, tell)
        except machine.BusyError:
            raise
        except Exception as error:  # noqa: BLE001  the others go on; the exit code and the last lines tell
            failed.append(f"{name}: {type(error).__name__}: {error}")
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parser().parse_args(arguments)
    cores = len(machine.available_cpus())
    threads = asked.threads or cores
    if not 1 <= threads <= cores:
        parser().error(f"--threads {threads}: expected 1 to {cores}, the CPUs that are available")
    if asked.minutes is not None and asked.minutes <= 0:
        parser().error(f"--minutes {asked.minutes:g}: expected a positive number")
    if asked.inputs is not None and asked.inputs < 1:
        parser().error(f"--inputs {asked.inputs}: expected at least 1")
    if asked.library and not Path(asked.library).is_file():
        parser().error(f"--library {asked.library}: no such file")
    folder = asked.out or Path("results/paper-smoke" if asked.smoke else "results/paper")
    folder.mkdir(parents=True, exist_ok=True)
    library = str(Path(asked.library).resolve()) if asked.library else None
    busy, suites = asked.allow_busy or asked.smoke, tuple(asked.suites)
    options = Options(threads, asked.seed, asked.smoke, busy, library, folder, asked.inputs, suites)
    results = [result(name) for name in RESULTS if name in asked.results or "all" in asked.results]
    if asked.fresh:
        for found in results:
            (folder / f"{found.name}.jsonl").unlink(missing_ok=True)
    failed: list[str] = []
    status = 0
    if not asked.draw:
        try:
            if not options.allow_busy:
                machine.check_idle()
            failed = run_all(results, options, folder, asked.minutes * 60 if asked.minutes else float("inf"))
        except machine.BusyError as error:
            tell(f"error: the machine is busy: {error}. The same command goes on.")
            status = 3
    for found in results:
        states = states_of(found, options, folder)
        write(found, states, folder)
        told = (
            ", ".join(f"{at.done} of {at.cases} cases at {count} thread(s)" for count, at in states) or "not measured"
        )
        print(f"{folder / found.name}.md: {told}")
    if asked.docs:
        summary.write(ROOT / "docs", folder, options)
        if lines := lines_of(result("table5"), folder):
            headline.write((ROOT / "README.md", ROOT / "docs" / "performance.md"), lines)
        print("docs/performance.md: the summary of all results, and with table5 the table it and README.md open with")
    for text in failed:
        tell(f"not finished: {text}")
    return status or (4 if failed else 0)


if __name__ == "__main__":
    sys.exit(main())
