"""`python -m eval.gpu.run_on_device`, inside a bundle on a machine with a GPU: checks, measures, writes one JSON file.

Needs Python 3.10 or later and torch. Every part is a process of its own with a share of the time: a part that fails,
hangs or poisons the device leaves its rows and does not harm the others. The file is written anew after each part.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from eval.gpu.budget import Budget, Journal, Row, read_journal, write_json
from eval.gpu.parts import HERE, HIDDEN, PARTS, Context, Part

RESERVE_S = 15.0
"""Kept for writing the results and for ending children."""


def run_part(name: str, options: argparse.Namespace) -> int:
    """One part, in this process."""
    part = next(part for part in (*PARTS, *HIDDEN) if part.name == name)
    part.run(Context(options.bundle, options, Journal(options.journal), Budget(options.seconds)))
    return 0


def child(name: str, seconds: float, journal: Path, options: argparse.Namespace) -> Row:
    """One part in a process of its own; ended when it takes a quarter more than its time."""
    command = [sys.executable, "-m", "eval.gpu.run_on_device", "--part", name, "--bundle", str(options.bundle)]
    command += ["--journal", str(journal), "--seconds", str(seconds), "--seed", str(options.seed)]
    command += ["--trials", str(options.trials), "--cases", str(options.cases), *(["--jit"] if options.jit else [])]
    start = time.monotonic()
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=1.25 * seconds + 5,
            check=False,
            cwd=HERE,
            env=environment(),
        )
        told = done.stderr.strip()[-2000:] if done.returncode else ""
        status = "done" if done.returncode == 0 else f"failed with {done.returncode}"
    except subprocess.TimeoutExpired:
        status, told = "ended: out of time", ""
    return {"part": name, "status": status, "seconds": round(time.monotonic() - start, 1), "told": told}


def attempted(part: Part, budget: Budget, journal: Path, options: argparse.Namespace) -> Row:
    """A part, begun anew where it failed as long as it gets further; what became of the last process."""
    outcome, rows = child(part.name, budget.left / 1.05, journal, options), 0
    for _ in range(part.restarts):
        found = len(read_journal(journal))
        if not outcome["status"].startswith("failed") or found == rows or not budget.left:
            break
        print(f"{part.name:10} {outcome['status']}: {outcome['told'].splitlines()[-1:]}", flush=True)
        outcome, rows = child(part.name, budget.left / 1.05, journal, options), found
    return outcome


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(HERE), "PYTHONUNBUFFERED": "1"}


def about_device() -> Row:
    """What the device is, asked in a process of its own so that this one holds no context."""
    program = "import json; from eval.gpu.torch_gpu import TorchGpu; print(json.dumps(TorchGpu().about()))"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=90, cwd=HERE, env=environment()
        )
    except subprocess.TimeoutExpired:
        return {"error": "torch did not answer within 90 s"}
    if done.returncode:
        return {"error": done.stderr.strip()[-2000:]}
    told: Row = json.loads(done.stdout)
    return told


def run_all(options: argparse.Namespace, parts: Sequence[Part] = PARTS) -> int:
    budget = Budget(options.seconds - RESERVE_S)
    bundle = json.loads((options.bundle / "bundle.json").read_text(encoding="utf-8"))
    cpu = next((row.partition(":")[2].strip() for row in _lines("/proc/cpuinfo") if row.startswith("model name")), "")
    results: Row = {"bundle": bundle, "device": about_device(), "host": {"cpu": cpu, "cores": os.cpu_count()}}
    results |= {"date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "parts": [], "rows": []}
    wanted = [part for part in parts if not options.only or part.name in options.only]
    folder = options.out.parent / f"{options.out.stem}-journals"
    for number, part in enumerate(wanted):
        rest = sum(later.share for later in wanted[number:])
        seconds = budget.left * part.share / rest
        journal = folder / f"{part.name}.jsonl"
        journal.unlink(missing_ok=True)
        outcome, rows = attempted(part, Budget(seconds), journal, options), read_journal(journal)
        results["parts"].append(outcome | {"rows": len(rows)})
        results["rows"] += [row | {"part": part.name} for row in rows if row["kind"] != "trying"]
        write_json(options.out, results)
        print(f"{part.name:10} {outcome['status']:22} {outcome['seconds']:6.1f} s {len(rows):6} rows", flush=True)
        if outcome["told"]:
            print(f"  {outcome['told'].splitlines()[-1]}", flush=True)
    print(f"{options.out}: {len(results['rows'])} rows, {budget.spent:.0f} s")
    wrong = [row for row in results["rows"] if row.get("right") is False]
    for row in wrong[:20]:
        print(f"WRONG {json.dumps(row)}")
    return 1 if wrong or any(part["status"] != "done" for part in results["parts"]) else 0


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m eval.gpu.run_on_device", description=(__doc__ or "").splitlines()[0])
    top.add_argument("--bundle", type=Path, default=HERE)
    top.add_argument("--out", type=Path, default=Path("results.json"))
    top.add_argument("--seconds", type=float, default=480.0, help="for all parts together")
    top.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], help="only these parts")
    top.add_argument("--trials", type=int, default=3, help="shapes for each kernel in verify")
    top.add_argument("--cases", type=int, default=120, help="cases of the suites")
    top.add_argument("--seed", type=int, default=0)
    top.add_argument("--jit", action="store_true", help="let the driver translate the PTX of other architectures")
    top.add_argument("--part", help=argparse.SUPPRESS)
    top.add_argument("--journal", type=Path, help=argparse.SUPPRESS)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    options.bundle, options.out = options.bundle.resolve(), options.out.resolve()
    return run_part(options.part, options) if options.part else run_all(options)


if __name__ == "__main__":
    sys.exit(main())
