"""Time that a run may take, and results that survive whatever ends it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

Row = dict[str, Any]
Item = TypeVar("Item")


class Budget:
    """A deadline on the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._start = time.monotonic()

    @property
    def spent(self) -> float:
        return time.monotonic() - self._start

    @property
    def left(self) -> float:
        return max(0.0, self.seconds - self.spent)

    def within(self, items: Iterable[Item]) -> Iterator[Item]:
        """Items as long as time is left."""
        for item in items:
            if not self.left:
                return
            yield item


class Journal:
    """Rows of one part, each on disk as soon as it is known: a killed part leaves all but its last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def add(self, kind: str, **row: Any) -> None:
        self._file.write(json.dumps({"kind": kind, **row}) + "\n")
        self._file.flush()


def covered(journal: Journal, budget: Budget, library: str, section: str, items: Sequence[Item]) -> Iterator[Item]:
    """Items as long as time is left, and then a row of how many were done: a section that is killed has none."""
    done = 0
    for item in budget.within(items):
        yield item
        done += 1
    journal.add("section", library=library, section=section, planned=len(items), done=done)


def read_journal(path: Path) -> list[Row]:
    """The whole lines of a journal."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:  # the part was killed while it wrote its last line
            break
    return rows


def rows_of(results: Row, kind: str, **wanted: Any) -> list[Row]:
    """Rows of one kind whose fields are as wanted, of a run's file."""
    return [
        row for row in results["rows"] if row["kind"] == kind and all(row.get(name) == v for name, v in wanted.items())
    ]


def write_json(path: Path, data: Any) -> None:
    """In one step: a reader finds the old file or the new one."""
    made = path.with_name(f".{path.name}.{os.getpid()}")
    made.write_text(json.dumps(data, indent=1), encoding="utf-8")
    os.replace(made, path)


def median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def spread(values: Iterable[float]) -> float:
    """(largest - smallest) / median."""
    ordered = sorted(values)
    return (ordered[-1] - ordered[0]) / median(ordered)
