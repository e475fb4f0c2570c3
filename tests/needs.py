"""What a test needs of the machine it runs on."""

import shutil
from pathlib import Path

import psutil
import pytest

from vortex.affinity import cpu_flags

a_compiler = pytest.mark.skipif(
    not {"avx2", "fma"} <= cpu_flags() or not shutil.which("cc"),
    reason="compiles for this machine: needs Linux on x86-64 with AVX2 and FMA, and a C compiler",
)

an_emulator = pytest.mark.skipif(
    not {"avx2", "fma", "f16c"} <= cpu_flags() or not shutil.which("g++"),
    reason="emulates a GPU: needs Linux on x86-64 with AVX2, FMA and F16C, and g++",
)


def free_bytes() -> int:
    """Memory that a test may fill: what the machine has left, less where a container grants less."""
    free = int(psutil.virtual_memory().available)
    limit, used = (Path("/sys/fs/cgroup", f"memory.{name}") for name in ("max", "current"))
    if limit.is_file() and limit.read_text().strip().isdigit():
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return free


def memory(gibibytes: int) -> None:
    """Skip where less is free."""
    if free_bytes() < gibibytes << 30:
        pytest.skip(f"less than {gibibytes} GiB of memory is free")
