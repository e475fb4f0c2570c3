"""One way to run networks in a process of its own: `python -m eval.networks.worker --system X --threads T`.

Requests and answers as those of eval.worker:
  {"do": "info"}                                       -> versions
  {"do": "open", "network": name, "small": bool}       -> seconds until its first inputs were served, of a call
  {"do": "prepare", "input": [...], "seed": s, "expected": path}
                                                       -> difference from PyTorch eager, programs compiled since
  {"do": "measure", "seconds": t}                      -> calls, best, median
  {"do": "count", "input": [...], "seed": s}           -> programs compiled since, the input run once
"""

import gc
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from eval.networks.build import input_of, made
from eval.networks.models import NETWORKS, WARM_CALLS
from eval.networks.systems import RUNNERS, Call
from eval.stats import Timing
from eval.worker import measure_warm, serve

TOLERANCE = 1e-3
"""Largest difference from PyTorch eager, relative to the largest output."""
LONG = 0.5
"""A call that takes so many seconds is warm after one, and timed once a round."""


class Worker:
    """The state between requests: the runner, its network, and the input at hand."""

    def __init__(self, system: str, threads: int) -> None:
        self.runner = RUNNERS[system](threads)
        self.module: Any = None
        self.run: Call | None = None
        self.x: Any = None
        self.known = 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        with torch.no_grad():
            match request["do"]:
                case "info":
                    return {"versions": self.runner.versions()}
                case "open":
                    return self._open(request["network"], request["small"])
                case "prepare":
                    return self._prepare(tuple(request["input"]), request["seed"], Path(request["expected"]))
                case "measure":
                    return self._measure(request["seconds"])
                case "count":
                    return self._count(tuple(request["input"]), request["seed"])
                case other:
                    raise ValueError(f"unknown request {other!r}")

    def forget(self) -> None:
        self.x = None

    def _open(self, name: str, small: bool) -> dict[str, Any]:
        self.run = self.module = None
        torch.compiler.reset()  # networks share code, which is compiled a few times and then no more
        gc.collect()
        begin = time.perf_counter()
        self.module = made(name, small)
        first = [input_of(extents, 0) for extents in NETWORKS[name].first]
        self.run = self.runner.load(self.module, first[-1])
        for x in first:
            self.run(x)
        self.known = self.runner.compilations()
        opened = time.perf_counter()
        self.run(first[-1])
        return {"seconds": opened - begin, "call_s": time.perf_counter() - opened}

    def _prepare(self, extents: tuple[int, ...], seed: int, kept: Path) -> dict[str, Any]:
        """PyTorch eager's result is that of `kept`, which the first worker to be asked writes."""
        assert self.run is not None
        self.x = input_of(extents, seed)
        found = self.run(self.x)
        if not kept.exists():
            torch.save(self.module(self.x), kept)
        expected = torch.load(kept)
        error = float((found - expected).abs().max() / expected.abs().max())
        if not error <= TOLERANCE:
            raise ValueError(f"the result differs from PyTorch eager's by {error:.2g} of its largest element")
        for _ in range(WARM_CALLS):
            begin = time.perf_counter()
            self.run(self.x)
            if time.perf_counter() - begin > LONG:
                break
        return {"difference": error, "compilations": self._compiled()}

    def _count(self, extents: tuple[int, ...], seed: int) -> dict[str, Any]:
        assert self.run is not None
        self.x = None
        self.run(input_of(extents, seed))
        return {"compilations": self._compiled()}

    def _compiled(self) -> int:
        """Programs compiled since this was asked before."""
        before, self.known = self.known, self.runner.compilations()
        return self.known - before

    def _measure(self, seconds: float) -> dict[str, Any]:
        assert self.run is not None
        gc.collect()
        gc.disable()
        call = partial(self.run, self.x)
        begin = time.perf_counter()
        call()
        once = time.perf_counter() - begin
        timing = Timing(1, once, once) if once > LONG else measure_warm(call, seconds)
        gc.enable()
        return {"calls": timing.calls, "best": timing.best, "median": timing.median}


if __name__ == "__main__":
    sys.exit(serve("eval.networks.worker", Worker))
