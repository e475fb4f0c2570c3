"""A GPU's library opened on a device: what the native doors of products and of reductions have in common."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from vortex.cuda_driver import Device, Driver, Modules, python_threads
from vortex.errors import DeviceError
from vortex.gpu_library import GpuManifest
from vortex.native import Signatures


class Place(ctypes.Structure):
    """Where calls run: see runtime/gpu_place.h."""

    _fields_ = (
        ("abi", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("context", ctypes.c_void_p),
        ("save_thread", ctypes.c_void_p),
        ("restore_thread", ctypes.c_void_p),
    )


_pointer = ctypes.c_void_p
SIGNATURES: Signatures = {
    "vx_gpu_close": (None, (_pointer,)),
    "vx_gpu_set_workspace": (ctypes.c_int64, (_pointer, _pointer, _pointer, ctypes.c_int64)),
    "vx_gpu_stream": (ctypes.c_int64, (_pointer, _pointer, ctypes.POINTER(_pointer))),
}
"""Functions that every door has: runtime/gpu_opened.c."""


def opening(setup: type[ctypes.Structure]) -> tuple[Any, tuple[Any, ...]]:
    """The signature of the function that opens a door with such a setup."""
    return _pointer, (ctypes.c_char_p, ctypes.POINTER(setup), ctypes.POINTER(ctypes.c_char_p))


@dataclass(frozen=True)
class Loaded:
    """The device code of a library on a device."""

    driver: Driver
    ordinal: int
    context: int
    modules: Modules

    def place(self, abi: int) -> Place:
        """Where calls of a door of this form will run."""
        return Place(abi, self.ordinal, self.context, *python_threads())


def load(manifest: GpuManifest, driver: Driver, ordinal: int, images: dict[str, bytes]) -> Loaded:
    """Give the device its code; the handles of functions are in the order of the manifest's entries."""
    context = driver.retain_context(ordinal)
    symbols = [(entry.file, entry.symbol, entry.shared_bytes) for entry in manifest.entries]
    return Loaded(driver, ordinal, context, driver.load_modules(context, images, symbols))


@dataclass(frozen=True, eq=False)
class Opened:
    """A library on a device: the door's handle, and everything that it points to."""

    calls: ctypes.PyDLL
    handle: int
    loaded: Loaded
    keep: Any

    @property
    def driver(self) -> Driver:
        return self.loaded.driver

    @property
    def context(self) -> int:
        """The device's primary one."""
        return self.loaded.context

    def close(self) -> None:
        """Unload the device code, and let go of the context."""
        self.calls.vx_gpu_close(self.handle)
        self.driver.unload(self.context, self.loaded.modules)
        self.driver.release_context(self.loaded.ordinal)


def opened(calls: ctypes.PyDLL, name: str, loaded: Loaded, setup: ctypes.Structure, keep: Any) -> Opened:
    """Open a door by the function of this name; what `setup` points to is in `keep`."""
    missing, driver = ctypes.c_char_p(), loaded.driver
    handle = getattr(calls, name)(driver.name.encode(), ctypes.byref(setup), ctypes.byref(missing))
    if not handle:
        driver.unload(loaded.context, loaded.modules)
        what = (missing.value or b"").decode()
        raise DeviceError(f"the driver has no {what}; update it, or compile for an architecture that it knows")
    return Opened(calls, handle, loaded, keep)


def choose_code(manifest: GpuManifest, device: Device, jit: bool) -> bool:
    """Whether the driver must translate the PTX: machine code runs on its own major version, from its minor one on."""
    number, specific = manifest.arch[3:].rstrip("af"), manifest.arch[-1] in "af"
    major, minor = int(number[:-1]), int(number[-1])
    runs = device.major == major and (device.minor == minor if specific else device.minor >= minor)
    if runs:
        return False
    built = f"the library holds machine code for {manifest.hardware['name']} ({manifest.arch})"
    virtual = manifest.ptx.removeprefix("compute_")
    portable = bool(virtual) and not virtual.endswith(("a", "f"))
    if not portable or (device.major, device.minor) < (int(virtual[:-1]), int(virtual[-1])):
        raise DeviceError(f"{built}, which does not run on {device}; compile with hw='cuda' there")
    if not jit:
        raise DeviceError(
            f"{built} and {manifest.ptx} PTX; {device} needs the PTX translated: load it with jit=True, which may "
            "take minutes, or compile for this device"
        )
    return True
