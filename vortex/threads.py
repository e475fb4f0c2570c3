"""How many threads libraries use: `VORTEX_NUM_THREADS`, else what affinity and quotas leave this process."""

from __future__ import annotations

import os
from collections.abc import Callable
from weakref import WeakSet

from vortex.affinity import available_cores
from vortex.errors import OperandError

Setter = Callable[[int], object]
Borrower = Callable[[int], object]


class Threads:
    """The setting of this process, told to every library that is loaded."""

    def __init__(self) -> None:
        self.count: int | None = None
        self.lender = 0
        self.listeners: WeakSet[Listener] = WeakSet()

    def get(self) -> int:
        if self.count is None:
            self.count = _from_environment() or available_cores()
        return self.count

    def set(self, count: int) -> None:
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise OperandError(f"set_num_threads({count!r}): expected a whole number of at least 1")
        self.count = count
        for listener in self.listeners:
            listener.tell(count)

    def borrow(self, lender: int) -> None:
        self.lender = lender
        for listener in self.listeners:
            listener.borrow(lender)


class Listener:
    """A loaded library's thread setters; it is told the current count, and who lends threads, at once."""

    def __init__(self, setter: Setter, borrower: Borrower) -> None:
        self.tell, self.borrow = setter, borrower
        setter(threads.get())
        borrower(threads.lender)
        threads.listeners.add(self)


def _from_environment() -> int | None:
    text = os.environ.get("VORTEX_NUM_THREADS")
    if not text:
        return None
    if not text.isdigit() or int(text) < 1:
        raise OperandError(
            f"VORTEX_NUM_THREADS={text!r}: expected a whole number of at least 1; unset it or correct it"
        )
    return int(text)


threads = Threads()


def set_num_threads(count: int) -> None:
    """Use `count` threads (the caller included) in every library of this process from the next call on."""
    threads.set(count)


def get_num_threads() -> int:
    """Threads that a call may use, the caller included."""
    return threads.get()


def borrow_threads(lender: int) -> None:
    """Run tasks on the threads of an OpenMP run time, whose `GOMP_parallel` is at address `lender`; 0 ends that.

    For programs that compute with OpenMP as well. Threads of two pools poll for work on the same cores after each call,
    which halves the speed of calls that alternate. A forked child runs on threads of its own.
    """
    threads.borrow(lender)
