"""No figure of a spec is idle: each one changes candidates, cost or what is demanded of a machine, or is checked."""

import json
from functools import cache
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
from priced import found, selector
from recorded import CASCADE, QUIET, SKYLAKE, machine

import vortex
from vortex import comparison, probe, profiler
from vortex.errors import DeviceError, NoInstructionError, SpecError
from vortex.hardware import HardwareSpec, Instruction, Level, Memory, spec_from
from vortex.operators import Gemm
from vortex.plans import Grid, OperandB, Shape
from vortex.rkernel import decompose
from vortex.sieve import main_tiles, register_tiles, sieve
from vortex.specs import load_spec, what_if

PAGES = {"page_bytes": 4096, "kept_pages": 1536}
"""Of its core, where nobody gives it huge ones."""
SPEC = what_if(load_spec("xeon-8255c"), PAGES)
TABLES = {"instructions": Instruction, "memories": Memory, "levels": Level}
CUBES = [Shape(int(extent), int(extent), int(extent)) for extent in np.geomspace(4, 4096, 21)]
SHAPES = [
    *CUBES,
    *(Shape(256, 512, depth, ldb=2**14) for depth in (8, 16, 128, 2048)),  # rows of B that collide in L1 and L2
    Shape(20_000, 20_000, 20_000),
    Shape(200, 50, 2048),
    Shape(1, 2600, 4000),  # in L3 even when every core reads its share
    Shape(64, 700, 512, OperandB.TRANSPOSED),
    Shape(64, 768, 512, OperandB.PACKED),
]

Path = tuple[str, str]
"""Owner (a table's name, empty at the top) and field."""


def figures() -> list[Path]:
    """Every figure of the spec, found by walking the model: a new field is walked without a change here."""
    top = [("", field) for field in HardwareSpec.model_fields if field not in TABLES]
    rows = [
        (row.name, field)
        for table, model in TABLES.items()
        for row in getattr(SPEC, table)
        for field in model.model_fields
    ]
    return top + rows


def table_of(data: dict[str, Any], owner: str) -> dict[str, Any]:
    return next(row for table in TABLES for row in data[table] if row["name"] == owner) if owner else data


def model_of(owner: str) -> type[Any]:
    found = [model for table, model in TABLES.items() if owner in [row.name for row in getattr(SPEC, table)]]
    return found[0] if found else HardwareSpec


def others(path: Path) -> list[Any]:
    """Other values of a figure: some near, some of another size."""
    owner, field = path
    value = table_of(SPEC.model_dump(mode="json"), owner)[field]
    options = [option for option in get_args(model_of(owner).model_fields[field].annotation) if isinstance(option, str)]
    if options:
        return [option for option in (*options, "other") if option != value]
    if isinstance(value, list):
        return [value[1:], [*value, "avx512_fp16"]]
    if isinstance(value, str):
        return [f"{value}x", *(memory.name for memory in SPEC.memories if memory.name != value)]
    if isinstance(value, float):
        return [round(value + step, 2) for step in (-0.5, -0.2, 0.1, 0.2) if 0 <= value + step <= 1]
    return [2 * value, value // 2, value + 1 if value < 100 else value * 5 // 4]


@cache
def sample():
    """Strategies and micro-kernels of the unchanged spec, priced on every changed one."""
    lanes = SPEC.instruction("float32").lanes
    return found(SPEC).strategies[::61], tuple((tile.m, tile.n // lanes) for tile in found(SPEC).register_tiles)


def basis(spec: HardwareSpec) -> object:
    """How the cost of each level is known: a measured or a computed profile."""
    return [level.empirical for level in decompose(Gemm(), spec).levels]


def costs(spec: HardwareSpec) -> object:
    chosen = selector(spec, *sample())
    grids = (Grid(1, 1), 1), (Grid(1, 2), 2), (Grid(spec.cores, 1), spec.cores)
    return [np.asarray(chosen.costs(s, grid, threads).total).tobytes() for s, (grid, threads) in product(SHAPES, grids)]


def candidates(spec: HardwareSpec) -> object:
    result = sieve(decompose(Gemm(), spec))
    return result.admitted, result.strategies, result.register_tiles


def words(spec: HardwareSpec) -> object:
    """Register tiles of a dot instruction, and what they cost; nothing without one."""
    try:
        rkernel = decompose(Gemm(dtype="int8"), spec)
        tiles, _ = register_tiles(rkernel)
        return main_tiles(rkernel, tiles), tiles, profiler.compute(spec, [(4, 4)], "int8").kernels
    except NoInstructionError:
        return None


OBSERVERS = (
    basis,
    words,
    costs,
    candidates,
)  # the cheap ones first: the first difference settles it. Costs decide plans


@cache
def unchanged(observe):
    return observe(SPEC)


def effect(spec: HardwareSpec) -> str:
    """The first thing that differs from the unchanged spec; empty where nothing does."""
    return next((observe.__name__ for observe in OBSERVERS if observe(spec) != unchanged(observe)), "")


def outcome(make) -> str:
    try:
        spec = make()
    except SpecError:
        return "refused"
    return effect(spec) if spec != SPEC else "refused"


def changed_alone(path: Path, value: Any) -> HardwareSpec:
    data = SPEC.model_dump(mode="json")
    table_of(data, path[0])[path[1]] = value
    return spec_from(data, "changed")


# What a word means is not seen in candidates or cost; each has its reader here.


def addresses(spec: HardwareSpec) -> object:
    """Names of tables are how figures are addressed, in `what_if`, `check` and error messages."""
    return sorted(row.name for table in TABLES for row in getattr(spec, table))


def remembered_as(spec: HardwareSpec) -> object:
    """A profile belongs to the device of that name."""
    return profiler.compute(spec, [(1, 1)]).device


def compiled_for(spec: HardwareSpec) -> object:
    """The name goes to LLVM."""
    lower = pytest.importorskip("vortex.codegen.lower", reason="TVM is not here")
    known = spec if spec.llvm_cpu == SPEC.llvm_cpu else what_if(spec, {"llvm_cpu": "icelake-server"})
    return str(lower.cpu_target(known.llvm_cpu))


WORDS = {
    ("", "name"): remembered_as,
    ("", "llvm_cpu"): compiled_for,
    **{(row.name, "name"): addresses for table in TABLES for row in getattr(SPEC, table)},
}
FLAGS = [path for path in figures() if path[1] == "features"]

WITNESSES = {
    ("", "peak_flops_per_s"): "cores x issue x lanes x 2 x clock",
    **{(name, field): "1: a vector" for name in ("vfmadd231ps-zmm", "vpdpbusd-zmm") for field in ("rows", "depth")},
    ("l1", "sets"): "capacity / ways / line",
    ("l2", "sets"): "capacity / ways / line",
    ("l3", "sets"): "capacity / ways / line",
    ("l2", "ways"): "capacity / sets / line",
    ("l3", "ways"): "capacity / sets / line",
    ("l3", "line_bytes"): "capacity / sets / ways",
    ("l1", "total_bandwidth_bytes_per_s"): "cores x the bandwidth of one: private",
    ("l2", "total_bandwidth_bytes_per_s"): "cores x the bandwidth of one: private",
    ("dram", "capacity_bytes"): "none: not a cache",
    ("dram", "line_bytes"): "none: not a cache",
    ("dram", "ways"): "none: not a cache",
    ("dram", "sets"): "none: not a cache",
    ("dram", "shared_by"): "none: not a cache",
    ("l1", "shared_by"): "no more than of the cache outside it",
    ("L0", "memory"): "the first memory",
    ("L2", "memory"): "the last memory",
    ("L0", "units"): "one",
    ("L1", "units"): "one",
    ("L2", "units"): "the cores",
    ("L2", "analysis"): "analytical: its shape is not known",
    ("L2", "min_utilization"): "none: it has no tile",
    ("L2", "max_utilization"): "none: it has no tile",
    ("vfmadd231ps-zmm", "dtype"): "float32: the only one so far",
}
"""Figures that confirm others, and what; a change that the others follow shows in no price of this test."""

NUMBERS = [path for path in figures() if path not in WORDS and path not in FLAGS]


def told(path: Path) -> str:
    return ".".join(path).removeprefix(".")


@pytest.mark.parametrize("path", NUMBERS, ids=map(told, NUMBERS))
def test_a_figure_changed_alone_is_noticed(path):
    outcomes = {str(value): outcome(lambda v=value: changed_alone(path, v)) for value in others(path)}
    effects = set(outcomes.values()) - {"refused", ""}
    # A change that is accepted and without effect is excused only where another one of the same figure has an effect.
    assert effects or "" not in outcomes.values(), f"{told(path)} changes nothing: {outcomes}"


@pytest.mark.parametrize("path", NUMBERS, ids=map(told, NUMBERS))
def test_a_figure_has_a_reader_or_is_a_known_witness(path):
    """With the second figures following, so that agreement alone does not excuse a figure."""
    outcomes = {str(value): outcome(lambda v=value: what_if(SPEC, {told(path): v})) for value in others(path)}
    effects = set(outcomes.values()) - {"refused", ""}
    if path in WITNESSES:
        assert not effects, f"{told(path)} is read: {outcomes}; strike it from WITNESSES"
        # `sets` follow the ways and the line, and are no more read than they are: such a copy is the same device.
        assert "" not in outcomes.values() or told(path).endswith(("ways", "line_bytes")), outcomes
    else:
        assert effects, f"nothing reads {told(path)}: {outcomes}"


@pytest.mark.parametrize("path", WORDS, ids=told)
def test_a_word_has_a_reader(path):
    observe = WORDS[path]
    outcomes = {
        value: outcome_of_word(observe, path, value) for value in others(path) if isinstance(value, str) and value
    }
    assert all(outcomes.values()), f"{told(path)} changes nothing: {outcomes}"


def outcome_of_word(observe, path: Path, value: str) -> bool:
    try:
        return observe(changed_alone(path, value)) != observe(SPEC)
    except SpecError:
        return True


@pytest.mark.parametrize("path", FLAGS, ids=told)
def test_flags_are_demanded_of_the_machine(path, tmp_path):
    needs = [flag for flag in SPEC.instruction("float32").features if flag in SKYLAKE.split()]
    assert len(needs) == len(SPEC.instruction("float32").features)
    here = probe.assemble(machine(tmp_path, flags=CASCADE), QUIET)
    assert comparison.check_device(SPEC, here)
    for flags in ([*needs, "avx512_fp16"], ["amx-tile"]):
        with pytest.raises(DeviceError, match="it lacks"):
            comparison.check_device(changed_alone(path, flags), here)


@pytest.mark.parametrize("path", figures(), ids=told)
def test_every_figure_is_part_of_the_fingerprint(path):
    for value in others(path):
        try:
            spec = changed_alone(path, value)
        except SpecError:
            continue
        assert spec == SPEC or spec.fingerprint() != SPEC.fingerprint()


def test_every_witness_is_a_figure():
    assert set(WITNESSES) | set(WORDS) <= set(figures())


class TestWhatIf:
    def test_half_the_l2(self):
        whole, half = (
            {(row.level, row.filter): row.count for row in sieve(decompose(Gemm(), spec)).admitted}
            for spec in (SPEC, what_if(SPEC, {"l2.capacity_bytes": SPEC.memory("l2").capacity_bytes // 2}))
        )
        assert {key: half[key] for key in half if key[0] == "L0"} == {
            key: whole[key] for key in whole if key[0] == "L0"
        }
        assert all(half[key] < whole[key] for key in whole if key[0] == "L1")
        assert half["L1", "FilterByCapacity"] > 0

    def test_fewer_registers(self):
        narrow = sieve(decompose(Gemm(), what_if(SPEC, {"vfmadd231ps-zmm.registers": 16})))
        lanes = SPEC.instruction("float32").lanes
        assert max(tile.m * (tile.n // lanes) for tile in narrow.register_tiles) < 16

    def test_the_copy_says_where_it_came_from(self):
        changed = what_if(SPEC, {"l2.capacity_bytes": 524_288})
        assert json.loads(changed.model_dump_json())["name"] == SPEC.name
        assert changed.fingerprint() != SPEC.fingerprint()


def test_a_spec_that_no_candidate_passes_is_refused():
    """One tile of C would keep this unit busy, but two are wanted, and the operands of two take three registers."""
    told = r"no candidate for gemm of bfloat16 .*FilterByUtilization 0.*widen the utilization bounds"
    tiles = {f"{name}.latency_cycles": 16 for name in ("tdpbf16ps-tmm", "tdpbssd-tmm")}
    small = tiles | {"L0.max_utilization": 0.5}
    with pytest.raises(SpecError, match=told):
        vortex.compile(Gemm(dtype="bfloat16"), what_if(load_spec("xeon-8480"), small), cache=False)
