"""Writes docs/hardware-spec.md from the model: `python docs/generate_hardware_spec.py`."""

from pathlib import Path
from typing import Any, get_args

from pydantic.fields import FieldInfo

from vortex.figures import Quantity
from vortex.gpu_hardware import GpuInstruction, GpuMemory, GpuSpec
from vortex.hardware import TOLERANCE, HardwareSpec, Instruction, Level, Memory
from vortex.specs import cpus, gpus

TARGET = Path(__file__).with_name("hardware-spec.md")
CPU_TABLES = (
    ("CPU: the device", "at the top of the file", HardwareSpec),
    ("CPU: instructions", "`[[instructions]]`, one or more", Instruction),
    ("CPU: memories", "`[[memories]]`, from the inside out", Memory),
)
GPU_TABLES = (
    ("GPU: the device", "at the top of the file", GpuSpec),
    ("GPU: instructions", "`[[instructions]]`, one or more", GpuInstruction),
    ("GPU: memories", "`[[memories]]`: shared, l2, dram", GpuMemory),
)
BOTH_TABLES = (("Levels of both", "`[[levels]]`: L0, L1, L2", Level),)

INTRODUCTION = """# Hardware specs

<!-- Written by docs/generate_hardware_spec.py from vortex/hardware.py and vortex/gpu_hardware.py; edit those. -->

A hardware spec is one TOML file that tells the compiler all it knows about a device. `hw=` takes the name of a shipped
spec, the path of a `.toml` file, a `HardwareSpec` or `GpuSpec`, `native` (this machine, read and measured by
`vortex probe`), or `cuda`: the shipped spec of this machine's GPU, told by its driver.

The spec of a GPU says `kind = "gpu"`; one without `kind` is of a CPU.

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

Of a GPU:

- `peak_flops_per_s` of every instruction is within {TOLERANCE:.0%} of `sms` x its `flops_per_cycle_per_sm` x its
  `clock_hz`, which is no higher than the device's.
- `bandwidth_bytes_per_s` of every memory is within {TOLERANCE:.0%} of `instances` x `bytes_per_cycle` x its `clock_hz`;
  further out there is less bandwidth and more latency. Shared memory has one instance per SM and the device's clock.
- `threads_per_sm` is 32 x `warps_per_sm`; a block has more than half of an SM's shared memory and at most all of it;
  registers suffice for 16 per thread.
- `async_copy` is true from sm_80 on, `tma` from sm_90 on, and only there is there a `wgmma`.
- L0 and L1 name shared memory, L2 DRAM. The units of L0 are the warp schedulers of an SM, those of L2 the SMs.

`vortex.specs.what_if(spec, {{"l2.capacity_bytes": 524_288}})` makes a copy with one figure changed and lets the figures
that follow from it (sets, peak) follow.

## A machine of your own

`vortex probe` writes a spec of the machine it runs on, with the provenance of every figure in its comment.
`vortex check FILE` refuses a malformed file, and on the device itself sets declared figures beside measured ones, of a
GPU beside what the driver tells.
Measurements are cached under `VORTEX_CACHE_DIR`, or the user's cache folder.
"""


def admitted(name: str, field: FieldInfo) -> str:
    """What a field may be, in words."""
    for rule in field.metadata:
        if isinstance(rule, Quantity):
            return str(rule)
    if field.annotation is bool:
        return "true or false"
    options = [repr(option) for option in get_args(field.annotation) if isinstance(option, str)]
    if options:
        return " or ".join(options)
    return {
        "arch": "`sm_` and digits, perhaps `a`",
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


def listing(heads: str, rows: list[str]) -> str:
    return "\n".join([heads, "|".join(["", *["---"] * (heads.count("|") - 1), ""]), *rows])


def shipped() -> str:
    rows = []
    for spec in cpus():
        wide = spec.instruction("float32")
        caches = ", ".join(f"{m.capacity_bytes // 1024} KiB" for m in spec.memories if m.is_cache)
        peak = f"{spec.peak_flops_per_s / 1e9:.0f} GFLOP/s"
        rows.append(
            f"| `{spec.name}` | {spec.llvm_cpu} | {spec.cores} | {wide.lanes} x {wide.registers} | {caches} | {peak} |"
        )
    return listing("| name | LLVM | cores | lanes x registers | caches | peak |", rows)


def shipped_gpus() -> str:
    rows = []
    for spec in gpus():
        peaks = ", ".join(f"{i.name} {i.peak_flops_per_s / 1e12:.4g} TFLOP/s" for i in spec.instructions)
        shared, l2, dram = spec.memories
        memories = f"{shared.capacity_bytes // 1024} KiB, {l2.capacity_bytes >> 20} MiB"
        bandwidth = f"{dram.bandwidth_bytes_per_s / 1e9:.0f} GB/s"
        rows.append(f"| `{spec.name}` | {spec.arch} | {spec.sms} | {memories} | {bandwidth} | {peaks} |")
    return listing("| name | architecture | SMs | shared per SM, L2 | DRAM | peaks |", rows)


def document() -> str:
    parts = [INTRODUCTION, "## Shipped specs\n\n" + shipped() + "\n\n" + shipped_gpus() + "\n"]
    parts += [
        f"## {title}\n\n{model.__doc__} In the file: {place}.\n\n{table(model)}\n"
        for title, place, model in (*CPU_TABLES, *GPU_TABLES, *BOTH_TABLES)
    ]
    return "\n".join([*parts, AGREEMENT])


if __name__ == "__main__":
    TARGET.write_text(document(), encoding="utf-8")
