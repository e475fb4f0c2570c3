"""Where specs come from and go to: shipped files load, names and files that do not are told readably, copies follow."""

import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vortex.errors import SpecError, UnknownNameError
from vortex.gpu_hardware import GpuSpec
from vortex.specs import (
    ALIASES,
    any_spec_from,
    cpus,
    gpus,
    load_spec,
    shipped_specs,
    spec_directory,
    spec_to_toml,
    what_if,
)

ZEN5 = load_spec("epyc-zen5")
PAPER = load_spec("xeon-8255c")


def test_the_shipped_specs_are_the_promised_ones():
    assert {"xeon-8255c", "xeon-8480", "epyc-zen4", "epyc-zen5", "xeon-e5-2680v3"} <= {spec.name for spec in cpus()}
    assert {"a100-sxm4-40gb", "a100-sxm4-80gb", "h200", "rtx3090", "t4"} <= {spec.name for spec in gpus()}
    assert len(cpus()) + len(gpus()) == len(shipped_specs())


@pytest.mark.parametrize("name", shipped_specs())
def test_a_shipped_spec_loads_under_its_own_name(name):
    spec = load_spec(name)
    assert spec.name == name
    assert spec == load_spec(spec_directory() / f"{name}.toml") == load_spec(spec)
    assert [level.name for level in spec.levels] == ["L0", "L1", "L2"]
    if isinstance(spec, GpuSpec):
        assert spec.has("fma", "float32")
    else:
        assert spec.instruction("float32").lanes in (8, 16)


@pytest.mark.parametrize("name", shipped_specs())
def test_every_figure_has_a_source_beside_it(name):
    text = (spec_directory() / f"{name}.toml").read_text()
    bare = [
        line for line in text.splitlines() if "=" in line.partition("#")[0] and not line.partition("  # ")[2].strip()
    ]
    assert not bare


@pytest.mark.parametrize("name", shipped_specs())
def test_a_spec_survives_toml_and_json(name):
    spec = load_spec(name)
    assert any_spec_from(tomllib.loads(spec_to_toml(spec)), "round trip") == spec
    assert any_spec_from(json.loads(spec.model_dump_json()), "round trip").fingerprint() == spec.fingerprint()


def test_the_paper_s_peak_is_the_spec_s():
    assert PAPER.cores == 48
    assert PAPER.peak_flops_per_s == 7344 * 10**9


def test_avx2_is_not_avx512():
    old = load_spec("xeon-e5-2680v3").instruction("float32")
    assert (old.lanes, old.registers) == (8, 16)
    assert "avx512f" not in old.features
    assert "avx512f" in ZEN5.features


class TestNames:
    @pytest.mark.parametrize("short", ALIASES)
    def test_short(self, short):
        assert short not in shipped_specs()
        assert load_spec(short).name == ALIASES[short]
        assert load_spec("a100").name == "a100-sxm4-40gb"

    def test_unknown(self):
        with pytest.raises(UnknownNameError, match=r"known: native, .*did you mean 'epyc-zen5'"):
            load_spec("epyc-zen6")
        with pytest.raises(UnknownNameError, match=r"a path to a .toml file$"):
            load_spec("quite different")

    def test_not_a_name(self):
        with pytest.raises(SpecError, match="expected a name, a path"):
            load_spec(5)

    def test_missing_file(self, tmp_path):
        with pytest.raises(SpecError, match=r"absent.toml: cannot be read"):
            load_spec(tmp_path / "absent.toml")

    def test_broken_toml(self, tmp_path):
        path = tmp_path / "broken.toml"
        path.write_text("cores = = 3")
        with pytest.raises(SpecError, match=r"broken.toml: is not valid TOML.*line 1"):
            load_spec(str(path))

    def test_binary_file(self, tmp_path):
        path = tmp_path / "binary.toml"
        path.write_bytes(b"\xff\xfe\x00")
        with pytest.raises(SpecError, match="not UTF-8"):
            load_spec(path)


class TestWhatIf:
    @pytest.mark.parametrize("name", [spec.name for spec in gpus()])
    @pytest.mark.parametrize(
        "change",
        [
            {"sms": 100},
            {"clock_hz": 10**9},
            {"warps_per_sm": 40},
            {"threads_per_sm": 1280, "threads_per_block": 512},
            {"l2.bytes_per_cycle": 2500},
            {"shared.capacity_bytes": 101 * 1024, "shared_per_block_bytes": 100 * 1024},
            {"fma.rn.f32.flops_per_cycle_per_sm": 64},
        ],
    )
    def test_second_figures_of_a_gpu_follow(self, name, change):
        changed = what_if(load_spec(name), change)
        assert changed != load_spec(name)
        assert what_if(changed, {}) == changed

    @pytest.mark.parametrize("name", [spec.name for spec in cpus()])
    @pytest.mark.parametrize("change", [{"cores": 1}, {"cores": 1000}, {"clock_hz": 10**9}, {"l1.ways": 4}])
    def test_second_figures_follow(self, name, change):
        changed = what_if(load_spec(name), change)
        assert changed != load_spec(name)
        assert what_if(changed, {}) == changed

    def test_half_the_l2(self):
        half = what_if(ZEN5, {"l2.capacity_bytes": 524_288})
        assert (half.memory("l2").sets, half.memory("l2").ways) == (512, 16)
        assert ZEN5.memory("l2").capacity_bytes == 1 << 20

    def test_unknown_path(self):
        with pytest.raises(UnknownNameError, match=r"l2\.capacity"):
            what_if(ZEN5, {"l2.capacity": 1})

    def test_it_is_still_checked(self):
        with pytest.raises(SpecError, match="grow from the inside out"):
            what_if(ZEN5, {"l2.capacity_bytes": 32_768})

    @given(cores=st.integers(1, 1024), clock=st.integers(10**9, 6 * 10**9))
    def test_cores_and_clock(self, cores, clock):
        spec = what_if(ZEN5, {"cores": cores, "clock_hz": clock})
        assert spec.peak_flops_per_s == cores * clock * 64
        assert spec.level("L2").units == cores
        assert spec.memory("l3").shared_by <= cores
