"""Where the figures of L0 come from: a timer, a recording, or the spec; and that each says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from vortex.operators import Gemm
from vortex.passes import AGREEING, PASSES, Pass, enough, settled
from vortex.profiler import Profile, acquire, compute, recording
from vortex.rkernel import decompose
from vortex.sieve import sieve
from vortex.specs import load_spec


class SteadyTimer:
    """A device on which every micro-kernel takes 5 ns plus 0.1 ns per step and row."""

    quads: bool | None = None

    def micro_kernel(
        self, layout: int, rows: int, vectors: int, depth: int, calls: int, repetitions: int
    ) -> list[float]:
        return [5e-9 + 1e-10 * rows * depth] * repetitions

    def multiply_add(self, repetitions: int) -> list[float]:
        return [1.5e-10] * repetitions

    def load_stage(self, stage: int, rows: int, width: int, stride: int, repetitions: int) -> list[float]:
        return [1e-10 * (1 + stage)] * repetitions

    def hand_off(self, threads: int, repetitions: int) -> list[float]:
        return [2e-6] * repetitions


def shapes(name: str) -> list[tuple[int, int]]:
    spec = load_spec(name)
    lanes = spec.instruction("float32").lanes
    return [(tile.m, tile.n // lanes) for tile in sieve(decompose(Gemm(), spec)).register_tiles]


def test_a_timer_is_believed() -> None:
    profile = acquire(load_spec("epyc-zen5"), [(1, 1), (4, 2)], 16, SteadyTimer(), ("tvm 0",))
    assert profile.basis == "measured" and profile.date
    for kernel in profile.kernels:
        assert abs(kernel.slope_s / kernel.rows - 1e-10) < 1e-13 and abs(kernel.start_s - 5e-9) < 1e-12
    assert profile.thread_start_s == 2e-6 and abs(profile.peak_flops_per_s / (32 / 1.5e-10) - 1) < 1e-9
    assert Profile.from_json(profile.to_json()) == profile


class BusyTimer(SteadyTimer):
    """The same, with something else on a core while the first rounds of hand-offs are timed."""

    rounds = 0

    def hand_off(self, threads: int, repetitions: int) -> list[float]:
        self.rounds += 1
        return [8e-6 if self.rounds < 3 else 2e-6] * repetitions


def test_a_core_that_is_taken_for_a_moment_does_not_make_threads_slow() -> None:
    profile = acquire(load_spec("epyc-zen5"), [(1, 1)], 16, BusyTimer(), ("tvm 0",))
    assert profile.thread_start_s == 2e-6


class HeldUpTimer(SteadyTimer):
    """The same, held up in the first pass at the second micro-kernel and its first depth."""

    def __init__(self) -> None:
        self.calls = 0

    def micro_kernel(
        self, layout: int, rows: int, vectors: int, depth: int, calls: int, repetitions: int
    ) -> list[float]:
        self.calls += 1
        times = super().micro_kernel(layout, rows, vectors, depth, calls, repetitions)
        return [2 * seconds for seconds in times] if self.calls == 3 else times


class QuadsTimer(SteadyTimer):
    """The same, but with quads micro-kernels of a single vector take this share of the time."""

    def __init__(self, share: float) -> None:
        self.quads, self.share = False, share

    def micro_kernel(
        self, layout: int, rows: int, vectors: int, depth: int, calls: int, repetitions: int
    ) -> list[float]:
        times = super().micro_kernel(layout, rows, vectors, depth, calls, repetitions)
        return [seconds * (self.share if self.quads and vectors == 1 else 1) for seconds in times]


@pytest.mark.parametrize(("share", "pay"), [(0.9, True), (0.99, False), (1.5, False)])
def test_quads_are_loaded_and_timed_where_they_pay(share: float, pay: bool) -> None:
    profile = acquire(load_spec("epyc-zen5"), [(14, 1), (4, 2)], 16, QuadsTimer(share), ("tvm 0",))
    assert profile.quads is pay
    slopes = {(kernel.rows, kernel.vectors): kernel.slope_s / kernel.rows for kernel in profile.kernels}
    assert abs(slopes[14, 1] - 1e-10 * (share if pay else 1)) < 1e-13 and abs(slopes[4, 2] - 1e-10) < 1e-13


def test_what_holds_up_one_depth_changes_no_slope() -> None:
    held_up, steady = (
        acquire(load_spec("epyc-zen5"), [(1, 1), (4, 2)], 16, timer, ("tvm 0",)).kernels
        for timer in (HeldUpTimer(), SteadyTimer())
    )
    assert [kernel.slope_s for kernel in held_up] == [kernel.slope_s for kernel in steady]


def test_a_recording_is_replayed_where_the_device_is_absent() -> None:
    profile = acquire(load_spec("epyc-zen5"), shapes("epyc-zen5"), 16, None, ())
    assert profile.basis == "replayed" and profile.date and profile.versions
    assert profile.kernels == recording(load_spec("epyc-zen5")).kernels  # type: ignore[union-attr]


def test_without_either_the_spec_is_computed() -> None:
    spec = load_spec("xeon-8255c")
    assert recording(spec) is None
    profile = acquire(spec, shapes("xeon-8255c"), 16, None, ())
    assert profile.basis == "computed" and profile == compute(spec, shapes("xeon-8255c"))


def passes(shares: Iterable[float]) -> Callable[[], Pass]:
    """Of what takes a multiply-add by a core that is whole."""
    every = iter(shares)

    def once() -> Pass:
        share = next(every)
        return Pass((1 / share,), 1.0, share, 0.0)

    return once


def test_passes_of_a_whole_core_are_enough_at_once() -> None:
    assert len(enough(passes([0.97] * PASSES), wait_s=60)) == PASSES


def test_passes_go_on_until_enough_were_undisturbed() -> None:
    found = enough(passes([0.6] * PASSES + [0.95, 0.6] * AGREEING), wait_s=60)
    assert len(found) == PASSES + 2 * AGREEING - 1
    seconds, medians, _ = settled(found)
    assert abs(seconds[0] - 1 / 0.95) < 1e-9 and abs(medians[0] - 1 / 0.6) < 1e-9


@pytest.mark.parametrize("shares", [[0.7], [0.97, 0.6, 0.61, 0.62, 0.63, 0.64, 0.65]])
def test_a_core_that_is_never_whole_or_hardly_is_measured_as_it_is(shares: list[float]) -> None:
    found = enough(passes([*shares, *[0.5] * PASSES, *[0.4] * 10**6]), wait_s=0.1)
    assert len(found) > PASSES


class ThrottledTimer(SteadyTimer):
    """The same, at half the clock for some milliseconds, and shared with others for a moment now and then."""

    calls = 0

    def pace(self) -> float:
        self.calls += 1
        return 2.0 if self.calls // 400 % 2 else 1.0

    def micro_kernel(
        self, layout: int, rows: int, vectors: int, depth: int, calls: int, repetitions: int
    ) -> list[float]:
        steady = super().micro_kernel(layout, rows, vectors, depth, calls, repetitions)
        pace = self.pace() * (1.7 if self.calls % 11 == 0 else 1.0)
        return [pace * seconds for seconds in steady]

    def multiply_add(self, repetitions: int) -> list[float]:
        pace = self.pace() * (1.4 if self.calls % 7 == 0 else 1.0)
        return [pace * seconds for seconds in super().multiply_add(repetitions)]


def test_a_micro_kernel_is_compared_with_multiply_adds_at_its_own_clock() -> None:
    profile = acquire(load_spec("epyc-zen5"), shapes("epyc-zen5"), 16, ThrottledTimer(), ("tvm 0",))
    units = [kernel.slope_s / kernel.rows * profile.peak_flops_per_s for kernel in profile.kernels]
    # One in a pass meets a clock that changes between it and what is beside it.
    assert np.quantile(np.abs(np.array(units) / (1e-10 * 32 / 1.5e-10) - 1), 0.95) < 1e-6


class LoadBoundTimer(SteadyTimer):
    """The same, but a step takes a nanosecond for each vector of B: less than half of any spec's rate."""

    def micro_kernel(
        self, layout: int, rows: int, vectors: int, depth: int, calls: int, repetitions: int
    ) -> list[float]:
        return [5e-9 + 1e-9 * vectors * depth] * repetitions


def test_single_rows_are_not_waited_for_though_they_never_reach_the_spec() -> None:
    """Where a library has no others, as for products of one row."""
    begin = time.perf_counter()
    profile = acquire(load_spec("xeon-8480"), [(1, 16), (1, 24)], 16, LoadBoundTimer(), ("tvm 0",))
    assert profile.basis == "measured" and time.perf_counter() - begin < 2.0
