"""`python -m eval.weights`: products with quantized weights against float32, few rows to many.

Float32 with packed weights, int8 by columns, int4 in groups, also with zero points (all with float32 and bfloat16
rows), and ONNX Runtime's MatMulNBits on the same int4 weights (its float32 arithmetic). Each system runs in a process
of its own, one after the other, round after round; of a round the median call, over rounds the median. Calls go through
as many copies of the weights as the outermost cache cannot hold, as the layers of a language model do. A run that
stopped, or whose time was up, goes on with `--resume`.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import cycle, product
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from eval import machine
from eval.commands import command, ended
from eval.operands import exact_product
from eval.process import worker_environment
from vortex.api import compile as compile_library
from vortex.operators import Gemm, Weights
from vortex.threads import set_num_threads

GROUP = 128
SYSTEMS = {
    "float32": Gemm(),
    "int8": Gemm(weights=Weights("int8")),
    "int4": Gemm(weights=Weights("int4", group=GROUP)),
    "bfloat16_int8": Gemm(dtype="bfloat16", out_dtype="float32", weights=Weights("int8")),
    "bfloat16_int4": Gemm(dtype="bfloat16", out_dtype="float32", weights=Weights("int4", group=GROUP)),
    "int4_zeros": Gemm(weights=Weights("int4", group=GROUP, zeros=True)),
    "bfloat16_int4_zeros": Gemm(
        dtype="bfloat16", out_dtype="float32", weights=Weights("int4", group=GROUP, zeros=True)
    ),
    "onnxruntime_int4": None,
}
LAYERS = ((4096, 4096), (11008, 4096))
"""(n, k): attention and feed-forward layers of a model with seven billion weights."""
ROWS = (1, 2, 4, 8, 16, 32, 128)
COLD_BYTES = 128 << 20
Case = tuple[int, int, int]
Call = Callable[[np.ndarray, np.ndarray], Any]


def copies(nbytes: int) -> int:
    return max(2, -(-COLD_BYTES // nbytes))


def of_vortex(kernel: Any, weights: Weights | None, b: np.ndarray) -> list[Call]:
    """A call for each copy of the weights b[k, n]."""
    given = weights.quantize(b) if weights else (b,)
    nbytes = b.size * (weights.bytes if weights else 4)
    packed = [kernel.pack(*given) for _ in range(copies(int(nbytes)))]

    def call(p: Any) -> Call:
        return lambda a, out: kernel(a, p, out)

    return [call(p) for p in packed]


def of_onnxruntime(weights: Weights, b: np.ndarray, threads: int) -> list[Call]:
    """The same with MatMulNBits: two weights in a byte, unsigned with a zero point of 8, blocks along k."""
    import onnx
    import onnxruntime

    q, scales = weights.quantize(np.ascontiguousarray(b.T), transpose=True)
    (n, k), helper, floats = q.shape, onnx.helper, onnx.TensorProto.FLOAT
    shifted = (q.astype(np.int16) + 8).astype(np.uint8).reshape(n, k // GROUP, GROUP)
    halves = shifted[:, :, ::2] | shifted[:, :, 1::2] << 4
    node = helper.make_node(
        "MatMulNBits", ["a", "b", "s"], ["c"], domain="com.microsoft", K=k, N=n, bits=4, block_size=GROUP
    )
    constants = [onnx.numpy_helper.from_array(halves, "b"), onnx.numpy_helper.from_array(scales.reshape(-1), "s")]
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("a", floats, ["m", k])],
        [helper.make_tensor_value_info("c", floats, ["m", n])],
        constants,
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=8).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    sessions = [
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        for _ in range(copies(int(b.size * weights.bytes)))
    ]

    def bound(session: Any) -> Call:
        def call(a: np.ndarray, out: np.ndarray) -> None:
            binding = session.io_binding()
            binding.bind_input("a", "cpu", 0, np.float32, a.shape, a.ctypes.data)
            binding.bind_output("c", "cpu", 0, np.float32, out.shape, out.ctypes.data)
            session.run_with_iobinding(binding)

        return call

    return [bound(session) for session in sessions]


def work(system: str, threads: int, seconds: float, rows: Sequence[int]) -> None:
    """Print a line for each case: the median seconds of a call, and its error over what the weights stand for."""
    set_num_threads(threads)
    operator, rng = SYSTEMS[system], np.random.default_rng(1)
    weights = Weights("int4", group=GROUP) if operator is None else operator.weights
    kernel = compile_library(operator, "native") if operator else None
    for n, k in LAYERS:
        b = rng.standard_normal((k, n), np.float32)
        stood_for = weights.dequantize(*weights.quantize(b)) if weights else b
        calls = of_vortex(kernel, weights, b) if kernel else of_onnxruntime(weights or Weights(), b, threads)
        for m in rows:
            element = ml_dtypes.bfloat16 if operator and operator.dtype == "bfloat16" else np.float32
            a, out = rng.standard_normal((m, k), np.float32).astype(element), np.empty((m, n), np.float32)
            times = []
            end = time.perf_counter() + seconds
            for place, call in enumerate(cycle(calls)):
                start = time.perf_counter()
                call(a, out)
                now = time.perf_counter()
                times.append(now - start)
                if now > end and place >= 2 * len(calls):
                    break
            exact = exact_product(a[:1], stood_for)
            error = float(np.abs(out[0] - exact).max() / np.abs(exact).max())
            line = {"system": system, "threads": threads, "m": m, "n": n, "k": k, "error": error}
            print(json.dumps(line | {"seconds": statistics.median(times[len(calls) :])}), flush=True)


def measure(options: Any) -> list[dict[str, Any]]:
    """A line for each case of every turn that the time allowed, those of the file first; new ones are added to it."""
    lines = [json.loads(line) for line in options.out.read_text().splitlines()] if options.resume else []
    done = {(line["round"], line["threads"], line["system"]) for line in lines}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    end = time.monotonic() + (options.max_seconds or float("inf"))
    for turn in product(range(options.rounds), options.threads, options.systems):
        if turn in done:
            continue
        if time.monotonic() > end:
            print(f"stopped before round {turn[0]}, {turn[1]} thread(s), {turn[2]}; --resume goes on", file=sys.stderr)
            break
        found = [{"round": turn[0], **line} for line in ask(turn[2], turn[1], options)]
        with options.out.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in found)
        lines += found
    return lines


def ask(system: str, threads: int, options: Any) -> list[dict[str, Any]]:
    """What one system measures in a process of its own, its results checked."""
    asked = ["--worker", system, "--threads", str(threads), "--seconds", str(options.seconds)]
    rows = ["--rows", *map(str, options.rows)]
    ran = subprocess.run(
        [sys.executable, "-m", "eval.weights", *asked, *rows],
        env=worker_environment(system, threads),
        text=True,
        stdout=subprocess.PIPE,
        check=True,
    )
    lines: list[dict[str, Any]] = [json.loads(line) for line in ran.stdout.splitlines()]
    for line in lines:
        if line["error"] > 1e-4:
            raise ArithmeticError(f"{line}: more than 1e-4 from what the weights stand for")
    return lines


def summary(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each system and case the median over rounds, and how far the rounds lie apart."""
    found: dict[tuple[str, int, Case], list[float]] = {}
    for line in lines:
        case = line["m"], line["n"], line["k"]
        found.setdefault((line["system"], line["threads"], case), []).append(line["seconds"])
    return [
        {"system": system, "threads": threads, "case": case, "seconds": statistics.median(seconds)}
        | {"spread": max(seconds) / min(seconds) - 1}
        for (system, threads, case), seconds in found.items()
    ]


def table(lines: Sequence[dict[str, Any]], systems: Sequence[str]) -> str:
    """Milliseconds of float32, and how many times faster every other system is."""
    others = [system for system in systems if system != "float32"]
    rows = [f"| threads | m x n x k | float32, ms | {' | '.join(others)} |", f"|---:|---|---:|{'---:|' * len(others)}"]
    of: dict[Any, float] = {(line["system"], line["threads"], line["case"]): line["seconds"] for line in lines}
    for threads, case in dict.fromkeys((line["threads"], line["case"]) for line in lines):
        if (base := of.get(("float32", threads, case))) is None:
            continue
        timed = [of.get((system, threads, case)) for system in others]
        ratios = " | ".join(f"{base / seconds:.2f}" if seconds else "-" for seconds in timed)
        rows.append(f"| {threads} | {' x '.join(map(str, case))} | {base * 1e3:.2f} | {ratios} |")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command(__doc__ or "")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="of a call, one run for each number")
    parser.add_argument(
        "--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), metavar="SYSTEM", help="which, float32 always"
    )
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS), help="of A")
    parser.add_argument("--rounds", type=int, default=3, help="turns of every system")
    parser.add_argument("--seconds", type=float, default=0.3, help="of each case in a round")
    parser.add_argument("--allow-busy", action="store_true", help="measure on a busy machine too")
    parser.add_argument("--max-seconds", type=float, help="begin nothing after this long; resume later")
    parser.add_argument(
        "--out", type=Path, default=Path("results/weights.jsonl"), help="file of result lines, written anew"
    )
    parser.add_argument("--resume", action="store_true", help="go on with --out, skipping what it holds")
    parser.add_argument("--worker", choices=SYSTEMS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        work(options.worker, options.threads[0], options.seconds, options.rows)
        return 0
    if not options.allow_busy:
        machine.check_idle()
    for system in options.systems:
        if (operator := SYSTEMS[system]) is not None:
            compile_library(operator, "native")
    systems = list(dict.fromkeys(["float32", *options.systems]))
    options.systems = systems
    options.resume = options.resume and options.out.is_file()
    print(table(summary(measure(options)), systems))
    return 0


if __name__ == "__main__":
    ended(main)
