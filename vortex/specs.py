"""Where hardware specs come from and go to: shipped names, files, this machine, copies with a figure changed."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from vortex import probe
from vortex.errors import SpecError, UnknownNameError
from vortex.figures import nearest
from vortex.hardware import HardwareSpec, spec_from

NATIVE = probe.NATIVE
_PACKAGE = Path(__file__).resolve().parent


def spec_directory() -> Path:
    """Where the shipped specs are: inside an installed package, or at the top of a checkout."""
    inside = _PACKAGE / "hwspecs"
    return inside if inside.is_dir() else _PACKAGE.parent / "hwspecs"


def shipped_specs() -> list[str]:
    """The names that `hw=` knows, besides `native`."""
    return sorted(path.stem for path in spec_directory().glob("*.toml"))


def load_spec(hw: str | Path | HardwareSpec) -> HardwareSpec:
    """A spec by its shipped name, from a `.toml` file, of this machine (`native`), or as it is."""
    if isinstance(hw, HardwareSpec):
        return hw
    if not isinstance(hw, str | Path):
        raise SpecError(f"hw is a {type(hw).__name__}; expected a name, a path to a .toml file, or a HardwareSpec")
    if hw == NATIVE:
        return probe.native()
    if isinstance(hw, str) and hw in shipped_specs():
        return read_spec(spec_directory() / f"{hw}.toml")
    if isinstance(hw, Path) or hw.endswith(".toml") or "/" in hw:
        return read_spec(Path(hw))
    known = [NATIVE, *shipped_specs()]
    raise UnknownNameError(
        f"no hardware spec is named {hw!r}; known: {', '.join(known)}, or a path to a .toml file; "
        f"did you mean {nearest(hw, known)!r}?"
    )


def read_spec(path: Path) -> HardwareSpec:
    """The spec in a TOML file."""
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
    return spec_from(data, str(path))


def what_if(spec: HardwareSpec, changes: Mapping[str, Any]) -> HardwareSpec:
    """A validated copy with figures changed by path (`l2.capacity_bytes`, `clock_hz`); second figures follow."""
    data = spec.model_dump()
    tables = {row["name"]: row for key in ("instructions", "memories", "levels") for row in data[key]}
    for path, value in changes.items():
        owner, _, field = path.rpartition(".")
        table = tables.get(owner) if owner else data
        if table is None or field not in table:
            raise UnknownNameError(f"{spec.name} has no figure {path!r}; write for example 'l2.capacity_bytes'")
        table[field] = value
    if "cores" in changes and "L2.units" not in changes:
        data["levels"][-1]["units"] = data["cores"]
    if "peak_flops_per_s" not in changes:
        widest = max(data["instructions"], key=lambda i: i["lanes"])
        per_cycle = widest["issue_per_cycle"] * widest["lanes"] * 2
        data["peak_flops_per_s"] = data["cores"] * data["clock_hz"] * per_cycle
    for memory in data["memories"]:
        _follow(memory, changes, data["cores"])
    return spec_from(data, f"{spec.name} with {dict(changes)}")


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


def spec_to_toml(spec: HardwareSpec, readings: Collection[probe.Reading] = ()) -> str:
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
