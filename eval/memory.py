"""The memory of a process and of all that it starts: the sum of their proportional shares, sampled while they run.

`ru_maxrss` of children is that of the largest one: it does not add up what processes side by side hold together.
"""

import threading
from pathlib import Path
from types import TracebackType

import psutil

INTERVAL = 0.05
"""Seconds between two samples: compiling holds its most memory for longer than that."""


def proportional_bytes(pid: int) -> int:
    """Memory of one process, pages that several share counted in parts; 0 once it has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:"))


def tree_bytes(pid: int) -> int:
    """Memory of a process and of all its descendants at this moment."""
    try:
        pids = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return 0
    return sum(map(proportional_bytes, pids))


class PeakMemory:
    """Samples `tree_bytes` of a process while the block runs; `peak_bytes` is the largest."""

    def __init__(self, pid: int) -> None:
        self.pid, self.peak_bytes = pid, 0
        self._ended = threading.Event()
        self._sampling = threading.Lock()
        self._sampler = threading.Thread(target=self._run, daemon=True)

    def sample(self) -> None:
        with self._sampling:  # the block may sample too: neither of the two forgets what the other saw
            self.peak_bytes = max(self.peak_bytes, tree_bytes(self.pid))

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL):
            self.sample()

    def __enter__(self) -> "PeakMemory":
        self._sampler.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._sampler.join()
