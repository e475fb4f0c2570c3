"""cost(L1) of kernels as a meter sees it on a device whose times a test makes up."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gpu_doubles
import numpy as np
import pytest
from gpu_doubles import Launch, StubDriver

from vortex.cuda_driver import Driver
from vortex.errors import DeviceError
from vortex.gpu_library import GpuLibrary
from vortex.gpu_meter import BLOCK, Meter, random_bytes
from vortex.operators import Gemm, bias, residual, scale, settings

RESIDENT = 2
TABLE = {"fields": ["resident", "raster"]}


@pytest.fixture
def driver(driver: StubDriver) -> StubDriver:
    driver.describe(sms=4)
    return driver


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> GpuLibrary:
    made = gpu_doubles.make_library(tmp_path_factory.mktemp("library"))
    table = TABLE | {"costs": [[float(RESIDENT), 1.0]] * len(made.manifest.kernels)}
    return replace(made, manifest=replace(made.manifest, selector=table))


def taking(driver: StubDriver, milliseconds: Callable[[int, int], float]) -> Callable[[Launch], None]:
    """A callback by which a launch of so many blocks and stages takes a made-up time."""

    def run(launch: Launch) -> None:
        depth = ctypes.c_int32.from_address(launch.parameters[5]).value
        driver.calls.stub_advance(milliseconds(launch.grid[0], depth // 32))

    return run


def test_slope_and_start_are_told_apart(driver: StubDriver, library: GpuLibrary):
    driver.on_launch(taking(driver, lambda blocks, stages: 5e-3 + stages * (1e-3 if blocks == 4 else 1.6e-3)))
    shares: list[float] = []
    with Meter(library, Driver()) as meter:
        profile = meter.profile(shares.append)
    assert profile.basis == "measured" and profile.device == "Stub GPU" and shares[-1] == 1
    assert {row.kernel for row in profile.kernels} == {kernel.variant.name for kernel in library.manifest.kernels}
    for row in profile.kernels:
        figures = (row.alone_s, row.full_s, row.start_s)
        assert figures == pytest.approx((1e-6, 1.6e-6, 5e-6), rel=1e-3) and row.spread < 1e-3
    assert {launch.grid[0] for launch in driver.launches} == {4, 4 * RESIDENT}


def test_what_varies_is_not_told(driver: StubDriver, library: GpuLibrary):
    draw = np.random.default_rng(0)
    driver.on_launch(taking(driver, lambda blocks, stages: float(draw.uniform(0.1, 10.0)) ** 3))
    with Meter(library, Driver()) as meter:
        assert not meter.profile().kernels


def test_what_is_too_large_is_left_to_the_model(
    driver: StubDriver, library: GpuLibrary, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("vortex.gpu_meter.MOST_BYTES", 1000)
    with Meter(library, Driver()) as meter:
        assert meter.kernel(0) is None
    assert not driver.launches


def test_an_epilogue_gets_its_tensors_and_c_its_own_type(driver: StubDriver, library: GpuLibrary):
    operator = Gemm("float16", bias() >> scale(per="row", dtype="float16") >> residual(), out_dtype="int8")
    fused = replace(library, manifest=replace(library.manifest, settings=settings(operator)))
    with Meter(fused, Driver()) as meter:
        driver.on_launch(taking(driver, lambda blocks, stages: 1e-3 * stages))
        assert meter.seconds(0, 128, 64, 256)
        items = [meter._sizes[place] // (128 * 64) for place in (2, 5)]
        assert len(meter._sizes) == 6 and items == [1, 4] and meter._sizes[3:5] == [4 * 64, 2 * 128]


def test_everything_is_given_back(driver: StubDriver, library: GpuLibrary):
    driver.on_launch(taking(driver, lambda blocks, stages: 1e-3 * stages))
    counts = (driver.calls.stub_live_modules, driver.calls.stub_live_contexts, driver.calls.stub_live_buffers)
    before = [count() for count in counts]
    with Meter(library, Driver()) as meter:
        meter.kernel(0)
        assert driver.calls.stub_live_buffers() == before[2] + 3
        assert driver.calls.stub_uncapturable() > 3, "measuring allocates and waits, and is seen to"
    assert [count() for count in counts] == before


def test_a_launch_that_fails_is_an_error(driver: StubDriver, library: GpuLibrary):
    driver.fail("cuLaunchKernel", 700)
    with Meter(library, Driver()) as meter, pytest.raises(DeviceError, match=r"did not run on device 0.*700"):
        meter.kernel(0)


@pytest.mark.parametrize(("dtype", "item"), [("float16", 2), ("bfloat16", 2), ("float32", 4), ("tfloat32", 4)])
def test_operands_are_random_numbers_of_the_type(dtype: str, item: int):
    content = random_bytes(dtype)
    assert len(content) == BLOCK * item
    whole = np.frombuffer(content, np.uint16 if item == 2 else np.float32)
    values: Any = whole
    if dtype == "bfloat16":
        values = (whole.astype(np.uint32) << 16).view(np.float32)
    elif dtype == "float16":
        values = whole.view(np.float16).astype(np.float32)
    assert abs(values.mean()) < 0.01 and 0.97 < values.std() < 1.03
