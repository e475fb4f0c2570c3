"""What a table or a figure is: cases, how one of them is measured, and the page that the lines of all make."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from matplotlib.figure import Figure

from eval.records import Line


class Identified(Protocol):
    """A case: what is measured in one go. Its id is the same in every run."""

    @property
    def id(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Options:
    """What a run was asked for; the same for every result."""

    threads: int
    seed: int = 0
    smoke: bool = False
    """Small cases and short measurements: to see that everything works."""
    allow_busy: bool = False
    library: str | None = None
    """A saved library of the plain product instead of vortex.compile()."""
    folder: Path | None = None
    """Of the results: what takes long before the first case is kept there. None: it is made in every run."""
    inputs: int | None = None
    """Of a network, at most; spread evenly over all it has."""
    suites: tuple[str, ...] = ()
    """Of table5: only cases of these. None given: of all."""


Measure = Callable[[Any], list[Line]]
"""Measures one case: its rows. BusyError where the machine was disturbed: the case is measured again another time."""


@dataclass(frozen=True, slots=True)
class Page:
    """What is read of a result. All figures in it are computed from the lines."""

    blocks: Sequence[str]
    """Markdown: tables and sentences."""
    losses: Sequence[str] = ()
    """Markdown: where Vortex is slower than a rival; told before everything else."""
    draw: Callable[[Figure], None] | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """One table or figure of the paper.

    `cases` may be in any order that puts like beside like: a run takes them so that what it got through when its time
    is over is spread evenly over the list. `open` starts what measuring needs and leaves its end to the stack.
    """

    name: str
    title: str
    differs: str
    """How the experiment differs from the paper's, beside device and versions: Markdown."""
    cases: Callable[[Options], Sequence[Identified]]
    open: Callable[[Options, ExitStack], Measure]
    page: Callable[[Sequence[Line]], Page]
    seconds: float
    """About what a case takes: shares a time budget out before there are measurements."""
    opening: float = 10.0
    """About what `open` and a first call take."""
    within: Callable[[Any, float], Identified] | None = None
    """A case that is cut short to about so many seconds, where cases can be."""
    same_lines_as: str = ""
    """The result whose lines this one draws; it has none of its own."""
