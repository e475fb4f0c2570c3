"""The GPU of this machine, asked through the driver: which shipped spec speaks for it."""

from __future__ import annotations

from collections.abc import Iterable

from vortex.comparison import Compared
from vortex.cuda_driver import Driver
from vortex.errors import DeviceError
from vortex.gpu_hardware import WARP, GpuSpec

ATTRIBUTES = {  # CUdevice_attribute, driver API manual
    "threads_per_block": 1,
    "clock_khz": 13,
    "sms": 16,
    "l2_bytes": 38,
    "threads_per_sm": 39,
    "shared_per_sm_bytes": 81,
    "registers_per_sm": 82,
    "shared_per_block_bytes": 97,
    "blocks_per_sm": 106,
}


FIRST = 0
"""The device that is asked: the first that CUDA_VISIBLE_DEVICES leaves."""


def told(driver: Driver) -> dict[str, int]:
    """What the driver says about the device, by our words."""
    figures = {word: driver.attribute(FIRST, number) for word, number in ATTRIBUTES.items()}
    return {**figures, "total_bytes": driver.total_bytes(FIRST)}


def capability(spec: GpuSpec) -> tuple[int, int]:
    digits = spec.arch.removeprefix("sm_").removesuffix("a")
    return int(digits[:-1]), int(digits[-1])


def detect(known: Iterable[GpuSpec], driver: Driver | None = None) -> GpuSpec:
    """The shipped spec of this machine's GPU: of its architecture and SMs, and the nearest memory size."""
    try:
        driver = driver or Driver()
        device = driver.device(FIRST)
    except DeviceError as error:
        remedy = "name a device instead, for example hw='a100': compiling for it needs no GPU"
        raise DeviceError(f"no GPU can be detected: {error}; {remedy}") from error
    specs = tuple(known)
    fitting = [spec for spec in specs if (*capability(spec), spec.sms) == (device.major, device.minor, device.sms)]
    if not fitting:
        have = ", ".join(f"{spec.name} ({spec.arch}, {spec.sms} SMs)" for spec in specs)
        raise DeviceError(
            f"no shipped spec speaks for this GPU, {device.name} ({device.arch}, {device.sms} SMs); known: {have}; "
            "write one from the nearest (docs/extending.md) and pass its path as hw="
        )
    total = driver.total_bytes(FIRST)
    return min(fitting, key=lambda spec: abs(spec.memory("dram").capacity_bytes - total))


def check_gpu(spec: GpuSpec, driver: Driver | None = None) -> tuple[Compared, ...]:
    """Declared figures beside those that the driver tells; DeviceError where this machine cannot be that device."""
    driver = driver or Driver()
    device = driver.device(FIRST)
    if capability(spec) != (device.major, device.minor):
        raise DeviceError(f"this GPU is not {spec.name}: it is {device.name}, {device.arch}, not {spec.arch}")
    here = told(driver)
    shared, l2, dram = spec.memories
    rows = {
        "sms": (spec.sms, here["sms"]),
        "clock_hz": (spec.clock_hz, here["clock_khz"] * 1000),
        "registers_per_sm": (spec.registers_per_sm, here["registers_per_sm"]),
        "shared_per_block_bytes": (spec.shared_per_block_bytes, here["shared_per_block_bytes"]),
        "threads_per_sm": (spec.threads_per_sm, here["threads_per_sm"]),
        "warps_per_sm": (spec.warps_per_sm, here["threads_per_sm"] // WARP),
        "threads_per_block": (spec.threads_per_block, here["threads_per_block"]),
        "blocks_per_sm": (spec.blocks_per_sm, here["blocks_per_sm"]),
        "shared.capacity_bytes": (shared.capacity_bytes, here["shared_per_sm_bytes"]),
        "l2.capacity_bytes": (l2.capacity_bytes, here["l2_bytes"]),
        "dram.capacity_bytes": (dram.capacity_bytes, here["total_bytes"]),
    }
    return tuple(Compared(figure, *sides, "the CUDA driver") for figure, sides in rows.items())
