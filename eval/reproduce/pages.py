"""The page of a result: the paper's figures, what differs, the tables, and where and how they were made."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from eval.compare import markdown
from eval.records import Line
from eval.reproduce.result import Page, Result
from eval.reproduce.run import State, lines_of

PUBLISHED = Path(__file__).resolve().parent.parent / "published" / "vortex.json"
SIZE = (9.0, 4.5)


def printed(name: str) -> str:
    """What the papers print of a result, with where and on what."""
    published: dict[str, list[dict[str, str]]] = json.loads(PUBLISHED.read_text())
    rows = [[row["what"], row["value"], row["where"], row["hardware"]] for row in published.get(name, [])]
    return markdown(("in the papers", "value", "where", "hardware"), rows) if rows else "The papers print no figure."


def values(lines: Sequence[Line], name: str) -> list[str]:
    return sorted({str(line[name]) for line in lines if line.get(name) is not None})


def made(result: Result, lines: Sequence[Line], states: Sequence[tuple[int, State]]) -> str:
    """Machine, dates, commits, command, how much was run, and the spread of the timings."""
    dates = sorted(line["time"][:10] for line in lines)
    versions: dict[str, set[str]] = {}
    rows: list[dict[str, Any]] = [row for line in lines for row in line["rows"]]
    for row in rows:
        for name, version in (row.get("versions") or {}).items():
            versions.setdefault(name, set()).add(version)
    items = [f"machine: {'; '.join(values(lines, 'device'))}"]
    items.append(f"date: {dates[0]}" + (f" to {dates[-1]}" if dates[-1] != dates[0] else ""))
    items.append(f"commit: {', '.join(values(lines, 'commit'))}")
    for threads, found in states:
        measured = result.same_lines_as or result.name
        some = "" if found.done == found.cases else ", spread evenly over each suite"
        command = f"`python -m eval.paper {measured} --threads {threads}`"
        items.append(f"command: {command}: {found.done} of {found.cases} cases were run{some}")
    if spreads := [row["spread"] for row in rows if row.get("spread") is not None]:
        high = statistics.quantiles(spreads, n=10)[-1] if len(spreads) > 1 else spreads[0]
        items.append(
            f"spread of a timing over its rounds: median {statistics.median(spreads):.1%}, 90 % below {high:.1%}"
        )
    if versions:
        listed = (f"{name} {'/'.join(sorted(found))}" for name, found in sorted(versions.items()))
        items.append(f"versions: {', '.join(listed)}")
    if busy := sum(bool(row.get("busy")) for row in rows):
        items.append(f"**{busy} of {len(rows)} rows were measured on a busy machine**")
    if any(line["smoke"] for line in lines):
        items.append(
            "**a smoke run: small cases, short measurements; it shows that everything works, not how fast it is**"
        )
    return "\n".join(f"- {item}" for item in items)


def page_of(result: Result, lines: Sequence[Line]) -> Page:
    """The page of the lines; of a result that was not measured yet, how to."""
    if not lines:
        measured = result.same_lines_as or result.name
        return Page([f"Not measured: `python -m eval.paper {measured}`."])
    return result.page(lines)


def write(result: Result, states: Sequence[tuple[int, State]], folder: Path) -> None:
    """The page and the picture of a result beside its lines."""
    lines = lines_of(result, folder)
    page = page_of(result, lines)
    parts = [f"# {result.name}: {result.title}", *explained(result)]
    if drawn(result, page, folder):
        parts.append(f"![{result.title}]({result.name}.png)")
    if page.losses:
        parts += ["## Where it loses", *page.losses, "## Figures"]
    parts += page.blocks
    if lines:
        parts += ["## How it was made", made(result, lines, states)]
    (folder / f"{result.name}.md").write_text("\n\n".join(parts) + "\n")


def explained(result: Result) -> list[str]:
    """What the papers print, and why that is another experiment."""
    return [printed(result.name), f"What differs here, beside the machine and the versions: {result.differs}"]


def drawn(result: Result, page: Page, folder: Path) -> bool:
    """Whether the page has a picture; it is in `folder` then."""
    if page.draw is None:
        return False
    figure = Figure(figsize=SIZE, layout="constrained")
    page.draw(figure)
    figure.savefig(folder / f"{result.name}.png", dpi=120)
    return True
