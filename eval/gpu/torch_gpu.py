"""The device as the parts of a run use it: operands, guards around them, and times, through torch."""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Callable
from typing import Any

import torch

Call = Callable[[], Any]
TYPES = {
    "float32": torch.float32,
    "tfloat32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
}
FLUSH_BYTES = 256 << 20
"""More than any L2 holds."""
GRAPH_CALLS = 10
ROUNDS = 9
SHORT_S, LONG_S = 0.2, 2.0
"""A case is measured over about the first, and in one round where a call takes more than the second."""


class TorchGpu:
    """One CUDA device. Times are medians over rounds of CUDA events; nothing else runs meanwhile."""

    def __init__(self, place: str = "cuda") -> None:
        self.place = place
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        self._flush: Any = None

    def about(self) -> dict[str, Any]:
        figures = torch.cuda.get_device_properties(0)
        asked = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit"
        told = _output(["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"])
        return {
            "device": figures.name,
            "capability": f"{figures.major}.{figures.minor}",
            "sms": figures.multi_processor_count,
            "memory_bytes": figures.total_memory,
            "l2_bytes": getattr(figures, "L2_cache_size", 0),
            "smi": told,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "python": platform.python_version(),
            "kernel": platform.release(),
        }

    def operand(self, rows: int, columns: int, dtype: str, seed: int, integers: bool, bound: int = 2) -> Any:
        """Normal numbers, or integers up to `bound` in size."""
        source = torch.Generator(device=self.place).manual_seed(seed)
        if integers:
            drawn = torch.randint(-bound, bound + 1, (rows, columns), generator=source, device=self.place)
            return drawn.to(TYPES[dtype])
        return torch.randn((rows, columns), generator=source, device=self.place, dtype=torch.float32).to(TYPES[dtype])

    def guarded(self, inside: Any, shift: int, extra: int, value: float) -> tuple[Any, Any]:
        """A copy of a matrix `shift` elements into memory filled with `value`, rows `extra` further apart; and all."""
        rows, columns = inside.shape
        margin = 256
        whole = torch.full((margin + shift + (rows + 1) * (columns + extra) + margin,), value, device=inside.device)
        whole = whole.to(inside.dtype)
        view = whole.as_strided((rows, columns), (columns + extra, 1), margin + shift)
        view.copy_(inside)
        return view, whole

    def empty(self, rows: int, columns: int, dtype: str) -> Any:
        return torch.empty((rows, columns), dtype=TYPES[dtype], device=self.place)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def free(self) -> None:
        torch.cuda.empty_cache()

    def warm(self, call: Call, calls: int = GRAPH_CALLS, rounds: int = ROUNDS) -> list[float]:
        """Seconds of a call, once per round: calls in a captured graph, operands where the last call left them."""
        once = self._elapsed(call)
        if once * calls * rounds > SHORT_S:
            calls, rounds = max(1, int(calls / 5)), 5 if once < LONG_S else 1
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                call()
        graph.replay()
        return [self._elapsed(graph.replay) / calls for _ in range(rounds)]

    def cold(self, call: Call, rounds: int = ROUNDS) -> list[float]:
        """Seconds of a call after L2 was filled with other data, an event before and after."""
        if self._flush is None:
            self._flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device=self.place)
        pairs = []
        for _ in range(rounds):
            self._flush.zero_()
            begin, end = _events()
            begin.record()
            call()
            end.record()
            pairs.append((begin, end))
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) * 1e-3 for begin, end in pairs]

    def host(self, call: Call, calls: int = 500) -> float:
        """Seconds of the host for one call, the device idle at the start."""
        for _ in range(20):
            call()
        best = float("inf")
        for _ in range(7):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            best = min(best, (time.perf_counter() - start) / calls)
        torch.cuda.synchronize()
        return best

    def _elapsed(self, call: Call) -> float:
        begin, end = _events()
        begin.record()
        call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3


def _events() -> tuple[Any, Any]:
    event: Any = torch.cuda.Event  # untyped in torch
    return event(enable_timing=True), event(enable_timing=True)


def product(a: Any, b: Any) -> Any:
    """A B in float32 on the device; exact for small integers."""
    return torch.mm(a.float(), b.float())


def sampled(a: Any, b: Any, rows: Any, columns: Any) -> tuple[Any, Any]:
    """Rows x columns of A B in float64, and of |A| |B|."""
    x, y = a[rows].double(), b[:, columns].double()
    return x @ y, x.abs() @ y.abs()


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
