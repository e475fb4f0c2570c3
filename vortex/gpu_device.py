"""A GPU's library on the device that its calls run on, or on none."""

from __future__ import annotations

import os
from pathlib import Path

from vortex.cuda_driver import Device, Driver
from vortex.errors import DeviceError, VortexError
from vortex.gpu_door import choose_code
from vortex.gpu_library import GpuLibrary, GpuManifest, write


class OnDevice:
    """What every callable of a GPU's library has; `_load` gives its code to a device."""

    library: GpuLibrary
    manifest: GpuManifest
    device: Device | None = None
    """Where calls run; None where no device can be used."""
    code: str = "none"
    """What runs there: machine code of the library, or its PTX as the driver translated it."""
    _refused: VortexError | None = None

    def _open(self, device: int | None, jit: bool) -> None:
        """On a device, 0 if none is named: where none can be used, an unnamed one is forgiven until a call."""
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
        self._load(driver, ordinal, self.library.images(translate))
        self.device = device
        self.code = f"{self.manifest.ptx} PTX, translated by the driver" if translate else self.manifest.arch

    def _load(self, driver: Driver, ordinal: int, images: dict[str, bytes]) -> None:
        """Load the device code, and see to it that it is unloaded with this object."""
        raise NotImplementedError

    def _unusable(self) -> DeviceError:
        """The refusal of the constructor, as a new exception for every call."""
        return DeviceError(f"this library runs on no device: {self._refused}")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the library to one file, to be read by `vortex.load`."""
        write(self.library, Path(path))
