"""Every plan of a library on one shape, in turn: what `eval.oracle`, `eval.regret` and `eval.model` measure.

Seconds of a result line are those of the call in native code: the same plan runner on a product of next to nothing
tells what Python adds, once its predicted seconds are taken away, and that is subtracted from every time. It is timed
after each round, for the times of which it is: in a busy hour the clock moves by more than a small product takes.
"""

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from eval import machine, plans
from eval.operands import Operands, WrongResultError, check, make_operands
from eval.records import Line
from eval.suites import Case
from eval.worker import BATCH_SECONDS, time_batch

LAYOUTS = ("plain", "transposed", "packed")
"""How B reaches a call."""
ROUNDS = 6
# Who was this much slower than the best when checked is not the best: not timed.
HOPELESS = 3.0
# The same after one, two, three ... even rounds: not run again.
SLOWER = (1.5, 1.25, 1.1)
SMALL_SECONDS = 1e-3
FIRST_SECONDS = 1e-4  # in the first round, which only sorts out
STEADY = 0.1
"""Of the best plan's seconds, by how much what Python adds may differ between the rounds that choose and those that
score."""
ATTEMPTS = 3
"""At a race that is steady."""


@dataclass(frozen=True, slots=True)
class Runner:
    """How one shape is called: by which library, the function of a plan, and the keywords that `plan`, `plans` and
    `cost_terms` take."""

    gemm: Any
    run: Callable[[Any], Any]
    kind: dict[str, Any]


def runner(gemm: Any, operands: Any, packed: bool, laps: bool = False) -> Runner:
    """Calls of one shape with operands as they lie, or with B packed by the library; `laps` as of `GemmKernel.run`."""
    case, b = operands.case, operands.b
    flags = {"transpose_a": True} if case.trans_a else {}
    lapping = {"laps": True} if laps else {}  # other kernels' plans are not told of it
    kind: dict[str, Any] = {"transpose_b": True} if case.trans_b else {}
    given = flags | kind
    if packed:
        b, given = gemm.pack(b, transpose=case.trans_b), flags
        # Few columns are packed as a matrix: as the transpose, or with rows that begin on cache lines.
        kind = {"transpose_b": True} if b.transposed else {"ldb": b.data.strides[0] // b.data.itemsize}
        if b.data.ndim == 1:
            kind = {"packed": True}

    def run(plan: Any) -> Any:
        return gemm.run(plan, operands.a, b, operands.out, **given, **lapping)

    return Runner(gemm, run, flags | kind)


def layout_of(case: Case, packed: bool) -> str:
    """One of LAYOUTS."""
    return "packed" if packed else "transposed" if case.trans_b else "plain"


def quickest(call: Callable[[], Any], once: float, seconds: float = SMALL_SECONDS) -> float:
    """The least seconds of a call that took `once`, over batches of it that fill about `seconds`."""
    count = max(1, round(BATCH_SECONDS / once))
    return min(time_batch(call, count) for _ in range(max(3, min(20, round(seconds / (once * count))))))


def time_plans(
    calls: Mapping[str, Callable[[], Any]],
    rounds: int,
    kept: str | None = None,
    after_round: Callable[[], None] = lambda: None,
) -> dict[str, tuple[float, float]]:
    """(even, odd) seconds of each call that stayed in the race; calls take turns, the order rotated.

    `kept` runs in every round. The odd rounds have no say in who stays: they are what is scored. Who left before the
    first of them has its even time twice; nobody leaves before a second look.
    """
    times: dict[str, list[list[float]]] = {name: [[], []] for name in calls}
    alive = list(calls)
    for number in range(rounds):
        at = number * len(alive) // rounds
        for name in [*alive[at:], *alive[:at]]:
            call = calls[name]
            once = time_batch(call, 1)
            least = min([once, *times[name][0], *times[name][1]])
            # Whose threads slept through its first call would be out for good, who lost its core once look slow.
            if least < SMALL_SECONDS:
                once = quickest(call, least, SMALL_SECONDS if number else FIRST_SECONDS)
            times[name][number % 2].append(once)
        after_round()
        if number % 2 == 0:
            limit = SLOWER[min(number // 2, len(SLOWER) - 1)] * min(min(times[name][0]) for name in alive)
            for name in alive:
                if name != kept and min(times[name][0]) > limit:  # a core that another guest took is no verdict
                    times[name][0].append(time_batch(calls[name], 1))
            alive = [name for name in alive if name == kept or min(times[name][0]) <= limit]
    return {name: (min(even), min(odd or even)) for name, (even, odd) in times.items()}


def check_all(
    calls: Mapping[str, Callable[[], Any]], families: Mapping[str, bool | str], operands: Operands
) -> dict[str, float]:
    """Checks the first of a family against float64 and all others against the first, bit by bit; seconds of each."""
    firsts: dict[bool | str, np.ndarray] = {}
    seconds: dict[str, float] = {}
    for label, call in calls.items():
        operands.out.fill(np.nan)
        seconds[label] = time_batch(call, 1)
        if seconds[label] < SMALL_SECONDS:  # the first after a check found cold caches and threads asleep
            seconds[label] = min(time_batch(call, 1) for _ in range(3))
        first = firsts.get(families[label])
        if first is None:
            check(operands, operands.out)
            firsts[families[label]] = operands.out.copy()
        elif not np.array_equal(first, operands.out):
            raise WrongResultError(f"{operands.case}: {label} gives other bits than the first strategy of its family")
    return seconds


def race_all(
    found: Mapping[str, tuple[Runner, Any]],
    operands: Operands,
    rounds: int,
    chosen: str,
    after_round: Callable[[], None] = lambda: None,
) -> dict[str, tuple[float, float]]:
    """(even, odd) seconds of every plan by its label, all checked; who was hopeless then has those seconds twice."""
    calls = {label: functools.partial(how.run, plan) for label, (how, plan) in found.items()}
    seconds = check_all(calls, {label: plans.family(plan) for label, (_, plan) in found.items()}, operands)
    limit = HOPELESS * min(seconds.values())
    for label, once in seconds.items():
        if once > limit:  # as in `time_plans`
            seconds[label] = min(once, time_batch(calls[label], 1))
    racing = {label: call for label, call in calls.items() if seconds[label] <= limit or label == chosen}
    return {label: (once, once) for label, once in seconds.items()} | time_plans(racing, rounds, chosen, after_round)


def python_seconds(empty: Callable[[], Any], native: float) -> float:
    """What a call from Python takes beyond its native one, of an `empty` product that takes `native` seconds there."""
    once = min(time_batch(empty, 1) for _ in range(3))
    return max(0.0, quickest(empty, once) - native)


def empty_call(gemm: Any, layout: str) -> tuple[Callable[[], Any], float]:
    """A product of next to nothing with operands of this layout, and the seconds that it is expected to take."""
    panels = 2 * gemm.manifest.panel if layout == "packed" else 1
    how = runner(gemm, make_operands(case_at("empty", "empty", (1, panels, 1), layout), 0), layout == "packed")
    plan = gemm.plan(1, panels, 1, **how.kind)
    return functools.partial(how.run, plan), float(plan.seconds)


def race(gemm: Any, case: Case, threads: int, packed: bool, rounds: int = ROUNDS, *, allow_busy: bool = True) -> Line:
    """The steadiest `race_once` of up to ATTEMPTS; BusyError if that is not steady and the machine may not be busy."""
    line = race_once(gemm, case, threads, packed, rounds)
    for _ in range(ATTEMPTS - 1):
        if moved(line) <= STEADY:
            break
        line = min(line, race_once(gemm, case, threads, packed, rounds), key=moved)
    if moved(line) > STEADY and not allow_busy:
        raise machine.BusyError(
            f"what Python adds to {case} moved by {moved(line):.0%} of its best plan (tolerated: {STEADY:.0%})"
        )
    return line


def moved(line: Line) -> float:
    """By how much of the best plan's seconds what Python adds differs between even and odd rounds."""
    even, odd = line["outside"]
    return abs(even - odd) / min(seconds(entry) for entry in line["plans"])


def unsteady(lines: Sequence[Line]) -> list[str]:
    """What a report says of the races that are not steady, if any."""
    count = sum(moved(line) > STEADY for line in lines)
    told = f"In {count} of {len(lines)} races what Python adds moved by more than {STEADY:.0%} of the best plan."
    return [told] if count else []


def race_once(gemm: Any, case: Case, threads: int, packed: bool, rounds: int) -> Line:
    """One line: all plans with predicted seconds, their terms, and the least seconds of even and of odd rounds.

    `outside` are `python_seconds` of even and of odd rounds; `peak` are the flops per second of one core between the
    rounds, as L0 was profiled between others: after a pause an Intel core runs at a better clock than while it
    multiplies. Every result has the bits of the first of its family, which is checked against float64; WrongResultError
    otherwise. There are 2 rounds or more.
    """
    layout = layout_of(case, packed)
    empty = empty_call(gemm, layout)
    operands = make_operands(case, seed=0)
    how = runner(gemm, operands, packed)
    shape = (case.m, case.n, case.k)
    found = {plans.label(plan): plan for plan in gemm.plans(*shape, threads=threads, **how.kind)}
    chosen = plans.label(gemm.plan(*shape, threads=threads, **how.kind))
    peaks: list[float] = []
    added: list[float] = []

    def after_round() -> None:
        added.append(python_seconds(*empty))
        peaks.append(machine.peak_here())

    racing = {label: (how, plan) for label, plan in found.items()}
    times = race_all(racing, operands, rounds, chosen, after_round)
    even, odd, least = min(added[::2]), min(added[1::2]), gemm.manifest.rates.call
    entries = [
        {
            "label": label,
            "strategy": plans.strategy(plan),
            "dot": plans.family(plan),
            "index": plan.index,
            "regions": len(plan.regions),
            "grid": [plan.grid.m, plan.grid.n, plan.grid.k],
            "workers": plan.workers,
            "predicted": float(plan.seconds),
            "even": max(times[label][0] - even, least),
            "odd": max(times[label][1] - odd, least),
            "terms": parts(plan, gemm.cost_terms(plan, *shape, **how.kind)),
        }
        for label, plan in found.items()
    ]
    line = asdict(case) | {"kind": "race", "flops": case.flops, "threads": threads, "packed": packed}
    line |= {"peak": statistics.median(peaks)}
    return line | {"operands": how.kind, "outside": [even, odd], "chosen": chosen, "plans": entries}


def parts(plan: Any, terms: dict[str, float]) -> dict[str, float]:
    """The terms of a prediction as seconds that add up to it: all waves of each, and what traffic leaves exposed."""
    if plan.regions or not plan.strategy.stage.tiled:  # told as a whole
        return {name: value for name, value in terms.items() if name != "total"}
    waves = -(-plan.grid.m * plan.grid.n * plan.grid.k // plan.workers)
    once = {name: terms[name] for name in ("start", "parts")}
    each = {name: waves * value for name, value in terms.items() if name not in (*once, "traffic", "total")}
    return each | {"traffic": max(0.0, terms["total"] - sum(each.values()) - sum(once.values()))} | once


def chosen_of(line: Line) -> Line:
    """The entry of the selector's choice."""
    return next(entry for entry in line["plans"] if entry["label"] == line["chosen"])


def share(line: Line) -> float:
    """Performance of the choice relative to the best plan: the best by the even rounds, both scored by the odd ones."""
    best = min(line["plans"], key=lambda entry: entry["even"])
    return float(best["odd"] / chosen_of(line)["odd"])


def seconds(entry: Line) -> float:
    return float(min(entry["even"], entry["odd"]))


def case_at(suite: str, name: str, shape: Sequence[int], layout: str) -> Case:
    """A product of plain or transposed B; a packed one is of plain B."""
    m, n, k = (int(extent) for extent in shape)
    return Case(suite, name, m, n, k, False, layout == "transposed")


def shares(lines: Sequence[Line]) -> np.ndarray:
    return np.array([share(line) for line in lines])
