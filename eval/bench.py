"""`python -m eval.bench`: suites against systems, case by case, into JSON lines.

Exit codes: 0 done (or out of time: resume later), 2 wrong usage, 3 the machine was busy, 4 a system failed on a case.
"""

import argparse
import os
import platform
import random
import sys
import time
from collections.abc import Sequence, Sized
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from eval import machine, records
from eval.alternate import Effort, Run, blank, lines_of, measure_quiet
from eval.commands import command
from eval.operator_cases import GEMM_VARIANTS, OperatorCase, as_variant, load_any_suite
from eval.operator_systems import COMPARED
from eval.process import WorkerError, WorkerProcess
from eval.registry import PACKED, PLAIN, SYSTEMS
from eval.report import summary_text
from eval.suites import MAIN_SUITES, Case, fitting, fresh_seed, random_cases, relayout, sample

MEMORY_SHARE = 0.6  # of what is available now, for the operands of one case in one worker
SMOKE = [
    "--sample",
    "12",
    "--rounds",
    "2",
    "--seconds",
    "0.02",
    "--max-flops",
    "4e9",
    "--max-seconds",
    "240",
    "--packed",
]


def parser() -> argparse.ArgumentParser:
    top = command(__doc__)
    top.add_argument("--suite", nargs="+", default=list(MAIN_SUITES), help="stored suites, or `random`")
    top.add_argument(
        "--operator",
        choices=("gemm", *GEMM_VARIANTS),
        default="gemm",
        help="what the cases of GEMM suites are measured as (default: gemm); other suites name their operator",
    )
    top.add_argument("--systems", nargs="+", help=f"default: {' '.join(PLAIN)}; known: {' '.join(SYSTEMS)}")
    top.add_argument("--packed", action="store_true", help=f"also {' '.join(PACKED)}")
    top.add_argument("--threads", nargs="+", type=int, default=[1], help="numbers of threads, one run for each")
    top.add_argument(
        "--warm", action="store_true", help="operands in the caches, as an earlier call left them (the default)"
    )
    top.add_argument("--cold", action="store_true", help="caches emptied before each call")
    top.add_argument(
        "--layout",
        choices=("case", "nn", "nt", "tn", "tt"),
        default="case",
        help="how A and B lie: n as they are, t transposed; default: as the case says",
    )
    top.add_argument(
        "--offset",
        type=int,
        default=0,
        help="bytes past a cache line that operands begin, a multiple of 4: large arrays of NumPy 16 (default: 0)",
    )
    top.add_argument("--limit", type=int, help="only the first so many cases")
    top.add_argument("--sample", type=int, help="a seeded sample of so many cases, every suite represented")
    top.add_argument("--max-flops", type=float, help="leave out cases above this")
    top.add_argument("--random-count", type=int, default=300, help="shapes of the suite `random`")
    top.add_argument(
        "--seed", type=int, help="of operands, order, sample and random shapes (default: 0; random: fresh)"
    )
    top.add_argument("--rounds", type=int, default=3, help="turns of every system at a case")
    top.add_argument("--seconds", type=float, default=0.05, help="per system, case, mode and round")
    top.add_argument("--max-seconds", type=float, help="stop after this long; resume later")
    top.add_argument("--timeout", type=float, default=300.0, help="seconds a worker may take for one request")
    top.add_argument("--out", type=Path, default=Path("results/bench.jsonl"), help="file of result lines")
    top.add_argument("--resume", action="store_true", help="go on with --out, skipping what it holds")
    top.add_argument("--retry-errors", action="store_true", help="with --resume: measure failed cases again")
    top.add_argument("--allow-busy", action="store_true", help="measure on a busy machine; every line says so")
    top.add_argument("--library", help="a saved vortex library instead of vortex.compile()")
    top.add_argument("--hw", help="hardware spec for vortex.compile(); default: native")
    top.add_argument(
        "--smoke",
        action="store_true",
        help="a few small cases of every suite, all systems, in minutes; other options override what it sets",
    )
    return top


def choose_cases(
    options: argparse.Namespace, seed: int
) -> tuple[list[Case | OperatorCase], list[tuple[Case | OperatorCase, str]]]:
    """The cases to measure, in a seeded order (so that an unfinished run is representative), and those left out."""
    products: list[Case] = []
    cases: list[Case | OperatorCase] = []
    for suite in options.suite:
        found = random_cases(options.random_count, seed) if suite == "random" else load_any_suite(suite)
        for case in found:
            (products if isinstance(case, Case) else cases).append(case)  # type: ignore[arg-type]
    products = relayout(products, options.layout)
    cases += products if options.operator == "gemm" else (as_variant(case, options.operator) for case in products)
    if options.max_flops:
        cases = [case for case in cases if case.flops <= options.max_flops]
    if options.sample:
        cases = sample(cases, options.sample, seed)
    cases = cases[: options.limit]
    kept, left_out = fitting(cases, psutil.virtual_memory().available * MEMORY_SHARE)
    random.Random(seed).shuffle(kept)
    return kept, left_out


def start_workers(
    systems: Sequence[str], threads: int, stack: ExitStack
) -> tuple[dict[str, WorkerProcess], dict[str, WorkerError]]:
    """The workers that came up, and why the others did not."""
    workers, absent = {}, {}
    for name in systems:
        worker = stack.enter_context(WorkerProcess(name, threads))
        try:
            worker.start()
            workers[name] = worker
        except WorkerError as error:
            absent[name] = error
            print(f"  {name} is absent: {error}", file=sys.stderr)
    return workers, absent


def resident(case: Case | OperatorCase, workers: Sized) -> bool:
    """Whether every worker can hold the operands of the case at once."""
    return len(workers) * case.memory_bytes < psutil.virtual_memory().available * MEMORY_SHARE


def run_threads(
    threads: int,
    cases: list[Case | OperatorCase],
    left_out: list[tuple[Case | OperatorCase, str]],
    systems: list[str],
    seed: int,
    options: argparse.Namespace,
) -> None:
    """All cases with one number of threads."""
    modes = tuple(mode for mode in ("warm", "cold") if getattr(options, mode)) or ("warm",)
    effort = Effort(options.rounds, options.seconds, modes, options.timeout)
    about = {
        "device": machine.device(),
        "host_load": machine.load(),
        "commit": machine.commit(),
        "layout": options.layout,
        "offset": options.offset,
    }
    about |= {"python": platform.python_version(), "os": platform.platform(), "busy": None}
    run = Run(threads, seed, machine.limits(threads), about, options.allow_busy)
    print_limits(run)
    done = records.settled(records.read([options.out]) if options.out.is_file() else [])
    if options.retry_errors:
        done = {at: line for at, line in done.items() if line["error"] is None}

    def open_modes(case: Case | OperatorCase) -> bool:
        return not all(records.complete(case.id, systems, threads, mode, done) for mode in modes)

    for case, reason in left_out:
        if open_modes(case):
            error = {"error": reason, "error_kind": "TooLarge"}
            records.append(options.out, [blank(case, name, mode, run) | error for name in systems for mode in modes])
    todo = [case for case in cases if open_modes(case)]
    print(f"{threads} thread(s): {len(todo)} cases to measure, {len(cases) - len(todo)} done before", file=sys.stderr)
    if not todo:
        return
    end = time.monotonic() + options.max_seconds / len(options.threads) if options.max_seconds else float("inf")
    with ExitStack() as stack:
        workers, absent = start_workers(systems, threads, stack)
        if not options.allow_busy:
            machine.check_idle()
        versions = {name: worker.versions for name, worker in workers.items()}
        for number, case in enumerate(todo, 1):
            if time.monotonic() > end:
                print(f"out of time: {len(todo) - number + 1} cases left; --resume goes on with them", file=sys.stderr)
                break
            outcomes, busy = measure_quiet(case, workers, effort, run, resident(case, workers))
            lines = lines_of(case, outcomes, versions, run, busy)
            for name, failure in absent.items():
                error = {"error": str(failure), "error_kind": failure.kind}
                lines += [blank(case, name, mode, run) | error for mode in modes]
            records.append(options.out, lines)
            print(progress(number, len(todo), case, lines), file=sys.stderr)
    if not options.allow_busy:
        machine.check_peak(run.limits.peak_flops_per_s, machine.peak(threads))
    after = machine.limits(threads)
    records.append(
        options.out,
        [{"kind": "limits", "threads": threads, **about, "before": run.limits.to_json(), "after": after.to_json()}],
    )


def print_limits(run: Run) -> None:
    levels = ", ".join(f"{level.name} {level.read_bytes_per_s / 1e9:.0f}" for level in run.limits.levels)
    text = f"{run.threads} thread(s): FMA peak {run.limits.peak_flops_per_s / 1e9:.1f} GFLOP/s, read GB/s: {levels}"
    print(f"{text}; load {run.about['host_load']:.0%}; seed {run.seed}", file=sys.stderr)


def progress(number: int, total: int, case: Case | OperatorCase, lines: list[dict[str, Any]]) -> str:
    """One line a case: GFLOP/s of each system, or what kind of error it met."""
    figures = "  ".join(
        f"{line['system']}{'*' if line['mode'] == 'cold' else ''} "
        + (f"{line['gflops']:.1f}" if line["error"] is None else line["error_kind"])
        for line in lines
        if line["error_kind"] != "AbsentError"
    )
    return f"[{number}/{total}] {case} t{lines[0]['threads'] if lines else ''}: {figures}"


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "--smoke" in given:
        # What is given besides --smoke overrides it. A smoke run shows that everything works, not how fast it is.
        given = [*SMOKE, "--threads", "1", "2", "--out", "results/smoke.jsonl", "--allow-busy", *given]
    options = parser().parse_args(given)
    cores = len(machine.available_cpus())
    if options.smoke:
        options.threads = [count for count in options.threads if count <= cores]
        options.out.unlink(missing_ok=True)
    if max(options.threads) > cores:
        parser().error(f"--threads {max(options.threads)}: only {cores} CPUs are available")
    if options.out.is_file() and not options.resume:
        parser().error(f"{options.out} exists: give --resume to go on with it, or another --out")
    if unknown := [name for name in options.systems or () if name not in SYSTEMS]:
        parser().error(f"unknown systems {', '.join(unknown)}; known: {', '.join(SYSTEMS)}")
    if options.offset not in range(0, machine.LINE_BYTES, 4):
        parser().error(f"--offset {options.offset}: expected a multiple of 4 from 0 to {machine.LINE_BYTES - 4}")
    os.environ["VORTEX_EVAL_OFFSET"] = str(options.offset)
    if options.library:
        os.environ["VORTEX_EVAL_LIBRARY"] = str(Path(options.library).resolve())
    if options.hw:
        os.environ["VORTEX_EVAL_HW"] = options.hw
    seed = options.seed if options.seed is not None else fresh_seed() if "random" in options.suite else 0
    try:
        cases, left_out = choose_cases(options, seed)
    except LookupError as error:
        parser().error(str(error))
    operators = {getattr(case, "op", "gemm") for case in cases}
    if len(operators) > 1 or (operators != {"gemm"} and (options.cold or options.packed)):
        parser().error(
            f"{', '.join(sorted(operators))}: measure one operator a run; cold and packed are for gemm alone"
        )
    default = COMPARED.get(operators.pop(), PLAIN) if operators else PLAIN
    systems = [*(options.systems or default), *(PACKED if options.packed else ())]
    for case, reason in left_out:
        print(f"left out: {case}: {reason}", file=sys.stderr)
    records.mend(options.out)
    try:
        if not options.allow_busy:
            machine.check_idle()
        for threads in options.threads:
            run_threads(threads, cases, left_out, systems, seed, options)
    except machine.BusyError as error:
        print(
            f"error: the machine is busy: {error}. Nothing of this case was written; --resume goes on.", file=sys.stderr
        )
        return 3
    lines = list(records.settled(records.read([options.out])).values())
    print(summary_text(lines))
    if options.smoke:
        print("\nA smoke run shows that everything works, not how fast it is: few cases, short, on a machine in use.")
    failed = [
        line for line in lines if line["error"] is not None and line["error_kind"] not in ("AbsentError", "TooLarge")
    ]
    for line in failed:
        print(
            f"failed: {line['system']} {line['id']} t{line['threads']} {line['mode']}: {line['error']}", file=sys.stderr
        )
    return 4 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
