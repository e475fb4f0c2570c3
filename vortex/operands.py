"""Operands of a call as Python sees them: what is refused before the native door, and how its refusals read."""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from operator import index
from typing import Any

import numpy as np

from vortex.errors import DeviceError, DtypeError, OperandError, ShapeError, VortexError
from vortex.native import light_tvm_ffi

TRANSPOSE_A, TRANSPOSE_B, ACCUMULATE, PACKED, FOLDED, LAPS = 1, 2, 4, 8, 16, 32
"""Flags of runtime/products.h."""
ZERO = 256
"""The zero point of A counts so much among them."""
OPERANDS = ("a", "b", "out")
Refusal = tuple[type[VortexError], str, str]
"""The exception, what is wrong with the operand, and what to do."""
WRONG_RANK: Refusal = (
    ShapeError,
    "has the wrong rank",
    "pass a matrix of two dimensions; reshape or index the operand",
)
MISALIGNED: Refusal = (OperandError, "is not aligned to its elements", "make an aligned copy")
INNER_DIFFERS: Refusal = (ShapeError, "has another inner extent (k) than a", "check the shapes and the transpose flags")
WRONG_OUT: Refusal = (ShapeError, "is not m x n", "allocate it with the rows of a and the columns of b")
OVERLAPS: Refusal = (OperandError, "overlaps out", "write to memory of its own")
NO_PLAN: Refusal = (OperandError, "cannot be served by the given plan", "take a plan from plans() for these operands")
ODD_STRIDES: Refusal = (
    ShapeError,
    "has strides that no matrix has (negative, broadcast, or neither rows nor columns contiguous)",
    "make a contiguous copy",
)
FIXED_EXTENT: Refusal = (
    ShapeError,
    "has another extent than every call of this library",
    "compile the operator without that extent",
)
REASONS: tuple[Refusal, ...] = (
    (OperandError, "is no tensor", "pass a NumPy array, a torch tensor, or anything with __dlpack__"),
    WRONG_RANK,
    (DtypeError, "has the wrong dtype", "this library computes in float32; cast the operand"),
    (DeviceError, "is not in host memory", "this library runs on the CPU; copy the operand there"),
    ODD_STRIDES,
    MISALIGNED,
    INNER_DIFFERS,
    WRONG_OUT,
    OVERLAPS,
    (OperandError, "needs scratch memory, and there is none left", "free memory or use fewer threads"),
    (OperandError, "is no packed operand of this library", "pack it again with this library's pack()"),
    NO_PLAN,
    (OperandError, "comes without the operands of the epilogue", "pass each of them by its keyword"),
    (
        ShapeError,
        "does not fit the output",
        "pass [n] per column, [m] per row, [m, n] per element",
    ),
    (OperandError, "has another element type than sums, so nothing can be added to it", "drop accumulate=True"),
    FIXED_EXTENT,
    (OperandError, "is not packed", "quantized weights come packed: pass the result of pack(q, scales)"),
    (OperandError, "has integers that the weights of this library do not", "clip them to its range"),
    (
        ShapeError,
        "has batch axes that do not fit those of the other operands",
        "make each equal to theirs, or 1; `out` has the larger, and grouped b as many matrices as there are groups",
    ),
    (ShapeError, "do not divide the rows of a", "pass one whole number of at least 0 for each group, all rows in sum"),
    (
        OperandError,
        "cannot have this zero point",
        "pass one that its bytes can hold; elements other than int8 have none",
    ),
)
"""In the order of the numbers of runtime/products.h."""


@dataclass(frozen=True, eq=False)
class PackedOperand:
    """A constant B, laid out once for one library: panels of a declared width, one after the other.

    Few columns need none: then `data` is a matrix with rows on cache lines, [k, n], or [n, k] if `transposed`.
    """

    data: np.ndarray[Any, Any]
    n: int
    k: int
    identity: str
    transposed: bool = False
    flags: int = field(init=False)
    """How the native door is told of it: as a matrix, transposed or not, or as panels."""
    address: int = field(init=False)
    """Of `data`, an object of Python that the native door reads; kept, since to ask for it takes small calls longer."""

    def __post_init__(self) -> None:
        flags = PACKED if self.data.ndim == 1 else TRANSPOSE_B if self.transposed else 0
        object.__setattr__(self, "flags", flags)
        object.__setattr__(self, "address", id(self.data))

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has an address of its own."""
        return PackedOperand, (self.data, self.n, self.k, self.identity, self.transposed)

    @cached_property
    def memory(self) -> Any:
        """`data` as the native door takes it beside tensors; an array would be looked at anew in each call."""
        return viewed(self.data)

    def __repr__(self) -> str:
        return f"PackedOperand(n={self.n}, k={self.k}, library={self.identity[:12]})"


def viewed(tensor: Any) -> Any:
    """A tensor's memory, held, as the native door takes it at once."""
    return light_tvm_ffi().from_dlpack(tensor)


LINE_BYTES, LARGE = 64, 1 << 18
"""Of a cache line; elements from which outputs start on one, as those must that are written past the caches."""
HUGE_PAGE = 2 << 20


def aligned_zeros(count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Zeros that start on a cache line."""
    return _aligned(np.zeros(count * 4 + LINE_BYTES, np.uint8))


def zeros_for_constants(count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Zeros that start on a cache line, on a huge page if they make half of one: room for what is laid out once.

    Weights are read from end to end, which takes a virtual machine one and a half times as long from small pages.
    """
    size = count * 4
    if size < HUGE_PAGE // 2 or not hasattr(mmap, "MADV_HUGEPAGE"):
        return aligned_zeros(count)
    rest = size % HUGE_PAGE
    if rest >= HUGE_PAGE // 2:  # less gets small pages
        size += HUGE_PAGE - rest
    try:
        memory = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no room for {size + HUGE_PAGE} bytes of what is laid out once") from error
    start = -np.frombuffer(memory, np.uint8).ctypes.data % HUGE_PAGE
    with suppress(OSError):  # a kernel built without them
        memory.madvise(mmap.MADV_HUGEPAGE, start, size)
    return np.frombuffer(memory, np.float32, count, start)


def _aligned(raw: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """All of the memory but a line, from the first line on."""
    start = -raw.ctypes.data % LINE_BYTES
    return raw[start : start + raw.size - LINE_BYTES].view(np.float32)


def empty(shape: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Small arrays as NumPy makes them, which takes no longer than it must."""
    count = math.prod(shape)
    if count < LARGE:
        return np.empty(shape, np.float32)
    return _aligned(np.empty(count * 4 + LINE_BYTES, np.uint8)).reshape(shape)


def allocated(like: Any, shape: Sequence[int]) -> Any:
    """An uninitialized float32 result of the kind of `like`."""
    if isinstance(like, np.ndarray):
        return empty(shape)
    if hasattr(like, "new_empty"):
        return like.new_empty(tuple(shape))
    if hasattr(like, "__array_namespace__"):
        return like.__array_namespace__().empty(tuple(shape), dtype=like.dtype)
    if hasattr(like, "__dlpack__"):
        return empty(shape)
    raise OperandError(f"the operand is a {type(like).__name__}; expected a tensor; {REASONS[0][2]}")


class _Unlocked:
    """NumPy's array interface of a read-only array, without the mark that DLPack cannot carry; inputs are only read."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__ | {"data": (array.ctypes.data, False)}


def exportable(operand: Any) -> Any:
    """What DLPack carries: arrays that are not locked, and of bfloat16 the bits."""
    if not isinstance(operand, np.ndarray):
        return operand
    if operand.dtype.kind == "V" and operand.dtype.name == "bfloat16":  # names are made anew each time they are asked
        operand = operand.view(np.uint16)
    return operand if operand.flags.writeable else np.asarray(_Unlocked(operand))


def zero_flags(zero_a: Any) -> int:
    """The zero point of A as flags; the native door knows which there can be."""
    try:
        return ZERO * index(zero_a)
    except TypeError:
        raise OperandError(f"zero_a={zero_a!r}: expected a whole number, the element of a that stands for 0") from None


class Gradients:
    """Whether operations are recorded now, as far as torch knows; until it is imported, they might be."""

    def __init__(self) -> None:
        self.recorded: Callable[[], bool] = self._ask

    def _ask(self) -> bool:
        torch = sys.modules.get("torch")
        if not hasattr(torch, "is_grad_enabled"):
            return True
        self.recorded = torch.is_grad_enabled  # type: ignore[union-attr]
        return self.recorded()


gradients = Gradients()


def tensors_alone(a: Any, b: Any, out: Any) -> bool:
    """Whether all three are tensors of a kind that records operations, and none of these is recorded."""
    try:
        return not (a.requires_grad or b.requires_grad or out.requires_grad)
    except AttributeError:
        return False


def refuse_gradients(*operands: Any, names: Sequence[str] = OPERANDS) -> None:
    """The one thing the native door cannot see. Where nothing is recorded (torch.no_grad()) nothing is refused."""
    if not gradients.recorded():
        return
    for place, operand in enumerate(operands):
        if getattr(operand, "requires_grad", False):
            name = names[place]
            raise OperandError(
                f"{name} requires grad; expected a plain tensor; pass {name}.detach(), or call under torch.no_grad()"
            )


def matrix_of(tensor: Any) -> np.ndarray[Any, Any]:
    """A tensor as an array of the same memory."""
    if isinstance(tensor, np.ndarray):
        return tensor
    return np.from_dlpack(tensor.detach() if getattr(tensor, "requires_grad", False) else tensor)


UNREADABLE = (BufferError, TypeError, ValueError, RuntimeError)
"""What may come of asking an operand for its memory."""


def unreadable(error: Exception, **operands: Any) -> DtypeError:
    given = ", ".join(f"{name} {described(operand)}" for name, operand in operands.items())
    return DtypeError(f"an operand cannot be read ({error}); given {given}; expected dense float32 on the CPU")


def retry(function: Any, a: Any, b: Any, out: Any, *numbers: int) -> Any:
    """DLPack cannot carry read-only arrays: unlock the inputs, which are only read, and refuse such an output.

    What then still cannot be exported is no dense tensor of a dtype that DLPack knows.
    """
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise OperandError("out is read-only; expected a writable array; pass a copy or set its writeable flag")
    try:
        return function(exportable(a), exportable(b), out, *numbers)
    except UNREADABLE as error:
        raise unreadable(error, a=a, b=b, out=out) from error


def extents(operand: Any, name: str) -> tuple[int, int]:
    shape = _shape(operand)
    if shape is None:
        raise OperandError(f"{name} is a {type(operand).__name__}; expected a tensor; {REASONS[0][2]}")
    if len(shape) != 2:
        raise ShapeError(f"{name} has shape {tuple(shape)}; expected two dimensions; reshape or index the operand")
    return shape[0], shape[1]


def _shape(operand: Any) -> Any:
    """None where there is none; a nested torch tensor refuses to tell."""
    try:
        return getattr(operand, "shape", None)
    except RuntimeError:
        return None


def described(operand: Any) -> str:
    if isinstance(operand, PackedOperand):
        return repr(operand)
    shape = tuple(_shape(operand) or ())
    dtype = getattr(operand, "dtype", None)
    return f"{type(operand).__name__} {shape} {dtype}" if dtype is not None else type(operand).__name__
