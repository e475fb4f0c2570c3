"""What a user of torch would call instead: cuBLAS, cuBLASLt (first, best algorithm), Triton, torch.compile, CUTLASS."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from eval.gpu.cublaslt import WORKSPACE_BYTES, CublasLt, fastest, open_library

Call = Callable[[], Any]


class Absent(RuntimeError):
    """A rival that is not installed here, or does not serve the case."""


def torch_mm(a: Any, b: Any, out: Any) -> Call:
    """cuBLAS as torch calls it; float32 without TF32."""
    return lambda: torch.mm(a, b, out=out)


def torch_mm_tf32(a: Any, b: Any, out: Any) -> Call:
    def call() -> None:
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.mm(a, b, out=out)
        torch.backends.cuda.matmul.allow_tf32 = False

    return call


def cublaslt(a: Any, b: Any, out: Any, tf32: bool = False) -> Call:
    """cuBLASLt with the first algorithm of its heuristics, as torch calls it when asked to prefer that library."""
    prefer = getattr(torch.backends.cuda, "preferred_blas_library", None)
    if prefer is None:
        raise Absent("this torch cannot prefer a BLAS library")

    product = (torch_mm_tf32 if tf32 else torch_mm)(a, b, out)

    def call() -> None:
        before = prefer()
        prefer("cublaslt")
        product()
        prefer(before)

    return call


_swept: tuple[Any, Any] | None = None


def cublaslt_sweep(a: Any, b: Any, out: Any, dtype: str) -> Call:
    """cuBLASLt with the fastest algorithm of those that its heuristics name, each timed on this product before."""
    global _swept
    if _swept is None:
        try:
            library = CublasLt(open_library())
        except OSError as error:
            raise Absent(f"no cuBLASLt here: {error}") from error
        _swept = library, torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=out.device)
    library, workspace = _swept
    calls = library.algorithms(a, b, out, dtype, workspace, lambda: torch.cuda.current_stream().cuda_stream)
    return fastest(calls, _seconds)


def _seconds(call: Call) -> float:
    """Of a few calls, the first of which is not timed."""
    event: Any = torch.cuda.Event  # untyped in torch
    begin, end = event(enable_timing=True), event(enable_timing=True)
    begin.record()
    for _ in range(5):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


_compiled: Any = None


def compiled(a: Any, b: Any, out: Any) -> Call:
    """torch.compile with max-autotune, dynamic shapes: what torch offers for extents that change."""
    global _compiled
    if _compiled is None:
        _compiled = torch.compile(torch.mm, mode="max-autotune-no-cudagraphs", dynamic=True)
    _compiled(a, b)
    return lambda: _compiled(a, b)


_triton: Any = None


def triton_mm(a: Any, b: Any, out: Any) -> Call:
    """The kernel in `triton_kernel`, autotuned for this shape before it is timed."""
    global _triton
    if _triton is None:
        try:
            from eval.gpu import triton_kernel
        except ImportError as error:
            raise Absent(f"no Triton here: {error}") from error
        _triton = triton_kernel.matmul
    _triton(a, b, out)
    return lambda: _triton(a, b, out)


CUTLASS_KERNELS = 8
"""Of those that CUTLASS names for a product, in its order: each is compiled before it is timed, for seconds."""


def cutlass(a: Any, b: Any, out: Any) -> Call:
    """The fastest of some kernels of CUTLASS's own registry (the wheel nvidia-cutlass-operators), each timed before."""
    try:
        operators: Any = importlib.import_module("cutlass.operators")
    except ImportError as error:
        raise Absent(f"no CUTLASS operators here: {error}") from error
    arguments = operators.GemmArguments(a, b, out, accumulator_type=torch.float32)
    major, minor = torch.cuda.get_device_capability()
    found = operators.get_operators(arguments, target_sm=f"{major}{minor}")[:CUTLASS_KERNELS]
    best, least = None, float("inf")
    for operator in found:
        try:
            call = _cutlass_call(operator, arguments)
            call()
            seconds = _seconds(call)
        except (RuntimeError, TypeError, ValueError):  # a kernel that does not compile here, or refuses the product
            continue
        if seconds < least:
            best, least = call, seconds
    if best is None:
        raise Absent(f"none of {len(found)} kernels of CUTLASS serves this product")
    return best


def _cutlass_call(operator: Any, arguments: Any) -> Call:
    artifact = operator.compile(arguments)

    def call() -> None:
        stream = torch.cuda.current_stream()
        operator.run(arguments, compiled_artifact=artifact, stream=stream, assume_supported_args=True)

    return call


RIVALS: dict[str, Callable[[Any, Any, Any], Call]] = {
    "cublas": torch_mm,
    "cublaslt": cublaslt,
    "triton": triton_mm,
    "torch_compile": compiled,
    "cutlass": cutlass,
}


def rival(name: str, dtype: str) -> Callable[[Any, Any, Any], Call]:
    if name == "cublaslt_sweep":
        return lambda a, b, out: cublaslt_sweep(a, b, out, dtype)
    if (name, dtype) == ("cublaslt", "tfloat32"):
        return lambda a, b, out: cublaslt(a, b, out, tf32=True)
    return torch_mm_tf32 if (name, dtype) == ("cublas", "tfloat32") else RIVALS[name]
