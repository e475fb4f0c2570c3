"""Ring 2: a library whose store stage does something, against the NumPy reference and against the plain library."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from conftest import compiled

from vortex import operators as ops
from vortex.fused import FusedGemm
from vortex.selector import OperandB

CHAIN = ops.bias() >> ops.relu() >> ops.scale(per="row") >> ops.residual()
RNG = np.random.default_rng(3)


def integers(*shape: int) -> np.ndarray:
    """Small integers: every product, sum and scale of them is exact in float32."""
    return RNG.integers(-4, 5, shape).astype(np.float32)


def operands(m: int, n: int) -> dict[str, np.ndarray]:
    return {"bias": integers(n), "scale": integers(m), "residual": integers(m, n)}


def expected(a: np.ndarray, b: np.ndarray, extras: dict[str, np.ndarray]) -> np.ndarray:
    return ops.Gemm(epilogue=CHAIN).reference(a, b, **extras)


@pytest.fixture(scope="module")
def fused() -> FusedGemm:
    kernel = compiled(ops.Gemm(epilogue=CHAIN))
    assert isinstance(kernel, FusedGemm)
    return kernel


def test_every_small_shape(fused: FusedGemm) -> None:
    a, b, extras = integers(19, 19), integers(19, 35), operands(19, 35)
    for m, n, k in itertools.product(range(20), range(36), (0, 1, 2, 7, 19)):
        left, right = np.ascontiguousarray(a[:m, :k]), np.ascontiguousarray(b[:k, :n])
        some = {
            "bias": extras["bias"][:n],
            "scale": extras["scale"][:m],
            "residual": np.ascontiguousarray(extras["residual"][:m, :n]),
        }
        assert np.array_equal(fused(left, right, **some), expected(left, right, some)), (m, n, k)


@pytest.mark.parametrize("kind", list(OperandB))
@pytest.mark.parametrize("transpose_a", [False, True])
def test_every_strategy(fused: FusedGemm, kind: OperandB, transpose_a: bool) -> None:
    packed, transposed = kind is OperandB.PACKED, kind is OperandB.TRANSPOSED
    flags = {"transpose_a": transpose_a, "transpose_b": transposed}
    for m, n, k in [(37, 150, 60), (500, 6, 33), (5, 70, 3000), (1, 40, 2500), (130, 1, 700), (260, 270, 1100)]:
        n = max(n, 16) if packed else n
        a, b, extras = integers(m, k), integers(k, n), operands(m, n)
        left = np.ascontiguousarray(a.T) if transpose_a else a
        right = fused.pack(b) if packed else np.ascontiguousarray(b.T) if transposed else b
        wanted = expected(a, b, extras)
        plans = fused.plans(m, n, k, threads=2, packed=packed, **flags)
        assert plans
        for plan in plans:
            room = np.full((m, n + 9), np.nan, np.float32)
            out = room[:, 4 : 4 + n]
            fused.run(plan, left, right, out, **flags, **extras)
            assert np.array_equal(out, wanted), (m, n, k, plan)
            assert np.isnan(np.delete(room, np.s_[4 : 4 + n], axis=1)).all(), f"{plan} wrote outside out"
