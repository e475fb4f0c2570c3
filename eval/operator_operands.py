"""Operands of an operator's case, the same for every system, and the check of a result against float64."""

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from eval.operands import Operands, WrongResultError, aligned, exact_product
from eval.operands import check as check_product
from eval.operands import make_operands as make_product
from eval.operator_cases import OperatorCase
from eval.suites import Case

EPSILON = float(np.finfo(np.float32).eps)
SAMPLES = 48
WINOGRAD_LOSS = 32.0
"""How many times what direct summation may lose a convolution by transforms may."""


@dataclass(frozen=True, slots=True)
class OperatorOperands:
    """Arrays by name, contiguous; activations of a convolution are [n, h, w, c], its weights [k, c / groups, r, s]."""

    case: OperatorCase
    arrays: dict[str, np.ndarray]
    out: np.ndarray

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]


def shapes(case: OperatorCase) -> dict[str, tuple[int, ...]]:
    """The shape of every operand, `out` last."""
    e = case.extents
    if case.op == "conv2d":
        return {
            "x": (e["n"], e["h"], e["w"], e["c"]),
            "w": (e["k"], e["c"] // e["groups"], e["r"], e["s"]),
            "out": (e["n"], e["p"], e["q"], e["k"]),
        }
    if case.op == "reduce":
        return {"x": (e["outer"], e["depth"], e["inner"]), "out": (e["outer"], e["inner"])}
    m, n, k, batch = e["m"], e["n"], e["k"], (e["batch"],) if "batch" in e else ()
    found = {
        "a": (*batch, *((k, m) if e.get("trans_a") else (m, k))),
        "b": (*batch, *((n, k) if e.get("trans_b") else (k, n))),
    }
    if case.op == "bias_gelu":
        found["bias"] = (n,)
    return {**found, "out": (*batch, m, n)}


def make_operator_operands(case: OperatorCase, seed: int) -> OperatorOperands:
    """Uniform numbers in [-1, 1), int8 over its whole range; a float32 output starts as NaN."""
    draw = np.random.default_rng([seed, zlib.crc32(case.id.encode())])
    arrays = {}
    for name, shape in shapes(case).items():
        count = math.prod(shape)
        if case.op == "int8":
            array = aligned(count, "int32" if name == "out" else "int8")
            array[:] = 0 if name == "out" else draw.integers(-128, 128, count, np.int8)
        else:
            array = aligned(count)
            array[:] = np.nan if name == "out" else draw.random(count, np.float32) * 2 - 1
            if case.op == "bfloat16" and name != "out":
                array.view(np.uint32)[:] &= 0xFFFF0000  # exactly bfloat16 from here on
        arrays[name] = array.reshape(shape)
    out = arrays.pop("out")
    return OperatorOperands(case, arrays, out)


def _few(extent: int, count: int = SAMPLES) -> np.ndarray:
    return np.unique(np.linspace(0, extent - 1, min(extent, count)).astype(int))


def _check_conv(of: OperatorOperands, result: np.ndarray) -> float:
    """Some output pixels, all filters."""
    e, x, w = of.case.extents, of["x"], of["w"].astype(np.float64)
    group_in, group_out = e["c"] // e["groups"], e["k"] // e["groups"]
    worst = 0.0
    for pixel in _few(e["n"] * e["p"] * e["q"]):
        image, row, column = np.unravel_index(pixel, (e["n"], e["p"], e["q"]))
        window = np.zeros((e["r"], e["s"], e["c"]))
        for r in range(e["r"]):
            for s in range(e["s"]):
                y = row * e["stride_h"] - e["pad_h"] + r * e["dilation"]
                z = column * e["stride_w"] - e["pad_w"] + s * e["dilation"]
                if 0 <= y < e["h"] and 0 <= z < e["w"]:
                    window[r, s] = x[image, y, z]
        for g in range(e["groups"]):
            part = window[:, :, g * group_in : (g + 1) * group_in]
            filters = w[g * group_out : (g + 1) * group_out]
            exact = np.einsum("rsc,kcrs->k", part, filters)
            size = np.einsum("rsc,kcrs->k", np.abs(part), np.abs(filters))
            depth = group_in * e["r"] * e["s"]
            allowed = WINOGRAD_LOSS * ((4 * math.sqrt(depth) + 8) * EPSILON * size + 1e-30)
            found = result[image, row, column, g * group_out : (g + 1) * group_out]
            worst = max(worst, _ratio(found, exact, allowed))
    return worst


def _check_reduction(of: OperatorOperands, result: np.ndarray) -> float:
    x = of["x"].astype(np.float64)
    return _ratio(result, x.sum(1), (4 * math.sqrt(of.case["depth"]) + 8) * EPSILON * np.abs(x).sum(1))


def _check_product(of: OperatorOperands, result: np.ndarray) -> float:
    """Sampled matrices of a batch, sampled rows of each."""
    e, op = of.case.extents, of.case.op
    batched = "batch" in e
    worst = 0.0
    for at in _few(e["batch"], 8) if batched else (None,):
        a, b = (of[name] if at is None else of[name][at] for name in ("a", "b"))
        a, b = (a.T if e.get("trans_a") else a), (b.T if e.get("trans_b") else b)
        rows = _few(e["m"], 12)
        wide = a[rows].astype(np.float64), b.astype(np.float64)
        exact, size = exact_product(*wide), exact_product(*map(np.abs, wide))
        allowed = (4 * math.sqrt(e["k"]) + 8) * EPSILON * size
        if op == "bias_gelu":
            exact = exact + of["bias"]
            exact = exact * 0.5 * (1 + np.vectorize(math.erf)(exact / math.sqrt(2)))
            allowed = 4 * allowed + 1e-6  # the slope of GELU is below 1.2; its approximations are good to 1e-7
        if op == "int8":
            allowed = np.full_like(size, 0.25)
        if op == "bfloat16":
            allowed = allowed + np.abs(exact) * 2.0**-8
        found = (result if at is None else result[at])[rows]
        worst = max(worst, _ratio(found, exact, allowed))
    return worst


def _ratio(found: np.ndarray, exact: np.ndarray, allowed: np.ndarray) -> float:
    ratio = np.abs(found.astype(np.float64) - exact) / allowed
    return float(np.max(ratio, initial=0.0)) if not np.isnan(ratio).any() else math.inf


CHECKS: dict[str, Callable[[OperatorOperands, np.ndarray], float]] = {
    "conv2d": _check_conv,
    "reduce": _check_reduction,
}


def check_operator(operands: OperatorOperands, result: np.ndarray) -> float:
    """The largest error, as a share of what the arithmetic may lose; raises where it exceeds 1."""
    if result.shape != operands.out.shape:
        raise WrongResultError(f"{operands.case}: result has shape {result.shape}, not {operands.out.shape}")
    worst = CHECKS.get(operands.case.op, _check_product)(operands, result)
    if not worst <= 1.0:
        raise WrongResultError(f"{operands.case}: error is {worst:.3g} times what the arithmetic may lose")
    return worst


def make(case: Case | OperatorCase, seed: int) -> Any:
    """The operands of a case of any operator."""
    return make_operator_operands(case, seed) if isinstance(case, OperatorCase) else make_product(case, seed)


def check(operands: Operands | OperatorOperands, result: np.ndarray) -> float:
    """The error of a result of any operator."""
    if isinstance(operands, OperatorOperands):
        return check_operator(operands, result)
    return check_product(operands, result)
