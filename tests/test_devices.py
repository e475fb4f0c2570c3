"""Specs of other devices, compiled here and, where this machine has their instructions, run for correctness."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from legalized import legalize

import vortex
from vortex.affinity import cpu_flags
from vortex.launcher import GemmKernel
from vortex.operators import Gemm
from vortex.specs import load_spec, what_if


def check(gemm: GemmKernel) -> None:
    rng = np.random.default_rng(3)
    for m, n, k in [(1, 1, 1), (7, 19, 33), (64, 64, 64), (130, 100, 257), (3, 500, 40), (600, 2, 90), (1, 300, 1000)]:
        a = rng.integers(-4, 5, (m, k)).astype(np.float32)
        b = rng.integers(-4, 5, (k, n)).astype(np.float32)
        assert np.array_equal(gemm(a, b), a @ b)
        assert np.array_equal(gemm(a, gemm.pack(b)), a @ b)
        flags = {"transpose_a": True, "transpose_b": True}
        assert np.array_equal(gemm(a.T.copy(), b.T.copy(), **flags), a @ b)
        for plan in gemm.plans(m, n, k, threads=2):
            assert np.array_equal(gemm.run(plan, a, b, np.empty((m, n), np.float32)), a @ b), plan


@pytest.mark.parametrize("by", ["itself", pytest.param("legalized", marks=pytest.mark.emulate)])
def test_the_papers_cpu(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = load_spec("xeon-8255c")
    if by == "legalized":
        legalize(monkeypatch)
    elif missing := spec.features - cpu_flags():
        pytest.skip(f"this machine lacks {sorted(missing)}, which {spec.name} needs")
    gemm = vortex.compile("gemm", hw=spec, cache=False)
    assert gemm.manifest.basis == "computed", "its L0 was never timed, and no library may say otherwise"
    assert "computed" in str(gemm.explain(105, 1024, 12544))
    check(gemm)


@dataclass(frozen=True)
class Product(Gemm):
    """An operator that vortex does not know, made of what it does know."""

    @property
    def name(self) -> str:
        return "product"


def test_a_device_and_an_operator_of_the_test(gemm: GemmKernel, tmp_path: Path) -> None:
    """Eight lanes and sixteen registers, a small second cache, one core: nothing in vortex was written for it."""
    spec = what_if(load_spec("xeon-e5-2680v3"), {"cores": 1, "l2.capacity_bytes": 131072, "L0.max_utilization": 0.85})
    if spec.features - cpu_flags():
        pytest.skip("this machine has no AVX2")
    product = vortex.compile(Product(), hw=spec, cache=False)
    assert product.manifest.operator == "product" and product.manifest.lanes == 8
    assert all(s.l0.m * (s.l0.n // 8) < 16 for s in product.strategies if not s.stage.dot)
    check(product)
    product.save(tmp_path / "p.vortex")
    again, weights = vortex.load(tmp_path / "p.vortex"), np.ones((20, 300), np.float32)
    check(again)
    assert (again(weights[:, :20], product.pack(weights)) == 20).all(), "the same library packs alike"
    with pytest.raises(vortex.OperandError, match=r"another library.*pack it again"):
        gemm(weights[:, :20], product.pack(weights))
