"""`python -m eval.epilogue_cost`: what a fused epilogue costs.

Plain GEMM and the same library with a store stage (same strategies, same predicted costs), and PyTorch eager: the
product, the bias, the activation. A process each, in turn, those not at work stopped; of each round the fastest call.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from eval import machine
from eval.commands import command, ended
from eval.link_table import widened
from eval.operands import make_operands
from eval.process import worker_environment
from eval.stats import geometric_mean
from eval.suites import MAIN_SUITES, Case, load_suite, sample
from vortex import operators as ops
from vortex.api import compile as compile_library
from vortex.api import load
from vortex.launcher import GemmKernel
from vortex.library import Library, write
from vortex.threads import set_num_threads

CHAINS = {
    "bias_relu": ops.bias() >> ops.relu(),
    "bias_gelu": ops.bias() >> ops.gelu(),
}
LEAST_FLOPS, MOST_FLOPS = 1e7, 4e9


def refitted(gemm: GemmKernel, chain: ops.Epilogue) -> Library:
    """The library `gemm` with a store stage and nothing else changed. Compiles for some ten seconds."""
    manifest = replace(gemm.manifest, settings=ops.settings(ops.Gemm(epilogue=chain)))
    return widened(SimpleNamespace(manifest=manifest), manifest.strategies).library


def prepare(folder: Path) -> None:
    """Write the libraries that are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "plain.vortex").is_file():
        compile_library("gemm", hw="native").save(folder / "plain.vortex")
    for name, chain in CHAINS.items():
        if not (path := folder / f"{name}.vortex").is_file():
            write(refitted(cast(GemmKernel, load(folder / "plain.vortex")), chain), path)


def eager(chain: str, threads: int) -> Callable[[Any, Any, Any, Any], Callable[[], Any]]:
    """PyTorch as a user writes it: the quicker of addmm and mm, add; then the activation."""
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    activation = {"bias_relu": torch.relu, "bias_gelu": torch.nn.functional.gelu}[chain]

    def prepared(a: Any, b: Any, bias: Any, out: Any) -> Callable[[], Any]:
        x, w, v = (torch.from_numpy(array) for array in (a, b, bias))
        calls = [lambda: activation(torch.addmm(v, x, w)), lambda: activation(torch.mm(x, w).add_(v))]
        return min(calls, key=lambda call: fastest(call, 0.03))

    return prepared


def fastest(call: Callable[[], Any], seconds: float) -> float:
    call()
    best, end = float("inf"), time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def work(system: str, threads: int, folder: Path) -> None:
    """Answer the seconds of a call for each case that comes in."""
    set_num_threads(threads)
    kind, _, chain = system.partition(":")
    make: Callable[..., Callable[[], Any]]
    if kind == "eager":
        make = eager(chain, threads)
    else:
        kernel: Any = load(folder / f"{chain or 'plain'}.vortex")

        def make(a: Any, b: Any, bias: Any, out: Any) -> Callable[[], Any]:
            extras = {"bias": bias} if chain else {}
            return lambda: kernel(a, b, out=out, **extras)

    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        operands = make_operands(Case(**asked["case"]), 0)
        bias = np.linspace(-1, 1, operands.case.n, dtype=np.float32)
        a, b = np.ascontiguousarray(operands.a_mk), np.ascontiguousarray(operands.b_kn)
        print(json.dumps(fastest(make(a, b, bias, operands.out), asked["seconds"])), flush=True)


class Worker:
    """One system in a process of its own, stopped while it has nothing to do."""

    def __init__(self, system: str, threads: int, folder: Path) -> None:
        command = [sys.executable, "-m", "eval.epilogue_cost", "--worker", system, "--threads", str(threads)]
        self.process = subprocess.Popen(
            [*command, "--libraries", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=worker_environment(system, threads),
            text=True,
        )
        self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        answer = json.loads(self.process.stdout.readline())
        self.process.send_signal(signal.SIGSTOP)
        return answer

    def seconds(self, case: Case, seconds: float) -> float:
        assert self.process.stdin is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(json.dumps({"case": asdict(case), "seconds": seconds}) + "\n")
        self.process.stdin.flush()
        return float(self._answer())


def cases(count: int, seed: int) -> list[Case]:
    """A seeded sample over all main suites of what is neither too small to matter nor too long to wait for."""
    found = [case for name in MAIN_SUITES for case in load_suite(name) if LEAST_FLOPS < case.flops < MOST_FLOPS]
    return sample(found, count, seed)


def measured(chosen: Sequence[Case], threads: int, folder: Path, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """A line per case: the median over rounds of each system's fastest call."""
    systems = ["plain", *(f"{kind}:{chain}" for chain in CHAINS for kind in ("fused", "eager"))]
    workers = {name: Worker(name, threads, folder) for name in systems}
    try:
        lines = []
        for case in chosen:
            turns = [{name: workers[name].seconds(case, seconds) for name in systems} for _ in range(rounds)]
            best = {name: float(np.median([turn[name] for turn in turns])) for name in systems}
            lines.append(asdict(case) | {"threads": threads, "seconds": best})
        return lines
    finally:
        for worker in workers.values():
            worker.process.kill()


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Ratios per chain and number of threads: cost over plain, and speedup over PyTorch eager."""
    rows = ["| chain | threads | cases | cost over plain | worst | over PyTorch eager | worst |", f"|---{'|---:' * 6}|"]
    for chain in CHAINS:
        for threads in sorted({line["threads"] for line in lines}):
            of = [line["seconds"] for line in lines if line["threads"] == threads]
            cost = [s[f"fused:{chain}"] / s["plain"] for s in of]
            gain = [s[f"eager:{chain}"] / s[f"fused:{chain}"] for s in of]
            rows.append(
                f"| {chain} | {threads} | {len(of)} | {geometric_mean(cost):.3f} | {max(cost):.3f} "
                f"| {geometric_mean(gain):.2f} | {min(gain):.2f} |"
            )
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command(__doc__ or "")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="of a call, one run for each number")
    parser.add_argument("--cases", type=int, default=16, help="products, every suite represented")
    parser.add_argument("--seed", type=int, default=11, help="of the sample")
    parser.add_argument("--rounds", type=int, default=3, help="turns of every system at a case")
    parser.add_argument("--seconds", type=float, default=0.05, help="of each turn")
    parser.add_argument(
        "--libraries", type=Path, default=Path("results/epilogue"), help="folder: those that lack are compiled into it"
    )
    parser.add_argument("--prepare", action="store_true", help="only compile the libraries")
    parser.add_argument("--allow-busy", action="store_true", help="measure on a busy machine too")
    parser.add_argument("--out", type=Path, help="file of result lines, written anew (default: the table alone)")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        work(options.worker, options.threads[0], options.libraries)
        return 0
    prepare(options.libraries)
    if options.prepare:
        return 0
    if not options.allow_busy:
        machine.check_idle()
    chosen = cases(options.cases, options.seed)
    lines = [
        line
        for threads in options.threads
        for line in measured(chosen, threads, options.libraries, options.rounds, options.seconds)
    ]
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for line in lines:
        s = line["seconds"]
        shown = "  ".join(f"{name} {value * 1e6:.0f}" for name, value in s.items())
        print(f"{line['m']}x{line['n']}x{line['k']} {line['threads']} thread(s), us: {shown}")
    print(table(lines))
    return 0


if __name__ == "__main__":
    ended(main)
