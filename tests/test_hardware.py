"""The model of a spec: what is wrong, or disagrees with itself, is refused with a message that helps."""

import contextlib
import importlib.util
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from vortex.errors import SpecError
from vortex.hardware import HardwareSpec, Instruction, Level, Memory, spec_from
from vortex.specs import load_spec, what_if

ZEN5 = load_spec("epyc-zen5")


def altered(*path_then_value):
    """ZEN5 as plain data with one figure changed, nothing else adjusted."""
    *path, last, value = path_then_value
    data = ZEN5.model_dump(mode="json")
    at = data
    for key in path:
        at = at[key]
    at[last] = value
    return data


def refused(data, *words):
    with pytest.raises(SpecError) as caught:
        spec_from(data, "hwspecs/mine.toml")
    message = str(caught.value)
    for word in ("hwspecs/mine.toml", "given:", "expected:", "remedy:", *words):
        assert word in message, message
    return message


def test_lookups():
    assert ZEN5.memory("l2").capacity_bytes == 1 << 20
    assert ZEN5.level("L1").memory == "l2"
    for broken in (lambda: ZEN5.memory("l9"), lambda: ZEN5.level("L9"), lambda: ZEN5.instruction("float64")):
        with pytest.raises(SpecError):
            broken()


def test_specs_are_frozen_and_hashable():
    with pytest.raises(ValidationError):
        ZEN5.cores = 3
    assert hash(ZEN5) == hash(load_spec("epyc-zen5"))


def test_fingerprints_differ_with_any_figure():
    seen = {ZEN5.fingerprint()}
    for change in (
        {"clock_hz": 3_000_000_000},
        {"l2.capacity_bytes": 524_288},
        {"L1.max_utilization": 0.5},
        {"cores": 4},
    ):
        seen.add(what_if(ZEN5, change).fingerprint())
    assert len(seen) == 5


class TestRefused:
    def test_typo(self):
        data = ZEN5.model_dump()
        data["memories"][1]["bandwith_bytes_per_s"] = data["memories"][1].pop("bandwidth_bytes_per_s")
        refused(data, "memories.l2.bandwith_bytes_per_s", "did you mean 'bandwidth_bytes_per_s'?")

    def test_typo_at_the_top(self):
        refused(altered("clock_khz", 1), "clock_khz", "did you mean 'clock_hz'?")

    def test_missing(self):
        data = ZEN5.model_dump()
        del data["thread_start_ns"]
        refused(data, "thread_start_ns", "nothing")

    @pytest.mark.parametrize(
        "path", [("clock_hz", 2.5), ("clock_hz", 3300), ("clock_hz", "3.3 GHz"), ("clock_hz", True)]
    )
    def test_clock_in_another_unit(self, path):
        refused(altered(*path), "clock_hz", "an integer in Hz", "2.5 GHz is 2_500_000_000")

    def test_capacity_in_kib(self):
        refused(altered("memories", 0, "capacity_bytes", 48), "memories.l1.capacity_bytes", "48 KiB is 49_152")
        refused(altered("memories", 2, "capacity_bytes", 32768), "is the capacity in KiB?", "16 x 64 = 33554432")

    def test_bandwidth_in_gb_per_s(self):
        refused(altered("memories", 3, "bandwidth_bytes_per_s", 43), "43 GB/s is 43_000_000_000")

    def test_peak_in_gflops(self):
        refused(altered("peak_flops_per_s", 27_033), "287 GFLOP/s is 287_000_000_000")

    def test_peak_that_disagrees(self):
        message = refused(altered("peak_flops_per_s", 13_516_800_000_000), "13516800000000", "27033600000000", "0.5")
        assert "128 x 2 x 16 x 2 x 3300000000" in message

    def test_peak_within_tolerance(self):
        assert spec_from(altered("peak_flops_per_s", 27_500_000_000_000), "x")
        refused(altered("peak_flops_per_s", 27_700_000_000_000))

    def test_geometry(self):
        refused(altered("memories", 1, "ways", 8), "8 x 64 = 524288", "1048576")
        refused(altered("memories", 1, "sets", 0), "sets = 0", "ways = 16", "all five (a cache) or none of them (DRAM)")

    def test_pages_without_their_number(self):
        refused(altered("page_bytes", 4096), "page_bytes = 4096, kept_pages = 0", "both or neither")
        refused(altered("kept_pages", 1536), "page_bytes = 0, kept_pages = 1536", "both or neither")
        assert spec_from(ZEN5.model_dump() | {"page_bytes": 4096, "kept_pages": 1536}, "x")

    def test_dram_has_no_capacity(self):
        refused(altered("memories", 3, "capacity_bytes", 2**36), "none of them (DRAM)")
        as_cache = ZEN5.memory("l3").model_dump() | {"name": "dram", "capacity_bytes": 2**26, "sets": 2**16}
        refused(altered("memories", 3, as_cache), "then one memory without capacity")
        dram = ZEN5.memory("dram").model_dump() | {"name": "l1"}
        refused(altered("memories", 0, dram), "reorder them")

    def test_total_bandwidth(self):
        refused(
            altered("memories", 3, "total_bandwidth_bytes_per_s", 40_000_000_000), "dram.total_bandwidth_bytes_per_s"
        )
        refused(altered("memories", 3, "total_bandwidth_bytes_per_s", 10**15), "128 x 43000000000")
        refused(
            altered("memories", 1, "total_bandwidth_bytes_per_s", 10**13), "of a private cache", "128 x 200000000000"
        )

    def test_order_of_memories(self):
        data = ZEN5.model_dump()
        caches = data["memories"][:-1]
        data["memories"] = [*caches[::-1], data["memories"][-1]]
        refused(data, "grow from the inside out")

    def test_names_repeat(self):
        refused(altered("memories", 1, "name", "l1"), "a different name for each")

    def test_level_of_an_unknown_memory(self):
        refused(altered("levels", 1, "memory", "l22"), "L1.memory = 'l22'", "did you mean 'l2'?")

    def test_levels_out_of_order(self):
        refused(altered("levels", 1, "memory", "dram"), "one between")
        refused(altered("levels", 0, "memory", "l2"), "the first")
        refused(altered("levels", 2, "memory", "l3"), "the last of")
        data = ZEN5.model_dump()
        data["levels"] = data["levels"][::-1]
        refused(data, "L0, L1, L2 in that order")

    def test_level_smaller_than_its_tile(self):
        refused(altered("levels", 1, "max_utilization", 0.001), "room for the tile below it", "2048 bytes")

    def test_registers_that_cannot_keep_the_unit_busy(self):
        refused(altered("instructions", 0, "latency_cycles", 16), "34 at least", "2 x 16 accumulators")
        refused(altered("levels", 0, "min_utilization", 0.95), "32 registers", "L0.min_utilization = 0.95")

    def test_utilization_in_percent(self):
        refused(altered("levels", 1, "max_utilization", 75), "levels.L1.max_utilization")
        refused(altered("levels", 0, "min_utilization", 1.0), "0 <= min_utilization < max_utilization <= 1")

    def test_the_outermost_level_has_no_tile(self):
        refused(altered("levels", 2, "max_utilization", 0.5), "it takes the whole shape")
        refused(altered("levels", 2, "analysis", "empirical"), "known only at run time")

    def test_units(self):
        refused(altered("levels", 2, "units", 64), "[1, 1, 128]")

    def test_lanes(self):
        refused(altered("instructions", 0, "lanes", 12), "a power of two")
        refused(altered("instructions", 0, "lanes", 512), "not bits")

    def test_sharing(self):
        refused(altered("memories", 2, "shared_by", 129), "at most cores = 128")
        refused(altered("memories", 0, "shared_by", 2), "no fewer cores the further out")

    def test_all_problems_at_once(self):
        data = altered("clock_hz", 2.5)
        data["memories"][0]["ways"] = -1
        assert refused(data, "clock_hz", "memories.l1.ways").count("remedy:") == 2

    def test_constructors_refuse_with_the_project_s_own_error(self):
        with pytest.raises(SpecError, match="clock_hz"):
            HardwareSpec(**altered("clock_hz", 2.5))
        with pytest.raises(SpecError, match="min_utilization"):
            Level(name="L0", memory="l1", units=1, analysis="empirical", min_utilization=0.5, max_utilization=0.1)
        with pytest.raises(SpecError, match="line_bytes"):
            Memory(**ZEN5.memories[0].model_dump() | {"line_bytes": 6})
        with pytest.raises(SpecError, match="registers"):
            Instruction(**ZEN5.instructions[0].model_dump() | {"registers": 2})


@given(
    figure=st.sampled_from([*(f for f, v in ZEN5.model_dump().items() if isinstance(v, int))]),
    value=st.one_of(st.integers(), st.floats(), st.text(), st.none(), st.booleans(), st.lists(st.integers())),
)
def test_nothing_but_a_spec_error_comes_of_nonsense(figure, value):
    with contextlib.suppress(SpecError):
        assert spec_from(altered(figure, value), "x").name


@given(
    st.dictionaries(st.text(), st.one_of(st.integers(), st.text(), st.lists(st.dictionaries(st.text(), st.integers()))))
)
def test_any_table_is_refused_readably(data):
    with pytest.raises(SpecError, match="remedy"):
        spec_from(data, "x")


def test_the_manual_is_up_to_date():
    path = Path(__file__).resolve().parent.parent / "docs" / "generate_hardware_spec.py"
    described = importlib.util.spec_from_file_location("generate_hardware_spec", path)
    assert described
    assert described.loader
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    assert module.TARGET.read_text() == module.document(), "run: python docs/generate_hardware_spec.py"
