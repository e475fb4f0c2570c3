"""One system in a process of its own: `python -m eval.worker --system X --threads T`.

Requests are JSON objects, one a line, on stdin; each gets one JSON line on stdout. What libraries print goes to stderr.
  {"do": "info"}                                              -> versions
  {"do": "prepare", "case": {...}, "seed": s}                 -> error share of the checked result, detail
  {"do": "measure", "mode": "warm" | "cold", "seconds": t}    -> calls, best, median (seconds a call), stolen (share)
  {"do": "drop"}                                              -> frees the case
A request that fails answers {"error": text, "kind": class name}.
"""

import argparse
import ctypes
import gc
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import repeat
from typing import Any, Protocol, TextIO

from eval.machine import StealMeter, flush_caches
from eval.operands import make_operands
from eval.operator_cases import OperatorCase, case_of
from eval.operator_operands import check, make
from eval.registry import create
from eval.stats import Timing
from eval.suites import Case
from eval.systems import Call, Prepared

# Calls shorter than this are timed in batches, so that reading the clock (about 40 ns) stays under 1 %.
BATCH_SECONDS = 10e-6
MIN_WARM_SAMPLES, MIN_COLD_SAMPLES = 3, 5
TINY = Case("tiny", "tiny", 8, 8, 8)
# glibc returns an aligned block to another place than it took it from: the third call is the first without fresh pages.
FIRST_CALLS = 3


def time_batch(call: Call, count: int) -> float:
    """Seconds a call, over `count` calls."""
    start = time.perf_counter_ns()
    for _ in repeat(None, count):
        call()
    return (time.perf_counter_ns() - start) * 1e-9 / count


def measure_warm(call: Call, seconds: float) -> Timing:
    """Repeated calls on the same operands for about `seconds`; one long call is enough where a call outlasts that."""
    end = time.perf_counter() + seconds
    once = time_batch(call, 1)
    if once < seconds / 10:
        once = min(time_batch(call, 1) for _ in range(5))
    count = max(1, round(BATCH_SECONDS / once))
    samples: list[float] = []
    while not samples or (time.perf_counter() < end or (len(samples) < MIN_WARM_SAMPLES and once < seconds)):
        samples.append(time_batch(call, count))
    return Timing(len(samples) * count, min(samples), statistics.median(samples))


def measure_cold(call: Call, tiny: Call, seconds: float) -> Timing:
    """Single calls, each after the process's data left the caches of all cores.

    A call of a tiny shape in between brings back what every call needs (interpreter, dispatcher, the library's tables),
    so that what is cold are the operands, packed ones included.
    """
    end = time.perf_counter() + seconds
    samples: list[float] = []
    while len(samples) < MIN_COLD_SAMPLES or time.perf_counter() < end:
        flush_caches()
        tiny()
        samples.append(time_batch(call, 1))
        if samples[-1] > seconds:
            break
    return Timing(len(samples), min(samples), statistics.median(samples))


class Worker:
    """The state between requests: the system and the case at hand."""

    def __init__(self, system: str, threads: int) -> None:
        self.system, self.threads = create(system, threads), threads
        self.prepared: Prepared | None = None
        self.tiny: Prepared | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "info":
                return {"versions": self.system.versions()}
            case "prepare":
                return self._prepare(case_of(request["case"]), request["seed"])
            case "measure":
                return self._measure(request["mode"], request["seconds"])
            case "drop":
                self.prepared = None
                gc.collect()
                return {}
            case other:
                raise ValueError(f"unknown request {other!r}")

    def forget(self) -> None:
        self.prepared = None

    def _prepare(self, case: Case | OperatorCase, seed: int) -> dict[str, Any]:
        self.prepared = None
        operands = make(case, seed)
        prepared = self.system.prepare(operands)
        share = check(operands, prepared.result())
        for _ in range(FIRST_CALLS):
            prepared.call()
        self.prepared = prepared
        return {"error_share": share, "detail": prepared.detail}

    def _measure(self, mode: str, seconds: float) -> dict[str, Any]:
        if self.prepared is None:
            raise RuntimeError("no case is prepared")
        gc.collect()
        gc.disable()
        meter = StealMeter(self.threads)
        if mode == "warm":
            timing = measure_warm(self.prepared.call, seconds)
        else:
            self.tiny = self.tiny or self.system.prepare(make_operands(TINY, 0))
            timing = measure_cold(self.prepared.call, self.tiny.call, seconds)
        gc.enable()
        return asdict(timing) | {"stolen": meter.share()}


def die_with_parent() -> None:
    """A stopped process would not notice that its stdin closed; SIGKILL ends stopped ones too."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def protocol_stream() -> TextIO:
    """The real stdout for answers; whatever else writes to it goes to stderr."""
    stream = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return stream


class Answering(Protocol):
    """A worker: made of a system's name and a number of threads."""

    def answer(self, request: dict[str, Any]) -> dict[str, Any]: ...

    def forget(self) -> None:
        """Drop what a request that failed may have left."""


def serve(module: str, make_worker: Callable[[str, int], Answering]) -> int:
    """Answers the requests on stdin, one at a time, until it closes."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description="One system, one process (see module).")
    parser.add_argument("--system", required=True)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    die_with_parent()
    answers = protocol_stream()

    def send(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    try:
        worker = make_worker(arguments.system, arguments.threads)
    except Exception as error:  # noqa: BLE001  the process boundary: the parent reports it
        send({"error": str(error), "kind": type(error).__name__})
        return 1
    send({"ready": True})
    for line in sys.stdin:
        try:
            send(worker.answer(json.loads(line)))
        except Exception as error:  # noqa: BLE001  as above: one failing case must not end the worker
            worker.forget()
            send({"error": f"{error}"[:500], "kind": type(error).__name__})
    return 0


if __name__ == "__main__":
    sys.exit(serve("eval.worker", Worker))
