"""Where hardware specs come from and go to: shipped names, files, this machine, copies with a figure changed."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vortex import probe
from vortex.errors import SpecError, UnknownNameError, suggestion
from vortex.hardware import HardwareSpec, spec_from

if TYPE_CHECKING:  # Else imported where one is asked for: a CPU's library is opened without the models of a GPU.
    from vortex.gpu_hardware import GpuSpec

    Spec = HardwareSpec | GpuSpec
    S = TypeVar("S", HardwareSpec, GpuSpec)

NATIVE = probe.NATIVE
CUDA = "cuda"
"""The name that asks for the GPU of this machine."""
ALIASES = {"a100": "a100-sxm4-40gb"}
"""Short names of shipped specs."""
_PACKAGE = Path(__file__).resolve().parent


def spec_directory() -> Path:
    """Where the shipped specs are: inside an installed package, or at the top of a checkout."""
    inside = _PACKAGE / "hwspecs"
    return inside if inside.is_dir() else _PACKAGE.parent / "hwspecs"


def shipped_specs() -> list[str]:
    """The names that `hw=` knows, besides `native`, `cuda` and short ones."""
    return sorted(path.stem for path in spec_directory().glob("*.toml"))


def load_spec(hw: str | Path | Spec) -> Spec:
    """A spec by its shipped name, from a `.toml` file, of this machine (`native`, `cuda`), or as it is."""
    if hw == NATIVE:
        return probe.native()
    if isinstance(hw, HardwareSpec):
        return hw
    from vortex import gpu_hardware, gpu_probe

    if isinstance(hw, gpu_hardware.GpuSpec):
        return hw
    if not isinstance(hw, str | Path):
        raise SpecError(f"hw is a {type(hw).__name__}; expected a name, a path to a .toml file, or a spec")
    if hw == CUDA:
        return gpu_probe.detect(gpus())
    name = ALIASES.get(hw, hw) if isinstance(hw, str) else hw
    if isinstance(name, str) and name in shipped_specs():
        return read_spec(spec_directory() / f"{name}.toml")
    if isinstance(name, Path) or name.endswith(".toml") or "/" in name:
        return read_spec(Path(name))
    known = [NATIVE, CUDA, *ALIASES, *shipped_specs()]
    raise UnknownNameError(
        f"no hardware spec is named {hw!r}; known: {', '.join(known)}, or a path to a .toml file"
        f"{suggestion(name, known)}"
    )


def cpus() -> tuple[HardwareSpec, ...]:
    """The shipped specs of CPUs."""
    return tuple(spec for spec in map(load_spec, shipped_specs()) if isinstance(spec, HardwareSpec))


def gpus() -> tuple[GpuSpec, ...]:
    """The shipped specs of GPUs."""
    from vortex.gpu_hardware import GpuSpec

    return tuple(spec for spec in map(load_spec, shipped_specs()) if isinstance(spec, GpuSpec))


def read_spec(path: Path) -> Spec:
    """The spec in a TOML file; `kind` says of what, and nothing in it means a CPU."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(
            f"{path}: cannot be read ({error.strerror}); give a file that exists and is readable"
        ) from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: is not UTF-8 text ({error}); a spec is a TOML file") from error
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path}: is not valid TOML: {error}; mend that line") from error
    return any_spec_from(data, str(path))


def any_spec_from(data: Mapping[str, Any], source: str) -> Spec:
    """A validated spec of either kind from plain data."""
    if "kind" not in data:
        return spec_from(data, source)
    from vortex.gpu_hardware import gpu_spec_from

    return gpu_spec_from(data, source)


def what_if(spec: S, changes: Mapping[str, Any]) -> S:
    """A validated copy with figures changed by path (`l2.capacity_bytes`, `clock_hz`); second figures follow."""
    data = spec.model_dump()
    tables = {row["name"]: row for key in ("instructions", "memories", "levels") for row in data[key]}
    for path, value in changes.items():
        owner, _, field = path.rpartition(".")
        table = tables.get(owner) if owner else data
        if table is None or field not in table:
            raise UnknownNameError(f"{spec.name} has no figure {path!r}; write for example 'l2.capacity_bytes'")
        table[field] = value
    source = f"{spec.name} with {dict(changes)}"
    if not isinstance(spec, HardwareSpec):
        _follow_gpu(data, changes)
        return any_spec_from(data, source)  # type: ignore[return-value]  # of the same kind
    if "cores" in changes and "L2.units" not in changes:
        data["levels"][-1]["units"] = data["cores"]
    if "peak_flops_per_s" not in changes:
        vectors = [i for i in data["instructions"] if i["dtype"] == "float32"]
        rates = [i["issue_per_cycle"] * i["lanes"] * 2 // max(i["cycles"], 1) for i in vectors]
        data["peak_flops_per_s"] = data["cores"] * data["clock_hz"] * max(rates, default=0)
    for memory in data["memories"]:
        _follow(memory, changes, data["cores"])
    return spec_from(data, source)


def _follow(memory: dict[str, Any], changes: Mapping[str, Any], cores: int) -> None:
    """Let the figures of a memory follow the changed ones, where they are not themselves changed."""

    def free(field: str) -> bool:
        return f"{memory['name']}.{field}" not in changes

    if memory["capacity_bytes"] and free("sets"):
        memory["sets"] = memory["capacity_bytes"] // max(1, memory["ways"] * memory["line_bytes"])
    if free("shared_by"):
        memory["shared_by"] = min(memory["shared_by"], cores)
    if free("total_bandwidth_bytes_per_s"):
        one, total = memory["bandwidth_bytes_per_s"], memory["total_bandwidth_bytes_per_s"]
        memory["total_bandwidth_bytes_per_s"] = cores * one if memory["shared_by"] == 1 else min(total, cores * one)


def _follow_gpu(data: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """The same for the figures of a GPU: units, instances, clocks, peaks and bandwidths."""
    from vortex.gpu_hardware import WARP

    shared = data["memories"][0]

    def let(table: dict[str, Any], field: str, value: int) -> None:
        owner = "" if table is data else f"{table['name']}."
        if f"{owner}{field}" not in changes:
            table[field] = value

    let(data["levels"][2], "units", data["sms"])
    let(shared, "instances", data["sms"])
    let(shared, "clock_hz", data["clock_hz"])
    if "threads_per_sm" in changes:
        let(data, "warps_per_sm", data["threads_per_sm"] // WARP)
    let(data, "threads_per_sm", data["warps_per_sm"] * WARP)
    for row in data["instructions"]:
        let(row, "clock_hz", min(row["clock_hz"], data["clock_hz"]))
        let(row, "peak_flops_per_s", data["sms"] * row["flops_per_cycle_per_sm"] * row["clock_hz"])
    for row in data["memories"]:
        if f"{row['name']}.bandwidth_bytes_per_s" in changes:
            per_second = row["instances"] * row["clock_hz"]
            let(row, "bytes_per_cycle", max(1, round(row["bandwidth_bytes_per_s"] / per_second)))
        let(row, "bandwidth_bytes_per_s", row["instances"] * row["bytes_per_cycle"] * row["clock_hz"])


def spec_to_toml(spec: Spec, readings: Collection[probe.Reading] = ()) -> str:
    """The spec as a TOML file, with the provenance of every figure in a comment where readings are given."""
    comments = {reading.figure: reading.source for reading in readings}
    header = "# Written by `vortex probe`: read from the operating system or measured, as each comment says."
    lines = [header, ""] if comments else []
    tables: list[tuple[str, Mapping[str, Any]]] = []
    for key, value in spec.model_dump(exclude_defaults=True).items():
        if isinstance(value, tuple):
            tables += [(key, row) for row in value]
        else:
            lines.append(_toml_line(key, value, comments.get(key)))
    for key, row in tables:
        lines += ["", f"[[{key}]]"]
        lines += [_toml_line(field, value, comments.get(f"{row['name']}.{field}")) for field, value in row.items()]
    return "\n".join(lines) + "\n"


def _toml_line(key: str, value: Any, comment: str | None) -> str:
    if isinstance(value, int) and value >= 100_000:
        text = f"{value:_}"
    elif isinstance(value, tuple):
        text = json.dumps(list(value))
    else:
        text = json.dumps(value)
    return f"{key} = {text}" + (f"  # {comment}" if comment else "")
