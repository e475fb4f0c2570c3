"""A GPU's library on the device that its calls run on, or on none: streams, workspaces, and refusals put into words."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from vortex.cuda_driver import Device, Driver
from vortex.dtypes import ITEM_BYTES
from vortex.errors import DeviceError, DtypeError, VortexError
from vortex.gpu_library import GpuLibrary, GpuManifest, write
from vortex.gpu_opened import Opened, choose_code
from vortex.gpu_operands import (
    CUDA,
    CUDA_ERROR,
    CUDA_MANAGED,
    NEEDS_WORKSPACE,
    ON_HOST,
    ON_OTHER,
    REASONS,
    Described,
    DLTensor,
    current_stream,
    describe,
    described,
    empty,
    exchange_api,
    room_of,
    stream_handle,
)
from vortex.operands import Refusal

Operands = tuple[Any, ...]
"""What a call is given, in the order of the door."""
UNREADABLE = (BufferError, TypeError, ValueError, RuntimeError)
"""What frameworks raise for a tensor that DLPack cannot describe."""


class OnDevice:
    """What every callable of a GPU's library has; `_open_door` gives its code to a device, `_submit` calls the door."""

    library: GpuLibrary
    manifest: GpuManifest
    device: Device | None = None
    """Where calls run; None where no device can be used."""
    code: str = "none"
    """What runs there: machine code of the library, or its PTX as the driver translated it."""
    _refused: VortexError | None = None
    _opened: Opened | None = None
    _handle = 0
    _place_of_out: ClassVar[int]
    """Among the operands."""

    def _open(self, device: int | None, jit: bool) -> None:
        """On a device, 0 if none is named: where none can be used, an unnamed one is forgiven until a call."""
        self._exchange: dict[type, int] = {}
        self._workspaces: dict[int, list[Any]] = {}
        try:
            self._open_on(device or 0, jit)
        except DeviceError as error:
            if device is not None:
                raise
            self._refused = error

    def _open_on(self, ordinal: int, jit: bool) -> None:
        driver = Driver()
        device = driver.device(ordinal)
        translate = choose_code(self.manifest, device, jit)
        opened = self._open_door(driver, ordinal, self.library.images(translate))
        self._opened, self._handle = opened, opened.handle
        weakref.finalize(self, opened.close)
        self.device = device
        self.code = f"{self.manifest.ptx} PTX, translated by the driver" if translate else self.manifest.arch

    def _open_door(self, driver: Driver, ordinal: int, images: dict[str, bytes]) -> Opened:
        """Load the device code, and give the door what it launches."""
        raise NotImplementedError

    def _unusable(self) -> DeviceError:
        """The refusal of the constructor, as a new exception for every call."""
        return DeviceError(f"this library runs on no device: {self._refused}")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the library to one file, to be read by `vortex.load`."""
        write(self.library, Path(path))

    @property
    def _names(self) -> tuple[str, ...]:
        """What messages call the operands."""
        raise NotImplementedError

    def _dtype(self, place: int) -> str:
        """The element type of the operand at a place."""
        return self.manifest.dtype

    def _submit(self, operands: Operands, told: Any, stream: int) -> int:
        """The native call: 0, or a refusal. `told` is what the door is told beside the operands."""
        raise NotImplementedError

    def _in_full(self, operands: Operands, told: Any, stream: Any, lent: Any) -> Any:
        """A call of any kinds of operands, on a stream, with memory lent for it alone; returns `out`."""
        handle = self._stream_of(operands[0], stream)
        status = self._queue(operands, told, handle, lent)
        if status & 0xFF == NEEDS_WORKSPACE and lent is None:
            return self._provided(status, operands, told, handle)
        if status:
            raise self._refusal(status, operands, told)
        return operands[self._place_of_out]

    def _provided(self, status: int, operands: Operands, told: Any, stream: int) -> Any:
        """Once more, with the workspace that was missing."""
        self._provide(operands[0], status >> 16, stream)
        if status := self._queue(operands, told, stream, None):
            raise self._refusal(status, operands, told)
        return operands[self._place_of_out]

    def _queue(self, operands: Operands, told: Any, stream: int, lent: Any) -> int:
        """The native call; `lent` is in `told`, or is for the stream's workspace while the call lasts."""
        try:
            return self._submit(operands, told, stream)
        except UNREADABLE as error:
            if isinstance(error, VortexError):
                raise
            raise unreadable(error, operands, self._names) from error

    def _read(self, operands: Operands) -> tuple[Any, list[Described]]:
        """Descriptions as the door takes them, and what must live as long."""
        read = [describe(operand, name) for operand, name in zip(operands, self._names, strict=True)]
        return (ctypes.c_void_p * len(read))(*(operand.tensor for operand in read)), read

    def _api_of(self, operand: Any) -> int:
        kind = type(operand)
        if kind not in self._exchange:
            self._exchange[kind] = exchange_api(kind)
        return self._exchange[kind]

    def _api_of_all(self, operands: Operands) -> int:
        """The exchange API that all operands have in common, 0 if there is none."""
        apis = {self._api_of(operand) for operand in operands}
        return apis.pop() if len(apis) == 1 else 0

    def _stream_of(self, operand: Any, stream: Any) -> int:
        if stream is not None:
            return stream_handle(stream)
        assert self._opened is not None and self.device is not None
        if api := self._api_of(operand):
            found = ctypes.c_void_p()
            if self._opened.calls.vx_gpu_stream(self._handle, api, ctypes.byref(found)) == 0:
                return found.value or 0
        return current_stream(operand, self.device.ordinal)

    def _provide(self, like: Any, need: int, stream: int) -> None:
        """Allocate the declared workspace for a stream; earlier ones live on, a captured graph may write to them."""
        size = max(need, self.manifest.workspace_bytes)
        memory = empty(like, (-(-size // ITEM_BYTES[self.manifest.dtype]), 1))
        self._set_workspace(like, memory, stream)
        self._workspaces.setdefault(stream, []).append(memory)

    def _set_workspace(self, like: Any, memory: Any, stream: int) -> None:
        assert self._opened is not None
        status = self._opened.calls.vx_gpu_set_workspace(self._handle, stream, *self._lent(memory))
        if status:
            raise self._refusal(status, (like,) * len(self._names))

    def _lent(self, memory: Any) -> tuple[int, int]:
        """Where memory for a workspace starts, and its bytes."""
        found = describe(memory, "workspace")
        tensor = DLTensor.from_address(found.tensor)
        assert self.device is not None
        if tensor.device_type not in (CUDA, CUDA_MANAGED):
            raise self._error(REASONS[ON_HOST - 1], "workspace", memory, {})
        if tensor.device != self.device.ordinal:
            raise self._error(REASONS[ON_OTHER - 1], "workspace", memory, {"detail": tensor.device})
        return room_of(tensor)

    def _reason(self, number: int) -> Refusal:
        """What a refusal of the door means."""
        return REASONS[number - 1]

    def _refusal(self, status: int, operands: Operands, told: Any = None) -> VortexError:
        number, place, detail = status & 0xFF, status >> 8 & 0xFF, status >> 16
        assert self._opened is not None
        cuda = self._opened.driver.error(detail) if number == CUDA_ERROR else ""
        given = "; given " + ", ".join(f"{n} {described(o)}" for n, o in zip(self._names, operands, strict=False))
        facts = {"detail": detail, "cuda": cuda, "dtype": self._dtype(place)}
        return self._error(self._reason(number), self._names[place], operands[place], facts, given)

    def _error(
        self, reason: Refusal, name: str, operand: Any, facts: Mapping[str, Any], given: str = ""
    ) -> VortexError:
        kind, problem, remedy = reason
        told = {"device": self.device, **facts}
        return kind(f"{name} ({described(operand)}) {problem.format(**told)}{given}; {remedy.format(**told)}")


def unreadable(error: Exception, operands: Operands, names: Sequence[str]) -> DtypeError:
    """What an operand's framework says of an operand that DLPack cannot describe."""
    given = ", ".join(f"{name} {described(operand)}" for name, operand in zip(names, operands, strict=True))
    return DtypeError(f"an operand cannot be read ({error}); given {given}; expected dense tensors on a CUDA device")
