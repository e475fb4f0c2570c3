"""How many threads a process uses: what the environment, the affinity mask and the setter say, and what then runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import vortex
from vortex.affinity import available_cores
from vortex.errors import OperandError
from vortex.threads import Listener, Threads

COUNT = """
import os, sys
import numpy, vortex
gemm = vortex.load(sys.argv[1])
a = numpy.ones((600, 600), numpy.float32)
before = len(os.listdir("/proc/self/task"))
gemm(a, a)
counts = [vortex.get_num_threads(), len(os.listdir("/proc/self/task")) - before + 1]
vortex.set_num_threads(int(sys.argv[2]))
gemm(a, a)
print(*counts, len(os.listdir("/proc/self/task")) - before + 1)
"""


def counts(path: Path, given: str | None, later: int) -> list[int]:
    """Threads that a fresh process says it uses, that took part in a call, and in one after the setter."""
    environment = {name: value for name, value in os.environ.items() if name != "VORTEX_NUM_THREADS"}
    environment |= {} if given is None else {"VORTEX_NUM_THREADS": given}
    command = [sys.executable, "-c", COUNT, str(path), str(later)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60)
    return [int(word) for word in done.stdout.split()]


@pytest.mark.parametrize(("given", "later"), [("1", 3), ("3", 4), ("4", 1)])
def test_the_environment_and_the_setter_say_how_many_run(library_path: Path, given: str, later: int) -> None:
    said, ran, then = counts(library_path, given, later)
    assert said == ran == int(given)
    assert then == max(int(given), later)  # threads that are no longer used sleep


def test_the_default_is_what_the_affinity_mask_leaves(library_path: Path) -> None:
    before = os.sched_getaffinity(0)
    assert counts(library_path, None, 1)[0] == available_cores()
    os.sched_setaffinity(0, {min(before)})
    try:
        assert counts(library_path, None, 1)[:2] == [1, 1]
    finally:
        os.sched_setaffinity(0, before)


class TestSettings:
    @pytest.mark.parametrize("given", ["0", "-2", "two", "1.5"])
    def test_a_variable_that_is_no_count(self, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
        monkeypatch.setenv("VORTEX_NUM_THREADS", given)
        with pytest.raises(OperandError, match=f"VORTEX_NUM_THREADS='{given}'.*unset it or correct it"):
            Threads().get()

    def test_an_empty_variable_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VORTEX_NUM_THREADS", "")
        assert Threads().get() == available_cores()

    @pytest.mark.parametrize("given", [0, -1, 2.0, "2", True, None])
    def test_a_count_that_is_none(self, given: object) -> None:
        before = vortex.get_num_threads()
        with pytest.raises(OperandError, match="whole number of at least 1"):
            vortex.set_num_threads(given)
        assert vortex.get_num_threads() == before

    def test_every_library_is_told_while_it_lives(self) -> None:
        told: list[int] = []
        listener = Listener(told.append)
        vortex.set_num_threads(5)
        assert told == [2, 5]
        del listener
        vortex.set_num_threads(3)
        assert told == [2, 5]
