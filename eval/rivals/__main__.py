"""`python -m eval.rivals METHOD`: another paper's method on this project's kernels, measured beside Vortex.

Rows go to --out as they were measured; the tables are printed. Every budget is printed, and what doubling it gains.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

from eval import machine, records
from eval.commands import command
from eval.rivals import ablation, dense, hidet, mikpoly_study, ranges, table6
from eval.rivals.setting import Bench, Row, Setting, opened

METHODS: dict[str, tuple[Callable[[Bench], list[Row]], Callable[[Sequence[Row]], list[str]]]] = {
    "table6": (table6.run, table6.tables),
    "dense": (dense.run, dense.tables),
    "mikpoly": (mikpoly_study.run, mikpoly_study.tables),
    "ranges": (ranges.run, ranges.tables),
    "hidet": (hidet.run, hidet.tables),
    "ablation": (ablation.run, ablation.tables),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command(__doc__ or "")
    parser.add_argument("method", choices=METHODS)
    default = Setting()
    parser.add_argument("--threads", type=int, default=default.threads, help="threads of a call")
    parser.add_argument("--trials", type=int, default=default.trials, help="programs that a search may run")
    parser.add_argument("--rounds", type=int, default=default.rounds, help="turns of each call")
    parser.add_argument("--seconds", type=float, default=default.seconds, help="of each turn")
    parser.add_argument("--seed", type=int, default=default.seed, help="of searches")
    parser.add_argument("--sample", type=int, default=default.sample, help="at most so many shapes, spread evenly")
    parser.add_argument("--library", help="a saved library instead of vortex.compile()")
    parser.add_argument("--out", type=Path, help="lines are added to it (default: results/rivals/METHOD.jsonl)")
    parser.add_argument("--allow-busy", action="store_true", help="measure on a busy machine too")
    options = parser.parse_args(arguments)
    run, tables = METHODS[options.method]
    bench = opened(Setting(**{field.name: getattr(options, field.name) for field in fields(Setting)}))
    if not options.allow_busy:
        machine.check_idle()
    before, meter = machine.peak(options.threads), machine.LoadMeter()
    rows = run(bench)
    busy = disturbance(before, options.threads, meter)
    about = {"kind": f"rivals_{options.method}", "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    about |= bench.about() | {"busy": busy}
    records.append(options.out or Path(f"results/rivals/{options.method}.jsonl"), [about | row for row in rows])
    print("\n\n".join(tables(rows)))
    if busy:
        print(f"\n**The machine was busy: {busy}.** These figures are no result.")
    return 0 if options.allow_busy or not busy else 3


def disturbance(before: float, threads: int, meter: machine.LoadMeter) -> str | None:
    """What disturbed the machine since the peak was `before`, in words."""
    try:
        machine.check_peak(before, machine.peak(threads))
    except machine.BusyError as error:
        return str(error)
    share = meter.foreign_share()
    return f"other processes used {share:.0%} of the cores" if share > machine.LOAD_TOLERANCE else None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except machine.BusyError as error:
        sys.exit(f"error: the machine is busy: {error}")
