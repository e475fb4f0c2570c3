"""One library of this machine for the whole session, compiled once."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from needs import few_register_tiles

import vortex
from vortex.affinity import cpu_flags
from vortex.codegen.toolchain import enter_tvm
from vortex.hardware import HardwareSpec
from vortex.launcher import GemmKernel
from vortex.library import Library
from vortex.operators import Conv2d, Operator, bias, relu, residual
from vortex.plans import LaunchPlan
from vortex.threads import borrow_threads

if TYPE_CHECKING:
    from gpu_doubles import StubDriver

    from vortex.gpu_library import GpuLibrary

LIBRARY: list[Path] = []
CORES = os.sched_getaffinity(0)
"""That this process may use, before anything of vortex has run."""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before processes share the cores: what is measured of this machine, and the library that most tests call."""
    several = session.config.getoption("numprocesses", None) and not hasattr(session.config, "workerinput")
    if several and {"avx2", "fma"} <= cpu_flags():
        vortex.compile("gemm", hw="native")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules that load the fake driver come last: it stays in the process, where NVRTC and detection would find it."""
    late = {item.path for item in items if "stub_driver" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: item.path in late)


def pytest_collection_finish() -> None:
    """TVM as `vortex.compile` enters it, where modules of tests have brought it: its parser has every frame of a stack
    described, which under pytest is deep and among many modules."""
    if "tvm" in sys.modules:
        enter_tvm()


@pytest.fixture(autouse=True)
def gradients() -> Iterator[None]:
    """Recorded again: peers of the evaluation switch that off for the whole process."""
    yield
    if torch := sys.modules.get("torch"):
        torch.set_grad_enabled(True)


def few_tiles(operator: Operator) -> Any:
    """A library of this machine with few register tiles, L0 computed: all that is wanted is its results.

    From the cache on disk, if an earlier run of the same sources left it there.
    """
    return vortex.compile(operator, few_register_tiles())


def compiled(operator: Operator) -> GemmKernel:
    """The same of products."""
    kernel = few_tiles(operator)
    assert isinstance(kernel, GemmKernel)
    return kernel


def dots(kernel: GemmKernel, plan: LaunchPlan) -> set[bool]:
    """Whether parts of a plan are of the dot family, which adds k up in another order: a column left over may be."""
    return {kernel.strategies[part.index].stage.dot for part in plan.regions or (plan,)}


@pytest.fixture(scope="session")
def small() -> HardwareSpec:
    """The hardware that `few_tiles` compiles for."""
    return few_register_tiles()


@pytest.fixture(scope="session")
def library_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `.vortex` file compiled for this machine; the commands and the manual find its library in the cache."""
    if not {"avx2", "fma"} <= cpu_flags():
        pytest.skip("this machine has no AVX2 and FMA, the least that vortex compiles for")
    if not LIBRARY:
        path = tmp_path_factory.mktemp("library") / "native.vortex"
        vortex.compile("gemm", hw="native").save(path)
        LIBRARY.append(path)
    return LIBRARY[0]


@pytest.fixture(scope="session")
def gemm(library_path: Path) -> GemmKernel:
    return vortex.load(library_path)


@pytest.fixture(scope="session")
def conv_library() -> Library:
    """A convolution's library of this machine."""
    if not {"avx2", "fma"} <= cpu_flags():
        pytest.skip("this machine has no AVX2 and FMA, the least that vortex compiles for")
    return vortex.compile(Conv2d(), hw="native").library


@pytest.fixture(scope="session")
def fused_conv_library() -> Library:
    """One with an epilogue, of few register tiles: the others are in the library without."""
    library: Library = few_tiles(Conv2d(epilogue=bias() >> residual() >> relu())).library
    return library


@pytest.fixture(scope="session")
def reduction_library(tmp_path_factory: pytest.TempPathFactory) -> GpuLibrary:
    """A GPU's library of sums."""
    import reductions

    return reductions.library_of_sums(tmp_path_factory.mktemp("reduce"))


@pytest.fixture(scope="session")
def stub_driver(tmp_path_factory: pytest.TempPathFactory) -> StubDriver:
    """The fake driver of GPUs: one for the process, since what looks for it by name finds the first that was loaded."""
    import gpu_doubles

    return gpu_doubles.StubDriver(gpu_doubles.build_stub(tmp_path_factory.mktemp("stub")))


@pytest.fixture
def driver(stub_driver: StubDriver) -> Iterator[StubDriver]:
    """The fake driver as it is found by a process that has used no device.

    Cycles are collected between tests, not within one: a device that an earlier test left unloads its modules when it
    goes, and its calls would be counted, or take the failure that was meant for another.
    """
    import gpu_doubles

    stub_driver.reset()
    gpu_doubles.ExchangeTensor.stream, gpu_doubles.ExchangeTensor.allocated = 0, []
    gc.disable()
    yield stub_driver
    gc.enable()
    stub_driver.reset()


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Every test starts with two threads of the libraries' own, as many as the least machine has."""
    before = vortex.get_num_threads()
    vortex.set_num_threads(2)
    yield
    vortex.set_num_threads(before)
    borrow_threads(0)
