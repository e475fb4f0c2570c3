"""The GPU of this machine, asked through the driver: which shipped spec speaks for it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from vortex.errors import DeviceError
from vortex.gpu_hardware import WARP, GpuSpec
from vortex.probe import Compared

CUDA = "cuda"
"""The name that asks for the GPU of this machine."""

ATTRIBUTES = {  # CUdevice_attribute, driver API manual
    "threads_per_block": 1,
    "clock_khz": 13,
    "sms": 16,
    "l2_bytes": 38,
    "threads_per_sm": 39,
    "major": 75,
    "minor": 76,
    "shared_per_sm_bytes": 81,
    "registers_per_sm": 82,
    "shared_per_block_bytes": 97,
    "blocks_per_sm": 106,
}


@dataclass(frozen=True)
class Gpu:
    """What the driver says about one device."""

    name: str
    total_bytes: int
    attributes: dict[str, int]

    @property
    def capability(self) -> tuple[int, int]:
        return self.attributes["major"], self.attributes["minor"]


def open_driver(load: Callable[[str], ctypes.CDLL] = ctypes.CDLL) -> ctypes.CDLL:
    """The CUDA driver of this machine."""
    try:
        return load("libcuda.so.1")
    except OSError as error:
        raise DeviceError(
            f"there is no CUDA driver here ({error}); name the device instead, for example hw='a100': "
            "compiling for it needs no GPU"
        ) from error


def ask(driver: ctypes.CDLL, ordinal: int = 0) -> Gpu:
    """What the driver says about a device."""

    def call(function: str, *arguments: object) -> None:
        code = getattr(driver, function)(*arguments)
        if code != 0:
            raise DeviceError(f"the CUDA driver found no usable GPU: {function} answered {code}; see `nvidia-smi`")

    call("cuInit", 0)
    count, device, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    call("cuDeviceGetCount", ctypes.byref(count))
    if not 0 <= ordinal < count.value:
        raise DeviceError(f"there is no GPU number {ordinal}: the CUDA driver sees {count.value}")
    call("cuDeviceGet", ctypes.byref(device), ordinal)
    name = ctypes.create_string_buffer(256)
    call("cuDeviceGetName", name, len(name), device)
    call("cuDeviceTotalMem_v2", ctypes.byref(total), device)
    attributes = {}
    for word, number in ATTRIBUTES.items():
        value = ctypes.c_int()
        call("cuDeviceGetAttribute", ctypes.byref(value), number, device)
        attributes[word] = value.value
    return Gpu(name.value.decode(errors="replace"), total.value, attributes)


def capability(spec: GpuSpec) -> tuple[int, int]:
    digits = spec.arch.removeprefix("sm_").removesuffix("a")
    return int(digits[:-1]), int(digits[-1])


def detect(known: Iterable[GpuSpec], driver: ctypes.CDLL | None = None) -> GpuSpec:
    """The shipped spec of the first GPU of this machine: its architecture and SMs, and the nearest memory size."""
    gpu = ask(driver or open_driver())
    sms, (major, minor) = gpu.attributes["sms"], gpu.capability
    specs = tuple(known)
    fitting = [spec for spec in specs if capability(spec) == gpu.capability and spec.sms == sms]
    if not fitting:
        have = ", ".join(f"{spec.name} ({spec.arch}, {spec.sms} SMs)" for spec in specs)
        raise DeviceError(
            f"no shipped spec speaks for this GPU, {gpu.name} (sm_{major}{minor}, {sms} SMs); known: {have}; write one "
            "from the nearest (docs/extending.md) and pass its path as hw="
        )
    return min(fitting, key=lambda spec: abs(spec.memory("dram").capacity_bytes - gpu.total_bytes))


def check_gpu(spec: GpuSpec, driver: ctypes.CDLL | None = None) -> tuple[Compared, ...]:
    """Declared figures beside those that the driver tells; DeviceError where this machine cannot be that device."""
    gpu = ask(driver or open_driver())
    if capability(spec) != gpu.capability:
        major, minor = gpu.capability
        raise DeviceError(f"this GPU is not {spec.name}: it is {gpu.name}, sm_{major}{minor}, not {spec.arch}")
    told = gpu.attributes
    rows = {
        "sms": (spec.sms, told["sms"]),
        "clock_hz": (spec.clock_hz, told["clock_khz"] * 1000),
        "registers_per_sm": (spec.registers_per_sm, told["registers_per_sm"]),
        "shared_per_block_bytes": (spec.shared_per_block_bytes, told["shared_per_block_bytes"]),
        "threads_per_sm": (spec.threads_per_sm, told["threads_per_sm"]),
        "warps_per_sm": (spec.warps_per_sm, told["threads_per_sm"] // WARP),
        "threads_per_block": (spec.threads_per_block, told["threads_per_block"]),
        "blocks_per_sm": (spec.blocks_per_sm, told["blocks_per_sm"]),
        "shared.capacity_bytes": (spec.memory("shared").capacity_bytes, told["shared_per_sm_bytes"]),
        "l2.capacity_bytes": (spec.memory("l2").capacity_bytes, told["l2_bytes"]),
        "dram.capacity_bytes": (spec.memory("dram").capacity_bytes, gpu.total_bytes),
    }
    return tuple(Compared(figure, *sides, "the CUDA driver") for figure, sides in rows.items())
