"""The computed model of an A100 against published figures: which fit it, which test it, and how far off it is."""

from functools import cache

import pytest

from eval.gpu import calibration
from vortex.gpu_selector import Extents
from vortex.gpu_stages import CALIBRATION

HELD_OUT = 0.20


@cache
def points() -> list[calibration.Point]:
    return calibration.points()


def near(source: str, *extents: int) -> calibration.Point:
    return next(point for point in points() if (point.source, point.extents) == (source, Extents(*extents)))


def test_the_median_error_on_held_out_points():
    held_out = [point for point in points() if point.role == "validate"]
    assert len(held_out) > 5 * sum(point.role == "calibrate" for point in points())
    assert calibration.median_error(held_out) <= HELD_OUT


def test_every_point_has_a_source_that_says_how_it_was_timed():
    data = calibration.published()
    assert {row["source"] for row in data["points"]} == set(data["sources"])
    for source in data["sources"].values():
        assert all(source[key] for key in ("title", "where", "device", "timing", "spec", "library"))
    assert {row["role"] for row in data["points"]} == {"calibrate", "validate"}


def test_the_fit_has_come_to_rest():
    """No single constant within its bounds does noticeably better on the calibration points."""
    fitted = calibration.fit(rounds=1, steps=5)
    assert calibration.misfit(fitted) >= 0.9 * calibration.misfit(CALIBRATION)


def test_the_step_from_3328_to_3584_rows():
    """MikPoly, Figure 15: 256x128 tiles go from one wave to two, 0.11 ms to 0.21 ms."""
    before, after = near("mikpoly", 3328, 1024, 4096), near("mikpoly", 3584, 1024, 4096)
    assert after.published_s / before.published_s == pytest.approx(after.predicted_s / before.predicted_s, rel=0.1)


def test_the_order_of_tiles_at_4096x1024x4096():
    """MikPoly, section 6: 128 tiles of 256x128 leave the second wave nearly empty, so smaller tiles are faster."""
    spec = calibration.device("a100-sxm4-80gb", 1_410_000_000)
    chooser = calibration.selector("cublas", "float16", None, spec, CALIBRATION)
    extents = Extents(4096, 1024, 4096)
    alone = calibration.selector("cublas", "float16", (256, 128, 32), spec, CALIBRATION)
    plan, large = chooser.select(extents), alone.select(extents, workspace=0)
    assert plan.variant.strategy.l1.m * plan.variant.strategy.l1.n < 256 * 128
    assert 1.1 < large.seconds / plan.seconds < 2
    fewer = Extents(3072, 1024, 4096)
    assert alone.select(fewer, workspace=0).seconds < 1.1 * chooser.select(fewer, workspace=0).seconds


def test_streams_say_what_share_of_dram_is_reached():
    share = calibration.stream_share(calibration.device("a100-sxm4-40gb", 1_410_000_000))
    assert share == pytest.approx(CALIBRATION.dram_share, abs=0.02)


def test_the_table_lists_every_point():
    text = calibration.table(points())
    assert text.count("\n") == len(points()) + 1
    assert "median" in calibration.summary(points())
