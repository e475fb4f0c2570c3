"""Detection through the driver: which spec, what is told where there is no driver, no device or no spec."""

import ctypes

import pytest

from vortex import gpu_probe
from vortex.cli import run
from vortex.errors import DeviceError
from vortex.gpu_probe import ATTRIBUTES, ask, check_gpu, detect, open_driver
from vortex.specs import gpus, load_spec, spec_directory

A100 = {
    "threads_per_block": 1024,
    "clock_khz": 1_410_000,
    "sms": 108,
    "l2_bytes": 40 << 20,
    "threads_per_sm": 2048,
    "major": 8,
    "minor": 0,
    "shared_per_sm_bytes": 164 * 1024,
    "registers_per_sm": 65_536,
    "shared_per_block_bytes": 163 * 1024,
    "blocks_per_sm": 32,
}


class Driver:
    """libcuda with one device, as far as it is asked here."""

    def __init__(self, name: str = "NVIDIA A100-SXM4-40GB", total: int = 42 * 10**9, count: int = 1, **changed: int):
        self.name, self.total, self.count = name, total, count
        self.attributes = {ATTRIBUTES[word]: value for word, value in {**A100, **changed}.items()}
        self.answer = 0

    def cuInit(self, flags: int) -> int:
        return self.answer

    def cuDeviceGetCount(self, count) -> int:
        ctypes.cast(count, ctypes.POINTER(ctypes.c_int))[0] = self.count
        return 0

    def cuDeviceGet(self, device, ordinal: int) -> int:
        ctypes.cast(device, ctypes.POINTER(ctypes.c_int))[0] = ordinal
        return 0

    def cuDeviceGetName(self, name, length: int, device) -> int:
        name.value = self.name.encode()[: length - 1]
        return 0

    def cuDeviceTotalMem_v2(self, total, device) -> int:
        ctypes.cast(total, ctypes.POINTER(ctypes.c_size_t))[0] = self.total
        return 0

    def cuDeviceGetAttribute(self, value, number: int, device) -> int:
        ctypes.cast(value, ctypes.POINTER(ctypes.c_int))[0] = self.attributes[number]
        return 0


def test_the_memory_size_tells_the_boards_apart():
    assert detect(gpus(), Driver()).name == "a100-sxm4-40gb"
    assert detect(gpus(), Driver(total=85 * 10**9)).name == "a100-sxm4-80gb"


def test_another_architecture():
    assert detect(gpus(), Driver("NVIDIA H200", 150 * 10**9, sms=132, major=9, minor=0)).name == "h200"
    assert detect(gpus(), Driver("Tesla T4", 15 * 10**9, sms=40, major=7, minor=5)).name == "t4"


def test_a_gpu_without_a_spec_is_told_with_those_that_have_one():
    with pytest.raises(DeviceError, match=r"NVIDIA GeForce RTX 4090 \(sm_89, 128 SMs\); known: .*a100-sxm4-40gb"):
        detect(gpus(), Driver("NVIDIA GeForce RTX 4090", sms=128, major=8, minor=9))


def test_no_driver():
    def missing(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    with pytest.raises(DeviceError, match=r"no CUDA driver here \(libcuda.so.1: cannot open.*hw='a100'"):
        open_driver(missing)


def test_a_driver_without_a_device():
    driver = Driver()
    driver.answer = 100
    with pytest.raises(DeviceError, match="cuInit answered 100"):
        ask(driver)
    with pytest.raises(DeviceError, match="no GPU number 0"):
        ask(Driver(count=0))


def test_hw_cuda(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu_probe, "open_driver", Driver)
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
        def missing(*_: object) -> None:
            raise DeviceError("there is no CUDA driver here")

        monkeypatch.setattr(gpu_probe, "open_driver", missing)
        path = str(spec_directory() / "a100-sxm4-40gb.toml")
        assert run(["check", path]) == 0
        told = capsys.readouterr()
        assert f"{path}: fine: a100-sxm4-40gb, 108 SMs, sm_80, 312 TFLOP/s" in told.out
        assert "not compared with this machine: there is no CUDA driver" in told.err
        assert run(["check", "--compare", path]) == 1

    def test_check_on_the_device(self, capsys, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(gpu_probe, "open_driver", lambda: Driver(l2_bytes=20 << 20))
        assert run(["check", str(spec_directory() / "a100-sxm4-40gb.toml")]) == 0
        lines = capsys.readouterr().out.splitlines()
        marked = [line.split()[1] for line in lines if line.startswith("!")]
        assert marked == ["l2.capacity_bytes"]
        assert any(line.split()[0] == "registers_per_sm" for line in lines)
