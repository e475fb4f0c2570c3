"""Passes over all that is timed, until it was alone with the core in enough of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vortex.arithmetic import Array


class Timer(Protocol):
    """What can be timed on a device, in seconds, one for each repetition: see `device.Meter`."""

    quads: bool | None
    """Whether those of a single vector load four elements of A at once; None where none can."""

    def micro_kernel(
        self, layout: int, rows: int, vectors: int, depth: int, calls: int, repetitions: int
    ) -> list[float]: ...
    def multiply_add(self, repetitions: int) -> list[float]: ...
    def load_stage(self, stage: int, rows: int, width: int, stride: int, repetitions: int) -> list[float]: ...
    def hand_off(self, threads: int, repetitions: int) -> list[float]: ...


PASSES, TRIES = 24, 2
"""Over all that is timed, and repetitions of each in a pass, of which the least leaves out interrupts."""
AROUND, AGREEING, ALIKE = 2, 5, 1.02
"""What is timed is told in multiply-adds as fast as the best of so many before and after it: its clock is that of its
milliseconds. Of all passes so many, the least first, leave out what shared the core with it for others, and the last of
them counts. Between profiles of an Emerald Rapids, a quarter of whose moments are disturbed and whose clock has three
steps, micro-kernels differ by 0.25 % so; by 1 to 2 % in the least of all passes, which met the clock's best moment or
not, and by 4 to 8 % in the median of twelve. A library is made of those that were lucky. Passes go on until those that
count are so much alike for MOST of what is timed."""
MOST = 0.9
CALL_SECONDS = 20e-6
"""Of what is timed at once: enough for the clock's resolution, short enough that some repetition meets no interrupt."""


QUADS_ROWS, QUADS_DEPTH, QUADS_CALLS, QUADS_SHARE, QUADS_TURNS = 14, 128, 200, 0.96, 5
"""Calls of a micro-kernel of at most so many rows, and its steps of k, take less than this share of the time with
quads if they pay, in the median of so many turns: 0.89 on a Zen 5. Where shuffles take slots of multiply-adds it is
more than one."""


WHOLE, FASTEST, WAIT_S = 0.92, 0.05, 6.0
"""This quantile of a pass, the fastest first, comes so near to the spec's rate where the core is whole: else passes go
on too, for so many seconds at most. Where a host lets others use the core's other thread for seconds at a time, a Zen 3
gives 6 x 16 two thirds of its rate then, and 2 x 48, which has fewer instructions, four fifths: a library of such a
moment took 2 x 48 where 6 x 16 is a quarter faster (0.93 of the best plans of 425 products). Multiply-adds alone do not
tell: an Emerald Rapids had 0.97 of theirs beside 0.55 to 0.85 of tall micro-kernels, for a whole profile."""


@dataclass(frozen=True)
class Timing:
    """What is timed, in seconds, and those that it takes by the spec; 0 where the spec does not say."""

    once: Callable[[], float]
    ideal: float = 0.0


@dataclass(frozen=True)
class Pass:
    """All timings once."""

    taken: tuple[float, ...]
    """Each in multiply-adds of a vector as they went beside it,"""
    multiply_add: float
    """the median seconds of those, on registers alone,"""
    share: float
    """and of the spec's rate what the fastest had; 1 where the spec says nothing of any;"""
    handed: float
    """seconds to hand tasks to threads that wait."""


def one_pass(timings: Sequence[Timing], multiply_add: Callable[[], float], hand_off: Callable[[], float]) -> Pass:
    """`multiply_add` times one of a vector, `hand_off` a job of nothing, in seconds."""
    given, seconds, beside = hand_off(), [], [multiply_add()]
    for timing in timings:
        seconds.append(timing.once())
        beside.append(multiply_add())
    best = [min(beside[max(0, at + 1 - AROUND) : at + 1 + AROUND]) for at in range(len(seconds))]
    shares = [timing.ideal / once for timing, once in zip(timings, seconds, strict=True) if timing.ideal]
    share = np.quantile(shares, 1 - FASTEST, method="higher") if shares else 1.0
    taken = tuple(once / unit for once, unit in zip(seconds, best, strict=True))
    return Pass(taken, statistics.median(best), float(share), given)


def agreed(passes: Sequence[Pass]) -> bool:
    """Whether what is timed was often enough alone with the core."""
    taken = np.sort([one.taken for one in passes], axis=0)
    alike = taken[AGREEING - 1] <= ALIKE * taken[0]
    return bool(np.mean(alike) >= MOST) and max(one.share for one in passes) >= WHOLE


def enough(once: Callable[[], Pass], wait_s: float = WAIT_S) -> list[Pass]:
    """At least PASSES, and then more until those that count agree, or for `wait_s` in all."""
    end = time.perf_counter() + wait_s
    found = [once() for _ in range(PASSES)]
    while not agreed(found) and time.perf_counter() < end:
        found.append(once())
    return found


def settled(passes: Sequence[Pass]) -> tuple[Array, Array, float]:
    """Seconds of every timing at the median clock of the passes, their medians, and seconds of a multiply-add."""
    multiply_add = statistics.median(one.multiply_add for one in passes)
    seconds = multiply_add * np.sort([one.taken for one in passes], axis=0)
    return seconds[AGREEING - 1], np.median(seconds, axis=0), multiply_add


def quads_pay(timer: Timer, shapes: Iterable[tuple[int, int]]) -> bool:
    """Has micro-kernels of these (rows, vectors) load quads from now on if the device is quicker so, and tells it."""
    rows = max((rows for rows, vectors in shapes if vectors == 1 and rows <= QUADS_ROWS), default=0)
    if timer.quads is None or not rows:
        return False
    shares = []
    for _turn in range(QUADS_TURNS):
        seconds = []
        for timer.quads in (False, True):
            seconds.append(min(timer.micro_kernel(0, rows, 1, QUADS_DEPTH, QUADS_CALLS, TRIES)))
        shares.append(seconds[1] / seconds[0])
    timer.quads = statistics.median(shares) < QUADS_SHARE
    return timer.quads


HAND_OFFS = 200
"""Of a round; one in each pass, of which the least counts. While something else has a core for a moment a whole round
takes four times as long. And a host moves virtual cores about: for up to eight seconds two of a Zen 5 hand a line to
each other in 350 ns instead of 45. Five rounds within 25 ms met that in one compilation of six."""


def handed(timer: Timer, cores: int) -> float:
    """Seconds to hand tasks to threads that wait: a good one of a round; 0 where there is no other core."""
    return float(np.quantile(timer.hand_off(cores, HAND_OFFS), 0.1)) if cores > 1 else 0.0
