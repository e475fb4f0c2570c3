"""Result lines: JSON, one object a line, appended as they come; what has been measured is not measured again."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Line = dict[str, Any]
# Errors that say something about the moment, not about the system: a resumed run tries again.
PASSING = ("BusyError", "Timeout", "RooflineError")
Key = tuple[str, str, int, str]


def key(line: Line) -> Key:
    """What a line is about: case, system, threads, mode."""
    return line["id"], line["system"], line["threads"], line["mode"]


def append(path: Path, lines: Iterable[Line]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for line in lines:
            file.write(json.dumps(line) + "\n")


def read(paths: Sequence[Path]) -> list[Line]:
    """All lines of all files; a last line that a killed run left half-written is passed over, any other is an error."""
    lines: list[Line] = []
    for path in paths:
        rows = path.read_text().split("\n")
        for number, row in enumerate(rows, 1):
            if not row.strip():
                continue
            try:
                lines.append(json.loads(row))
            except json.JSONDecodeError as error:
                if number < len(rows):
                    raise ValueError(f"{path}:{number}: not a JSON line") from error
    return lines


def settled(lines: Iterable[Line], kind: str = "bench") -> dict[Key, Line]:
    """The latest line of each key, without those that failed for a passing reason."""
    latest = {key(line): line for line in lines if line.get("kind") == kind}
    return {at: line for at, line in latest.items() if line.get("error_kind") not in PASSING}


def complete(case_id: str, systems: Sequence[str], threads: int, mode: str, done: dict[Key, Line]) -> bool:
    """Whether every system has its line: a case is measured by all of them in one go or not at all."""
    return all((case_id, system, threads, mode) in done for system in systems)


def mend(path: Path) -> None:
    """Cuts off a half-written last line, so that appending to the file keeps it well-formed."""
    if path.is_file():
        text = path.read_bytes()
        end = text.rfind(b"\n") + 1
        if end != len(text):
            with path.open("r+b") as file:
                file.truncate(end)


def reopened(path: Path) -> list[Line]:
    """What a file holds that is to be gone on with: mended, and empty where it is not there."""
    mend(path)
    return read([path]) if path.is_file() else []
