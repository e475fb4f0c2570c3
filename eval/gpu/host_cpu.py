"""The CPU library on the host's cores, from one to all: called through its native door, NumPy's BLAS beside it."""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eval.gpu.budget import Budget, Journal, median
from eval.suites import Case
from vortex.gpu_operands import CPU, FLOAT, DLTensor

POLLING_S = 0.2
"""So long OpenBLAS's threads may poll after a product, on cores that the next case counts on."""
INT, TENSOR = 1, 7
"""Type indices of tvm-ffi's values, the form in which a CPU library takes its arguments."""


class _Value(ctypes.Structure):
    _fields_ = (("index", ctypes.c_int32), ("padding", ctypes.c_int32), ("bits", ctypes.c_int64))


class CpuLibrary:
    """A CPU library without tvm-ffi: its door takes plain C values."""

    def __init__(self, path: Path) -> None:
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path) as zipped:
            self._calls = ctypes.CDLL(zipped.extract("library.so", folder))

    def set_threads(self, count: int) -> None:
        self._call("set_threads", (_Value * 1)(_Value(INT, 0, count)))

    def gemm(self, a: Any, b: Any, out: Any) -> Callable[[], int]:
        """A call with everything packed beforehand."""
        kept = [_tensor(array) for array in (a, b, out)]
        values = [_Value(TENSOR, 0, ctypes.addressof(tensor)) for tensor, *_ in kept]
        arguments = (_Value * 4)(*values, _Value(INT, 0, 0))

        def call() -> int:
            assert kept
            return self._call("gemm", arguments)

        return call

    def _call(self, name: str, arguments: Any) -> int:
        result = _Value()
        function = getattr(self._calls, f"__tvm_ffi_{name}")
        function(None, arguments, len(arguments), ctypes.byref(result))
        return int(result.bits)


def _tensor(array: Any) -> tuple[Any, ...]:
    shape, strides = (ctypes.c_int64 * 2)(*array.shape), (ctypes.c_int64 * 2)(*(s // 4 for s in array.strides))
    return DLTensor(array.ctypes.data, CPU, 0, 2, FLOAT, 32, 1, shape, strides, 0), shape, strides


def core_counts() -> list[int]:
    """1, 2, 4, ... and all."""
    cores = len(os.sched_getaffinity(0))
    counts = [1]
    while counts[-1] * 2 <= cores:
        counts.append(counts[-1] * 2)
    return counts if counts[-1] == cores else [*counts, cores]


def seconds_of(call: Callable[[], Any], least: float = 0.02) -> float:
    """The median of at least five calls, over at least so long."""
    call()
    times: list[float] = []
    while len(times) < 5 or (sum(times) < least and len(times) < 2000):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return median(times)


def run(path: Path, cases: Sequence[Case], journal: Journal, budget: Budget, counts: Sequence[int] = ()) -> None:
    """Every case on every number of threads, as long as time is left."""
    library = CpuLibrary(path)
    for case in budget.within(cases):
        draw = np.random.default_rng(0)
        a = draw.standard_normal((case.m, case.k), np.float32)
        b = draw.standard_normal((case.k, case.n), np.float32)
        out = np.full((case.m, case.n), np.nan, np.float32)
        call = library.gemm(a, b, out)
        if status := call():
            journal.add("cpu_failed", id=case.id, status=status)
            continue
        expected = np.einsum("mk,kn->mn", a[:8], b, dtype=np.float64)  # no BLAS: its threads would poll on
        error = float(np.abs(out[:8] - expected).max() / max(1e-30, np.abs(expected).max()))
        seconds = {}
        for count in counts or core_counts():
            library.set_threads(count)
            seconds[str(count)] = seconds_of(call)
        blas = seconds_of(lambda a=a, b=b, out=out: np.matmul(a, b, out=out))  # type: ignore[misc]  # bound now
        time.sleep(POLLING_S)
        journal.add("cpu", id=case.id, m=case.m, n=case.n, k=case.k, seconds=seconds, numpy_s=blas, error=error)
