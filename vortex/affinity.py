"""Which cores this process may use, and what of them: affinity, one thread per core, quotas of cgroups, AMX's tiles.

The launcher asks this at run time, so nothing beyond the standard library is imported.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Collection

from vortex.errors import DeviceError

ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18
"""Linux: the system call, ARCH_REQ_XCOMP_PERM and the number of the state (Documentation/arch/x86/xstate.rst)."""
PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux's prctl."""


def available_cpus(root: str = "/", cpus: Collection[int] | None = None) -> tuple[int, ...]:
    """One logical CPU for each physical core that this process may run on, in ascending order.

    Threads of one core share its vector units, so a second one adds no multiply-adds. `root` and `cpus` stand in for
    the machine's file system and affinity mask in tests.
    """
    allowed = sorted(_affinity() if cpus is None else cpus)
    chosen: dict[str, int] = {}
    for cpu in allowed:
        path = os.path.join(root, f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        chosen.setdefault(_text(path) or f"cpu {cpu}", cpu)
    return tuple(chosen.values())


def cpu_quota(root: str = "/") -> float | None:
    """CPUs that the tightest cgroup around this process grants; None where nothing limits it."""
    quotas = []
    for line in (_text(os.path.join(root, "proc/self/cgroup")) or "").splitlines():
        hierarchy, controllers, path = [*line.split(":", 2), "", ""][:3]
        if hierarchy == "0" and not controllers:
            quotas += [_quota_v2(folder) for folder in _folders(os.path.join(root, "sys/fs/cgroup"), path)]
        elif "cpu" in controllers.split(","):
            mount = os.path.join(root, "sys/fs/cgroup")
            for name in {controllers, "cpu"}:
                quotas += [_quota_v1(folder) for folder in _folders(os.path.join(mount, name), path)]
    return min((quota for quota in quotas if quota is not None), default=None)


def available_cores(root: str = "/", cpus: Collection[int] | None = None) -> int:
    """How many threads are worth starting: cores allowed by the affinity mask, less where a quota grants fewer.

    A quota is rounded down: the work is split evenly, so one throttled thread would hold up all others.
    """
    cores = len(available_cpus(root, cpus))
    quota = cpu_quota(root)
    return max(1, cores if quota is None else min(cores, int(quota)))


def _affinity() -> Collection[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def _folders(mount: str, path: str) -> list[str]:
    """The cgroup and its ancestors. Inside a container the path may be the host's, of which only the mount exists."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [os.path.join(mount, *parts[:depth]) for depth in range(len(parts), -1, -1)]


def _quota_v2(folder: str) -> float | None:
    words = (_text(os.path.join(folder, "cpu.max")) or "max").split()
    return _ratio(words[0], words[1]) if len(words) == 2 else None


def _quota_v1(folder: str) -> float | None:
    quota = _text(os.path.join(folder, "cpu.cfs_quota_us"))
    period = _text(os.path.join(folder, "cpu.cfs_period_us"))
    return _ratio(quota, period) if quota and period else None


def _ratio(quota: str, period: str) -> float | None:
    """Microseconds granted per period; `max` (version 2) and -1 (version 1) mean no limit."""
    if quota.isdigit() and period.isdigit() and int(period):
        return int(quota) / int(period)
    return None


def _text(path: str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def cpu_flags(root: str = "/") -> frozenset[str]:
    """The instruction-set flags of this machine, as `/proc/cpuinfo` spells them; empty where there is none."""
    for line in (_text(os.path.join(root, "proc/cpuinfo")) or "").splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def end_with_parent() -> None:
    """Have Linux kill this process when the thread that forked it ends, however that does.

    Workers of a pool would wait for their next task for ever where its process was killed, at a time limit for one.
    """
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def request_tiles() -> None:
    """Ask Linux for the registers of AMX, for all threads of this process; DeviceError where it refuses them."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    if call(ctypes.c_long(ARCH_PRCTL), ctypes.c_long(REQUEST_PERMISSION), ctypes.c_long(TILE_DATA)) != 0:
        raise DeviceError(
            f"the kernel grants no AMX tiles ({os.strerror(ctypes.get_errno())}): needs Linux 5.16 and a processor "
            "with amx_tile; compile for a spec without them"
        )
