"""The model of a GPU's spec: known facts of known devices, and figures that disagree are refused with both sides."""

from typing import Any

import pytest
from pydantic import ValidationError

from vortex.errors import SpecError
from vortex.gpu_hardware import GpuSpec, gpu_spec_from
from vortex.specs import any_spec_from, gpus, load_spec, read_spec, what_if

A100 = load_spec("a100")


def altered(changes: dict[str, Any]) -> dict[str, Any]:
    """The A100 as plain data with figures changed by path, nothing else adjusted."""
    data = A100.model_dump(mode="json")
    tables = {row["name"]: row for key in ("instructions", "memories", "levels") for row in data[key]}
    for path, value in changes.items():
        owner, _, field = path.rpartition(".")
        (tables[owner] if owner else data)[field] = value
    return data


def refused(data: dict[str, Any], *words: str) -> None:
    with pytest.raises(SpecError) as caught:
        gpu_spec_from(data, "hwspecs/mine.toml")
    for word in ("hwspecs/mine.toml", "given:", "expected:", "remedy:", *words):
        assert word in str(caught.value), str(caught.value)


class TestFacts:
    def test_a100(self):
        assert (A100.sms, A100.arch, A100.registers_per_sm) == (108, "sm_80", 65_536)
        assert A100.memory("shared").capacity_bytes == 164 * 1024
        assert A100.shared_per_block_bytes == 163 * 1024
        assert A100.shared_reserved_bytes == 1024
        assert A100.memory("l2").capacity_bytes == 40 << 20
        assert A100.instruction("fma", "float32").peak_flops_per_s == 19.5e12
        assert A100.instruction("mma", "float16").peak_flops_per_s == 312e12
        assert A100.instruction("mma", "bfloat16").peak_flops_per_s == 312e12
        assert A100.instruction("mma", "tfloat32").peak_flops_per_s == 156e12

    def test_the_80_gb_board_differs_in_its_dram_alone(self):
        large = load_spec("a100-sxm4-80gb").model_dump() | {"name": A100.name}
        small = A100.model_dump()
        assert large["memories"][2] != small["memories"][2]
        large["memories"], small["memories"] = large["memories"][:2], small["memories"][:2]
        assert large == small

    def test_architectures(self):
        flags = {spec.name: (spec.arch, spec.async_copy, spec.tma) for spec in gpus()}
        assert flags["h200"] == ("sm_90a", True, True)
        assert flags["rtx3090"] == ("sm_86", True, False)
        assert flags["t4"] == ("sm_75", False, False)

    def test_turing_has_no_m16n8k16(self):
        t4 = load_spec("t4")
        assert [(row.m, row.n, row.k) for row in t4.instructions if row.kind == "mma"] == [(16, 8, 8)]
        with pytest.raises(
            SpecError, match=r"t4: no mma instruction for bfloat16; the spec has fma.rn.f32, mma.m16n8k8"
        ):
            t4.instruction("mma", "bfloat16")

    def test_hopper_multiplies_faster_by_warpgroups(self):
        h200 = load_spec("h200")
        for dtype in ("float16", "bfloat16", "tfloat32"):
            faster, slower = h200.instruction("wgmma", dtype), h200.instruction("mma", dtype)
            assert faster.flops_per_cycle_per_sm > 1.5 * slower.flops_per_cycle_per_sm
        assert not A100.has("wgmma", "float16")


@pytest.mark.parametrize("spec", gpus(), ids=lambda spec: spec.name)
class TestEverySpec:
    def test_is_frozen_and_hashable(self, spec: GpuSpec):
        with pytest.raises(ValidationError):
            spec.sms = 3  # type: ignore[misc]
        assert hash(spec) == hash(load_spec(spec.name))

    def test_says_what_it_is_in_a_line(self, spec: GpuSpec):
        assert f"{spec.sms} SMs, {spec.arch}" in spec.summary()

    def test_arithmetic_intensity_of_the_device_is_plausible(self, spec: GpuSpec):
        """An A100 with another GPU's DRAM or peak would fall out of this range."""
        peak = max(row.peak_flops_per_s for row in spec.instructions if row.dtype != "int8")
        assert 50 < peak / spec.memory("dram").bandwidth_bytes_per_s < 300
        plain = spec.instruction("fma", "float32").peak_flops_per_s
        assert 8 < plain / spec.memory("dram").bandwidth_bytes_per_s < 50


class TestRefused:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"sms": 80}, ("19500000000000", "80 x 128 x 1410000000")),
            (
                {"mma.m16n8k16.f16.peak_flops_per_s": 125_000_000_000_000},
                ("125000000000000", "108 x 2048 x 1410000000"),
            ),
            ({"dram.bandwidth_bytes_per_s": 900_000_000_000}, ("900000000000", "1 x 1280 x 1215000000")),
            ({"fma.rn.f32.peak_flops_per_s": 9_700_000_000_000}, ("factor of 0.498",)),
            ({"clock_hz": 1_095_000_000}, ("clock_hz",)),
            ({"shared.instances": 54, "shared.bandwidth_bytes_per_s": 9_745_920_000_000}, ("shared.instances = 54",)),
            ({"shared_per_block_bytes": 49_152}, ("49152", "opt in")),
            ({"shared_per_block_bytes": 171_008}, ("167936",)),
            ({"threads_per_sm": 1536}, ("threads_per_sm = 1536", "64 = 2048")),
            ({"threads_per_block": 4096}, ("threads_per_block = 4096",)),
            ({"blocks_per_sm": 128}, ("blocks_per_sm = 128",)),
            ({"registers_per_thread": 256}, ("registers_per_thread = 256", "255")),
            ({"registers_per_sm": 16_384}, ("registers_per_sm = 16384",)),
            ({"async_copy": False}, ("async_copy = False with arch = sm_80",)),
            ({"tma": True}, ("tma = True", "sm_90")),
            ({"arch": "sm_75"}, ("async_copy = True with arch = sm_75",)),
            ({"arch": "ampere"}, ("arch",)),
            ({"kind": "GPU"}, ("kind",)),
            ({"sms": True}, ("sms",)),
            ({"tma": 0}, ("tma",)),
            ({"mma.m16n8k16.f16.k": 32}, ("mma of 16x8x32 on float16",)),
            ({"fma.rn.f32.n": 2}, ("fma of 1x2x1",)),
            ({"mma.m16n8k16.f16.dtype": "float32"}, ("CUDA cores only",)),
            ({"mma.m16n8k16.f16.kind": "wgmma"}, ("wgmma",)),
            ({"mma.m16n8k16.bf16.name": "mma.m16n8k16.f16"}, ("a different name for each",)),
            ({"l2.latency_ns": 400}, ("more latency the further out",)),
            ({"l2.bytes_per_cycle": 1000, "l2.bandwidth_bytes_per_s": 1_410_000_000_000}, ("less bandwidth",)),
            ({"dram.capacity_bytes": 40 << 20}, ("more bytes in DRAM",)),
            ({"L0.memory": "l2"}, ("L0",)),
            ({"L0.units": 5}, ("L0.units = 5", "warp schedulers")),
            ({"L2.units": 107}, ("107", "sms = 108")),
            ({"L2.analysis": "empirical"}, ("analytical",)),
            ({"L1.min_utilization": 1.0}, ("min_utilization",)),
            ({"launch_ns": 2}, ("launch_ns", "ns between 10")),
        ],
        ids=str,
    )
    def test_a_figure_that_disagrees(self, changes: dict[str, Any], words: tuple[str, ...]):
        refused(altered(changes), *words)

    def test_typo(self):
        data = altered({})
        data["memories"][1]["latency"] = data["memories"][1].pop("latency_ns")
        refused(data, "memories.l2.latency", "did you mean 'latency_ns'?")

    def test_memories_out_of_order(self):
        data = altered({})
        data["memories"].reverse()
        refused(data, "shared, l2, dram in that order")

    def test_no_cuda_cores(self):
        data = altered({})
        data["instructions"] = data["instructions"][1:]
        refused(data, "an fma for float32 among them")

    def test_the_unaltered_one_is_fine(self):
        assert gpu_spec_from(altered({}), "a copy") == A100


def test_a_file_without_kind_is_of_a_cpu(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nsms = 108\n')
    with pytest.raises(SpecError, match="an unknown field 'sms'"):
        read_spec(path)
    with pytest.raises(SpecError, match="kind"):
        any_spec_from({**altered({}), "kind": "cpu"}, "mine")


def test_half_an_a100():
    half = what_if(A100, {"sms": 54})
    assert half.instruction("mma", "float16").peak_flops_per_s == 54 * 2048 * 1_410_000_000
    assert half.level("L2").units == half.memory("shared").instances == 54
    assert half.fingerprint() != A100.fingerprint()
