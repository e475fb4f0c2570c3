"""`python -m eval.gpu.run_on_device`, inside a bundle on a machine with a GPU: checks, measures, writes one JSON file.

Needs Python 3.10 or later and torch. Every part is a process of its own with a share of the time: a part that fails,
hangs or poisons the device leaves its rows and does not harm the others. The file is written anew after each part.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.gpu.budget import Budget, Journal, Row, read_journal, write_json
from eval.operator_cases import read_operator_suite
from eval.suites import CONV_SUITES, SUITE_DIR, Case, load_suite, sample

HERE = Path(__file__).resolve().parent.parent.parent
SUITES = (
    "vortex_transformer_gemm_192",
    "vortex_deepbench_gemm_84",
    "vortex_cnn_fc_80",
    "vortex_gnn_gemm_150",
    "cnn_fc_forward_80",
)
SQUARES = tuple(Case("squares", f"squares/{n}", n, n, n) for n in (1024, 4096, 8192))
COMPILED_CASES = 2
"""max-autotune of torch.compile, and CUTLASS, compile for seconds a case: their shares have room for no more."""
MOST_CONV_BYTES = 1e9
"""Of a convolution's tensors in float32: cuDNN may want several times as much to work in."""
FIGURE_16 = "vortex_fig16_small_m_48"
RESERVE_S = 15.0
"""Kept for writing the results and for ending children."""


@dataclass(frozen=True)
class Part:
    """A share of the time, and what is done with it."""

    name: str
    share: float
    run: Callable[[Context], None]


@dataclass(frozen=True)
class Context:
    """What a part is given."""

    bundle: Path
    options: argparse.Namespace
    journal: Journal
    budget: Budget

    def gpu(self) -> Any:
        from eval.gpu.torch_gpu import TorchGpu

        return TorchGpu()

    def libraries(self, wanted: Callable[[Any], bool] | None = None) -> list[tuple[str, Any]]:
        """Libraries of the bundle that run on this device, the others are told as skipped; of those the ones whose
        manifest is `wanted`, by itself plain products of floats."""
        from eval.gpu.kinds import is_plain, opened
        from vortex.errors import VortexError
        from vortex.library import is_gpu_library

        found = []
        for path in sorted((self.bundle / "libraries").glob("*.vortex")):
            if is_gpu_library(path):
                start = time.perf_counter()
                try:
                    gemm = opened(path, self.options.jit)
                except VortexError as error:
                    self.journal.add("library_skipped", library=path.stem, why=str(error))
                    continue
                seconds = time.perf_counter() - start
                self.journal.add(
                    "library", library=path.stem, code=gemm.code, kernels=len(gemm.kernels), load_s=seconds
                )
                found.append((path.stem, gemm))
        if not found:
            raise SystemExit("no library of the bundle runs here")
        return [(name, gemm) for name, gemm in found if (wanted or is_plain)(gemm.manifest)]

    def share(self, parts: int) -> Budget:
        return Budget(self.budget.left / max(1, parts))


def cases_for(names: Sequence[str], item_bytes: int, memory: int, count: int, seed: int) -> list[Case]:
    from eval.gpu.race import fits

    every = [case for name in names for case in load_suite(name)]
    return sample([case for case in every if fits(case, item_bytes, memory)], count, seed)


def item_bytes(gemm: Any) -> int:
    return {"float32": 4, "tfloat32": 4}.get(gemm.manifest.dtype, 2)


def part_verify(context: Context) -> None:
    from eval.gpu.verify import verify

    gpu, found = context.gpu(), context.libraries(lambda manifest: True)
    for number, (name, gemm) in enumerate(found):
        budget = context.share(len(found) - number)
        verify(gpu, gemm, name, context.journal, budget, context.options.trials, context.options.seed)


def part_levels(context: Context) -> None:
    from eval.gpu.levels import measure
    from eval.gpu.race import overhead

    gpu, found = context.gpu(), context.libraries()
    for number, (name, gemm) in enumerate(found):
        overhead(gpu, gemm, name, context.journal)
        measure(gemm, name, context.journal, context.share(len(found) - number))


def raced(context: Context, systems: Sequence[str], count: int, *, squares: bool, libraries: int | None = None) -> None:
    """The suites over these systems, on the first so many libraries."""
    from eval.gpu.race import suites

    gpu, found = context.gpu(), context.libraries()[:libraries]
    memory = gpu.about()["memory_bytes"]
    for number, (name, gemm) in enumerate(found):
        cases = cases_for(SUITES, item_bytes(gemm), memory, count, context.options.seed)
        order = [*(SQUARES if squares else ()), *sample(cases, len(cases), 0)]
        suites(gpu, gemm, name, order, systems, context.journal, context.share(len(found) - number))


def part_suites(context: Context) -> None:
    raced(context, ("cublas", "cublaslt"), context.options.cases, squares=True)


def part_figure16(context: Context) -> None:
    from eval.gpu.race import core_types

    gpu = context.gpu()
    found = [(name, gemm) for name, gemm in context.libraries() if gemm.manifest.dtype in ("float16", "bfloat16")]
    for number, (name, gemm) in enumerate(found):
        budget = context.share(len(found) - number)
        core_types(gpu, gemm, name, load_suite(FIGURE_16), item_bytes(gemm), context.journal, budget)


def part_oracle(context: Context) -> None:
    from eval.gpu.race import oracle

    gpu, found = context.gpu(), context.libraries()
    memory = gpu.about()["memory_bytes"]
    for number, (name, gemm) in enumerate(found):
        cases = cases_for(SUITES[:3], item_bytes(gemm), min(memory, 1 << 33), 16, context.options.seed + 1)
        oracle(gpu, gemm, name, cases, item_bytes(gemm), context.journal, context.share(len(found) - number))


def part_sweep(context: Context) -> None:
    raced(context, ("cublaslt_sweep",), 24, squares=True)


def part_triton(context: Context) -> None:
    raced(context, ("triton",), 24, squares=True)


def part_compile(context: Context) -> None:
    raced(context, ("torch_compile",), COMPILED_CASES, squares=False, libraries=1)


def part_cutlass(context: Context) -> None:
    raced(context, ("cutlass",), COMPILED_CASES, squares=False, libraries=1)


def part_conv(context: Context) -> None:
    from eval.gpu.conv_race import convolutions

    gpu, found = context.gpu(), context.libraries(lambda manifest: manifest.operator == "conv2d")
    every = [case for suite in CONV_SUITES for case in read_operator_suite(SUITE_DIR / f"{suite}.csv")]
    cases = sample([case for case in every if case.footprint_bytes < MOST_CONV_BYTES], 40, context.options.seed)
    for number, (name, conv) in enumerate(found):
        convolutions(gpu, conv, name, cases, context.journal, context.share(len(found) - number))


def part_sanitizer(context: Context) -> None:
    """compute-sanitizer over one small trial of a few kernels, each tool in a process of its own."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        context.journal.add("sanitizer", tool="compute-sanitizer", told="not installed here")
        return
    for check in ("memcheck", "racecheck"):
        command = [tool, "--tool", check, "--error-exitcode", "9", sys.executable, "-m", "eval.gpu.run_on_device"]
        command += ["--part", "few", "--bundle", str(context.bundle), "--journal", os.devnull, "--seconds", "60"]
        try:
            limit = max(1.0, context.budget.left / 2)
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False, cwd=HERE)
            told = [line for line in (done.stdout + done.stderr).splitlines() if "SUMMARY" in line or "Error" in line]
            context.journal.add("sanitizer", tool=check, status=done.returncode, told=told[:20])
        except subprocess.TimeoutExpired:
            context.journal.add("sanitizer", tool=check, told="out of time")


def part_few(context: Context) -> None:
    from eval.gpu.verify import run_few

    gpu, found = context.gpu(), context.libraries()
    # One library: the tool patches all code that is loaded.
    if wrong := run_few(gpu, found[0][1], 4) if found else 0:
        raise SystemExit(f"{wrong} kernels are wrong")


def part_cpu(context: Context) -> None:
    from eval.gpu.host_cpu import run

    found = sorted((context.bundle / "cpu").glob("*.vortex"))
    cases = [case for name in SUITES for case in load_suite(name) if case.flops < 2e10 and case.memory_bytes < 4e9]
    for number, path in enumerate(found):
        run(path, sample(cases, 40, context.options.seed), context.journal, context.share(len(found) - number))


PARTS = (
    Part("verify", 0.18, part_verify),
    Part("suites", 0.20, part_suites),
    Part("levels", 0.12, part_levels),
    Part("figure16", 0.06, part_figure16),
    Part("oracle", 0.07, part_oracle),
    Part("sweep", 0.06, part_sweep),
    Part("triton", 0.06, part_triton),
    Part("conv", 0.05, part_conv),
    Part("sanitizer", 0.06, part_sanitizer),
    Part("cpu", 0.05, part_cpu),
    Part("compile", 0.05, part_compile),
    Part("cutlass", 0.04, part_cutlass),
)
HIDDEN = (Part("few", 0.0, part_few),)


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
        outcome = child(part.name, seconds / 1.05, journal, options)
        rows = read_journal(journal)
        results["parts"].append(outcome | {"rows": len(rows)})
        results["rows"] += [row | {"part": part.name} for row in rows]
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
