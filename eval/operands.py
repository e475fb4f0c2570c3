"""Operands of a case, the same for every system, and the check of a result against float64."""

import math
import os
import zlib
from dataclasses import dataclass

import numpy as np

from eval import machine
from eval.suites import Case

# A prime, so that the repeated block of random numbers never lines up with a row.
BLOCK = 1_000_003
# Up to this many multiplications the whole result is checked, beyond it sampled rows and columns.
FULL_CHECK = 1 << 24
SAMPLED_ROWS, SAMPLED_COLUMNS = 12, 48


def aligned(count: int, dtype: str = "float32") -> np.ndarray:
    """Memory of an operand, as many bytes past a cache line as a run asks for."""
    return machine.aligned(count, dtype, int(os.environ.get("VORTEX_EVAL_OFFSET", 0)))


class WrongResultError(ArithmeticError):
    """A system computed something else than the product."""


@dataclass(frozen=True, slots=True)
class Operands:
    """Arrays as stored (a transposed operand is stored as its transpose) and the preallocated output."""

    case: Case
    a: np.ndarray
    b: np.ndarray
    out: np.ndarray

    @property
    def a_mk(self) -> np.ndarray:
        """A as an [m, k] view."""
        return self.a.T if self.case.trans_a else self.a

    @property
    def b_kn(self) -> np.ndarray:
        """B as a [k, n] view."""
        return self.b.T if self.case.trans_b else self.b


def make_operands(case: Case, seed: int) -> Operands:
    """Uniform numbers in [-1, 1); the output starts as NaN, so what a system leaves out shows."""
    block = np.random.default_rng([seed, zlib.crc32(case.id.encode())]).random(BLOCK, np.float32) * 2 - 1

    def array(rows: int, columns: int, shift: int) -> np.ndarray:
        flat = aligned(rows * columns)
        source = np.roll(block, shift)
        for start in range(0, flat.size, BLOCK):
            part = flat[start : start + BLOCK]
            part[:] = source[: part.size]
        return flat.reshape(rows, columns)

    a = array(case.k, case.m, 0) if case.trans_a else array(case.m, case.k, 0)
    b = array(case.n, case.k, 12345) if case.trans_b else array(case.k, case.n, 12345)
    out = aligned(case.m * case.n).reshape(case.m, case.n)
    out.fill(np.nan)
    return Operands(case, a, b, out)


def exact_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The float64 product of [m, k] and [k, n], by the calling thread alone: those of a BLAS poll for a tenth of a
    second and more after theirs, on the core that what is timed next should have."""
    return np.asarray(np.einsum("mk,kn->mn", a, b, dtype=np.float64))


def check(operands: Operands, result: np.ndarray) -> float:
    """The largest error, as a share of what float32 summation may lose; raises where it exceeds 1.

    Random signs make rounding errors grow with the square root of k, so the bound is a few times that, times |A| |B|.
    """
    case = operands.case
    if result.shape != (case.m, case.n):
        raise WrongResultError(f"{case}: result has shape {result.shape}")
    rows: np.ndarray = np.arange(case.m)
    columns: np.ndarray = np.arange(case.n)
    if case.m * case.n * case.k > FULL_CHECK:
        rows = np.unique(np.linspace(0, case.m - 1, min(case.m, SAMPLED_ROWS)).astype(int))
        columns = np.unique(np.linspace(0, case.n - 1, min(case.n, SAMPLED_COLUMNS)).astype(int))
    a = operands.a_mk[rows].astype(np.float64)
    b = operands.b_kn[:, columns].astype(np.float64)
    allowed = (4 * math.sqrt(case.k) + 8) * float(np.finfo(np.float32).eps) * exact_product(np.abs(a), np.abs(b))
    error = np.abs(result[np.ix_(rows, columns)].astype(np.float64) - exact_product(a, b))
    worst = float(np.max(error / allowed, initial=0.0))
    if not worst <= 1.0:
        raise WrongResultError(f"{case}: error is {worst:.3g} times what float32 summation may lose")
    return worst
