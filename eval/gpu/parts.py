"""What a run on a device does, part by part: each has a share of the time, and imports what needs torch by itself."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.gpu.budget import Budget, Journal
from eval.operator_cases import read_operator_suite, reductions
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
REDUCTIONS_CHECKED = 0.15
"""Share of the time for checks that libraries of reductions have together: their kernels are few."""
FIGURE_16 = "vortex_fig16_small_m_48"


@dataclass(frozen=True)
class Part:
    """A share of the time, and what is done with it."""

    name: str
    share: float
    run: Callable[[Context], None]
    restarts: int = 0
    """How often it goes on where it failed: after kernels that end their process."""


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
                kernels = len(gemm.manifest.kernels or gemm.manifest.entries)
                self.journal.add("library", library=path.stem, code=gemm.code, kernels=kernels, load_s=seconds)
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
    from eval.gpu import reduction_verify, verify
    from eval.gpu.kinds import is_reduction

    gpu, found = context.gpu(), context.libraries(lambda manifest: True)
    trials, seed = context.options.trials, context.options.seed
    reduced = [(name, reduce) for name, reduce in found if is_reduction(reduce.manifest)]
    others = [(name, gemm) for name, gemm in found if not is_reduction(gemm.manifest)]
    share = context.budget.left * (REDUCTIONS_CHECKED if others else 1.0) / max(1, len(reduced))
    for name, reduce in reduced:
        reduction_verify.verify(gpu, reduce, name, context.journal, Budget(share), trials, seed)
    for number, (name, gemm) in enumerate(others):
        verify.verify(gpu, gemm, name, context.journal, context.share(len(others) - number), trials, seed)


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
        order = [*SQUARES[:2], *cases]  # all kernels on the largest would take all the time
        oracle(gpu, gemm, name, order, item_bytes(gemm), context.journal, context.share(len(found) - number))


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


def part_reductions(context: Context) -> None:
    from eval.gpu import reduction_race
    from eval.gpu.kinds import is_reduction

    gpu, found, journal = context.gpu(), context.libraries(is_reduction), context.journal
    every = reductions()
    if found:
        reduction_race.bandwidth(gpu, journal)
    for number, (name, reduce) in enumerate(found):
        reduction_race.overhead(gpu, reduce, name, every, journal)
        budget = context.share(2 * len(found) - number)
        reduction_race.suite(gpu, reduce, name, every, journal, budget)
    for number, (name, reduce) in enumerate(found):
        reduction_race.oracle(gpu, reduce, name, every, journal, context.share(len(found) - number))


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
    from eval.gpu import reduction_verify, verify
    from eval.gpu.kinds import is_plain, is_reduction

    gpu, found = context.gpu(), context.libraries(lambda manifest: is_plain(manifest) or is_reduction(manifest))
    # One library of each: the tool patches all code that is loaded.
    product = next((gemm for _, gemm in found if not is_reduction(gemm.manifest)), None)
    reduce = next((reduce for _, reduce in found if is_reduction(reduce.manifest)), None)
    wrong = verify.run_few(gpu, product, 4) if product else 0
    if wrong := wrong + (reduction_verify.run_few(gpu, reduce) if reduce else 0):
        raise SystemExit(f"{wrong} kernels are wrong")


def part_cpu(context: Context) -> None:
    from eval.gpu.host_cpu import run

    found = sorted((context.bundle / "cpu").glob("*.vortex"))
    cases = [case for name in SUITES for case in load_suite(name) if case.flops < 2e10 and case.memory_bytes < 4e9]
    for number, path in enumerate(found):
        run(path, sample(cases, 40, context.options.seed), context.journal, context.share(len(found) - number))


PARTS = (
    Part("verify", 0.17, part_verify, restarts=12),
    Part("suites", 0.19, part_suites),
    Part("levels", 0.11, part_levels),
    Part("figure16", 0.06, part_figure16),
    Part("oracle", 0.07, part_oracle),
    Part("sweep", 0.05, part_sweep),
    Part("triton", 0.05, part_triton),
    Part("conv", 0.05, part_conv),
    Part("reductions", 0.05, part_reductions),
    Part("sanitizer", 0.06, part_sanitizer),
    Part("cpu", 0.05, part_cpu),
    Part("compile", 0.05, part_compile),
    Part("cutlass", 0.04, part_cutlass),
)
HIDDEN = (Part("few", 0.0, part_few),)
