"""Writes docs/hardware-spec.md from the model: `python docs/generate_hardware_spec.py`."""

from pathlib import Path
from typing import Any, get_args

from pydantic.fields import FieldInfo

from vortex.figures import Quantity
from vortex.hardware import TOLERANCE, HardwareSpec, Instruction, Level, Memory
from vortex.specs import load_spec, shipped_specs

TARGET = Path(__file__).with_name("hardware-spec.md")
TABLES = (
    ("The device", "at the top of the file", HardwareSpec),
    ("Instructions", "`[[instructions]]`, one or more", Instruction),
    ("Memories", "`[[memories]]`, from the inside out", Memory),
    ("Levels", "`[[levels]]`: L0, L1, L2", Level),
)

INTRODUCTION = """# Hardware specs

<!-- Written by docs/generate_hardware_spec.py from vortex/hardware.py; edit those. -->

A hardware spec is one TOML file that tells the compiler all it knows about a device. `hw=` takes the name of a shipped
spec, the path of a `.toml` file, a `HardwareSpec`, or `native`: this machine, read and measured by `vortex probe`.

- Figures are whole numbers in base SI units, and the unit is in the name: `clock_hz = 2_500_000_000`, never `2.5`. A
  figure outside its plausible range is refused, which catches GHz, KiB and GB/s.
- Every figure has its source in a comment beside it, and says `estimate` when it is one.
- A field the model does not know is refused, and the nearest known name is told.
- Figures that must agree are checked, and both sides are printed when they do not.
"""

AGREEMENT = f"""## Figures that must agree

- `peak_flops_per_s` is within {TOLERANCE:.0%} of `cores` x `issue_per_cycle` x `lanes` x 2 x `clock_hz` of the
  widest instruction.
- Of every cache, `sets` x `ways` x `line_bytes` is `capacity_bytes`; further out, caches grow and no fewer cores share
  them. The last memory (DRAM) has none of the five figures of a cache: nothing is ever sized by it.
- `total_bandwidth_bytes_per_s` lies between `bandwidth_bytes_per_s` and `cores` times that; of a private cache it is
  the latter, within {TOLERANCE:.0%}.
- `lanes` is a power of two, and a register is no larger than a line of the innermost memory.
- L0 names the first memory, L1 a cache further out, L2 the last. Only L2 has units: the cores. It takes the whole
  shape, so it gives no utilization and is analytical.
- What L0 may use of the register file holds `issue_per_cycle` x `latency_cycles` accumulators and two operands; what L1
  may use of its memory holds the register file.

`vortex.specs.what_if(spec, {{"l2.capacity_bytes": 524_288}})` makes a copy with one figure changed and lets the figures
that follow from it (sets, peak) follow.

## A machine of your own

`vortex probe` writes a spec of the machine it runs on, with the provenance of every figure in its comment.
`vortex check FILE` refuses a malformed file, and on the device itself sets declared figures beside measured ones.
Measurements are cached under `VORTEX_CACHE_DIR`, or the user's cache folder.
"""


def admitted(name: str, field: FieldInfo) -> str:
    """What a field may be, in words."""
    for rule in field.metadata:
        if isinstance(rule, Quantity):
            return str(rule)
    options = [repr(option) for option in get_args(field.annotation) if isinstance(option, str)]
    if options:
        return " or ".join(options)
    return {
        "features": "names",
        "instructions": "tables, at least one",
        "memories": "tables, at least three",
        "levels": "three tables",
        "min_utilization": "a fraction from 0 to 1",
        "max_utilization": "a fraction from 0 to 1, above the least",
    }.get(name, "a name: letters, digits, `.`, `_`, `-`")


def table(model: type[Any]) -> str:
    rows = [
        f"| `{name}` | {field.description} | {admitted(name, field)} |" for name, field in model.model_fields.items()
    ]
    return "\n".join(["| field | meaning | admitted |", "|---|---|---|", *rows])


def shipped() -> str:
    rows = []
    for name in shipped_specs():
        spec = load_spec(name)
        wide = spec.instruction("float32")
        caches = ", ".join(f"{m.capacity_bytes // 1024} KiB" for m in spec.memories if m.is_cache)
        peak = f"{spec.peak_flops_per_s / 1e9:.0f} GFLOP/s"
        rows.append(
            f"| `{name}` | {spec.llvm_cpu} | {spec.cores} | {wide.lanes} x {wide.registers} | {caches} | {peak} |"
        )
    return "\n".join(
        ["| name | LLVM | cores | lanes x registers | caches | peak |", "|---|---|---|---|---|---|", *rows]
    )


def document() -> str:
    parts = [INTRODUCTION, "## Shipped specs\n\n" + shipped() + "\n"]
    parts += [
        f"## {title}\n\n{model.__doc__} In the file: {place}.\n\n{table(model)}\n" for title, place, model in TABLES
    ]
    return "\n".join([*parts, AGREEMENT])


if __name__ == "__main__":
    TARGET.write_text(document(), encoding="utf-8")
