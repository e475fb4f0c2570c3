"""Passes over all micro-kernels: each is timed in every one, and those count in which the core was whole."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vortex.hardware import HardwareSpec, Instruction


class KernelTimer(Protocol):
    """Seconds per call of a micro-kernel, one for each repetition."""

    quads: bool | None
    """Whether those of a single vector load four elements of A at once; None where none can."""

    def micro_kernel(
        self, layout: int, rows: int, vectors: int, depth: int, calls: int, repetitions: int
    ) -> list[float]: ...
    def multiply_add(self, repetitions: int) -> list[float]: ...
    def hand_off(self, threads: int, repetitions: int) -> list[float]: ...


PASSES, TRIES = 12, 3
"""Over all micro-kernels, and repetitions of each in a pass. The least of a pass leaves out interrupts, the median of
the passes the clock's better and worse moments: on a busy Zen 4 it tells two micro-kernels apart by 0.5 %, the least of
all by 1.6 to 3.5 %, and then a library is made of those that were lucky."""
REPETITIONS = 7
"""Of each load stage."""
CALL_SECONDS = 20e-6
"""Long enough for the clock's resolution, short enough that some repetition meets no interrupt."""


QUADS_ROWS, QUADS_DEPTH, QUADS_CALLS, QUADS_SHARE, QUADS_TURNS = 14, 128, 200, 0.96, 5
"""Calls of a micro-kernel of at most so many rows, and its steps of k, take less than this share of the time with
quads if they pay, in the median of so many turns: 0.89 on a Zen 5. Where shuffles take slots of multiply-adds it is
more than one."""


WHOLE, WAIT_S, PAUSE_S = 0.92, 1.5, 0.03
"""A pass has had the core to itself if its fastest micro-kernel comes so near to the spec's rate: else passes go on for
so long, with pauses, until enough have. Where a host lets others use the core's other thread for seconds at a time, a
Zen 3 gives 6 x 16 two thirds of its rate then, and 2 x 48, which has fewer instructions, four fifths: a library of such
a moment took 2 x 48 where 6 x 16 is a quarter faster (0.93 of the best plans of 425 products)."""


@dataclass(frozen=True)
class Pass:
    """Seconds of a call of every micro-kernel at both depths, and the greatest share of the spec's rate of any."""

    seconds: dict[tuple[int, int], tuple[float, float]]
    share: float
    multiply_add: float
    """Seconds of one of a vector, on registers alone."""


def one_pass(
    spec: HardwareSpec, isa: Instruction, timer: KernelTimer, short: int, depths: Mapping[tuple[int, int], int]
) -> Pass:
    """`depths` has the second of each (rows, vectors)."""
    seconds, share = {}, 0.0
    for (rows, vectors), deep in depths.items():
        ideal = isa.step_cycles(rows, vectors) / spec.clock_hz
        low, high = (
            min(timer.micro_kernel(0, rows, vectors, depth, max(4, int(CALL_SECONDS / (ideal * depth))), TRIES))
            for depth in (short, deep)
        )
        seconds[rows, vectors] = low, high
        share = max(share, ideal * deep / high)
    return Pass(seconds, share, min(timer.multiply_add(TRIES)))


def undisturbed(once: Callable[[], Pass], wait_s: float = WAIT_S) -> list[Pass]:
    """As many passes as count, those that had most of the core; at least PASSES are made, then more until `wait_s`."""
    found: list[Pass] = []
    end = time.perf_counter() + wait_s
    while len(found) < PASSES or sum(one.share >= WHOLE for one in found) < PASSES:
        if len(found) >= PASSES:
            if time.perf_counter() > end:
                break
            time.sleep(PAUSE_S)
        found.append(once())
    return sorted(found, key=lambda one: -one.share)[:PASSES]


def quads_pay(timer: KernelTimer, shapes: Iterable[tuple[int, int]]) -> bool:
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


HAND_OFFS, ROUNDS, APART_S = 200, 5, 0.005
"""Hand-offs of a round, rounds, and seconds between them. While something else has a core for a moment a whole round
takes four times as long: one compilation in four thought so of threads when there was a single round. And a host moves
virtual cores about: for seconds two of a Zen 5 hand a line to each other in 350 ns instead of 45. Rounds over half a
second did not outlive that: of three compilations one still priced the start of a thread at 2.8 us, two at 0.8."""


def handed(timer: KernelTimer, cores: int) -> float:
    """Seconds to hand tasks to threads that wait: a good one of many, in the round that nothing disturbed."""
    rounds = []
    for _ in range(ROUNDS):
        rounds.append(float(np.quantile(timer.hand_off(cores, HAND_OFFS), 0.1)))
        time.sleep(APART_S)
    return min(rounds)
