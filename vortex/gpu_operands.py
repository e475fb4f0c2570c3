"""CUDA operands as Python sees them: torch, CuPy, anything with DLPack or `__cuda_array_interface__`."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from vortex.errors import DeviceError, DtypeError, OperandError, ShapeError
from vortex.operands import (
    INNER_DIFFERS,
    MISALIGNED,
    NO_PLAN,
    ODD_STRIDES,
    OVERLAPS,
    WRONG_OUT,
    WRONG_RANK,
    Refusal,
)

REASONS: tuple[Refusal, ...] = (
    (OperandError, "is no tensor", "pass a torch or CuPy tensor, or anything with __dlpack__ in device memory"),
    WRONG_RANK,
    (DtypeError, "has the wrong dtype", "this library computes in {dtype}; cast the operand"),
    (DeviceError, "is not in the memory of a CUDA device", "copy it to {device}"),
    (DeviceError, "is on another device ({detail})", "copy it to {device}, or load the library with device={detail}"),
    ODD_STRIDES,
    MISALIGNED,
    INNER_DIFFERS,
    WRONG_OUT,
    OVERLAPS,
    (ShapeError, "is larger than the kernels can address", "cut it into parts of fewer than 2^31 elements"),
    (OperandError, "needs a workspace of {detail} bytes", "pass workspace= of at least that size"),
    NO_PLAN,
    (OperandError, "cannot be read", "pass a dense tensor"),
    (DeviceError, "could not be computed: {cuda}", "check the device and earlier asynchronous errors"),
    (OperandError, "is on one stream too many", "call from fewer streams, or pass workspace="),
    (ShapeError, "is laid out as no kernel of the library takes it", "make a contiguous copy"),
    (ShapeError, "does not fit the output", "pass [n] per column, [m] per row, [m, n] per element"),
    (ShapeError, "has other batch axes", "pass axes of the same extents, or of 1 where all products share an operand"),
    (
        ShapeError,
        "does not fit the groups",
        "pass in rows= whole numbers from 0 on, one for each of b, that are a's rows in sum",
    ),
    (
        ShapeError,
        "has channels that are not contiguous",
        "pass w.contiguous(memory_format=torch.channels_last), made once",
    ),
    (ShapeError, "has not the axes that are asked for", "name each axis once, counted from the front or the back"),
    (ShapeError, "has no element to take the maximum of", "reduce over axes that are not empty"),
    (ShapeError, "is not contiguous", "leave it out, or allocate it contiguous"),
)
"""In the order of the numbers of runtime/gpu_refusals.h."""
ON_HOST, ON_OTHER, WRONG_SHAPE, NEEDS_WORKSPACE, CUDA_ERROR, WRONG_EXTRA, WRONG_AXES = 4, 5, 9, 12, 15, 18, 22

CUDA, CUDA_MANAGED, CPU = 2, 13, 1
"""DLPack's device types."""
INT, UINT, FLOAT, BFLOAT = 0, 1, 2, 4
"""DLPack's type codes."""
DTYPES = {"float32": (FLOAT, 32), "tfloat32": (FLOAT, 32), "float16": (FLOAT, 16), "bfloat16": (BFLOAT, 16)}
DTYPES |= {"int8": (INT, 8), "uint8": (UINT, 8), "int32": (INT, 32)}
"""How the operands of a library are stored."""
_CODES = {"i": INT, "u": UINT, "f": FLOAT}


class DLTensor(ctypes.Structure):
    """dlpack.h's description of a tensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def exchange_api(kind: type) -> int:
    """The address of a type's DLPack exchange API, 0 if it has none (torch has one since 2.10)."""
    capsule = getattr(kind, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return 0
    address = capsule if isinstance(capsule, int) else _capsule_pointer(capsule, b"dlpack_exchange_api")
    major = ctypes.c_uint32.from_address(address).value
    return int(address) if major == 1 else 0


@dataclass(frozen=True)
class Described:
    """An operand's description, and what must live as long as it is read."""

    tensor: int
    keep: Any


def room_of(tensor: DLTensor) -> tuple[int, int]:
    """Where memory that is lent as a workspace starts, and its bytes. OperandError where it is not aligned."""
    start = (tensor.data or 0) + tensor.offset
    if start % 16:
        raise OperandError("workspace does not start at a multiple of 16 bytes; pass an aligned one")
    return start, tensor.bits // 8 * prod(tensor.shape[: tensor.rank])


def describe(operand: Any, name: str) -> Described:
    """Read an operand that has no exchange API."""
    if hasattr(operand, "data_ptr"):
        return describe_torch(operand)
    if hasattr(operand, "__dlpack__"):
        return _describe_dlpack(operand, name)
    if hasattr(operand, "__cuda_array_interface__"):
        return _describe_interface(operand, name)
    raise OperandError(f"{name} is a {type(operand).__name__}; {REASONS[0][2]}")


def described_tensor(
    data: int, shape: Sequence[int], strides: Sequence[int], dtype: tuple[int, int], device: tuple[int, int]
) -> Described:
    """A description of our own; strides in elements."""
    rank = len(shape)
    extents, steps = (ctypes.c_int64 * rank)(*shape), (ctypes.c_int64 * rank)(*strides)
    tensor = DLTensor(data, *device, rank, *dtype, 1, extents, steps, 0)
    return Described(ctypes.addressof(tensor), (tensor, extents, steps))


def describe_torch(operand: Any) -> Described:
    dtype = str(operand.dtype).rpartition(".")[2]
    where = operand.device
    device = (CUDA, operand.get_device()) if where.type == "cuda" else (CPU, 0)
    known = DTYPES.get(dtype, (INT, 8 * operand.element_size()))
    return described_tensor(operand.data_ptr(), tuple(operand.shape), operand.stride(), known, device)


def _describe_dlpack(operand: Any, name: str) -> Described:
    kind, _ = operand.__dlpack_device__()
    if kind not in (CUDA, CUDA_MANAGED):
        raise DeviceError(f"{name} ({described(operand)}) is not in the memory of a CUDA device; copy it there")
    try:
        capsule = operand.__dlpack__(stream=-1)  # no synchronization: the kernel runs on the caller's stream
    except (BufferError, TypeError, ValueError, RuntimeError) as error:
        raise DtypeError(f"{name} ({described(operand)}) cannot be read ({error}); pass a dense tensor") from error
    return Described(_capsule_pointer(capsule, b"dltensor") or 0, capsule)


def _describe_interface(operand: Any, name: str) -> Described:
    table = operand.__cuda_array_interface__
    address, is_read_only = table["data"]
    if is_read_only and name == "out":
        raise OperandError("out is read-only; expected a writable array; pass a copy")
    code, item = table["typestr"][1], int(table["typestr"][2:])
    shape, steps = table["shape"], table.get("strides")
    if steps is None:
        strides = [1] * len(shape)
        for axis in range(len(shape) - 1, 0, -1):
            strides[axis - 1] = strides[axis] * shape[axis]
    else:
        strides = [step // item if step % item == 0 else -1 for step in steps]
    owner = getattr(operand, "device", None)
    device = int(getattr(owner, "id", 0))
    return described_tensor(address or 0, shape, strides, (_CODES.get(code, INT), 8 * item), (CUDA, device))


def refuse_gradients(operands: Sequence[Any], names: Sequence[str]) -> None:
    """The one thing the native door cannot see."""
    for name, operand in zip(names, operands, strict=True):
        if getattr(operand, "requires_grad", False):
            raise OperandError(f"{name} requires grad; expected a plain tensor; pass {name}.detach()")


def stream_handle(stream: Any) -> int:
    """The driver's handle of a stream: a number, a torch or CuPy stream, or anything with `__cuda_stream__`."""
    if isinstance(stream, int):
        return stream
    for attribute in ("cuda_stream", "ptr"):
        if isinstance(handle := getattr(stream, attribute, None), int):
            return handle
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    raise OperandError(f"stream is a {type(stream).__name__}; pass its handle, or a torch or CuPy stream")


def current_stream(operand: Any, device: int) -> int:
    """The stream that the framework of an operand works on now; the legacy default stream where none can be asked."""
    framework = type(operand).__module__.partition(".")[0]
    module = sys.modules.get(framework)
    if framework == "torch" or hasattr(operand, "data_ptr"):
        return int(sys.modules["torch"].cuda.current_stream(device).cuda_stream)
    if framework == "cupy":
        return int(module.cuda.get_current_stream().ptr)  # type: ignore[union-attr]  # it is imported: operand is its
    table = getattr(operand, "__cuda_array_interface__", None) or {}
    return int(table.get("stream") or 0)


def empty(operand: Any, shape: tuple[int, ...], dtype: str | None = None) -> Any:
    """An uninitialized tensor of the kind, device and, if no other is named, dtype of an operand."""
    module = sys.modules.get(type(operand).__module__.partition(".")[0])
    if hasattr(operand, "new_empty"):
        return operand.new_empty(shape) if dtype is None else operand.new_empty(shape, dtype=getattr(module, dtype))
    if module is not None and hasattr(module, "empty") and hasattr(operand, "device"):
        with operand.device:
            return module.empty(shape, dtype=operand.dtype if dtype is None else dtype)
    raise OperandError(f"a {type(operand).__name__} cannot say how to allocate more; pass out= and workspace=")


def described(operand: Any) -> str:
    shape, dtype = tuple(getattr(operand, "shape", ())), getattr(operand, "dtype", None)
    return f"{type(operand).__name__} {shape} {dtype}" if dtype is not None else type(operand).__name__
