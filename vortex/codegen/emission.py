"""Worker processes that turn tasks into objects, while the process that asked goes on."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType

from vortex.affinity import end_with_parent
from vortex.codegen.object_cache import ObjectCache

Progress = Callable[[str, float], None]
"""Told what is being done and which share of it is finished, 0 to 1."""
Task = tuple[Callable[..., None], Sequence[object]]
"""A function (what, lanes, LLVM's name of the processor, path) and what it emits."""


@dataclass(frozen=True)
class Objects:
    """Object files under way."""

    pending: tuple[tuple[Path, Future[None]], ...]

    def wait(self, what: str, progress: Progress) -> list[Path]:
        """Their paths once all are written; `progress` is told the share that is."""
        for done, (_, job) in enumerate(self.pending, 1):
            job.result()
            progress(what, done / len(self.pending))
        return [path for path, _ in self.pending]


class Emission:
    """A context with `workers` processes that emit for one processor into one folder what a cache has not."""

    def __init__(self, lanes: int, llvm_cpu: str, folder: Path, workers: int, cache: ObjectCache | None = None) -> None:
        self._about = lanes, llvm_cpu
        self._cache = cache
        self.taken = 0
        """Objects that the cache had."""
        self._paths = (folder / f"objects_{index}.o" for index in count())
        # Forking is safe here: TVM's compiler starts no threads before its first parallel run, and all are forked at
        # the first task.
        self._pool = ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), end_with_parent)

    def start(self, tasks: Sequence[Task]) -> Objects:
        """Begin with `tasks` in this order, after those begun before."""
        return Objects(tuple(self._begin(emit, what, next(self._paths)) for emit, what in tasks))

    def _begin(self, emit: Callable[..., None], what: Sequence[object], path: Path) -> tuple[Path, Future[None]]:
        if self._cache is None:
            return path, self._pool.submit(emit, what, *self._about, path)
        key = self._cache.key(emit, what, *self._about)
        if self._cache.take(key, path):
            self.taken += 1
            found: Future[None] = Future()
            found.set_result(None)
            return path, found
        return path, self._pool.submit(_emit_and_keep, self._cache, key, emit, what, *self._about, path)

    def __enter__(self) -> Emission:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)


def _emit_and_keep(
    cache: ObjectCache,
    key: str,
    emit: Callable[..., None],
    what: Sequence[object],
    lanes: int,
    llvm_cpu: str,
    path: Path,
) -> None:
    emit(what, lanes, llvm_cpu, path)
    cache.keep(key, path)
