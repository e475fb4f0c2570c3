"""Measures the cases of a result until they are done or the time is over; every case is one line of JSON.

A case that was measured is not measured again: a run that was stopped goes on where it was. Cases are taken in an order
whose every beginning is spread evenly over all of them, so that a short run sees as much of everything as it can.
"""

import platform
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from eval import machine, records
from eval.records import Line
from eval.reproduce.result import Identified, Options, Result

MOST_DISTURBED = 3
"""Cases in a row that the machine was too busy for; then the run stops."""

T = TypeVar("T")


def spread(items: Sequence[T]) -> list[T]:
    """The items in the order of their index with its bits reversed: any beginning is an even sample of the whole."""
    bits = max(1, (len(items) - 1).bit_length())
    turned = (int(format(place, f"0{bits}b")[::-1], 2) for place in range(1 << bits))
    return [items[place] for place in turned if place < len(items)]


@dataclass(frozen=True, slots=True)
class State:
    """How much of a result there is."""

    cases: int
    done: int
    seconds: float
    """Mean of what a case took, or the result's estimate."""

    opening: float = 0.0

    @property
    def left_seconds(self) -> float:
        """What the cases that are left take, and to open the result for them."""
        left = self.cases - self.done
        return left * self.seconds + self.opening if left else 0.0


def lines_of(result: Result, folder: Path) -> list[Line]:
    """Everything measured for a result so far, the latest line of each case and number of threads."""
    path = folder / f"{result.same_lines_as or result.name}.jsonl"
    found = records.read([path]) if path.is_file() else []
    return list({(line["id"], line["threads"]): line for line in found}.values())


def state(result: Result, options: Options, folder: Path) -> State:
    """What is done and what is left, for this number of threads."""
    wanted = {case.id for case in result.cases(options)}
    lines = [x for x in lines_of(result, folder) if x["threads"] == options.threads and x["id"] in wanted]
    took = [line["took_s"] for line in lines]
    return State(len(wanted), len(lines), sum(took) / len(took) if took else result.seconds, result.opening)


def states_of(result: Result, options: Options, folder: Path) -> list[tuple[int, State]]:
    """The state at every number of threads that there are lines of."""
    counts = sorted({line["threads"] for line in lines_of(result, folder)})
    return [(count, state(result, replace(options, threads=count), folder)) for count in counts]


def about(options: Options) -> Line:
    """Where and when a line is made."""
    return {
        "threads": options.threads,
        "device": machine.device(),
        "commit": machine.commit(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "os": platform.platform(),
        "seed": options.seed,
        "smoke": options.smoke,
    }


def measure(
    result: Result, options: Options, folder: Path, end: float, tell: Callable[[str], None] | None = None
) -> State:
    """Goes on with a result until `end` on the monotonic clock, by one case at least.

    Cases that can be cut short get an equal share of what is left of the time, so that all of them are begun.
    BusyError where the machine never comes to rest.
    """
    tell = tell or (lambda text: print(text, file=sys.stderr, flush=True))
    path, begun = folder / f"{result.name}.jsonl", state(result, options, folder)
    if result.same_lines_as or begun.done == begun.cases:
        return begun
    records.mend(path)
    done = {line["id"] for line in lines_of(result, folder) if line["threads"] == options.threads}
    todo = [case for case in spread(result.cases(options)) if case.id not in done]
    tell(f"{result.name}: {begun.done} of {begun.cases} cases done before")
    with ExitStack() as stack:
        one = result.open(options, stack)
        disturbed, taken, started = 0, 0, time.monotonic()
        for place, case in enumerate(todo):
            if taken and time.monotonic() > end:
                break
            share = (end - time.monotonic()) / (len(todo) - place)
            asked = result.within(case, share) if result.within else case
            if (rows := _undisturbed(one, asked, tell)) is None:
                disturbed += 1
                if disturbed == MOST_DISTURBED:
                    raise machine.BusyError(f"{result.name}: {disturbed} cases in a row were disturbed")
                continue
            disturbed, taken = 0, taken + 1
            now = time.monotonic()
            line = {"kind": "paper", "result": result.name, "id": case.id, **about(options)}
            records.append(path, [line | {"took_s": (now - started) / taken, "rows": rows}])
            left = (len(todo) - taken) * (now - started) / taken
            limit = max(0.0, end - now)
            tell(
                f"{result.name} [{begun.done + taken}/{begun.cases}] {case}: "
                f"{minutes(left)} for what is left" + (f", {minutes(limit)} given" if limit < left else "")
            )
    return state(result, options, folder)


def _undisturbed(
    one: Callable[[Identified], list[Line]], case: Identified, tell: Callable[[str], None]
) -> list[Line] | None:
    """The rows of a case, None where the machine was busy meanwhile."""
    try:
        return one(case)
    except machine.BusyError as error:
        tell(f"left for another time: {error}")
        return None


def minutes(seconds: float) -> str:
    """A duration as one reads it."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min" if seconds < 5400 else _hours(seconds)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h"
