"""cuBLASLt through ctypes: every algorithm that its heuristics name for a product, and the fastest of them.

torch asks the heuristics for one algorithm. A user who tunes asks for several and times them; that is the rival here.
Matrices of cuBLASLt are column-major: C^T = B^T A^T is asked for, so that rows of torch's tensors are its columns.
Names and numbers are those of cublasLt.h and library_types.h of CUDA 12.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

Call = Callable[[], Any]
NAMES = ("libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11")
"""By major version of CUDA; torch has loaded its own, which is then found by name."""
MOST = 16
"""Algorithms that the heuristics are asked for."""
WORKSPACE_BYTES = 32 << 20
"""What NVIDIA recommends for Hopper (cuBLAS manual, cublasSetWorkspace)."""
REAL_32, REAL_16, BRAIN_16 = 0, 2, 14
TYPES = {"float32": REAL_32, "tfloat32": REAL_32, "float16": REAL_16, "bfloat16": BRAIN_16}
COMPUTE_32F, COMPUTE_32F_FAST_TF32 = 68, 77
TRANSPOSE_A, TRANSPOSE_B = 3, 4
"""Attributes of a product; of a preference the bytes of workspace are number 1."""
MAX_WORKSPACE_BYTES = 1


class Algorithm(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: the algorithm is opaque."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


def open_library(names: Sequence[str] = NAMES) -> ctypes.CDLL:
    """The library that torch uses; OSError where there is none."""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            missing = error
    raise missing


def lines(x: Any) -> tuple[bool, int]:
    """Whether a matrix lies by columns, and how many elements its contiguous lines are apart."""
    by_rows = x.stride(1) == 1 and (x.stride(0) >= x.shape[1] or x.shape[0] == 1)
    return not by_rows, max(int(x.stride(0) if by_rows else x.stride(1)), 1)


class CublasLt:
    """One handle, and what all products of it share."""

    def __init__(self, library: Any) -> None:
        self._library, self._handle = library, ctypes.c_void_p()
        self._ask("cublasLtCreate", ctypes.byref(self._handle))

    def _ask(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._library, name)(*arguments):
            raise RuntimeError(f"{name} answers {status}")

    def _layout(self, x: Any, dtype: int) -> tuple[ctypes.c_void_p, bool]:
        """Of a matrix whose contiguous lines become columns, and whether that leaves it as it was for C^T = B^T A^T."""
        turned, apart = lines(x)
        rows, columns = (x.shape[0], x.shape[1]) if turned else (x.shape[1], x.shape[0])
        made = ctypes.c_void_p()
        extents = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(apart)
        self._ask("cublasLtMatrixLayoutCreate", ctypes.byref(made), dtype, *extents)
        return made, turned

    def algorithms(self, a: Any, b: Any, out: Any, dtype: str, workspace: Any, stream: Callable[[], int]) -> list[Call]:
        """A call for each algorithm that the heuristics name, best first by their opinion.

        `a` [m, k] and `b` [k, n] lie by rows or by columns, `out` [m, n] by rows; `workspace` is memory of the device.
        """
        product, preference, kind = ctypes.c_void_p(), ctypes.c_void_p(), TYPES[dtype]
        compute = COMPUTE_32F_FAST_TF32 if dtype == "tfloat32" else COMPUTE_32F
        self._ask("cublasLtMatmulDescCreate", ctypes.byref(product), compute, REAL_32)
        (left, left_turned), (right, right_turned), (result, _) = (self._layout(x, kind) for x in (b, a, out))
        for attribute, turned in ((TRANSPOSE_A, left_turned), (TRANSPOSE_B, right_turned)):
            value = ctypes.c_int32(int(turned))
            self._ask("cublasLtMatmulDescSetAttribute", product, attribute, ctypes.byref(value), ctypes.c_size_t(4))
        self._ask("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        room = ctypes.c_size_t(workspace.numel() * workspace.element_size())
        size = ctypes.byref(room), ctypes.c_size_t(ctypes.sizeof(room))
        self._ask("cublasLtMatmulPreferenceSetAttribute", preference, MAX_WORKSPACE_BYTES, *size)
        found, count = (Algorithm * MOST)(), ctypes.c_int(0)
        layouts = left, right, result, result
        asked = preference, MOST, found, ctypes.byref(count)
        self._ask("cublasLtMatmulAlgoGetHeuristic", self._handle, product, *layouts, *asked)
        one, none = ctypes.c_float(1.0), ctypes.c_float(0.0)
        places = [ctypes.c_void_p(x.data_ptr()) for x in (b, a, out, workspace)]

        def call_of(algorithm: Algorithm) -> Call:
            def call() -> None:
                self._ask(
                    "cublasLtMatmul", self._handle, product, ctypes.byref(one), places[0], left, places[1], right,
                    ctypes.byref(none), places[2], result, places[2], result, ctypes.byref(algorithm.algorithm),
                    places[3], room, ctypes.c_void_p(stream()),
                )  # fmt: skip

            return call

        return [call_of(row) for row in found[: count.value] if row.state == 0]


def fastest(calls: Sequence[Call], seconds: Callable[[Call], float]) -> Call:
    """The call of least time, as `seconds` measures it; an algorithm that refuses to run is left out."""
    timed: list[tuple[float, int, Call]] = []
    for call in calls:
        try:
            call()
            timed.append((seconds(call), len(timed), call))
        except RuntimeError:
            continue
    if not timed:
        raise RuntimeError(f"none of {len(calls)} algorithms of cuBLASLt runs this product")
    return min(timed)[2]
