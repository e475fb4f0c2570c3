"""A hardware spec of this machine: what the operating system tells is read, what a virtual machine hides is measured.

Measuring (`measure`) and putting together (`assemble`) are apart, so that recorded machines can be tested anywhere.
Every figure comes with its provenance as a `Reading`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vortex.cache import cache_directory
from vortex.errors import DeviceError, ToolchainError
from vortex.machine import V3, V4, Machine, read_machine
from vortex.probe_dots import DOTS, Rates, clock_of, dot_figures, latency_cycles, starts_a_cycle

if TYPE_CHECKING:  # Else imported where one is made: a library of this machine is found again without its models.
    from vortex.hardware import HardwareSpec

NATIVE = "native"
PACKAGE = Path(__file__).resolve().parent
SOURCE, INCLUDED = (PACKAGE / "runtime" / name for name in ("probe.c", "chains.h"))
MODELS = (PACKAGE / "hardware.py", PACKAGE / "instruction.py")
"""What a spec may say: one remembered before a field was added has another fingerprint than what is made of it."""
MEASURE_TIMEOUT_S = 20.0  # measuring takes a second at most; a machine this much slower is not measured but stuck
LAYOUT = 8  # raise when detection changes what it makes of the same machine

# Level, memory, analysis, least and largest utilization. docs/performance.md has the evidence for the bounds.
LEVELS = (
    ("L0", "l1", "empirical", (0.25, 1.0)),
    ("L1", "l2", "analytical", (0.0, 0.75)),
    ("L2", "dram", "analytical", ()),
)

BOUNDS = ("min_utilization", "max_utilization")


@dataclass(frozen=True)
class Reading:
    """Where one figure of a spec came from."""

    figure: str
    value: int | float | str
    source: str


def build_probe(folder: Path) -> Path:
    """The compiled `probe.c`, built once for each content of its sources."""
    compiler = os.environ.get("CC") or "cc"
    text = SOURCE.read_bytes() + INCLUDED.read_bytes()
    digest = hashlib.sha256(text + f"{compiler} {platform.machine()}".encode()).hexdigest()[:24]
    program = folder / f"probe-{digest}"
    if program.exists():
        return program
    with _scratch(folder, program.name) as made:
        command = [*compiler.split(), "-O2", "-pthread", str(SOURCE), "-o", str(made)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise ToolchainError(f"no C compiler {compiler!r}: install gcc or clang, or set CC to one") from error
        if done.returncode:
            told = f"{' '.join(command)} failed:\n{done.stderr.strip()}"
            raise ToolchainError(f"{told}\nset CC to a C compiler that works")
        os.replace(made, program)
    return program


class _scratch:
    """A file name beside `name` that is gone afterwards, unless it was renamed into place."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name

    def __enter__(self) -> Path:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, path = tempfile.mkstemp(prefix=f".{self.name}-", dir=self.folder)
        except OSError as error:
            told = f"the cache folder {self.folder} cannot be written ({error.strerror})"
            raise DeviceError(f"{told}; set VORTEX_CACHE_DIR to one that can") from error
        os.close(handle)
        self.path = Path(path)
        return self.path

    def __exit__(self, *_: object) -> None:
        self.path.unlink(missing_ok=True)


MOST_STREAMED = 768 * 1024**2
"""Bytes, so that the first compilation on a machine takes no more memory than others, which take 0.8 GB: a guest may be
told of 480 MB of outermost cache."""


def working_sets(machine: Machine) -> tuple[int, list[tuple[int, int]]]:
    """Bytes to stream from DRAM, and for each cache what one core alone and each of all cores reads over and over.

    A set must overflow the cache inside it and stay well within its own, of which each core has its share.
    """
    sets = []
    for inner, cache in zip((None, *machine.caches), machine.caches, strict=False):
        least = 2 * inner.size if inner else 4096
        one = cache.size * 3 // 4 if inner is None else cache.size // 2
        every = cache.size * 3 // 4 // cache.shared_by if cache.shared_by > 1 else one
        sets.append((max(one, least), max(every, least)))
    last = machine.caches[-1]
    instances = -(-machine.cores // last.shared_by)
    wanted = max(8, 4 * instances) * last.size  # with less, a share of the stream is still found in the last cache
    least = max(max(one for one, _ in sets), machine.cores * max(every for _, every in sets))
    return max(least, min(max(wanted, 64 * 1024**2), MOST_STREAMED, machine.free_bytes // 4)), sets


MOST_PAGES = 16384
"""As many as `probe.c` tries: of a core that finds all of them again nothing is said,"""
SEEN_WALK_S = 4e-9
"""nor of one that looks up the others faster than this, behind its arithmetic. Between two hosts with small pages: a
Granite Rapids walks in 5 ns, a Zen 4 in 3.3, where plain products by plans that count them took an eighth longer."""
PROBES = 3
LATEST_S = 0.7
"""No further run begins this long after the first: one takes a second at most, two where something held a core."""
TOGETHER = 0.7
"""Share of the rate of one core alone that each of all cores has at least, unless another process holds one."""
CLOCK = 1.15
"""By how much clocks differ from one measurement to the next while nothing holds a core,"""
LONGEST = 5
"""and cycles that no multiply-add of a core with AVX2 takes longer than (uops.info)."""
MORE = 1.3
"""Memory gives all cores so many times what it gives one, unless one saturates it, or their host holds one back: on two
cores of a Zen 4 nine runs of thirteen found 63 GB/s beside 34, and four found 35."""


TIMES = ("hand_off", "walk")
NO_RATES = (*TIMES, "pages")


def better(one: Rates, other: Rates) -> Rates:
    """The higher of every rate of two runs, the shorter of every time: what disturbs a measurement only slows it."""
    pick = {name: min if name in TIMES else max for name in one}
    return {name: (pick[name](a, other[name][0]), pick[name](b, other[name][1])) for name, (a, b) in one.items()}


def measure(machine: Machine) -> Rates:
    """Run `probe.c` on this machine: about a third of a second, again while something else seems to hold a core."""
    begin = time.monotonic()
    rates = run_probe(machine)
    for _ in range(PROBES - 1):
        if undisturbed(rates, machine.cores) or time.monotonic() - begin > LATEST_S:
            break
        rates = better(rates, run_probe(machine))
    return {name: (alone, every) if name in NO_RATES else (max(alone, every / machine.cores), every)
            for name, (alone, every) in rates.items()}  # fmt: skip


def undisturbed(rates: Rates, cores: int) -> bool:
    """Whether all cores together did what one alone lets expect, and it as much as each of them, by one clock."""
    (alone, together), (one, every), (clock, _) = rates["fma"], rates["dram"], rates["clock"]
    alike = TOGETHER * cores * alone <= together <= cores * alone / TOGETHER
    steady = clock_of(rates) <= CLOCK * clock and clock <= CLOCK * LONGEST * rates["fma_chain"][0]
    return alike and steady and (cores == 1 or every >= MORE * one)


def run_probe(machine: Machine) -> Rates:
    """What one run of `probe.c` says."""
    dram, sets = working_sets(machine)
    program = build_probe(cache_directory())
    cpus = ",".join(map(str, machine.cpus))
    dots = "".join(letter for letter, dot in DOTS.items() if dot.is_in(machine))
    command = [str(program), f"{machine.lanes}{dots}", cpus, str(dram), *(f"{one}:{every}" for one, every in sets)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MEASURE_TIMEOUT_S, check=True)
    except OSError as error:
        told = f"{program} cannot be run ({error.strerror})"
        raise DeviceError(f"{told}; set VORTEX_CACHE_DIR to a folder that may hold programs") from error
    except subprocess.TimeoutExpired as error:
        told = f"measuring took over {MEASURE_TIMEOUT_S:.0f} s"
        raise DeviceError(f"{told}; try again when the machine is less busy") from error
    except subprocess.CalledProcessError as error:
        told = f"{' '.join(command)} ended with status {error.returncode}"
        raise DeviceError(f"{told}; name a shipped spec with hw= instead") from error
    rows = (line.split() for line in done.stdout.splitlines())
    return {name: (float(one), float(every)) for name, one, every in rows}


def assemble(machine: Machine, rates: Rates) -> tuple[HardwareSpec, tuple[Reading, ...]]:
    """The spec, and where each of its figures came from. The clock follows from the peak, so that the two agree."""
    from vortex.hardware import spec_from

    readings: list[Reading] = []

    def figure(owner: str, name: str, value: Any, source: str) -> Any:
        if not isinstance(value, tuple):
            readings.append(Reading(f"{owner}.{name}" if owner else name, value, source))
        return value

    def table(owner: str, rows: list[tuple[str, Any, str]]) -> dict[str, Any]:
        return {name: figure(owner, name, value, source) for name, value, source in rows}

    lanes, cores = machine.lanes, machine.cores
    wide = lanes == 16
    name = "vfmadd231ps-zmm" if wide else "vfmadd231ps-ymm"
    alone, together = (rate * lanes * 2 for rate in rates["fma"])
    scalar = clock_of(rates)
    issue = starts_a_cycle(rates["fma"][0] / scalar)
    held = together < TOGETHER * cores * alone  # at every try: what one core does alone counts for each
    clock = round((alone if held else together / cores) / (issue * lanes * 2))
    peak = clock * cores * issue * lanes * 2
    fma = f"{alone / 1e9:.0f} GFLOP/s on one core, {together / 1e9:.0f} on all" + ", which something else held" * held
    link = scalar / rates["fma_chain"][0]
    registers = 32 if wide else 16
    latency = latency_cycles(link, registers * 3 // 4 / issue)
    hand_off = max(10, round(rates["hand_off"][0] * 1e9))
    cpuinfo = "read from /proc/cpuinfo: "
    model = f"{cpuinfo}{machine.model_name}, family {machine.family}, model {machine.model}"
    top = table("", [
        ("name", NATIVE, "this machine"),
        ("llvm_cpu", machine.llvm_cpu, model),
        ("cores", cores, "read from the affinity mask, /sys/devices/system/cpu/*/topology and the cgroup's quota"),
        ("clock_hz", clock, f"measured: {fma}, at {issue} a cycle; scalar code ran at {scalar / 1e9:.2f} GHz"),
        ("peak_flops_per_s", peak, f"measured: {fma}"),
        *_pages(rates),
        ("thread_start_ns", hand_off, "measured: a flag handed to a spinning thread and back"),
    ])  # fmt: skip
    flags = ("avx2", "fma", "bmi1", "bmi2", *(sorted(V4 - V3) if wide else ()))
    instruction = table(name, [
        ("name", name, "the widest in the flags"),
        ("dtype", "float32", "what it multiplies"),
        ("lanes", lanes, f"{cpuinfo}{'avx512f' if wide else 'avx2'} in flags"),
        ("registers", registers, f"{cpuinfo}{'zmm0-zmm31' if wide else 'ymm0-ymm15'}"),
        ("issue_per_cycle", issue, f"measured: {rates['fma'][0] / scalar:.2f} a cycle of the scalar clock"),
        ("latency_cycles", latency, f"measured: {link:.2f} cycles of the scalar clock"),
        ("features", flags, ""),
    ])  # fmt: skip
    readings.append(Reading(f"{name}.features", " ".join(flags), f"{cpuinfo}flags"))
    instructions = [instruction]
    for dot in DOTS.values():
        if dot.is_in(machine) and dot.measured in rates:  # Linux may refuse tiles
            instructions.append(table(dot.name, dot_figures(dot, rates, clock, (*flags, *dot.flags))))
            readings.append(Reading(f"{dot.name}.features", " ".join((*flags, *dot.flags)), f"{cpuinfo}flags"))
    memories = [table(cache.name, [
        ("name", cache.name, cache.source),
        ("capacity_bytes", cache.size, f"read from {cache.source}"),
        ("line_bytes", cache.line, f"read from {cache.source}"),
        ("ways", cache.ways, f"read from {cache.source}"),
        ("sets", cache.sets, f"read from {cache.source}"),
        *_bandwidths(rates[f"cache{place}"], cores, cache.shared_by == 1),
        ("shared_by", cache.shared_by, f"read from {cache.source}, of the cores in use"),
    ]) for place, cache in enumerate(machine.caches, start=1)]  # fmt: skip
    memories.append(table("dram", [
        ("name", "dram", "main memory"),
        *_bandwidths(rates["dram"], cores, private=False),
    ]))  # fmt: skip
    levels = [table(level, [
        ("name", level, "a CPU has three levels (Vortex paper, table 1)"),
        ("memory", memory, "where the tile of this level lives on a CPU"),
        ("units", cores if level == "L2" else 1, "only the outermost level runs in parallel"),
        ("analysis", analysis, "Vortex paper, section 5.2"),
        *((bound, share, "chosen for CPUs: docs/performance.md") for bound, share in zip(BOUNDS, shares, strict=False)),
    ]) for level, memory, analysis, shares in LEVELS]  # fmt: skip
    data = top | {"instructions": instructions, "memories": memories, "levels": levels}
    return spec_from(data, "this machine, as detected"), tuple(readings)


def _pages(rates: Rates) -> list[tuple[str, int, str]]:
    kept, size = (round(figure) for figure in rates.get("pages", (MOST_PAGES, 0)))
    walk, _ = rates.get("walk", (0.0, 0.0))
    if not 0 < kept < MOST_PAGES or walk < SEEN_WALK_S:
        return []
    told = f"measured: {kept} lines, each {size} bytes from the next in a huge page, are read as fast as neighbours are"
    return [
        ("page_bytes", size, f"{told}; of more, each takes {walk * 1e9:.1f} ns longer"),
        ("kept_pages", kept, told),
    ]


def _bandwidths(rates: tuple[float, float], cores: int, private: bool) -> list[tuple[str, int, str]]:
    one, every = round(rates[0]), round(rates[1])
    told = f"measured: {one / 1e9:.1f} GB/s by one core, {every / 1e9:.1f} by all"
    if private:
        return [
            ("bandwidth_bytes_per_s", one, told),
            ("total_bandwidth_bytes_per_s", cores * one, f"private: {cores} x the figure of one core"),
        ]
    total = min(max(one, every), cores * one)  # noise may put the sum outside what the model allows
    return [("bandwidth_bytes_per_s", one, told), ("total_bandwidth_bytes_per_s", total, told)]


def probe(refresh: bool = False) -> tuple[HardwareSpec, tuple[Reading, ...]]:
    """The spec of this machine with its readings: from the cache where measured before, unless `refresh`."""
    return detect(read_machine(), measure, cache_directory(), refresh)


def file_name(machine: Machine) -> str:
    """Names the machine in the cache: equal where the same measurements hold and the same is said of them."""
    facts = vars(machine) | {"flags": sorted(machine.flags), "free_bytes": 0}
    sources = [path.read_bytes() for path in (SOURCE, INCLUDED, *MODELS)]
    return f"native-{hashlib.sha256(repr((LAYOUT, sources, facts)).encode()).hexdigest()[:24]}.json"


def detect(
    machine: Machine, measuring: Callable[[Machine], Rates], folder: Path, refresh: bool = False
) -> tuple[HardwareSpec, tuple[Reading, ...]]:
    """`probe`, with the machine, the measuring and the cache folder given."""
    from vortex.hardware import spec_from

    remembered = folder / file_name(machine)
    if not refresh and remembered.exists():
        try:
            data = json.loads(remembered.read_text())
            return spec_from(data["spec"], str(remembered)), tuple(Reading(**row) for row in data["readings"])
        except (ValueError, KeyError, TypeError):  # SpecError is a ValueError: whatever is wrong with it, measure again
            remembered.unlink(missing_ok=True)
    spec, readings = assemble(machine, measuring(machine))
    data = {"spec": spec.model_dump(mode="json"), "readings": [vars(reading) for reading in readings]}
    with _scratch(folder, remembered.name) as made:
        made.write_text(json.dumps(data, indent=1))
        os.replace(made, remembered)
    return spec, readings


def native() -> HardwareSpec:
    """The spec of this machine."""
    return probe()[0]
