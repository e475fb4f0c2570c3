"""cost(L1) of kernels as a meter sees it on a device whose times a test makes up."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gpu_doubles
import numpy as np
import pytest
from gpu_doubles import Launch, StubDriver

from vortex.candidates import Tile
from vortex.cuda_driver import Driver
from vortex.cuda_graph import captured
from vortex.errors import DeviceError, UnmeasuredError
from vortex.gpu_library import GpuLibrary
from vortex.gpu_meter import BLOCK, LAUNCHES, ROUNDS, Meter, patch, random_bytes
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
    driver.on_launch(taking(driver, lambda blocks, stages: stages * float(draw.uniform(0.1, 10.0)) ** 3))
    with Meter(library, Driver()) as meter:
        assert not meter.profile().kernels
        with pytest.raises(UnmeasuredError, match=r"the times of tc_f16\S+nn_v16 vary by \d+%"):
            meter.kernel(0)


def test_the_host_is_not_between_launches(driver: StubDriver, library: GpuLibrary):
    driver.on_launch(taking(driver, lambda blocks, stages: 1e-3 * stages))
    with Meter(library, Driver()) as meter:
        assert meter.seconds(0, 128, 128, 8 * 32) == pytest.approx([8e-6] * ROUNDS)
    assert len(driver.launches) == 1 + LAUNCHES * (1 + ROUNDS), "one by itself, a replay that is not timed, the rounds"
    (stream,) = {launch.stream for launch in driver.launches}
    assert stream, "a stream of its own"


def test_what_is_too_large_is_left_to_the_model(
    driver: StubDriver, library: GpuLibrary, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("vortex.gpu_meter.MOST_BYTES", 1000)
    with Meter(library, Driver()) as meter, pytest.raises(UnmeasuredError, match="needs an operand of 589824 bytes"):
        meter.kernel(0)
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
    names = ("modules", "contexts", "buffers", "handles")
    counts = [getattr(driver.calls, f"stub_live_{name}") for name in names]
    before = [count() for count in counts]
    with Meter(library, Driver()) as meter:
        meter.kernel(0)
        assert driver.calls.stub_live_buffers() == before[2] + 3
        assert driver.calls.stub_uncapturable() > 3, "measuring allocates and waits, and is seen to"
    assert [count() for count in counts] == before


def test_a_kernel_that_does_not_run_is_left_out(driver: StubDriver, library: GpuLibrary):
    driver.on_launch(taking(driver, lambda blocks, stages: 1e-3 * stages))
    with Meter(library, Driver()) as meter:
        driver.fail("cuLaunchKernel", 701)
        found = {row.kernel for row in meter.profile().kernels}
        assert found == {kernel.variant.name for kernel in library.manifest.kernels[1:]}
        driver.fail("cuLaunchKernel", 701)
        with pytest.raises(UnmeasuredError, match=r"tc_f16\S+ did not run on device 0.*: \d+x\d+x256, .*STUB"):
            meter.kernel(0)


def test_a_device_that_fails_is_an_error(driver: StubDriver, library: GpuLibrary):
    driver.fail("cuLaunchKernel", 700)
    failure = r"did not run on device 0.*could not be computed: CUDA"
    with pytest.raises(DeviceError, match=failure) as told, Meter(library, Driver()) as meter:
        meter.profile()
    assert not isinstance(told.value, UnmeasuredError)


def test_memory_that_is_not_there_is_asked_for_again(driver: StubDriver, library: GpuLibrary):
    driver.on_launch(taking(driver, lambda blocks, stages: 1e-3 * stages))
    with Meter(library, Driver()) as meter:
        driver.fail("cuMemAlloc_v2", 2)
        with pytest.raises(UnmeasuredError, match="cuMemAlloc_v2 failed"):
            meter.kernel(0)
        assert meter.kernel(0).alone_s == pytest.approx(1e-6) and len(meter._buffers) == len(meter._sizes) == 3


def test_extents_that_a_kernel_does_not_take_are_told(driver: StubDriver, library: GpuLibrary):
    turned = next(i for i, kernel in enumerate(library.manifest.kernels) if kernel.variant.name.endswith("tt_v16"))
    refusal = "132x16x256, operand 0 cannot be served by the given plan"
    with Meter(library, Driver()) as meter, pytest.raises(DeviceError, match=refusal):
        meter.seconds(turned, 132, 16, 256)


@pytest.mark.parametrize("blocks", [1, 40, 82, 108, 132, 4 * 132])
@pytest.mark.parametrize("tile", [Tile(4, 4, 1024), Tile(1, 64, 256), Tile(64, 256, 64), Tile(128, 24, 32)])
@pytest.mark.parametrize(("run_m", "run_n"), [(1, 1), (1, 8), (8, 8), (16, 4)])
def test_a_patch_is_of_whole_runs(blocks: int, tile: Tile, run_m: int, run_n: int):
    m, n = patch(blocks, tile, run_m, run_n)
    assert not (m % tile.m or n % tile.n or m % run_m or n % run_n)
    least = math.lcm(tile.m, run_m) * math.lcm(tile.n, run_n)
    most = blocks * tile.m * tile.n
    assert max(most - least, 0) < m * n <= max(most, least), "no block too many, and few less"


def test_a_patch_is_square():
    assert patch(132, Tile(128, 128, 64), 1, 8) == (11 * 128, 12 * 128)
    assert patch(132, Tile(4, 4, 1024), 8, 8) == (24, 88)


def test_a_launch_that_fails_in_a_capture_is_told_and_ends_it(driver: StubDriver):
    calls, context = Driver(), ctypes.c_void_p(driver.calls.stub_context())
    calls.call("cuCtxPushCurrent_v2", context)
    stream, before = ctypes.c_void_p(), driver.calls.stub_live_handles()
    calls.call("cuStreamCreate", ctypes.byref(stream), 0)

    def fails() -> None:
        raise DeviceError("no such launch")

    with pytest.raises(DeviceError, match="no such launch"), captured(calls, stream, fails):
        pass
    waits = captured(calls, stream, lambda: driver.calls.cuCtxSynchronize())
    with pytest.raises(DeviceError, match="cuStreamEndCapture failed"), waits:
        pass
    with captured(calls, stream, lambda: None) as graph:
        calls.call("cuGraphLaunch", graph, stream)
    calls.call("cuStreamDestroy_v2", stream)
    calls.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
    assert driver.calls.stub_live_handles() == before


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
