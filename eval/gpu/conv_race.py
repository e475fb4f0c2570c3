"""Convolutions of the suites against cuDNN, as torch calls it on channels-last tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import conv2d

from eval.gpu.budget import Budget, Journal, covered
from eval.gpu.race import TOLERANCE, timed
from eval.gpu.torch_gpu import TorchGpu
from eval.operator_cases import OperatorCase
from vortex.operators import Conv2d, rebuilt


def walk_of(case: OperatorCase) -> dict[str, Any]:
    """Stride, padding, dilation and groups as both systems take them."""
    pairs = {
        name: (case[f"{short}_h"], case[f"{short}_w"]) for name, short in (("stride", "stride"), ("padding", "pad"))
    }
    return {**pairs, "dilation": case["dilation"], "groups": case["groups"]}


def operands(gpu: TorchGpu, case: OperatorCase, dtype: str) -> tuple[Any, Any]:
    """x [n, c, h, w] and w [k, c / groups, r, s], channels contiguous in memory."""
    n, c, h, w = (case[name] for name in "nchw")
    depth, r, s = c // case["groups"], case["r"], case["s"]
    x = gpu.operand(n * h * w, c, dtype, 1, False).unflatten(0, (n, h, w)).permute(0, 3, 1, 2)
    taps = gpu.operand(case["k"] * r * s, depth, dtype, 2, False).unflatten(0, (case["k"], r, s)).permute(0, 3, 1, 2)
    return x, taps


def wrongness(x: Any, w: Any, out: Any, walk: dict[str, Any]) -> float:
    """||y - reference|| / ||reference|| of the first image, the reference in float64."""
    expected = conv2d(x[:1].double(), w.double(), **walk)
    return float(((out[:1].double() - expected).norm() / expected.norm().clamp_min(1e-30)).item())


def convolutions(
    gpu: TorchGpu, conv: Any, name: str, cases: Sequence[OperatorCase], journal: Journal, budget: Budget
) -> None:
    """Warm and cold medians of both on every case, in turn, as long as time is left; no epilogue, nothing fixed."""
    manifest = conv.manifest
    operator = rebuilt(manifest.operator, manifest.settings)
    assert isinstance(operator, Conv2d)
    if operator.epilogue or operator.fixed:
        journal.add("library_skipped", library=name, why="an epilogue, or a fixed window: torch has no one call for it")
        return
    torch.backends.cudnn.allow_tf32 = operator.dtype == "tfloat32"
    torch.backends.cudnn.benchmark = True  # cuDNN times its algorithms on the first call
    for case in covered(journal, budget, name, "convolutions", cases):
        walk = walk_of(case)
        x, w = operands(gpu, case, operator.dtype)
        last = operator.layout == "nhwc"
        given = x.permute(0, 2, 3, 1) if last else x
        out = conv(given, w, **walk)
        error = wrongness(x, w, out.permute(0, 3, 1, 2) if last else out, walk)
        about = {"library": name, "dtype": operator.dtype, "suite": case.suite, "id": case.id, "flops": case.flops}
        calls: dict[str, Any] = {
            "vortex": lambda given=given, w=w, out=out, walk=walk: conv(given, w, out, **walk),
            "cudnn": lambda x=x, w=w, walk=walk: conv2d(x, w, **walk),
        }
        timed(gpu, "conv", calls, about, {"error": error, "right": error <= TOLERANCE[operator.dtype]}, journal)
