"""The figures that a spec declares beside those of this machine."""

from __future__ import annotations

from dataclasses import dataclass

from vortex.errors import DeviceError
from vortex.hardware import HardwareSpec
from vortex.machine import read_machine
from vortex.probe import Reading, probe


@dataclass(frozen=True)
class Compared:
    """A declared figure beside the detected one."""

    figure: str
    declared: int
    detected: int
    source: str

    @property
    def ratio(self) -> float:
        return self.detected / self.declared if self.declared else 1.0


def check_device(
    spec: HardwareSpec, detected: tuple[HardwareSpec, tuple[Reading, ...]] | None = None
) -> tuple[Compared, ...]:
    """Declared figures beside those of this machine; figures of a whole device only where the core counts agree.

    Raises DeviceError where this machine lacks instructions that the spec needs: it then cannot be that device.
    """
    # The flags first: where they are missing, measuring for nothing would only make the answer late.
    flags = detected[0].features if detected else read_machine().flags
    if not spec.features <= flags:
        told = f"this machine is not {spec.name}: it lacks {', '.join(sorted(spec.features - flags))}"
        raise DeviceError(f"{told}; check the spec on that device")
    here, readings = detected or probe()
    sources = {reading.figure: reading.source for reading in readings}
    whole = {"cores", "peak_flops_per_s", "total_bandwidth_bytes_per_s", "shared_by"}
    ours, theirs = _numbers(spec), _numbers(here)
    return tuple(
        Compared(figure, value, theirs[figure], sources.get(figure, ""))
        for figure, value in ours.items()
        if figure in theirs and (spec.cores == here.cores or figure.rpartition(".")[2] not in whole)
    )


def _numbers(spec: HardwareSpec) -> dict[str, int]:
    """Every whole-number figure by its path."""
    data = spec.model_dump()
    rows = [("", data), *((f"{row['name']}.", row) for key in ("instructions", "memories") for row in data[key])]
    return {f"{owner}{name}": value for owner, row in rows for name, value in row.items() if type(value) is int}
