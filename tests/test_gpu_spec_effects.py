"""No figure of a GPU spec is idle: it changes candidates, costs, the domain or what a device is, or confirms others."""

from functools import cache
from typing import Any, get_args

import pytest

from vortex.errors import SpecError
from vortex.gpu_candidates import Backend, Variant
from vortex.gpu_hardware import GpuInstruction, GpuMemory, GpuSpec, gpu_spec_from
from vortex.gpu_probe import capability
from vortex.gpu_profiler import block_costs, rates
from vortex.gpu_sieve import backends, registers_needed, resident_blocks, sieve
from vortex.gpu_variety import domain
from vortex.hardware import Level
from vortex.operators import Gemm
from vortex.rkernel import decompose
from vortex.specs import load_spec, what_if

TABLES = {"instructions": GpuInstruction, "memories": GpuMemory, "levels": Level}
DTYPES = ("float32", "tfloat32", "float16", "bfloat16")
Path = tuple[str, str]
"""Name of the table's row (empty at the top) and field."""

WITNESSES = {
    "sms": "of every peak, of L2.units and of shared.instances, which follow",
    "kind": "what tells a GPU",
    "async_copy": "the architecture",
    "tma": "the architecture",
    "peak_flops_per_s": "SMs x flops_per_cycle_per_sm x clock",
    "instances": "the SMs, or one",
    "memory": "shared, shared, dram",
}
"""Fields that confirm others, by name; changed alone they are refused, or what they confirm follows."""
PLACES = {
    ("L1", "units"): "one",
    ("L2", "units"): "the SMs",
    ("L2", "analysis"): "analytical: its shape is not known",
    ("L2", "min_utilization"): "none: it has no tile",
    ("L2", "max_utilization"): "none: it has no tile",
    ("shared", "clock_hz"): "the clock of the SMs",
    ("shared", "bandwidth_bytes_per_s"): "SMs x bytes per cycle x clock",
}


def figures(spec: GpuSpec) -> list[Path]:
    """Every figure, found by walking the model: a new field is walked without a change here."""
    top = [("", field) for field in GpuSpec.model_fields if field not in TABLES]
    rows = [
        (row.name, f) for table, model in TABLES.items() for row in getattr(spec, table) for f in model.model_fields
    ]
    return top + rows


def told(path: Path) -> str:
    return ".".join(path).removeprefix(".")


def table_of(data: dict[str, Any], owner: str) -> dict[str, Any]:
    return next(row for table in TABLES for row in data[table] if row["name"] == owner) if owner else data


def others(spec: GpuSpec, path: Path) -> list[Any]:
    """Other values of a figure: some near, some of another size."""
    value = table_of(spec.model_dump(mode="json"), path[0])[path[1]]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, float):
        return [round(value + step, 2) for step in (-0.5, -0.2, 0.1, 0.2, 0.5) if 0 <= value + step <= 1]
    if isinstance(value, int):
        return [2 * value, value // 2, value + 8, value * 4 // 5, value * 100]
    models = [model for table, model in TABLES.items() if path[0] in [row.name for row in getattr(spec, table)]]
    annotation = (models[0] if models else GpuSpec).model_fields[path[1]].annotation
    options = [option for option in get_args(annotation) if isinstance(option, str)]
    return [option for option in options if option != value] or [f"{value}x", "sm_86", "sm_80", "sm_90a"]


def alone(spec: GpuSpec, path: Path, value: Any) -> GpuSpec:
    data = spec.model_dump(mode="json")
    table_of(data, path[0])[path[1]] = value
    return gpu_spec_from(data, "changed")


def served(spec: GpuSpec) -> list[tuple[str, Backend]]:
    found = []
    for dtype in DTYPES:
        try:
            found += [(dtype, backend) for backend in backends(decompose(Gemm(dtype), spec))]
        except SpecError:
            continue
    return found


@cache
def sample(name: str) -> tuple[Variant, ...]:
    """Variants of the unchanged spec, of every backend and type, priced on every changed one."""
    spec = load_spec(name)
    found = []
    for dtype, backend in served(spec):
        strategies = sieve(decompose(Gemm(dtype), spec), backend).strategies
        found += [Variant(s, False, True, 16) for s in (strategies[0], *strategies[7 :: len(strategies) // 12 + 1])]
    return tuple(found)


def identity(spec: GpuSpec) -> object:
    """How tables are addressed, how a library and a device are matched, and what machine code is made for."""
    rows = sorted(row.name for table in TABLES for row in getattr(spec, table))
    return rows, spec.name, spec.arch, capability(spec)


def priced(spec: GpuSpec) -> object:
    fitting = [v for v in sample(load_spec_name(spec)) if resident_blocks(spec, v.strategy) >= 1]
    registers = {v.name: registers_needed(spec, v.strategy) for v in fitting}
    try:
        return rates(spec), block_costs(spec, fitting, registers_of=registers)
    except SpecError as error:  # an instruction that the sample needs is gone
        return str(error)


def load_spec_name(spec: GpuSpec) -> str:
    return "h200" if "wgmma" in {row.kind for row in spec.instructions} else "a100"


def analysed(spec: GpuSpec) -> object:
    return [level.empirical for level in decompose(Gemm(), spec).levels]


def candidates(spec: GpuSpec) -> object:
    return [sieve(decompose(Gemm(dtype), spec), backend) for dtype, backend in served(spec)]


def modelled(spec: GpuSpec) -> object:
    return domain(spec, 2, Backend.TENSOR_CORE).tobytes()


OBSERVERS = (identity, analysed, priced, modelled, candidates)  # the cheap ones first: the first difference settles it


@cache
def unchanged(spec: GpuSpec, observe: Any) -> object:
    return observe(spec)


def effect(before: GpuSpec, after: GpuSpec) -> str:
    return next((observe.__name__ for observe in OBSERVERS if observe(after) != unchanged(before, observe)), "")


def outcome(before: GpuSpec, make: Any) -> str:
    try:
        after = make()
    except SpecError:
        return "refused"
    return effect(before, after) if after != before else "refused"


A100, H200 = load_spec("a100"), load_spec("h200")
CASES = [(A100.name, path) for path in figures(A100)]
CASES += [(H200.name, path) for path in figures(H200) if path[0].startswith("wgmma")]  # all else is as on the A100


@pytest.mark.parametrize(("name", "path"), CASES, ids=lambda value: value if isinstance(value, str) else told(value))
def test_a_figure_changed_alone_is_noticed(name: str, path: Path):
    spec = load_spec(name)
    outcomes = {str(v): outcome(spec, lambda v=v: alone(spec, path, v)) for v in others(spec, path)}
    assert set(outcomes.values()) - {""}, f"{told(path)} changes nothing: {outcomes}"


@pytest.mark.parametrize(("name", "path"), CASES, ids=lambda value: value if isinstance(value, str) else told(value))
def test_a_figure_has_a_reader_or_is_a_known_witness(name: str, path: Path):
    """With the second figures following, so that agreement alone does not excuse a figure."""
    if (path[1] == "name" and path[0]) or path in PLACES or path[1] in WITNESSES:
        return
    spec = load_spec(name)
    outcomes = {str(v): outcome(spec, lambda v=v: what_if(spec, {told(path): v})) for v in others(spec, path)}
    effects = set(outcomes.values()) - {"refused"}
    if path[1] in ("m", "n", "k", "dtype"):  # what an instruction of that kind can be: anything else is no instruction
        assert "" not in effects, f"nothing reads {told(path)}: {outcomes}"
    else:
        assert effects - {""}, f"nothing reads {told(path)}: {outcomes}"


@pytest.mark.parametrize(("name", "path"), CASES, ids=lambda value: value if isinstance(value, str) else told(value))
def test_every_figure_is_part_of_the_fingerprint(name: str, path: Path):
    spec = load_spec(name)
    for value in others(spec, path):
        try:
            changed = alone(spec, path, value)
        except SpecError:
            continue
        assert changed == spec or changed.fingerprint() != spec.fingerprint()


def test_turing_stages_through_registers():
    """The architecture and its flag together: stages beyond the one that registers can hold are gone."""
    before, after = load_spec("a100"), what_if(load_spec("a100"), {"arch": "sm_75", "async_copy": False})
    stages = [
        {s.stages for s in sieve(decompose(Gemm("float16"), spec), Backend.TENSOR_CORE).strategies}
        for spec in (before, after)
    ]
    assert stages == [{2, 3, 4, 5}, {1, 2}]
