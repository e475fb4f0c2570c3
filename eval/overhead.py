"""`python -m eval.overhead`: what a call costs besides the arithmetic.

Native selection of every operator on one thread and on two; then, of plain products on one thread, the first call of a
new shape against the second, the smallest calls against torch.mm, and growth of memory over many calls. One process: no
other library's pool is awake.
"""

import gc
import importlib
import random
import statistics
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from eval import machine, records, selection_times
from eval.commands import command, ended, shown
from eval.machine import aligned
from eval.operator_libraries import NAMES, names_for, operator_named
from eval.suites import fresh_seed
from eval.vortex_systems import hardware, load_gemm
from eval.worker import time_batch

CUBES = (64, 128, 256, 512, 1024, 2048, 4096)
Figure = dict[str, Any]


def figure(name: str, value: float, unit: str, note: str = "", **more: Any) -> Figure:
    return {"kind": "overhead", "name": name, "value": value, "unit": unit, "note": note, **more}


def alternating(calls: dict[str, Callable[[], Any]], rounds: int = 30, count: int = 2000) -> dict[str, float]:
    """Median over rounds of the seconds a call, the calls taking turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        time_batch(call, count)
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(time_batch(call, count))
    return {name: statistics.median(values) for name, values in times.items()}


def random_shapes(count: int, seed: int, low: int = 2, high: int = 300) -> list[tuple[int, int, int]]:
    draw = random.Random(seed)
    return [(draw.randint(low, high), draw.randint(low, high), draw.randint(low, high)) for _ in range(count)]


def first_calls(gemm: Any, seed: int, count: int = 300) -> Iterator[Figure]:
    """First and second call of shapes never seen, on operands that were just read and an output just written."""
    pool = [aligned(300 * 300) for _ in range(3)]
    for array in pool:
        array.fill(1.0)
    gemm(pool[0][:6].reshape(2, 3), pool[1][:6].reshape(3, 2), out=pool[2][:4].reshape(2, 2))
    extra = []
    for m, n, k in random_shapes(count, seed):
        a, b, c = pool[0][: m * k].reshape(m, k), pool[1][: k * n].reshape(k, n), pool[2][: m * n].reshape(m, n)

        def call(a: Any = a, b: Any = b, c: Any = c) -> None:
            gemm(a, b, out=c)

        float(a.sum() + b.sum())
        c.fill(0.0)
        first = time_batch(call, 1)
        extra.append((first - time_batch(call, 1)) * 1e6)
    note = f"{count} random shapes up to 300, warm operands"
    yield figure("first call of a new shape over the second, median", statistics.median(extra), "us", note)
    yield figure("the same, 90th percentile", statistics.quantiles(extra, n=10)[-1], "us", note)


def small_calls(gemm: Any) -> Iterator[Figure]:
    """1x64x64 against torch.mm, both on tensors and on arrays, with and without a given output."""
    import torch

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    a, b, c = torch.ones(1, 64), torch.ones(64, 64), torch.empty(1, 64)
    na, nb, nc = a.numpy(), b.numpy(), c.numpy()
    times = alternating(
        {
            "torch.mm(out=)": lambda: torch.mm(a, b, out=c),
            "vortex, tensors, out=": lambda: gemm(a, b, out=c),
            "vortex, arrays, out=": lambda: gemm(na, nb, out=nc),
            "torch.mm": lambda: torch.mm(a, b),
            "vortex, tensors": lambda: gemm(a, b),
            "vortex, arrays": lambda: gemm(na, nb),
            "numpy.matmul(out=)": lambda: np.matmul(na, nb, out=nc),
        }
    )
    for name, seconds in times.items():
        base = "torch.mm(out=)" if "out=" in name else "torch.mm"
        yield figure(f"1x64x64 {name}", seconds * 1e6, "us", f"{seconds / times[base]:.2f} x {base}")


def growth(gemm: Any, calls: int) -> Iterator[Figure]:
    """Resident memory and live Python allocations after many calls, over those after the first few."""
    a, b, c = np.ones((7, 33), np.float32), np.ones((33, 50), np.float32), np.empty((7, 50), np.float32)

    def many(count: int) -> None:
        for _ in repeat(None, count):
            gemm(a, b, out=c)

    many(1000)
    gc.collect()
    process = psutil.Process()
    resident = process.memory_info().rss
    many(calls)
    gc.collect()
    grown = process.memory_info().rss - resident
    yield figure(f"resident memory over {calls} calls", grown / 1024, "KiB")
    tracemalloc.start()
    many(1000)
    before = tracemalloc.get_traced_memory()[0]
    many(20_000)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    yield figure("live Python allocations over 20000 calls", grown, "bytes")


def cubes(gemm: Any, largest: int) -> Iterator[Figure]:
    """Selection beside execution for m = n = k (the paper's Figure 14)."""
    for extent in (cube for cube in CUBES if cube <= largest):
        chosen = gemm.time_selection(extent, extent, extent, 20_000) * 1e6
        a, b, c = (np.ones((extent, extent), np.float32) for _ in range(3))
        gemm(a, b, out=c)
        seconds = min(time_batch(lambda a=a, b=b, c=c: gemm(a, b, out=c), 1) for _ in range(5))  # type: ignore[misc]
        note = f"selection {chosen:.3f} us"
        yield figure(f"{extent}^3 call", seconds * 1e6, "us", note, cube=extent, selection_us=chosen)


def figures(gemm: Any, seed: int, calls: int, largest: int) -> Iterator[Figure]:
    yield from first_calls(gemm, seed)
    yield from small_calls(gemm)
    yield from growth(gemm, calls)
    yield from cubes(gemm, largest)


def selections(gemm: Any, operators: Sequence[str], seed: int) -> Iterator[Figure]:
    """Median and worst of each operator, whose libraries are compiled or taken from the cache."""
    vortex: Any = importlib.import_module("vortex")
    for name in operators:
        run = gemm if name == "gemm" else vortex.compile(operator_named(name), hw=hardware())
        for line in selection_times.measured(run, name, seed):
            yield figure(line["name"], line["value"], "us", line["note"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command(__doc__)
    whose = "whose selection is timed; default: all that the device has an instruction for"
    parser.add_argument("--operators", nargs="+", choices=NAMES, help=whose)
    parser.add_argument("--selection-only", action="store_true", help="time selection and nothing else")
    parser.add_argument("--calls", type=int, default=1_000_000, help="over which memory may not grow")
    parser.add_argument("--largest-cube", type=int, default=2048, help="of the calls with m = n = k")
    parser.add_argument("--seed", type=int, help="of the random shapes; default: fresh")
    parser.add_argument("--out", type=Path, default=Path("results/overhead.jsonl"), help="lines are added to it")
    parser.add_argument("--allow-busy", action="store_true", help="measure on a busy machine too")
    options = parser.parse_args(arguments)
    seed = fresh_seed() if options.seed is None else options.seed
    if not options.allow_busy:
        machine.check_idle()
    gemm = load_gemm(threads=1)
    about = {"seed": seed, "commit": machine.commit(), "device": machine.device()}
    found = selections(gemm, options.operators or names_for(hardware()), seed)
    if not options.selection_only:
        found = chain(found, figures(gemm, seed, options.calls, options.largest_cube))
    for line in found:
        records.append(options.out, [line | about])
        print(f"{line['name']:72} {shown(line['value']):>12} {line['unit']:6} {line['note']}".rstrip())
    return 0


if __name__ == "__main__":
    ended(main)
