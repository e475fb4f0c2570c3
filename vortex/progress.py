"""What long work shows on standard error while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

note = Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[str, float], None]]:
    """A bar on a terminal; where there is none, a line for each new thing being done."""
    if not note.is_terminal:
        last = ""

        def report(doing: str, share: float) -> None:
            nonlocal last
            if doing != last:
                note.print(f"{title}: {doing}", markup=False)
                last = doing

        yield report
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=note, transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda doing, share: bar.update(task, description=f"{title}: {doing}", completed=share)
