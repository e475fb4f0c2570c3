"""Detection through the driver: which spec, what is told where there is no driver, no device or no spec."""

import pytest

from vortex import gpu_probe
from vortex.cli import run
from vortex.cuda_driver import Device
from vortex.errors import DeviceError
from vortex.gpu_probe import ATTRIBUTES, check_gpu, detect
from vortex.specs import gpus, load_spec, spec_directory

A100 = {
    "threads_per_block": 1024,
    "clock_khz": 1_410_000,
    "sms": 108,
    "l2_bytes": 40 << 20,
    "threads_per_sm": 2048,
    "shared_per_sm_bytes": 164 * 1024,
    "registers_per_sm": 65_536,
    "shared_per_block_bytes": 163 * 1024,
    "blocks_per_sm": 32,
}


class Driver:
    """A driver with one device, as far as it is asked here."""

    def __init__(self, name: str = "NVIDIA A100-SXM4-40GB", total: int = 42 * 10**9, arch: str = "80", **changed: int):
        self.name, self.total, self.arch = name, total, arch
        self.figures = {**A100, **changed}

    def device(self, ordinal: int) -> Device:
        major, minor = map(int, self.arch)
        shared = self.figures["shared_per_block_bytes"]
        return Device(ordinal, self.name, major, minor, self.figures["sms"], shared, 13000)

    def attribute(self, ordinal: int, which: int) -> int:
        return {ATTRIBUTES[word]: value for word, value in self.figures.items()}[which]

    def total_bytes(self, ordinal: int) -> int:
        return self.total


def absent() -> None:
    raise DeviceError("libcuda.so.1 cannot be opened")


def test_the_memory_size_tells_the_boards_apart():
    assert detect(gpus(), Driver()).name == "a100-sxm4-40gb"
    assert detect(gpus(), Driver(total=85 * 10**9)).name == "a100-sxm4-80gb"


def test_another_architecture():
    assert detect(gpus(), Driver("NVIDIA H200", 150 * 10**9, "90", sms=132)).name == "h200"
    assert detect(gpus(), Driver("Tesla T4", 15 * 10**9, "75", sms=40)).name == "t4"


def test_a_gpu_without_a_spec_is_told_with_those_that_have_one():
    with pytest.raises(DeviceError, match=r"NVIDIA GeForce RTX 4090 \(sm_89, 128 SMs\); known: .*a100-sxm4-40gb"):
        detect(gpus(), Driver("NVIDIA GeForce RTX 4090", arch="89", sms=128))


def test_no_driver(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu_probe, "Driver", absent)
    with pytest.raises(DeviceError, match=r"no GPU can be detected: libcuda.so.1 cannot be opened; name .*hw='a100'"):
        load_spec("cuda")


def test_hw_cuda(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu_probe, "Driver", Driver)
    assert load_spec("cuda") == load_spec("a100")


class TestCheck:
    def test_what_the_driver_says_of_an_a100_is_what_the_spec_declares(self):
        rows = check_gpu(load_spec("a100"), Driver(total=42_405_855_232))
        assert len(rows) > 10
        assert {row.figure: row.ratio for row in rows if row.ratio != 1.0} == {}

    def test_a_difference_shows(self):
        rows = {row.figure: row for row in check_gpu(load_spec("a100"), Driver(l2_bytes=20 << 20))}
        assert rows["l2.capacity_bytes"].ratio == 0.5

    def test_another_device_is_refused(self):
        with pytest.raises(DeviceError, match="not h200: it is NVIDIA A100-SXM4-40GB, sm_80, not sm_90a"):
            check_gpu(load_spec("h200"), Driver())


class TestCommand:
    def test_check_without_a_driver_says_why_it_did_not_compare(self, capsys, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(gpu_probe, "Driver", absent)
        path = str(spec_directory() / "a100-sxm4-40gb.toml")
        assert run(["check", path]) == 0
        told = capsys.readouterr()
        assert f"{path}: fine: a100-sxm4-40gb, 108 SMs, sm_80, 312 TFLOP/s" in told.out
        assert "not compared with this machine: libcuda.so.1 cannot" in told.err
        assert run(["check", "--compare", path]) == 1

    def test_check_on_the_device(self, capsys, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(gpu_probe, "Driver", lambda: Driver(l2_bytes=20 << 20))
        assert run(["check", str(spec_directory() / "a100-sxm4-40gb.toml")]) == 0
        lines = capsys.readouterr().out.splitlines()
        marked = [line.split()[1] for line in lines if line.startswith("!") and "." in line.split()[1]]
        assert marked == ["l2.capacity_bytes"]
        assert any(line.split()[0] == "registers_per_sm" for line in lines)
