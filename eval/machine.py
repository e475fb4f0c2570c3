"""What this machine can do and whether it is idle: FMA peak, bandwidths, cache flush, load, what identifies a run."""

import contextlib
import ctypes
import hashlib
import os
import platform
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

import numpy as np
import psutil

from eval.roofline import Limits, MemoryLevel
from vortex.affinity import cpu_flags

SOURCE = Path(__file__).with_name("machine.c")
# Peaks before and after may differ by this much before the run counts as disturbed.
PEAK_TOLERANCE = 0.05
GUEST_BYTES = 32 << 20
# Share of all cores that other processes may use; a desktop or a VM agent idles at one or two per cent.
LOAD_TOLERANCE = 0.10
READ, COPY, COPY_PAST_CACHES = 0, 1, 2


class BusyError(RuntimeError):
    """The machine is doing something else, so timings would be wrong."""


@cache
def _library() -> ctypes.CDLL:
    """machine.c, compiled for this machine once per source text."""
    flags = ["-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC", "-pthread"]
    key = hashlib.sha256(SOURCE.read_bytes() + " ".join(flags).encode() + platform.processor().encode()).hexdigest()[
        :16
    ]
    target = Path(tempfile.gettempdir()) / f"vortex-eval-{os.getuid()}" / f"machine-{key}.so"
    if not target.is_file():
        target.parent.mkdir(mode=0o700, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        subprocess.run([os.environ.get("CC", "cc"), *flags, "-o", str(partial), str(SOURCE)], check=True)
        partial.replace(target)
    library = ctypes.CDLL(str(target))
    cpus = ctypes.POINTER(ctypes.c_int)
    library.machine_fma.restype = ctypes.c_double
    library.machine_fma.argtypes = [cpus, ctypes.c_int, ctypes.c_long]
    library.machine_fma_here.restype = ctypes.c_double
    library.machine_fma_here.argtypes = [ctypes.c_long]
    library.machine_stream.restype = ctypes.c_double
    library.machine_stream.argtypes = [
        cpus,
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_long,
        ctypes.c_int,
    ]
    library.machine_flush.restype = ctypes.c_int
    library.machine_flush.argtypes = []
    return library


def available_cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def _cpus(threads: int) -> ctypes.Array[ctypes.c_int]:
    cpus = available_cpus()
    if threads > len(cpus):
        raise ValueError(f"{threads} threads asked for, {len(cpus)} CPUs available")
    return (ctypes.c_int * threads)(*cpus[:threads])


def peak(threads: int, repeats: int = 1_000_000, rounds: int = 8) -> float:
    """FMA flops per second of `threads` cores: the best of some rounds of 2 ms (the first ones wake the cores)."""
    library, cpus = _library(), _cpus(threads)
    return max(float(library.machine_fma(cpus, threads, repeats)) for _ in range(rounds))


def peak_here() -> float:
    """FMA flops per second of this core as its last work has left it: clocks fall while vectors are multiplied, and are
    back a millisecond after. Three times some 20 us, of which the best is no interrupt's."""
    return max(float(_library().machine_fma_here(10_000)) for _ in range(3))


def stream(threads: int, buffer: np.ndarray, kind: int, min_bytes: float = 4e8, rounds: int = 3) -> float:
    """Bytes per second of `threads` cores over `buffer`, split among them."""
    library, cpus = _library(), _cpus(threads)
    repeats = max(1, int(min_bytes / buffer.nbytes))
    best = 0.0
    for _ in range(rounds):
        best = max(best, library.machine_stream(cpus, threads, buffer.ctypes.data, buffer.nbytes, repeats, kind))
    return best


LINE_BYTES = 64


def aligned(count: int, dtype: str = "float32", offset: int = 0) -> np.ndarray:
    """Uninitialized, `offset` bytes past the beginning of a cache line, the same for every system."""
    size = count * np.dtype(dtype).itemsize
    raw = np.empty(size + 2 * LINE_BYTES, np.uint8)
    start = -raw.ctypes.data % LINE_BYTES + offset
    return raw[start : start + size].view(dtype)


def cache_sizes() -> list[tuple[str, int, bool]]:
    """(name, capacity in bytes, private to a core?) of the data caches of the first CPU, innermost first."""
    found = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        if (index / "type").read_text().strip() == "Instruction":
            continue
        size = (index / "size").read_text().strip()
        capacity = int(size[:-1]) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[size[-1]]
        private = (index / "shared_cpu_list").read_text().strip().isdigit()
        found.append((f"L{(index / 'level').read_text().strip()}", capacity, private))
    return found


def limits(threads: int) -> Limits:
    """FMA peak, and the bandwidth of each cache and of memory, for `threads` cores together (about two seconds)."""
    levels = []
    inner = 0
    for name, size, private in cache_sizes():
        capacity = size * (threads if private else 1)
        # Between the level inside and this one, so that this level serves nearly all of it.
        # A guest has less of a shared cache than it is told of: the better of that and of what most guests have.
        half = max(inner * 2, (inner + capacity) // 2)
        buffers = [aligned(size // 4) for size in {half, max(inner * 2, min(half, GUEST_BYTES))}]
        for buffer in buffers:
            buffer.fill(1)
        read, copy = (max(stream(threads, buffer, kind) for buffer in buffers) for kind in (READ, COPY))
        levels.append(MemoryLevel(name, capacity, read, copy))
        inner = capacity
    buffer = aligned(min(max(8 * inner, 1 << 28), max(2 * inner, 1 << 30)) // 4)
    buffer.fill(1)
    read, copy = (stream(threads, buffer, kind, rounds=6) for kind in (READ, COPY_PAST_CACHES))
    levels.append(MemoryLevel("memory", 1 << 62, read, copy))
    return Limits(peak(threads), tuple(levels), "amx_tile" in cpu_flags())


def flush_caches() -> None:
    """Drops all data of this process from the caches of all cores.

    Sweeping over a large buffer is no substitute: outer caches protect lines that were used again, and after sweeping
    over four times the size of one a quarter of it still held the old operands.
    """
    if _library().machine_flush():
        raise OSError("cannot read /proc/self/maps")


def load(seconds: float = 0.5) -> float:
    """Share of all cores in use over a short window; the caller itself must be idle, so this sleeps."""
    return float(psutil.cpu_percent(interval=seconds)) / 100.0


def check_idle() -> float:
    """The load, or BusyError if it is too high twice in a row (the first window may catch our own start-up)."""
    share = load()
    if share > LOAD_TOLERANCE:
        time.sleep(1.0)
        share = load(1.0)
    if share > LOAD_TOLERANCE:
        raise BusyError(f"other processes use {share:.0%} of the cores (tolerated: {LOAD_TOLERANCE:.0%})")
    return share


class LoadMeter:
    """What share of all cores others used since the meter was made: all busy time less that of our own processes."""

    SLACK_SECONDS = 0.05  # the kernel accounts in ticks of 4 to 10 ms a core

    def __init__(self) -> None:
        self.begin, self.busy, self.own = time.monotonic(), self._busy(), self._own()

    def foreign_share(self) -> float:
        wall = time.monotonic() - self.begin
        foreign = (self._busy() - self.busy) - (self._own() - self.own) - self.SLACK_SECONDS
        return max(0.0, foreign) / (wall * (os.cpu_count() or 1))

    @staticmethod
    def _busy() -> float:
        """Time stolen by the hypervisor counts: it is missing from our measurements just the same."""
        times = psutil.cpu_times()
        return float(times.user + times.system + times.irq + times.softirq + times.steal)

    @staticmethod
    def _own() -> float:
        """This process, what lives under it, and what has ended under any of them."""
        total = 0.0
        for member in (psutil.Process(), *psutil.Process().children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = member.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total


class StealMeter:
    """What share of the time of `threads` cores the host of a virtual machine gave to others since the meter was made.

    No process inside sees it: threads stop for milliseconds, or all cores share one of the host's and each runs at
    half its speed. The kernel accounts in ticks of 4 to 10 ms, and what a core lost only when it is back: one that is
    away as the share is read counts next time.
    """

    def __init__(self, threads: int) -> None:
        self.threads, self.begin, self.stolen = threads, time.monotonic(), psutil.cpu_times().steal

    def share(self) -> float:
        stolen = psutil.cpu_times().steal - self.stolen
        return float(stolen) / ((time.monotonic() - self.begin) * self.threads)


def check_peak(before: float, after: float) -> None:
    if abs(after / before - 1.0) > PEAK_TOLERANCE:
        raise BusyError(
            f"the FMA peak went from {before / 1e9:.1f} to {after / 1e9:.1f} GFLOP/s (tolerated: {PEAK_TOLERANCE:.0%})"
        )


def disturbance(before: float, threads: int, meter: LoadMeter) -> str | None:
    """What disturbed the machine since the peak was `before` and the meter was made, in words; None: nothing."""
    try:
        check_peak(before, peak(threads))
    except BusyError as error:
        return str(error)
    return foreign_load(meter)


def foreign_load(meter: LoadMeter) -> str | None:
    """Whether other processes used more of the cores than is tolerated since the meter was made, in words."""
    share = meter.foreign_share()
    return f"other processes used {share:.0%} of the cores" if share > LOAD_TOLERANCE else None


def device() -> str:
    """CPU model and core count, as the result lines name the device."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    caches = " ".join(f"{name} {capacity >> 10}K" for name, capacity, _ in cache_sizes())
    return f"{model}, {len(available_cpus())} cores, {caches}"


def commit(root: Path = SOURCE.parent) -> str:
    """The git commit of a checkout, with a plus sign when files differ from it; `unknown` outside one."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    head = git("rev-parse", "--short=12", "HEAD")
    if not head or head == "HEAD":
        return "unknown"
    return head + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
