"""The native door of a GPU library through ctypes: the host code of a library, opened for one device or for none."""

from __future__ import annotations

import ctypes

from vortex.cuda_driver import Driver
from vortex.dtypes import SUMS
from vortex.errors import LibraryError, ShapeError
from vortex.gpu_candidates import Backend
from vortex.gpu_library import Entry, GpuManifest
from vortex.gpu_opened import SIGNATURES, Opened, Place, load, opened, opening
from vortex.gpu_operands import DTYPES
from vortex.native import Signatures, host_code
from vortex.operators import finishing, rebuilt

ABI = 7
PARAMETERS = (
    "*A",
    "*B",
    "*C",
    "*W",
    "M",
    "N",
    "K",
    "lda",
    "ldb",
    "ldc",
    "chunk",
    "splits",
    "raster",
    "@A",
    "@B",
    "&C",
    "&W",
    "&batch",
    "&parts",
    "&groups",
    "&window",
)
"""In the order of the numbers of runtime/gpu_door.h."""
MOST_PARAMETERS = 24
MOST_EXTRAS = 4
PER = {"column": 0, "row": 1, "element": 2}
MAP_TYPES = {"float16": 6, "bfloat16": 9, "float32": 7, "tfloat32": 11}
"""CUtensorMapDataType of a descriptor for the tensor memory accelerator."""


ITEM_BYTES = {name: bits // 8 for name, (_, bits) in DTYPES.items()}


class Plan(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_int32),
        ("splits", ctypes.c_int32),
        ("chunk", ctypes.c_int32),
        ("raster", ctypes.c_int32),
        ("seconds", ctypes.c_float),
    )


class Regions(ctypes.Structure):
    """One plan for all of C, or two: the first for `at` rows (columns), the second for what is left."""

    _fields_ = (
        ("count", ctypes.c_int32),
        ("along_n", ctypes.c_int32),
        ("at", ctypes.c_int32),
        ("plans", Plan * 2),
    )

    @classmethod
    def of(cls, *plans: Plan, row: int = 0, column: int = 0) -> Regions:
        """One plan, or two of which the second begins at a row or a column of C."""
        return cls(len(plans), int(column > 0), row + column, (Plan * 2)(*plans))


class Shape(ctypes.Structure):
    _fields_ = (
        ("m", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("transpose_a", ctypes.c_int32),
        ("transpose_b", ctypes.c_int32),
        ("alignment", ctypes.c_int32),
        ("seen", ctypes.c_float),
    )


class _Entry(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("parameter_count", ctypes.c_int32),
        ("parameters", ctypes.c_uint8 * MOST_PARAMETERS),
    )


class _Kernel(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("direct", "split", "tile_m", "tile_n", "tile_k")),
        *((name, ctypes.c_int32) for name in ("transpose_a", "transpose_b", "vector_bytes")),
        ("box_a", ctypes.c_uint32 * 2),
        ("box_b", ctypes.c_uint32 * 2),
        ("cluster", ctypes.c_int32),
        ("staying", ctypes.c_int32),
    )


class _Extra(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int32) for name in ("per", "code", "bits"))


class Filter(ctypes.Structure):
    """What a convolution is told beside its tensors: see runtime/gpu_door.h."""

    _fields_ = (
        ("is_turned", ctypes.c_int64),
        *((name, ctypes.c_int64 * 2) for name in ("stride", "before", "dilation")),
        ("groups", ctypes.c_int64),
    )


class _Setup(ctypes.Structure):
    _fields_ = (
        ("place", Place),
        ("entries", ctypes.POINTER(_Entry)),
        ("kernels", ctypes.POINTER(_Kernel)),
        *((name, ctypes.c_int32) for name in ("kernel_count", "reduce", "reduce_columns")),
        *((name, ctypes.c_int32) for name in ("dtype_code", "dtype_bits", "out_code", "out_bits", "map_type", "wide")),
        *((name, ctypes.c_int32) for name in ("is_batched", "is_grouped", "finishes", "extra_count")),
        ("extras", _Extra * MOST_EXTRAS),
        ("workspace_bytes", ctypes.c_int64),
    )


class Door:
    """Functions of a library's `door.so`. Selecting needs no device."""

    def __init__(self, code: bytes) -> None:
        pointer, number, long = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
        thing = ctypes.py_object
        signatures: Signatures = {
            **SIGNATURES,
            "vx_gpu_abi": (number, ()),
            "vx_gpu_open": opening(_Setup),
            "vx_gpu_gemm": (long, (pointer, pointer, thing, thing, thing, long, pointer, number)),
            "vx_gpu_gemm_finished": (long, (pointer, pointer, ctypes.POINTER(thing), long, pointer, number)),
            "vx_gpu_gemm_described": (long, (pointer, pointer, long, pointer)),
            "vx_gpu_gemm_planned": (long, (pointer, pointer, long, pointer, ctypes.POINTER(Regions))),
            "vx_gpu_grouped": (
                long,
                (pointer, pointer, ctypes.POINTER(long), long, long, pointer, ctypes.POINTER(Plan)),
            ),
            "vx_gpu_conv": (long, (pointer, pointer, ctypes.POINTER(Filter), pointer, ctypes.POINTER(Plan))),
            "vx_gpu_polymerizing": (None, (pointer, number)),
            "vx_gpu_select": (None, (ctypes.POINTER(Shape), long, number, ctypes.POINTER(Regions))),
            "vx_gpu_time_selection": (ctypes.c_double, (ctypes.POINTER(Shape), long, long)),
        }
        self.calls = host_code(code, signatures, "vx_gpu_abi", ABI)

    def select(self, shape: Shape, workspace: int, *, cut: bool) -> Regions:
        """What the native selector picks: one kernel, or where `cut` allows it two."""
        regions = Regions()
        self.calls.vx_gpu_select(ctypes.byref(shape), workspace, cut, ctypes.byref(regions))
        return regions

    def time_selection(self, shape: Shape, workspace: int, repeats: int) -> float:
        """Seconds of one selection, the mean of `repeats`."""
        return float(self.calls.vx_gpu_time_selection(ctypes.byref(shape), workspace, repeats)) / repeats


def _entry(entry: Entry, function: int) -> _Entry:
    unknown = [name for name in entry.args if name not in PARAMETERS]
    if unknown or len(entry.args) > MOST_PARAMETERS:
        raise LibraryError(f"the kernel {entry.symbol} takes {unknown or entry.args}, unknown here; compile it again")
    numbers = [PARAMETERS.index(name) for name in entry.args]
    parameters = (ctypes.c_uint8 * MOST_PARAMETERS)(*numbers)
    block = (ctypes.c_uint32 * 3)(*entry.block)
    return _Entry(function, block, entry.shared_bytes, len(numbers), parameters)


def _kernels(manifest: GpuManifest) -> ctypes.Array[_Kernel]:
    rows, table = [], manifest.selector
    for index, kernel in enumerate(manifest.kernels):
        v, tile = kernel.variant, kernel.variant.strategy.grid_tile
        boxes = ((ctypes.c_uint32 * 2)(*kernel.box_a), (ctypes.c_uint32 * 2)(*kernel.box_b))
        layout = (int(v.transpose_a), int(v.transpose_b), v.vector_bytes)
        cluster = v.strategy.cluster
        stays = v.strategy.backend is Backend.HOPPER and table
        staying = int(table["costs"][index][table["fields"].index("slots")]) if stays else 0
        rows.append(_Kernel(kernel.direct, kernel.split, tile.m, tile.n, tile.k, *layout, *boxes, cluster, staying))
    return (_Kernel * len(rows))(*rows)


def open_on(door: Door, manifest: GpuManifest, driver: Driver, ordinal: int, images: dict[str, bytes]) -> Opened:
    """Load the device code and give the door what it launches."""
    loaded = load(manifest, driver, ordinal, images)
    rows = [_entry(*pair) for pair in zip(manifest.entries, loaded.modules.functions, strict=True)]
    entries, kernels = (_Entry * len(rows))(*rows), _kernels(manifest)
    code, bits = DTYPES[manifest.dtype]
    store = finishing(rebuilt(manifest.operator, manifest.settings))
    tensors = store.chain.operands if store is not None else ()
    out_code, out_bits = DTYPES[store.out] if store is not None else (code, bits)
    extras = (_Extra * MOST_EXTRAS)(*(_Extra(PER[x.per], *DTYPES[x.dtype]) for x in tensors))
    uses_maps = any(kernel.box_a[0] for kernel in manifest.kernels)
    setup = _Setup(
        place=loaded.place(ABI),
        entries=entries,
        kernels=kernels,
        kernel_count=len(kernels),
        reduce=manifest.reduce,
        reduce_columns=manifest.reduce_columns,
        dtype_code=code,
        dtype_bits=bits,
        out_code=out_code,
        out_bits=out_bits,
        map_type=MAP_TYPES[manifest.dtype] if uses_maps else -1,
        wide=manifest.is_wide,
        is_batched=any("&batch" in entry.args for entry in manifest.entries),
        is_grouped=any("&groups" in entry.args for entry in manifest.entries),
        finishes=store is not None,
        extra_count=len(tensors),
        extras=extras,
        workspace_bytes=manifest.workspace_bytes,
    )
    return opened(door.calls, "vx_gpu_open", loaded, setup, (entries, kernels))


def alignment(dtype: str, address: int, stride: int, length: int) -> int:
    """The alignment class of rows `stride` elements apart and `length` long: 16, 8, 4, 2 or 1 bytes."""
    item = ITEM_BYTES[dtype]
    bits = 16 | address | stride * item | length * item
    return bits & -bits


def shape_of(
    dtype: str,
    m: int,
    n: int,
    k: int,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    lda: int = 0,
    ldb: int = 0,
    ldc: int = 0,
    batch: int = 1,
) -> Shape:
    """The shape of a call as the selector sees it; leading dimensions in elements, dense if 0; addresses aligned."""
    if min(m, n, k, batch) < 1:
        raise ShapeError(f"m={m}, n={n}, k={k}, batch={batch}: expected extents of at least 1")
    rows = ((m if transpose_a else k, lda), (k if transpose_b else n, ldb), (n, ldc))
    classes = [alignment(dtype, 0, stride or length, length) for length, stride in rows]
    if sums := SUMS.get(dtype):  # no kernel stores more than four sums at a time
        wide = alignment(sums, 0, ldc or n, n)
        classes[2] = 16 if wide == 16 else wide * ITEM_BYTES[dtype] // ITEM_BYTES[sums]
    least = min(classes)
    return Shape(m, n, k, batch, int(transpose_a), int(transpose_b), least, 1.0)
