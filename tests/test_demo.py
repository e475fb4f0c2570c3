"""The demo: its check finds wrong results, its table, file and plot say what was measured."""

import csv
import dataclasses
import io
import math
from pathlib import Path

import needs
import numpy as np
import pytest
from rich.console import Console

from vortex.demo import LENGTHS, PRODUCTS, Results, Row, run_demo, take_turns, worst_error

ROW = Row("attention output", 22, 768, 768, 3, "L0 14x32, ...", "1x2", 4e-4, 2e-4, 1e-4, 0.25)


def results(error: float = 0.25) -> Results:
    rows = [
        dataclasses.replace(ROW, product=product, m=m, n=n, k=k, error=error)
        for m in (1, 22, 476)
        for product, n, k in PRODUCTS
    ]
    return Results("test", 2, 500e9, tuple(rows))


class TestCheck:
    @pytest.fixture
    def operands(self) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(3)
        return random.standard_normal((9, 300), np.float32), random.standard_normal((300, 11), np.float32)

    def test_any_order_of_summation_passes(self, operands):
        a, b = operands
        backwards = a[:, ::-1] @ b[::-1]
        one_by_one = np.zeros((9, 11), np.float32)
        for k in range(300):
            one_by_one += a[:, k : k + 1] * b[k]
        assert 0 < worst_error(a @ b, a, b) < 1
        assert worst_error(backwards, a, b) < 1
        assert worst_error(one_by_one, a, b) < 1

    @pytest.mark.parametrize("wrong", [math.nan, math.inf, 0.0])
    def test_one_wrong_element_fails(self, operands, wrong: float):
        a, b = operands
        c = a @ b
        c[5, 7] = wrong
        assert not worst_error(c, a, b) <= 1

    def test_a_missing_step_of_k_fails(self, operands):
        a, b = operands
        assert worst_error(a[:, :-1] @ b[:-1], a, b) > 1

    def test_zeros_are_exact(self):
        zeros = np.zeros((2, 3), np.float32)
        assert worst_error(np.zeros((2, 2), np.float32), zeros, zeros.T) == 0


class TestTurns:
    def test_everyone_has_as_many(self):
        seen: list[str] = []
        times = take_turns([lambda: seen.append("a"), lambda: seen.append("b")], rounds=2)
        order = "".join(now for before, now in zip(["", *seen], seen, strict=False) if now != before)
        assert order == "abab"
        assert all(0 < seconds < 1e-3 for seconds in times)


class TestResults:
    def test_lengths(self):
        assert len(LENGTHS) == 24 and (LENGTHS[0], LENGTHS[-1]) == (1, 476)

    def test_table(self, tmp_path: Path):
        page = io.StringIO()
        assert results().show(Console(file=page, width=80), tmp_path / "made" / "here")
        told = page.getvalue()
        rate = 2 * 22 * 768 * 768 / 2e-4 * 1e-9
        assert f"{rate:.1f}" in told and f"{rate / 500:.0%}" in told and "22x768x768" in told
        assert "12 of 12 results are right" in told and "WRONG" not in told and "L0 14x32" in told
        assert "geometric mean 2.00" in told and "packed 4.00" in told
        assert max(map(len, told.splitlines()[:16])) <= 80

    def test_wrong_results_are_named(self):
        wrong = results(1.5)
        assert not wrong.right and "22 x 768 x 768" in wrong.summary()

    def test_files(self, tmp_path: Path):
        results().show(Console(file=io.StringIO()), tmp_path)
        with (tmp_path / "bert.csv").open() as file:
            assert [int(row["m"]) for row in csv.DictReader(file)] == [row.m for row in results().rows]
        pytest.importorskip("matplotlib")
        assert (tmp_path / "bert.png").read_bytes().startswith(b"\x89PNG")


@needs.a_compiler
def test_for_real():
    shares: list[float] = []
    found = run_demo(lambda what, share: shares.append(share), lengths=(1, 7), rounds=1)
    assert found.right and len(found.rows) == 8
    assert shares == sorted(shares) and shares[0] >= 0 and shares[-1] <= 1
