"""What a test needs of the machine it runs on."""

import shutil
from pathlib import Path

import psutil
import pytest

from vortex.affinity import cpu_flags
from vortex.hardware import HardwareSpec
from vortex.specs import load_spec, what_if

a_compiler = pytest.mark.skipif(
    not {"avx2", "fma"} <= cpu_flags() or not shutil.which("cc"),
    reason="compiles for this machine: needs Linux on x86-64 with AVX2 and FMA, and a C compiler",
)

an_emulator = pytest.mark.skipif(
    not {"avx2", "fma", "f16c"} <= cpu_flags() or not shutil.which("g++"),
    reason="emulates a GPU: needs Linux on x86-64 with AVX2, FMA and F16C, and g++",
)


def few_register_tiles(share: float = 0.5) -> HardwareSpec:
    """This machine with few register tiles, none of them measured: for a library of which results alone are wanted.

    A tile may take `share` of the registers, or what the accumulators that keep a product of vectors busy need and five
    besides: of the 16 of AVX2 that is more than half. A core finds few pages again, whatever this one does: of rows
    that are read as they lie it takes so many steps of k at a time. The outermost cache is said to be small, so that
    what no cache has room for is.
    """
    if not {"avx2", "fma"} <= cpu_flags():
        pytest.skip("this machine has no AVX2 and FMA, the least that vortex compiles for")
    spec = load_spec("native")
    vectors = [isa for isa in spec.instructions if not isa.tiles]
    share = max(share, *((isa.in_flight + 5) / isa.registers for isa in vectors))
    pages = {"page_bytes": 4096, "kept_pages": 512}
    inner, outer = spec.memories[-3:-1]
    small = {f"{outer.name}.capacity_bytes": 4 * inner.capacity_bytes, f"{outer.name}.ways": 16}
    return what_if(spec, {"L0.max_utilization": share, "L0.analysis": "analytical", **pages, **small})


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
