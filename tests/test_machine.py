"""Recorded machines are read from small trees of files."""

import pytest
from recorded import AVX2, CASCADE, ICELAKE, SAPPHIRE, SKYLAKE, ZEN4, machine, tree, write

from vortex.errors import DeviceError
from vortex.machine import read_machine


class TestReading:
    def test_cascade_lake(self, tmp_path):
        found = machine(tmp_path)
        assert (found.llvm_cpu, found.lanes, found.cpus) == ("cascadelake", 16, (0, 1, 2, 3))
        assert found.free_bytes == 32_768_000 * 1024
        l1, l2, l3 = found.caches
        assert (l1.size, l1.ways, l1.sets, l1.shared_by) == (32768, 8, 64, 1)
        assert (l2.size, l2.shared_by) == (1 << 20, 1)
        assert (l3.size, l3.ways, l3.sets, l3.shared_by) == (37_486_592, 11, 53248, 4)
        assert "index3" in l3.source

    @pytest.mark.parametrize(
        ("family", "models"),
        [
            ("AuthenticAMD 26", [(2, ZEN4, "znver5")]),
            # A hypervisor hides flags that znver5 promises.
            ("AuthenticAMD 26", [(2, SKYLAKE, "x86-64-v4"), (2, AVX2, "x86-64-v3")]),
            ("AuthenticAMD 25", [(0x11, ZEN4, "znver4"), (0x61, ZEN4, "znver4"), (0x01, AVX2, "znver3")]),
            ("AuthenticAMD 23", [(0x31, AVX2, "znver2"), (0x01, AVX2, "znver1")]),
            ("GenuineIntel 6", [(0x55, SKYLAKE, "skylake-avx512"), (0x55, CASCADE, "cascadelake")]),
            ("GenuineIntel 6", [(0x6A, ICELAKE, "icelake-server"), (0x8F, ZEN4, "sapphirerapids")]),
            # A hypervisor gives a newer processor the number of an older one, or hides a part of it.
            ("GenuineIntel 6", [(0xA7, ICELAKE, "rocketlake"), (0xA7, SAPPHIRE, "sapphirerapids")]),
            ("GenuineIntel 6", [(0xA7, ZEN4, "cooperlake"), (0xB7, CASCADE, "cascadelake")]),
            ("GenuineIntel 6", [(0xAD, SAPPHIRE, "graniterapids"), (0xAD, CASCADE, "cascadelake")]),
            ("GenuineIntel 6", [(0x3F, AVX2, "haswell"), (0xFE, SKYLAKE, "x86-64-v4")]),
            ("SomebodyElse 7", [(1, AVX2, "x86-64-v3")]),
        ],
    )
    def test_names_for_llvm(self, tmp_path, family, models):
        vendor, number = family.split()
        for place, (model, flags, llvm) in enumerate(models):
            found = machine(tmp_path / str(place), vendor=vendor, family=number, model=model, flags=flags)
            assert found.llvm_cpu == llvm

    def test_without_avx2(self, tmp_path):
        with pytest.raises(DeviceError, match=r"lacks .*avx2.*; vortex needs AVX2 with FMA"):
            _ = machine(tmp_path, flags="fpu sse sse2 avx").lanes

    def test_no_linux(self, tmp_path):
        with pytest.raises(DeviceError, match="needs Linux"):
            read_machine(tmp_path)

    def test_another_architecture(self, tmp_path):
        write(tmp_path / "proc/cpuinfo", "processor : 0\nFeatures : fp asimd")
        with pytest.raises(DeviceError, match="x86-64 only"):
            read_machine(tmp_path)

    def test_no_caches(self, tmp_path):
        with pytest.raises(DeviceError, match="does not describe"):
            machine(tmp_path, caches=())

    def test_figures_a_hypervisor_made_up(self, tmp_path):
        odd = (
            ("1", "Data", "48K", "12", "1"),
            ("2", "Unified", "2048K", "", ""),
            ("3", "Unified", "2048K", "16", "2048"),
        )
        found = machine(tmp_path, caches=odd)
        assert [(cache.ways, cache.sets) for cache in found.caches] == [
            (12, 64),
            (32768, 1),
        ]  # and no L3 as small as L2

    def test_the_affinity_mask(self, tmp_path):
        assert machine(tmp_path, cpus={1, 2, 5}).cpus == (1, 2)
        assert machine(tmp_path, cpus={7}).cpus == (7,)

    def test_a_cache_is_shared_no_less_than_the_one_inside(self, tmp_path):
        root = tree(tmp_path)
        write(root / "sys/devices/system/cpu/cpu0/cache/index0/shared_cpu_list", "0-7")
        write(root / "sys/devices/system/cpu/cpu0/cache/index2/shared_cpu_list", "0")
        assert [cache.shared_by for cache in read_machine(root, cpus=range(8)).caches] == [4, 4, 4]

    def test_without_avx512(self, tmp_path):
        assert machine(tmp_path, model=0x3F, flags=AVX2).lanes == 8
