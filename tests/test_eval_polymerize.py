"""`eval.polymerize`: what counts as loss, and one shape measured to the end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from eval import polymerize
from eval.operands import make_operands
from eval.suites import Case
from vortex.candidates import WHOLE, Stage, Strategy, Tile
from vortex.errors import ShapeError
from vortex.launcher import GemmKernel
from vortex.plans import Grid, LaunchPlan


def plan(rows: int, columns: int, grid: Grid, swap: bool = False) -> LaunchPlan:
    strategy = Strategy(Tile(rows, columns, 1), Tile(WHOLE, WHOLE, WHOLE), Stage(swap=swap))
    return LaunchPlan(0, strategy, grid, 1.0, 2)


def test_extents_are_rounded_up_to_the_register_tile() -> None:
    assert polymerize.padded(plan(11, 32, Grid(1, 1)), 23, 33) == (33, 64)
    assert polymerize.padded(plan(11, 32, Grid(1, 1), swap=True), 33, 23) == (64, 33)


def test_what_masks_touch_lies_as_the_product_does() -> None:
    operands = make_operands(Case("s", "s/0", 3, 5, 7), 0)
    wide = polymerize.masked(operands, 4, 8, packed=False)
    assert wide.b.strides == operands.b.strides and wide.out.strides == operands.out.strides
    assert np.array_equal(wide.b[:, :5], operands.b) and np.array_equal(wide.a[:3], operands.a)
    assert np.array_equal(wide.b[:-1, 5:], operands.b[1:, :3]) and not wide.b[-1, 5:].any() and not wide.a[3:].any()


def test_rows_over_rows_are_a_measurement_alone(gemm: GemmKernel) -> None:
    operands = make_operands(Case("s", "s/0", 3, 5, 7), 0)
    wide, out = polymerize.masked(operands, 4, 8, packed=False), np.empty((4, 8), np.float32)
    found = gemm.plan(4, 8, 7, threads=1)
    with pytest.raises(ShapeError, match="strides that no matrix has"):
        gemm(wide.a, wide.b, out)
    with pytest.raises(ShapeError, match="strides that no matrix has"):
        gemm.run(found, wide.a, wide.b, out)
    gemm.run(found, wide.a, wide.b, out, laps=True)
    assert np.allclose(out, wide.a @ wide.b, atol=1e-5)


@pytest.mark.parametrize(
    ("m", "n", "grid", "expected"),
    [
        (22, 64, Grid(2, 1), 0.0),
        (11, 96, Grid(1, 2), 0.25),
        (12, 32, Grid(1, 1), 1 - 12 / 22),
        (1, 64, Grid(1, 2), 10 / 11),
    ],
)
def test_loss_is_padding_and_the_last_wave(m: int, n: int, grid: Grid, expected: float) -> None:
    assert polymerize.loss(plan(11, 32, grid), m, n, 2) == pytest.approx(expected)
    assert polymerize.loss(plan(11, 32, grid, swap=True), n, m, 2) == pytest.approx(expected)


def test_one_shape_is_measured_and_reported(gemm: GemmKernel, tmp_path: Path) -> None:
    lines = [polymerize.measured(gemm, Case("s", name, 23, 70, 64), 2, False, 2) for name in "ab"]
    assert all(
        line["masks_s"] > 0 and line["off_s"] > 0 and line["cut"] == (line["on"] != line["off"]) for line in lines
    )
    table = polymerize.report(
        [{**lines[0], "on_s": 1.0, "off_s": 2.0, "masks_s": 4.0, "loss": 0.5, "cut": True}, lines[1]]
    )
    assert "| cut into regions | 1 | 1 | 50% | 2.000 | 2.000 | 4.000 | 4.000 |" in table
