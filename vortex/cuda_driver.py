"""The CUDA driver through ctypes: devices, their primary contexts, modules. Every failure is an error of vortex."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vortex.errors import DeviceError, LibraryError

NAME = "libcuda.so.1"
NO_DEVICE, INVALID_PTX, NO_BINARY, UNSUPPORTED_PTX = 100, 218, 209, 222
"""Of the driver's results (cuda.h), those that mean something of their own here."""
MAJOR, MINOR, SMS, SHARED_OPTIN = 75, 76, 16, 97
"""Device attributes: compute capability, multiprocessors, shared memory that a block may ask for."""
MAX_DYNAMIC_SHARED, STATIC_LIMIT = 8, 48 * 1024
"""Function attribute, and what a block gets without asking for it."""
LOG_BYTES = 8192
ERROR_LOG, ERROR_LOG_BYTES = 5, 6
"""Options of the PTX translator."""


@dataclass(frozen=True)
class Device:
    """A GPU as its driver describes it."""

    ordinal: int
    name: str
    major: int
    minor: int
    sms: int
    shared_per_block: int
    driver_version: int
    """As the driver counts: 12040 is CUDA 12.4."""

    @property
    def arch(self) -> str:
        return f"sm_{self.major}{self.minor}"

    def __str__(self) -> str:
        return f"device {self.ordinal}, {self.name} ({self.arch})"


class Driver:
    """The functions of libcuda that loading needs; calls go through the native door."""

    def __init__(self, name: str = NAME) -> None:
        try:
            self._calls = ctypes.CDLL(name)
        except OSError as error:
            raise DeviceError(
                f"{name} cannot be opened ({error}); a GPU library runs where NVIDIA's driver is installed"
            ) from error
        self.name = name
        status = self._calls.cuInit(0)
        if status == NO_DEVICE:
            raise DeviceError("the CUDA driver sees no device; check nvidia-smi and CUDA_VISIBLE_DEVICES")
        self._check(status, "cuInit")

    def call(self, name: str, *arguments: Any) -> None:
        """Any function of the driver; a failure is a DeviceError that names it."""
        self._check(getattr(self._calls, name)(*arguments), name)

    def release(self, name: str, *arguments: Any) -> None:
        """Any function that gives something back. Errors are left alone: where a kernel broke the context every call
        fails, and would be told in place of what broke it."""
        getattr(self._calls, name)(*arguments)

    def device_count(self) -> int:
        count = ctypes.c_int()
        self._check(self._calls.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
        return count.value

    def device(self, ordinal: int) -> Device:
        count = self.device_count()
        if not 0 <= ordinal < count:
            raise DeviceError(f"there is no CUDA device {ordinal}; this machine has {count}, numbered from 0")
        name, version = ctypes.create_string_buffer(256), ctypes.c_int()
        self._check(self._calls.cuDeviceGetName(name, 256, ordinal), "cuDeviceGetName")
        self._check(self._calls.cuDriverGetVersion(ctypes.byref(version)), "cuDriverGetVersion")
        major, minor, sms, shared = (self.attribute(ordinal, which) for which in (MAJOR, MINOR, SMS, SHARED_OPTIN))
        return Device(ordinal, name.value.decode(errors="replace"), major, minor, sms, shared, version.value)

    def attribute(self, ordinal: int, which: int) -> int:
        """A figure of a device by its number in `CUdevice_attribute`."""
        value = ctypes.c_int()
        self._check(
            self._calls.cuDeviceGetAttribute(ctypes.byref(value), which, ordinal), f"cuDeviceGetAttribute {which}"
        )
        return value.value

    def total_bytes(self, ordinal: int) -> int:
        """What a device's memory holds."""
        total = ctypes.c_size_t()
        self._check(self._calls.cuDeviceTotalMem_v2(ctypes.byref(total), ordinal), "cuDeviceTotalMem")
        return total.value

    def retain_context(self, ordinal: int) -> int:
        """The primary context of a device, which is the one that torch and CuPy use."""
        context = ctypes.c_void_p()
        self._check(self._calls.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal), "cuDevicePrimaryCtxRetain")
        return context.value or 0

    def release_context(self, ordinal: int) -> None:
        self._calls.cuDevicePrimaryCtxRelease_v2(ordinal)

    def load_modules(self, context: int, images: dict[str, bytes], symbols: Sequence[tuple[str, str, int]]) -> Modules:
        """Load machine code or PTX into a context; `symbols` are (image, function, bytes of dynamic shared memory)."""
        self._check(self._calls.cuCtxPushCurrent_v2(ctypes.c_void_p(context)), "cuCtxPushCurrent")
        loaded: dict[str, int] = {}
        try:
            for name, image in images.items():
                loaded[name] = self._load_image(name, image)
            functions = tuple(self._function(loaded[image], symbol, shared) for image, symbol, shared in symbols)
        except BaseException:
            for module in loaded.values():
                self._calls.cuModuleUnload(ctypes.c_void_p(module))
            raise
        finally:
            self._calls.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        return Modules(tuple(loaded.values()), functions)

    def unload(self, context: int, modules: Modules) -> None:
        """Errors are left alone: at interpreter exit the context may be gone already."""
        if self._calls.cuCtxPushCurrent_v2(ctypes.c_void_p(context)) == 0:
            for module in modules.handles:
                self._calls.cuModuleUnload(ctypes.c_void_p(module))
            self._calls.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def _load_image(self, name: str, image: bytes) -> int:
        module, log = ctypes.c_void_p(), ctypes.create_string_buffer(LOG_BYTES)
        options = (ctypes.c_int * 2)(ERROR_LOG, ERROR_LOG_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.cast(log, ctypes.c_void_p), LOG_BYTES)
        text = ctypes.create_string_buffer(image)  # ends in a zero byte, which PTX must and machine code may
        status = self._calls.cuModuleLoadDataEx(ctypes.byref(module), text, 2, options, values)
        if status == UNSUPPORTED_PTX:
            raise DeviceError(
                f"the driver is too old for the PTX of {name}; update it, or compile the library for this device"
            )
        if status in (INVALID_PTX, NO_BINARY):
            told = log.value.decode(errors="replace").strip()
            raise LibraryError(f"{name} does not load on this device ({self.error(status)}) {told}".rstrip())
        self._check(status, f"loading {name}")
        return module.value or 0

    def _function(self, module: int, symbol: str, shared: int) -> int:
        function = ctypes.c_void_p()
        status = self._calls.cuModuleGetFunction(
            ctypes.byref(function), ctypes.c_void_p(module), ctypes.c_char_p(symbol.encode())
        )
        if status:
            raise LibraryError(
                f"the manifest names the kernel {symbol}, its cubin has none ({self.error(status)}); compile it again"
            )
        if shared > STATIC_LIMIT:
            status = self._calls.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED, shared)
            if status:
                raise DeviceError(
                    f"{symbol} needs {shared} bytes of shared memory, which this device does not give "
                    f"({self.error(status)}); compile for this device"
                )
        return function.value or 0

    def error(self, status: int) -> str:
        """A result of the driver in words."""
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        if self._calls.cuGetErrorName(status, ctypes.byref(name)) or not name.value:
            return f"CUDA error {status}"
        self._calls.cuGetErrorString(status, ctypes.byref(text))
        return f"{name.value.decode()}: {(text.value or b'').decode()}"

    def _check(self, status: int, doing: str) -> None:
        if status:
            raise DeviceError(f"{doing} failed: {self.error(status)}")


@dataclass(frozen=True)
class Modules:
    """Loaded code: module handles, and the functions in the order they were asked for."""

    handles: tuple[int, ...]
    functions: tuple[int, ...]


def python_threads() -> tuple[Any, Any]:
    """Addresses of PyEval_SaveThread and PyEval_RestoreThread: the door lets other threads run while it launches."""
    return tuple(  # type: ignore[return-value]  # two names, two addresses
        ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p)
        for name in ("PyEval_SaveThread", "PyEval_RestoreThread")
    )
