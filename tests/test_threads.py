"""How many threads a process uses: what the environment, the affinity mask and the setter say, and what then runs."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import needs
import numpy as np
import pytest

import vortex
from vortex.affinity import available_cores
from vortex.codegen.link import RUNTIME, c_compiler
from vortex.errors import OperandError
from vortex.threads import Listener, Threads, borrow_threads

ASLEEP, NOT_YET, NEVER = -1, -2, -3
"""What the pool notes of a worker that is on no core."""

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
        lenders: list[int] = []
        listener = Listener(told.append, lenders.append)
        vortex.set_num_threads(5)
        borrow_threads(0)
        assert told == [2, 5] and lenders == [0, 0]
        del listener
        vortex.set_num_threads(3)
        assert told == [2, 5]


LENT = """
import ctypes, os, sys, threading
import numpy, vortex
from vortex.threads import borrow_threads
Body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
teams = []
def fork_join(body, data, threads, flags):
    teams.append(threads)
    others = [threading.Thread(target=Body(body), args=(data,)) for _ in range(threads - 1)]
    for other in others: other.start()
    Body(body)(data)
    for other in others: other.join()
lender = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)(fork_join)
gemm = vortex.load(sys.argv[1])
vortex.set_num_threads(3)
a = numpy.arange(360000, dtype=numpy.float32).reshape(600, 600) % 7
own = gemm(a, a)
borrow_threads(ctypes.cast(lender, ctypes.c_void_p).value)
assert (gemm(a, a) == own).all() and teams == [3], teams
again = vortex.load(sys.argv[1])
assert (again(a, a) == own).all() and teams == [3, 3], teams
child = os.fork()
if not child:
    os._exit(0 if (gemm(a, a) == own).all() and teams == [3, 3] else 1)
assert os.waitpid(child, 0)[1] == 0
borrow_threads(0)
assert (gemm(a, a) == own).all() and teams == [3, 3]
"""


def test_borrowed_threads_compute_the_same(library_path: Path) -> None:
    """Also in a library that is loaded later, and not in a forked child, where the lender's threads are gone."""
    subprocess.run([sys.executable, "-c", LENT, str(library_path)], check=True, timeout=60)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("pool") / "pool.so"
    source = Path(__file__).with_name("stub_scheduler.c")
    command = [
        c_compiler(),
        "-std=gnu11",
        "-O1",
        "-fPIC",
        "-shared",
        "-pthread",
        f"-I{RUNTIME}",
        "-o",
        str(path),
        str(source),
    ]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(path))


@pytest.fixture(scope="module")
def asks(pool: ctypes.CDLL) -> Callable[..., list[int]]:
    def asks(caller: int, seen: int, cores: int) -> list[int]:
        masks = (ctypes.c_ulong * 8)()
        count = pool.stub_call(caller, seen, ctypes.c_ulong(cores), masks)
        return masks[:count]

    return asks


@needs.a_compiler
class TestAWorkerOnTheCoreOfItsCaller:
    """It cannot run while the caller polls, and the scheduler may leave both there for tens of milliseconds.

    Where a thread ends is for the scheduler to say, and a busy one says otherwise: tested is what the pool asks for.
    """

    def test_is_sent_away_and_then_as_free_as_before(self, asks: Callable[..., list[int]]) -> None:
        assert asks(1, 1, 0b1111) == [0b1101, 0b1111]
        assert asks(3, 3, 0b1010) == [0b0010, 0b1010]

    def test_asleep_is_not_woken_there(self, asks: Callable[..., list[int]]) -> None:
        """It may be on no futex any more: woken for an earlier job and queued behind the caller since."""
        assert asks(0, ASLEEP, 0b11) == [0b10, 0b11]

    @pytest.mark.parametrize("seen", [0, NOT_YET])
    def test_elsewhere_or_new_is_left_alone(self, asks: Callable[..., list[int]], seen: int) -> None:
        assert asks(1, seen, 0b11) == []

    @pytest.mark.parametrize("seen", [1, ASLEEP])
    def test_stays_where_no_other_core_is_allowed(self, asks: Callable[..., list[int]], seen: int) -> None:
        assert asks(1, seen, 0b10) == []

    def test_a_real_one_keeps_its_mask(self, library_path: Path) -> None:
        cores, tasks = sorted(os.sched_getaffinity(0)), Path("/proc/self/task")
        if len(cores) < 2:
            pytest.skip("one core")
        gemm, threads = vortex.load(library_path), vortex.get_num_threads()
        a, b, out = (np.ones((200, 200), np.float32) for _ in range(3))
        before = {entry.name for entry in tasks.iterdir()}
        vortex.set_num_threads(2)
        gemm(a, b, out=out)
        (worker,) = (int(entry.name) for entry in tasks.iterdir() if entry.name not in before)
        try:
            for turn in range(20):
                for thread in (0, worker):
                    os.sched_setaffinity(thread, {cores[turn % 2]})
                gemm(a, b, out=out)
                os.sched_setaffinity(worker, cores)
                gemm(a, b, out=out)
                gemm(a, b, out=out)
                assert os.sched_getaffinity(worker) == set(cores)
        finally:
            os.sched_setaffinity(0, cores)
            vortex.set_num_threads(threads)


@needs.a_compiler
def test_a_worker_does_not_sleep_while_the_job_it_took_part_in_goes_on(pool: ctypes.CDLL) -> None:
    """Its caller comes with the next one, and a core of a virtual machine that slept is milliseconds in coming back."""
    found = [pool.stub_uneven() for _ in range(5)]
    if NEVER in found:
        pytest.skip("the machine is too busy to run two threads at once")
    assert set(found) != {ASLEEP}, "a caller that loses its core as the job ends finds it asleep; not every time"
