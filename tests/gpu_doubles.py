"""Doubles of what a GPU machine has: the driver, a library without real kernels, tensors in "device" memory.

The memory is the host's. A launch computes nothing unless a test asks for `products`, which reads a kernel's parameters
as its manifest names them and multiplies with NumPy: the door must have packed every pointer, extent and stride right.
"""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from vortex.candidates import Tile
from vortex.codegen.gpu_link import DOOR
from vortex.codegen.link import c_compiler, link
from vortex.gpu_candidates import Backend, BlockStrategy, Variant
from vortex.gpu_library import Entry, GpuLibrary, GpuManifest, Kernel
from vortex.gpu_operands import CUDA, DTYPES, DLTensor

HERE = Path(__file__).parent / "stub_driver"
EXCHANGE = b"dlpack_exchange_api"  # a capsule keeps a pointer to its name, no copy
TYPES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16)}


class Description(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_int)
        for name in ("devices", "major", "minor", "sms", "shared_per_block", "driver_version", "ptx_major", "ptx_minor")
    )


class Launch(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char * 256),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("parameters", ctypes.c_void_p * 24),
    )


class Map(ctypes.Structure):
    _fields_ = (
        ("extents", ctypes.c_uint64 * 2),
        ("stride", ctypes.c_uint64),
        ("box", ctypes.c_uint32 * 2),
        ("address", ctypes.c_void_p),
        ("type", ctypes.c_int),
        ("swizzle", ctypes.c_int),
    )


ON_LAUNCH = ctypes.CFUNCTYPE(None, ctypes.POINTER(Launch))


class StubDriver:
    """The fake libcuda.so.1: once loaded, opening that name finds it."""

    def __init__(self, path: Path) -> None:
        self.calls = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        self.calls.stub_launch.restype = ctypes.POINTER(Launch)
        self.calls.stub_context.restype = ctypes.c_void_p
        self.calls.stub_exchange.restype = self.calls.stub_refusing_exchange.restype = ctypes.c_void_p
        self.calls.stub_exchange.argtypes = self.calls.stub_set_stream.argtypes = (ctypes.c_void_p,)
        self.calls.stub_advance.argtypes = (ctypes.c_double,)
        self._callback: Any = None

    def reset(self) -> None:
        self.calls.stub_reset()
        self._callback = None

    def describe(self, **changes: int) -> None:
        figures = {"devices": 1, "major": 8, "minor": 0, "sms": 108, "shared_per_block": 166912}
        figures |= {"driver_version": 13000, "ptx_major": 9, "ptx_minor": 0} | changes
        self.calls.stub_describe(ctypes.byref(Description(**figures)))

    def fail(self, name: str, status: int) -> None:
        self.calls.stub_fail(name.encode(), status)

    def on_launch(self, callback: Any) -> None:
        self._callback = ON_LAUNCH(lambda launch: callback(launch.contents))
        self.calls.stub_on_launch(self._callback)

    @property
    def launches(self) -> list[Launch]:
        return [self.calls.stub_launch(index).contents for index in range(self.calls.stub_launch_count())]


def build_stub(folder: Path) -> Path:
    """Compile the fake driver under the name that the real one has."""
    import tvm_ffi

    path = folder / "libcuda.so.1"
    command = [c_compiler(), "-O2", "-std=gnu11", "-D_GNU_SOURCE", "-fPIC", "-shared", "-Wl,-soname,libcuda.so.1"]
    command += [f"-I{tvm_ffi.libinfo.find_include_path()}", "-o", str(path), str(HERE / "stub_cuda.c")]
    subprocess.run(command, check=True)
    return path


def cubin(symbols: Sequence[str], arch: int = 80) -> bytes:
    """The least that passes for machine code: an ELF header, one string table, its section header."""
    text = b"\0" + b"".join(symbol.encode() + b"\0" for symbol in symbols)
    header = bytearray(64)
    header[:16] = b"\x7fELF\x02\x01\x01\x41\x08" + bytes(7)
    struct.pack_into("<HHI", header, 16, 2, 190, 1)
    struct.pack_into("<Q", header, 40, 64 + len(text))
    struct.pack_into("<I", header, 48, arch << 8)
    struct.pack_into("<HHHHHH", header, 52, 64, 0, 0, 64, 1, 0)
    section = bytearray(64)
    struct.pack_into("<I", section, 4, 3)
    struct.pack_into("<QQ", section, 24, 64, len(text))
    return bytes(header) + text + bytes(section)


ARGS = ("*A", "*B", "*C", "M", "N", "K", "lda", "ldb", "ldc", "raster")
SPLIT_ARGS = ("*A", "*B", "*W", "M", "N", "K", "lda", "ldb", "chunk")
REDUCE_ARGS = ("*W", "*C", "M", "N", "ldc", "splits")
MAP_ARGS = ("@A", "@B", "*C", "M", "N", "K", "ldc")


def strategy(dtype: str = "float16", backend: Backend = Backend.TENSOR_CORE) -> BlockStrategy:
    return BlockStrategy(backend, dtype, Tile(32, 32, 16), Tile(64, 64, 32), Tile(16, 8, 16), 3)


def make_library(
    folder: Path,
    dtype: str = "float16",
    *,
    arch: str = "sm_80",
    wide: bool = True,
    maps: bool = False,
    shared: int = 65536,
) -> GpuLibrary:
    """A library of kernels that exist by name: all layouts, two alignments, half of them with a split entry."""
    vectors = (16, 4 if dtype == "float32" else 2)
    entries: list[Entry] = []
    kernels: list[Kernel] = []
    ptx = "" if arch.endswith("a") else f"compute_{arch[3:]}"
    for vector in vectors:
        for layout in range(4):
            variant = Variant(strategy(dtype), bool(layout & 1), bool(layout & 2), vector)
            uses_maps = maps and vector == 16
            args = MAP_ARGS if uses_maps else ARGS
            entries.append(Entry(variant.name, "k0.cubin", args, (32, 4, 1), shared, 128, 0, 0))
            direct, split = len(entries) - 1, -1
            if not uses_maps:
                entries.append(Entry(f"{variant.name}_split", "k1.cubin", SPLIT_ARGS, (128, 1, 1), 1024, 128, 0, 0))
                split = len(entries) - 1
            kernels.append(
                Kernel(variant, direct, split, (64, 64) if uses_maps else (0, 0), (64, 32) if uses_maps else (0, 0))
            )
    entries.append(Entry("reduce_float16", "k1.cubin", REDUCE_ARGS, (256, 1, 1), 0, 20, 0, 0))
    table = folder / "table.c"
    rows = ", ".join(
        f"{{{int(v.transpose_a)}, {int(v.transpose_b)}, {v.vector_bytes}, 32, {int(kernel.split >= 0)}}}"
        for kernel in kernels
        for v in (kernel.variant,)
    )
    table.write_text(
        f"#include <stdint.h>\nconst int32_t stub_kernels[][5] = {{{rows}}};\n"
        f"const int32_t stub_kernel_count = {len(kernels)};\n"
    )
    import tvm_ffi

    door = folder / "door.so"
    link(door, [], [table, HERE / "choose.c", *DOOR], [Path(tvm_ffi.libinfo.find_include_path())])
    number = int(arch[3:].rstrip("a"))
    parts = {"door.so": door.read_bytes()}
    for name in ("k0.cubin", "k1.cubin"):
        symbols = [entry.symbol for entry in entries if entry.file == name]
        parts[name] = cubin(symbols, number)
        if ptx:
            lines = [f".version 8.0\n.target {arch}", *(f".visible .entry {symbol}()" for symbol in symbols)]
            parts[name.replace("cubin", "ptx")] = "\n".join(lines).encode()
    manifest = GpuManifest(
        operator="gemm",
        settings={"dtype": dtype},
        dtype=dtype,
        hardware={"name": "stub-gpu", "shared_per_block_bytes": 166912},
        arch=arch,
        ptx=ptx,
        basis="computed",
        admitted=(),
        kernels=tuple(kernels),
        entries=tuple(entries),
        reduce=len(entries) - 1,
        reduce_columns=1024,
        is_wide=wide,
        workspace_bytes=1 << 20,
        selector={},
        versions={},
        offline_seconds={},
    )
    return GpuLibrary(manifest, parts)


def products(library: GpuLibrary) -> Any:
    """A callback that computes each launch with NumPy in memory, from the kernel's parameters alone."""
    manifest = library.manifest
    by_name = {entry.symbol: index for index, entry in enumerate(manifest.entries)}
    item = DTYPES[manifest.dtype][1] // 8

    def array(address: int, rows: int, columns: int, stride: int, dtype: Any = TYPES[manifest.dtype]) -> Any:
        size = ((rows - 1) * stride + columns) * dtype.itemsize
        flat = np.frombuffer((ctypes.c_char * size).from_address(address), dtype)
        return np.lib.stride_tricks.as_strided(flat, (rows, columns), (stride * dtype.itemsize, dtype.itemsize))

    def run(launch: Launch) -> None:
        index = by_name[launch.name.decode()]
        entry = manifest.entries[index]
        values: dict[str, Any] = {}
        for name, address in zip(entry.args, launch.parameters, strict=False):
            kind = ctypes.c_void_p if name[0] == "*" else Map if name[0] == "@" else ctypes.c_int32
            found = kind.from_address(address)
            values[name] = found if name[0] == "@" else found.value
        if index == manifest.reduce:
            m, n, splits = values["M"], values["N"], values["splits"]
            partial = array(values["*W"], splits * m, n, n, np.dtype(np.float32)).reshape(splits, m, n)
            array(values["*C"], m, n, values["ldc"])[:] = partial.sum(axis=0)
            return
        kernel = next(kernel for kernel in manifest.kernels if index in (kernel.direct, kernel.split))
        m, n, k = values["M"], values["N"], values["K"]
        strategy = kernel.variant.strategy
        tile = strategy.grid_tile
        assert launch.grid[0] == -(-m // tile.m) * -(-n // tile.n) * strategy.cluster, "the grid covers C once"
        turned_a, turned_b = kernel.variant.transpose_a, kernel.variant.transpose_b
        if "@A" in values:
            map_a, map_b = values["@A"], values["@B"]
            values |= {
                "*A": map_a.address,
                "lda": map_a.stride // item,
                "*B": map_b.address,
                "ldb": map_b.stride // item,
            }
            assert tuple(map_a.extents) == ((m, k) if turned_a else (k, m))
            assert tuple(map_b.extents) == ((k, n) if turned_b else (n, k))
        a = array(values["*A"], *((k, m) if turned_a else (m, k)), values["lda"]).astype(np.float32)
        b = array(values["*B"], *((n, k) if turned_b else (k, n)), values["ldb"]).astype(np.float32)
        a, b = a.T if turned_a else a, b.T if turned_b else b
        if "*W" in values:
            splits, chunk = launch.grid[2], values["chunk"]
            assert chunk % tile.k == 0 and (splits - 1) * chunk < k <= splits * chunk, "parts cover k"
            partial = array(values["*W"], splits * m, n, n, np.dtype(np.float32)).reshape(splits, m, n)
            for part in range(splits):
                partial[part] = a[:, part * chunk : (part + 1) * chunk] @ b[part * chunk : (part + 1) * chunk]
        else:
            array(values["*C"], m, n, values["ldc"])[:] = a @ b

    return run


class Managed(ctypes.Structure):
    """DLManagedTensor without a deleter: the memory belongs to the test."""

    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


@dataclass(eq=False, repr=False)
class DLPackTensor:
    """A tensor that speaks DLPack alone; `device` is what it claims."""

    array: Any
    device_id: int = 0
    kind: int = CUDA
    shift: int = 0
    """Added to the address that is told."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    def fill(self, tensor: DLTensor) -> None:
        rank, item = self.array.ndim, self.array.itemsize
        self._extents = (ctypes.c_int64 * rank)(*self.array.shape)
        self._steps = (ctypes.c_int64 * rank)(*(step // item for step in self.array.strides))
        code = {"f": 2, "i": 0, "u": 1}[self.array.dtype.kind]
        values = (self.array.ctypes.data + self.shift, self.kind, self.device_id, rank, code, 8 * item, 1)
        for (name, *_), value in zip(DLTensor._fields_, values, strict=False):
            setattr(tensor, name, value)
        tensor.shape, tensor.strides, tensor.offset = self._extents, self._steps, 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, self.device_id

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        assert stream == -1, "a call must not synchronize"
        self._managed = Managed()
        self.fill(self._managed.tensor)
        return _new_capsule(ctypes.addressof(self._managed), b"dltensor", None)


@dataclass(eq=False, repr=False)
class InterfaceTensor:
    """A tensor that speaks `__cuda_array_interface__` alone."""

    array: Any
    read_only: bool = False
    stream: int | None = None

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        a = self.array
        strides = None if a.flags.c_contiguous else a.strides
        data = (a.ctypes.data, self.read_only)
        return {
            "shape": a.shape,
            "typestr": a.dtype.str,
            "data": data,
            "strides": strides,
            "stream": self.stream,
            "version": 3,
        }


class ExchangeTensor(DLPackTensor):
    """A tensor whose type has DLPack's exchange API and an allocator, as torch's has; `stream` is its current one."""

    stream = 0
    allocated: ClassVar[list[Any]] = []

    @property
    def requires_grad(self) -> bool:
        return False

    def new_empty(self, shape: tuple[int, ...], dtype: Any = None) -> ExchangeTensor:
        array = np.full(shape, 7, self.array.dtype if dtype is None else np.uint8)
        made = ExchangeTensor(aligned(array), self.device_id)
        ExchangeTensor.allocated.append(made)
        return made


def _read(thing: Any, out: Any) -> int:
    thing.fill(DLTensor.from_address(out))
    return 0


def _stream(kind: int, ordinal: int, out: Any) -> int:
    ctypes.c_void_p.from_address(out).value = ExchangeTensor.stream
    return 0


class ExchangeApi(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("own", ctypes.c_void_p),
        ("wrap", ctypes.c_void_p),
        ("read", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)),
        ("stream", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.c_void_p)),
    )


_API = ExchangeApi(1, 3, None, None, None, None, ExchangeApi._fields_[6][1](_read), ExchangeApi._fields_[7][1](_stream))
ExchangeTensor.__dlpack_c_exchange_api__ = _new_capsule(  # type: ignore[attr-defined]  # read from the type, as torch's is
    ctypes.addressof(_API), EXCHANGE, None
)


def refusing_exchange(driver: StubDriver) -> Any:
    """An exchange API that cannot describe any tensor."""
    return _new_capsule(driver.calls.stub_refusing_exchange(), EXCHANGE, None)


def aligned(array: Any, offset: int = 0) -> Any:
    """A copy that starts `offset` bytes after a multiple of 256."""
    raw = np.zeros(array.nbytes + 512, np.uint8)
    start = -raw.ctypes.data % 256 + offset
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def in_child(program: str, *arguments: str, timeout: float = 60) -> str:
    """What a program prints in a fresh interpreter, where no driver has been loaded."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
