"""Compile emitted sources for the emulated machine, keep what was compiled, and run grids.

`run` copies operands between guard pages, launches, checks that nothing beside them was written, and copies back.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.translation import Kernel, translate_source
from vortex.affinity import cpu_flags

HUGE = 1 << 30
"""Bytes of an operand beyond which what lies between its rows is neither poisoned nor checked."""
TIMINGS = ("eager", "lazy", "random")  # when asynchronous copies and products happen
MACHINE = Path(__file__).parent / "machine"
CACHE = Path(__file__).parents[2] / "build" / "emulator"
FLAGS = (
    "-std=c++17",
    "-march=native",
    "-fPIC",
    "-shared",
    "-w",
    "-ffp-contract=off",
    "-I",
    str(MACHINE),
    "-I",
    str(MACHINE / "include"),
)
# A misaligned vector access must trap; aliasing is CUDA's, where emitted code reads floats as words.
KERNEL_FLAGS = ("-O1", "-fno-strict-aliasing", "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")
# A call before every access, to functions that the machine brings in place of the sanitizer's; vectors stay whole.
TRACED_FLAGS = ("-O1", "-fno-strict-aliasing", "-fsanitize=thread", "-fno-tree-sra", "-nodefaultlibs")


class EmulationError(AssertionError):
    """A kernel did what a GPU would punish or leave undefined."""


@dataclass(frozen=True)
class TensorMap:
    """A two-dimensional tensor map over an operand whose rows are contiguous."""

    operand: NDArray[np.generic]
    box: tuple[int, int]  # innermost extent first
    swizzle_bytes: int = 128


@dataclass(frozen=True)
class Workspace:
    """Memory lent to a kernel, which starts at a multiple of so many bytes, however badly the operands lie."""

    memory: NDArray[np.generic]
    alignment: int = 16


@dataclass(frozen=True)
class Record:
    """A structure of 64-bit words that a kernel takes by value: addresses and numbers."""

    words: tuple[Workspace | int, ...]


Argument = NDArray[np.generic] | int | np.integer | TensorMap | Workspace | Record


@dataclass(frozen=True)
class Statistics:
    """What the grid did, counted per warp but for copies (per thread) and barriers (per block)."""

    barriers: int
    copies: int
    ldmatrix: int
    mma: int
    shuffles: int
    tensor_loads: int
    wgmma: int
    ldmatrix_conflicts: int  # wavefronts beyond the first of each eight rows
    shared_accesses: int  # wavefronts that loads, stores and copies need at least; where traced, like the next
    shared_conflicts: int  # wavefronts beyond those


class Index(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in "xyz"]


class Launch(ctypes.Structure):
    _fields_ = [("grid", Index), ("block", Index)] + [
        (name, ctypes.c_uint)
        for name in ("static_bytes", "dynamic_bytes", "dynamic_alignment", "timing", "seed", "traced", "cluster")
    ]


class Map(ctypes.Structure):
    """A tensor map as device.h lays it out."""

    _fields_ = [
        ("base", ctypes.c_void_p),
        ("extent", ctypes.c_int64 * 2),
        ("row_bytes", ctypes.c_int64),
        ("box", ctypes.c_int32 * 2),
        ("element_bytes", ctypes.c_int32),
        ("swizzle_bytes", ctypes.c_int32),
        ("reserved", ctypes.c_char * 72),
    ]


@dataclass(frozen=True)
class Compiled:
    library: ctypes.CDLL
    kernels: dict[str, Kernel]


def build(key: str, inputs: Sequence[Path] | str, flags: Sequence[str]) -> Path:
    """A shared object out of files or a text, from the cache where it is there."""
    target = CACHE / f"{key}.so"
    if target.exists():
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    compiler = shutil.which("g++")
    if compiler is None:
        raise RuntimeError("the emulator needs g++ on PATH")
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:  # others may compile the same at the same time
        if isinstance(inputs, str):
            text = Path(folder) / "kernels.cpp"
            text.write_text(inputs)
            inputs = [text]
        made = Path(folder) / "made.so"
        command = [compiler, *FLAGS, *flags, "-o", str(made), *map(str, inputs)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EmulationError(f"the emulator's compiler refuses:\n{done.stderr[:4000]}")
        made.rename(target)
    return target


def digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:24]


@cache
def machine_key() -> str:
    """Of everything that compiled kernels depend on beside their own text."""
    return digest(*(path.read_text() for path in sorted(MACHINE.rglob("*.*"))), *FLAGS, *sorted(cpu_flags()))


@cache
def machine() -> ctypes.CDLL:
    """The emulated machine itself, whose symbols the kernels link against."""
    path = build(f"machine-{machine_key()}", sorted(MACHINE.glob("*.cpp")), ("-O3",))
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    library.emulator_map.restype = ctypes.c_void_p
    library.emulator_map.argtypes = (ctypes.c_size_t, ctypes.c_int, ctypes.c_size_t, ctypes.c_char_p)
    library.emulator_overrun.restype = ctypes.c_char_p
    library.emulator_message.restype = ctypes.c_char_p
    library.emulator_statistics.restype = ctypes.POINTER(ctypes.c_int64)
    return library


@cache
def compile_source(source: str, traced: bool = False) -> Compiled:
    """The kernels of one source, compiled once ever."""
    translation = translate_source(source)
    flags = TRACED_FLAGS if traced else KERNEL_FLAGS
    path = build(f"kernels-{digest(machine_key(), translation.text, *flags)}", translation.text, flags)
    machine()
    return Compiled(ctypes.CDLL(str(path)), translation.kernels)


def compile_sources(sources: Iterable[str], workers: int = 2) -> None:
    """Compile many sources at once, so that `run` finds them in the cache."""
    machine()
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(compile_source, sources))


def span(array: NDArray[np.generic]) -> int:
    """Bytes from the first element to the end of the last."""
    if array.size == 0:
        return 0
    if any(stride < 0 for stride in array.strides):
        raise ValueError("operands run forwards")
    return (
        sum((extent - 1) * stride for extent, stride in zip(array.shape, array.strides, strict=True)) + array.itemsize
    )


def view(address: int, array: NDArray[np.generic]) -> NDArray[np.generic]:
    """An array of the same shape and strides over memory of the emulated machine."""
    memory = (ctypes.c_char * max(span(array), 1)).from_address(address)
    return np.ndarray(array.shape, array.dtype, memory, strides=array.strides)


def run(
    source: str,
    kernel: str,
    grid: Sequence[int],
    block: Sequence[int],
    shared: int,
    args: Sequence[Argument],
    *,
    timing: str = "random",
    seed: int = 0,
    alignment: int = 0,
    traced: bool = False,
) -> Statistics:
    """Run one grid. Arrays are operands, read and written in place; integers are int32 unless they say otherwise.

    Arrays keep their strides: what lies between their rows must stay as it is (NaN on the device). Each operand ends
    at a page that nobody may touch if `timing` is "eager", begins behind one if it is "lazy", and either if "random".
    `traced` runs are slow: they look at every access to shared memory, count bank conflicts and refuse races.
    With `alignment` an operand at the front lies at a multiple of it and of nothing more.
    """
    compiled = compile_source(source, traced)
    about = compiled.kernels[kernel]
    extents = [*grid, 1, 1][:3], [*block, 1, 1][:3]
    if about.most_threads is not None and np.prod(extents[1]) > about.most_threads:
        raise EmulationError(f"{kernel}: launched with {extents[1]}, bounded to {about.most_threads} threads")
    if extents[0][0] % about.cluster:
        raise EmulationError(f"{kernel}: {extents[0][0]} blocks are no whole clusters of {about.cluster}")
    random = np.random.default_rng(seed)
    placed: dict[int, tuple[NDArray[np.generic], NDArray[np.generic], int]] = {}

    def place(array: NDArray[np.generic], offset: int) -> int:
        if id(array) not in placed:
            front = timing == "lazy" or (timing == "random" and bool(random.integers(2)))
            name = f"operand {len(placed)}".encode()
            address = machine().emulator_map(span(array), front, offset, name)
            copy = view(address, array)
            copy[...] = array
            placed[id(array)] = (array, copy, address)
        return placed[id(array)][2]

    values: list[Any] = []
    for argument in args:
        if isinstance(argument, np.ndarray):
            values.append(ctypes.c_void_p(place(argument, alignment)))
        elif isinstance(argument, Workspace):
            values.append(ctypes.c_void_p(place(argument.memory, argument.alignment)))
        elif isinstance(argument, Record):
            words = [place(x.memory, x.alignment) if isinstance(x, Workspace) else x for x in argument.words]
            values.append((ctypes.c_int64 * len(words))(*words))
        elif isinstance(argument, TensorMap):
            values.append(tensor_map(argument, place(argument.operand, alignment)))
        elif isinstance(argument, np.int64):
            values.append(ctypes.c_int64(int(argument)))
        elif isinstance(argument, np.floating | float):
            values.append(ctypes.c_float(float(argument)))
        else:
            values.append(ctypes.c_int32(int(argument)))
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    launch = Launch(
        Index(*extents[0]),
        Index(*extents[1]),
        about.static_bytes,
        shared,
        about.dynamic_alignment,
        TIMINGS.index(timing),
        seed,
        traced,
        about.cluster,
    )
    try:
        failed = compiled.library[f"emulate_{kernel}"](ctypes.byref(launch), pointers)
        if failed:
            raise EmulationError(f"{kernel}, {timing}: {machine().emulator_message().decode()}")
        overrun = machine().emulator_overrun()
        if overrun is not None:
            raise EmulationError(f"{kernel}, {timing}: a write beside {overrun.decode()}")
        for array, copy, _ in placed.values():
            if array.flags.writeable:
                array[...] = copy
            elif array.tobytes() != copy.tobytes():
                raise EmulationError(f"{kernel}, {timing}: a write to an operand that may only be read")
            check_gaps(kernel, timing, copy)
        counts = machine().emulator_statistics()
        return Statistics(*(counts[i] for i in range(len(fields(Statistics)))))
    finally:
        machine().emulator_unmap()


def tensor_map(argument: TensorMap, address: int) -> Map:
    array = argument.operand
    if array.ndim != 2 or array.strides[1] != array.itemsize:
        raise ValueError("a tensor map needs contiguous rows")
    made = aligned(Map, 64)
    made.base = address
    made.extent[:] = (array.shape[1], array.shape[0])
    made.row_bytes = array.strides[0]
    made.box[:] = argument.box
    made.element_bytes = array.itemsize
    made.swizzle_bytes = argument.swizzle_bytes
    return made


def aligned(structure: type[Map], alignment: int) -> Map:
    memory = ctypes.create_string_buffer(ctypes.sizeof(structure) + alignment)
    offset = -ctypes.addressof(memory) % alignment
    return structure.from_buffer(memory, offset)


def check_gaps(kernel: str, timing: str, copy: NDArray[np.generic]) -> None:
    """What lies between the rows of an operand was poisoned and must still be."""
    if copy.ndim != 2 or copy.size == 0 or copy.strides[0] == copy.shape[1] * copy.itemsize or span(copy) > HUGE:
        return
    rows, row_bytes = copy.shape[0] - 1, copy.shape[1] * copy.itemsize
    gaps = np.ndarray((rows, copy.strides[0] - row_bytes), np.uint8, copy.base, row_bytes, (copy.strides[0], 1))
    if (gaps != 0xFF).any():
        raise EmulationError(f"{kernel}, {timing}: a write between the rows of an operand")
