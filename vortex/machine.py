"""What can be read about a machine without running anything on it: `/proc/cpuinfo`, `/sys`, and LLVM's name for it.

`read_machine` takes the root of the file system, so that recorded machines are tested anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from vortex.affinity import available_cores, available_cpus
from vortex.errors import DeviceError

# What x86-64-v3 and -v4 add for vector code, as /proc/cpuinfo spells it (x86-64 psABI, table 3.1).
V3 = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"})
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
VNNI = V4 | {"avx512_vnni"}
ICELAKE = VNNI | {"avx512ifma", "avx512vbmi", "avx512_vbmi2", "avx512_bitalg", "avx512_vpopcntdq"}
BF16 = ICELAKE | {"avx512_bf16"}
AMX = BF16 | {"avx512_fp16", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8"}

# Vendor, family, models, LLVM's name, and flags without which (hidden by a hypervisor) the name would promise too much.
# Families and models: llvm/lib/TargetParser/Host.cpp and Linux, arch/x86/include/asm/intel-family.h. First fit wins.
AMD, INTEL, ANY = "AuthenticAMD", "GenuineIntel", range(256)
PROCESSORS: tuple[tuple[str, int, Collection[int], str, frozenset[str]], ...] = (
    (AMD, 26, ANY, "znver5", BF16),
    (AMD, 25, {*range(0x10, 0x20), *range(0x60, 0x80), *range(0xA0, 0xB0)}, "znver4", BF16),
    (AMD, 25, {*range(0x10), *range(0x20, 0x60)}, "znver3", V3),
    (AMD, 23, range(0x30, 0x100), "znver2", V3),
    (AMD, 23, range(0x30), "znver1", V3),
    (INTEL, 6, {0xAD, 0xAE}, "graniterapids", BF16),
    (INTEL, 6, {0xCF}, "emeraldrapids", BF16),
    (INTEL, 6, {0x8F}, "sapphirerapids", BF16),
    (INTEL, 6, {0x6A, 0x6C}, "icelake-server", ICELAKE),
    (INTEL, 6, {0x7D, 0x7E}, "icelake-client", ICELAKE),
    (INTEL, 6, {0x8C, 0x8D}, "tigerlake", ICELAKE),
    (INTEL, 6, {0xA7}, "rocketlake", ICELAKE),
    (INTEL, 6, {0x55}, "cooperlake", VNNI | {"avx512_bf16"}),
    (INTEL, 6, {0x55}, "cascadelake", VNNI),
    (INTEL, 6, {0x55}, "skylake-avx512", V4),
    (INTEL, 6, {0x97, 0x9A, 0xB7, 0xBA, 0xBF}, "alderlake", V3),
    (INTEL, 6, {0x4E, 0x5E, 0x8E, 0x9E, 0xA5, 0xA6}, "skylake", V3),
    (INTEL, 6, {0x3D, 0x47, 0x4F, 0x56}, "broadwell", V3),
    (INTEL, 6, {0x3C, 0x3F, 0x45, 0x46}, "haswell", V3),
)
DOTS = frozenset({"avx512_vnni", "avx512_bf16"})
"""What LLVM makes code with only under a name that promises it: a name without what the flags tell is an older one,
which a hypervisor gave a newer processor (a Granite Rapids as family 6, model A7h: Rocket Lake)."""
BY_FLAGS = (
    ("sapphirerapids", AMX),
    ("cooperlake", VNNI | {"avx512_bf16"}),
    ("cascadelake", VNNI),
    ("x86-64-v4", V4),
)
"""The names of processors that are not in the table."""


@dataclass(frozen=True)
class Cache:
    """A data cache as the operating system describes it; its geometry multiplies to its size."""

    name: str
    size: int
    line: int
    ways: int
    sets: int
    shared_by: int
    source: str


@dataclass(frozen=True)
class Machine:
    """What can be read about a machine without running anything on it."""

    vendor: str
    family: int
    model: int
    model_name: str
    flags: frozenset[str]
    caches: tuple[Cache, ...]
    cpus: tuple[int, ...]
    free_bytes: int
    """Of main memory: what a measurement may use a part of."""

    @property
    def cores(self) -> int:
        return len(self.cpus)

    @property
    def llvm_cpu(self) -> str:
        """LLVM's name for this processor: never one that promises a flag which is not here, or lacks a dot product."""
        for vendor, family, models, name, needs in PROCESSORS:
            if (vendor, family) != (self.vendor, self.family) or self.model not in models:
                continue
            if DOTS & self.flags <= needs <= self.flags:
                return name
        return next((name for name, needs in BY_FLAGS if needs <= self.flags), "x86-64-v3")

    @property
    def lanes(self) -> int:
        """float32 elements of the widest vector register that may be used."""
        if not self.flags >= V3:
            missing = ", ".join(sorted(V3 - self.flags))
            raise DeviceError(
                f"{self.model_name or 'this processor'} lacks {missing}; vortex needs AVX2 with FMA (x86-64-v3); "
                "use a machine that has them, or compile for another one with hw=<name of its spec>"
            )
        return 16 if self.flags >= V4 else 8


def read_machine(root: str | Path = "/", cpus: Collection[int] | None = None) -> Machine:
    """The machine under `root`: a recorded tree in tests. `cpus` stands in for the affinity mask."""
    top = Path(root)
    try:
        text = (top / "proc/cpuinfo").read_text(errors="replace")
    except OSError as error:
        raise DeviceError("there is no /proc/cpuinfo: native detection needs Linux; name a spec with hw=") from error
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    info = {key.strip(): value.strip() for key, _, value in pairs}
    if "flags" not in info:
        raise DeviceError("native detection knows x86-64 only; name a spec with hw=, or write one for this machine")
    chosen = available_cpus(str(top), cpus)[: available_cores(str(top), cpus)]
    memory = {key: _number(value.strip().removesuffix("B").replace(" k", "K")) for key, value in _meminfo(top)}
    return Machine(
        vendor=info.get("vendor_id", ""),
        family=int(info.get("cpu family", 0)),
        model=int(info.get("model", 0)),
        model_name=info.get("model name", ""),
        flags=frozenset(info["flags"].split()),
        caches=_read_caches(top, chosen),
        cpus=chosen,
        free_bytes=memory.get("MemAvailable", 0),
    )


def _read_caches(top: Path, cpus: tuple[int, ...]) -> tuple[Cache, ...]:
    """Data and unified caches of the first core, inner to outer; one no larger than the one inside it is left out."""
    folder = top / f"sys/devices/system/cpu/cpu{cpus[0]}/cache"
    found: dict[int, Cache] = {}
    for index in sorted(folder.glob("index[0-9]*")):
        facts = {file: _line(index / file) for file in CACHE_FILES}
        level, size = _number(facts["level"]), _number(facts["size"])
        if facts["type"] in ("Data", "Unified") and level and size:
            line, told = _number(facts["coherency_line_size"]) or 64, _number(facts["ways_of_associativity"])
            ways, sets = _geometry(size, line, told, _number(facts["number_of_sets"]))
            shared = max(1, len(set(cpus) & _cpu_list(facts["shared_cpu_list"])))
            found[level] = Cache(f"l{level}", size, line, ways, sets, shared, f"/{index.relative_to(top)}")
    if not found and top == Path("/"):
        found = _sysconf_caches(len(cpus))
    kept: list[Cache] = []
    for _, cache in sorted(found.items()):
        if not kept or cache.size > kept[-1].size:
            # Some hypervisors tell of an inner cache more sharers than of the next one out.
            inner = kept[-1].shared_by if kept else 1
            kept.append(replace(cache, shared_by=max(inner, cache.shared_by)))
    if not {"l1", "l2"} <= {cache.name for cache in kept}:
        raise DeviceError(
            f"{folder} does not describe an L1 data cache and an L2 cache; start from a shipped spec "
            "(hwspecs/), write this machine's caches into it, and pass its path as hw="
        )
    return tuple(kept)


CACHE_FILES = (
    "level", "type", "size", "coherency_line_size", "ways_of_associativity", "number_of_sets", "shared_cpu_list",
)  # fmt: skip


def _sysconf_caches(cores: int) -> dict[int, Cache]:
    """The C library asks CPUID itself: for machines whose /sys has no cache folder."""
    found = {}
    for level, word in ((1, "LEVEL1_DCACHE"), (2, "LEVEL2_CACHE"), (3, "LEVEL3_CACHE")):
        facts = {}
        for fact in ("SIZE", "ASSOC", "LINESIZE"):
            name = f"SC_{word}_{fact}"
            facts[fact] = os.sysconf(name) if name in os.sysconf_names else 0
        if facts["SIZE"] > 0:
            line = facts["LINESIZE"] if facts["LINESIZE"] > 0 else 64
            ways, sets = _geometry(facts["SIZE"], line, max(0, facts["ASSOC"]), 0)
            shared = cores if level == 3 else 1
            found[level] = Cache(f"l{level}", facts["SIZE"], line, ways, sets, shared, f"sysconf SC_{word}_*")
    return found


def _geometry(size: int, line: int, ways: int, sets: int) -> tuple[int, int]:
    """Ways and sets that multiply to the size: as told where they do, else mended, at worst fully associative."""
    if ways * sets * line == size:
        return ways, sets
    if ways and size % (ways * line) == 0:
        return ways, size // (ways * line)
    return size // line, 1


def _meminfo(top: Path) -> list[tuple[str, str]]:
    lines = _line(top / "proc/meminfo").splitlines()
    return [(key, value) for key, _, value in (line.partition(":") for line in lines)]


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(text: str) -> int:
    """`48K` -> 49152; 0 where nothing is told."""
    scale = {"K": 1024, "M": 1024**2, "G": 1024**3}.get(text[-1:], 1)
    digits = text.rstrip("KMG")
    return int(digits) * scale if digits.isdigit() else 0


def _cpu_list(text: str) -> set[int]:
    """`0-2,8` -> {0, 1, 2, 8}."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            cpus.update(range(int(first), int(last or first) + 1))
    return cpus
