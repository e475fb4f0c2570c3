"""Calls of a GPU library against a driver that is not there: what is launched, with what, and what is refused."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_doubles
import numpy as np
import pytest
from gpu_doubles import DLPackTensor, ExchangeTensor, InterfaceTensor, StubDriver, aligned, make_library, products

from vortex.cuda_driver import Device
from vortex.errors import DeviceError, DtypeError, LibraryError, OperandError, ShapeError, VortexError
from vortex.gpu_door import Door
from vortex.gpu_launcher import GpuGemm
from vortex.gpu_library import GpuLibrary, write
from vortex.gpu_opened import choose_code
from vortex.gpu_selector import GpuPlan


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> GpuLibrary:
    return make_library(tmp_path_factory.mktemp("library"))


@pytest.fixture
def gemm(driver: StubDriver, library: GpuLibrary) -> GpuGemm:
    return GpuGemm(library, 0)


def operands(m: int, n: int, k: int, kind: Any = ExchangeTensor, seed: int = 0) -> tuple[Any, Any, Any]:
    draw = np.random.default_rng(seed)
    a, b = (draw.integers(-2, 3, shape).astype(np.float16) for shape in ((m, k), (k, n)))
    return kind(aligned(a)), kind(aligned(b)), kind(aligned(np.full((m, n), 9, np.float16)))


def right(a: Any, b: Any, out: Any) -> bool:
    expected = a.array.astype(np.float32) @ b.array.astype(np.float32)
    return bool((out.array == expected).all())


class TestLaunch:
    @pytest.mark.parametrize("kind", [ExchangeTensor, DLPackTensor, InterfaceTensor])
    @pytest.mark.parametrize("turned_a", [False, True])
    @pytest.mark.parametrize("turned_b", [False, True])
    def test_every_kind_of_tensor_and_layout(
        self, driver: StubDriver, gemm: GpuGemm, kind: Any, turned_a: bool, turned_b: bool
    ):
        a, b, out = operands(72, 136, 40)
        given_a = kind(aligned(a.array.T)) if turned_a else kind(a.array)
        given_b = kind(aligned(b.array.T)) if turned_b else kind(b.array)
        result = kind(out.array)
        driver.on_launch(products(gemm.library))
        assert gemm(given_a, given_b, result, transpose_a=turned_a, transpose_b=turned_b) is result
        assert right(a, b, out)
        (launch,) = driver.launches
        assert launch.name.decode().endswith(f"{'t' if turned_a else 'n'}{'t' if turned_b else 'n'}_v16")
        assert tuple(launch.grid) == (2 * 3, 1, 1) and tuple(launch.block) == (32, 4, 1) and launch.shared == 65536

    def test_transposed_views_need_no_flag(self, driver: StubDriver, gemm: GpuGemm):
        a, b, out = operands(64, 64, 64)
        turned = ExchangeTensor(aligned(a.array.T).T)
        driver.on_launch(products(gemm.library))
        gemm(turned, ExchangeTensor(aligned(b.array.T)), out, transpose_b=True)
        assert right(a, b, out) and driver.launches[0].name.decode().endswith("tt_v16")

    @pytest.mark.parametrize(("offset", "n", "vector"), [(0, 64, 16), (2, 64, 2), (0, 65, 2)])
    def test_a_misaligned_view_is_served_by_a_slower_kernel(
        self, driver: StubDriver, gemm: GpuGemm, offset: int, n: int, vector: int
    ):
        a, b, out = operands(64, n, 64)
        a = ExchangeTensor(aligned(a.array, offset))
        driver.on_launch(products(gemm.library))
        gemm(a, b, out)
        assert right(a, b, out) and driver.launches[0].name.decode().endswith(f"_v{vector}")

    def test_rows_may_be_further_apart(self, driver: StubDriver, gemm: GpuGemm):
        a, b, _ = operands(33, 48, 24)
        wide = aligned(np.zeros((33, 56), np.float16))
        wide[:, 16:40] = a.array
        whole = aligned(np.full((33, 64), 5, np.float16))
        driver.on_launch(products(gemm.library))
        gemm(ExchangeTensor(wide[:, 16:40]), b, ExchangeTensor(whole[:, 8:56]))
        assert (whole[:, 8:56] == a.array.astype(np.float32) @ b.array).all()
        assert (whole[:, :8] == 5).all() and (whole[:, 56:] == 5).all()

    def test_the_framework_allocates_the_result(self, driver: StubDriver, gemm: GpuGemm):
        a, b, _ = operands(5, 6, 7)
        driver.on_launch(products(gemm.library))
        out = gemm(a, b)
        assert out.shape == (5, 6) and right(a, b, out) and ExchangeTensor.allocated == [out]

    def test_a_split_reduction_sums_up_in_its_workspace(self, driver: StubDriver, gemm: GpuGemm):
        a, b, out = operands(16, 24, 4100)
        driver.on_launch(products(gemm.library))
        gemm(a, b, out)
        assert right(a, b, out)
        partial, reduction = driver.launches
        assert partial.name.decode().endswith("_split") and tuple(partial.grid) == (1, 1, 2)
        assert reduction.name == b"reduce_float16" and tuple(reduction.grid) == (1, 1, 1)
        gemm(a, b, out)
        assert len(ExchangeTensor.allocated) == 1, "one workspace for a stream, kept"
        assert ExchangeTensor.allocated[0].array.nbytes == gemm.manifest.workspace_bytes

    def test_every_stream_has_its_own_workspace(self, driver: StubDriver, gemm: GpuGemm):
        a, b, out = operands(16, 24, 4100)
        used = []
        for stream in (0, 77, 78, 77):
            ExchangeTensor.stream = stream
            driver.on_launch(lambda launch: used.append(ctypes.c_void_p.from_address(launch.parameters[2]).value))
            gemm(a, b, out)
        spaces = used[::2]
        assert len(set(spaces)) == 3 and spaces[1] == spaces[3]

    def test_a_lent_workspace_is_used_once(self, driver: StubDriver, gemm: GpuGemm):
        a, b, out = operands(16, 24, 4100)
        lent = ExchangeTensor(aligned(np.zeros((4096,), np.float16)))
        driver.on_launch(products(gemm.library))
        gemm(a, b, out, workspace=lent)
        assert right(a, b, out) and not ExchangeTensor.allocated and lent.array.any()
        lent.array[:] = 0
        gemm(a, b, out)
        assert len(ExchangeTensor.allocated) == 1 and not lent.array.any()

    @pytest.mark.parametrize(
        ("extents", "kernels"),
        [((72, 40, 136), 1), ((16, 24, 4100), 2), ((600, 40, 72), 2), ((600, 8, 4100), 4)],
        ids=["plain", "split", "two regions", "both split"],
    )
    @pytest.mark.parametrize("kind", [ExchangeTensor, DLPackTensor, InterfaceTensor])
    def test_a_graph_can_capture_a_call(
        self, driver: StubDriver, gemm: GpuGemm, extents: tuple[int, int, int], kernels: int, kind: Any
    ):
        """The driver is not asked for memory, nor to wait, and all that is queued is on the one stream."""
        a, b, out = (kind(operand.array) for operand in operands(*extents))
        lent = ExchangeTensor(aligned(np.zeros((1 << 19,), np.float16)))
        for workspace in (lent, lent) if kind is not ExchangeTensor else (None, lent):
            gemm(a, b, out, stream=77, workspace=workspace)
        assert driver.calls.stub_uncapturable() == 0
        assert [launch.stream for launch in driver.launches] == [77] * 2 * kernels

    def test_calls_go_to_the_current_stream_or_the_given_one(self, driver: StubDriver, gemm: GpuGemm):
        a, b, out = operands(8, 8, 8)

        class Stream:
            cuda_stream = 456

        class Protocol:
            def __cuda_stream__(self) -> tuple[int, int]:
                return 0, 789

        ExchangeTensor.stream = 123
        for stream in (None, 5, Stream(), Protocol()):
            gemm(a, b, out, stream=stream)
        gemm(InterfaceTensor(a.array, stream=31), b, out)
        assert [launch.stream for launch in driver.launches] == [123, 5, 456, 789, 31]
        with pytest.raises(OperandError, match="stream is a str"):
            gemm(a, b, out, stream="zero")

    def test_no_rows_launch_nothing_and_no_depth_gives_zeros(self, driver: StubDriver, gemm: GpuGemm):
        a, b, out = operands(4, 6, 0)
        gemm(a, b, out)
        assert not driver.launches and (out.array == 0).all()
        gemm(*operands(0, 6, 5))
        gemm(*operands(4, 0, 5))
        assert not driver.launches

    def test_a_foreign_context_is_put_back(self, driver: StubDriver, gemm: GpuGemm):
        before = driver.calls.stub_context_pushes()
        gemm(*operands(8, 8, 8))
        assert driver.calls.stub_context_pushes() == before + 1
        current = ctypes.c_void_p(1)
        driver.calls.cuCtxGetCurrent(ctypes.byref(current))
        assert current.value is None

    def test_the_callers_context_is_used_as_it_is(self, driver: StubDriver, gemm: GpuGemm):
        driver.calls.cuCtxPushCurrent_v2(ctypes.c_void_p(driver.calls.stub_context()))
        try:
            before = driver.calls.stub_context_pushes()
            gemm(*operands(8, 8, 8))
            assert driver.calls.stub_context_pushes() == before
        finally:
            driver.calls.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def test_a_given_plan_runs(self, driver: StubDriver, gemm: GpuGemm):
        a, b, out = operands(64, 64, 256)
        plan = gemm.plan(64, 64, 256)
        driver.on_launch(products(gemm.library))
        gemm.run_planned(replace(plan, splits=4, chunk=64), a, b, out)
        assert right(a, b, out) and driver.launches[0].grid[2] == 4
        bad: list[GpuPlan] = [
            replace(plan, splits=4, chunk=63),
            replace(plan, splits=3, chunk=64),
            replace(plan, index=99),
            replace(plan, index=1),
            replace(plan, splits=0),
        ]
        for other in bad:
            with pytest.raises(OperandError, match="cannot be served by the given plan"):
                gemm.run_planned(other, a, b, out)

    def test_selection_is_timed(self, gemm: GpuGemm):
        assert 0 < gemm.time_selection(100, 100, 100, 1000) < 1e-4


class TestRegions:
    """The fake selector makes what lies past row 512, else past column 512, a region of its own."""

    @pytest.mark.parametrize(("m", "n", "cut"), [(600, 40, (512, 40)), (40, 600, (40, 512))])
    @pytest.mark.parametrize(("turned_a", "turned_b"), [(False, False), (True, False), (False, True), (True, True)])
    def test_two_kernels_compute_one_product(
        self, driver: StubDriver, gemm: GpuGemm, m: int, n: int, cut: tuple[int, int], turned_a: bool, turned_b: bool
    ):
        a, b, out = operands(m, n, 72)
        given_a = ExchangeTensor(aligned(a.array.T)) if turned_a else a
        given_b = ExchangeTensor(aligned(b.array.T)) if turned_b else b
        driver.on_launch(products(gemm.library))
        gemm(given_a, given_b, out, transpose_a=turned_a, transpose_b=turned_b)
        assert right(a, b, out) and len(driver.launches) == 2
        assert all(launch.name.decode().endswith("_v16") for launch in driver.launches)
        first, second = gemm.regions(m, n, 72, transpose_a=turned_a, transpose_b=turned_b)
        assert (first.extents.m, first.extents.n) == cut
        assert (second.row, second.column) == ((512, 0) if m > n else (0, 512))
        assert gemm.predict(m, n, 72) == first.plan.seconds + second.plan.seconds

    def test_both_regions_may_be_split_and_share_a_workspace(self, driver: StubDriver, gemm: GpuGemm):
        a, b, out = operands(600, 8, 4100)
        driver.on_launch(products(gemm.library))
        gemm(a, b, out)
        assert right(a, b, out)
        assert [launch.name.decode().partition("_")[0] == "reduce" for launch in driver.launches] == [0, 1, 0, 1]
        assert len(ExchangeTensor.allocated) == 1

    def test_it_can_be_switched_off(self, driver: StubDriver, library: GpuLibrary):
        gemm = GpuGemm(library, 0)
        a, b, out = operands(600, 40, 72)
        driver.on_launch(products(library))
        gemm.polymerize(False)
        gemm(a, b, out)
        assert right(a, b, out) and len(driver.launches) == 1 == len(gemm.regions(600, 40, 72))
        gemm.polymerize(True)
        gemm(a, b, out)
        assert len(driver.launches) == 3

    def test_given_regions_run_and_wrong_ones_are_refused(self, driver: StubDriver, gemm: GpuGemm):
        a, b, out = operands(96, 40, 72)
        one, other = gemm.regions(600, 40, 72)
        driver.on_launch(products(gemm.library))
        gemm.run_planned((one, replace(other, row=48)), a, b, out)
        assert right(a, b, out) and [launch.grid[0] for launch in driver.launches] == [1, 1]
        for row in (0, 40, 96, 512):
            with pytest.raises(OperandError, match="cannot be served by the given plan"):
                gemm.run_planned((one, replace(other, row=row)), a, b, out)
        wrong = replace(other, row=48, plan=replace(other.plan, index=99))
        with pytest.raises(OperandError, match="cannot be served by the given plan"):
            gemm.run_planned((one, wrong), a, b, out)


class TestMaps:
    @pytest.mark.parametrize("turned", [False, True])
    def test_descriptors_describe_the_operands(self, driver: StubDriver, tmp_path: Path, turned: bool):
        driver.describe(major=9)
        gemm = GpuGemm(make_library(tmp_path, arch="sm_90a", maps=True), 0)
        a, b, out = operands(72, 136, 40)
        driver.on_launch(products(gemm.library))
        maps = []
        multiply = products(gemm.library)

        def look(launch: Any) -> None:
            maps.append(gpu_doubles.Map.from_buffer_copy(gpu_doubles.Map.from_address(launch.parameters[0])))
            multiply(launch)

        driver.on_launch(look)
        gemm(ExchangeTensor(aligned(a.array.T)) if turned else a, b, out, transpose_a=turned)
        assert right(a, b, out)
        (found,) = maps
        assert tuple(found.box) == (64, 64) and found.type == 6 and found.swizzle == 3

    def test_a_driver_without_descriptors_is_too_old(self, driver: StubDriver, tmp_path: Path):
        driver.describe(major=9)
        gemm = GpuGemm(make_library(tmp_path, arch="sm_90a", maps=True), 0)
        driver.fail("cuTensorMapEncodeTiled", 801)
        with pytest.raises(DeviceError, match="CUDA_ERROR_STUB"):
            gemm(*operands(72, 136, 40))


class TestRefusals:
    def refused(self, gemm: GpuGemm, kind: type[VortexError], match: str, *given: Any, **options: Any) -> None:
        with pytest.raises(kind, match=match):
            gemm(*given, **options)

    def test_operands(self, driver: StubDriver, gemm: GpuGemm):
        a, b, out = operands(8, 16, 32)
        other = ExchangeTensor(b.array, device_id=1)
        self.refused(gemm, DeviceError, r"b .* is on another device \(1\); .*device=1", a, other, out)
        self.refused(gemm, DeviceError, "is not in the memory of a CUDA device", a.array, b, out)
        self.refused(
            gemm, DeviceError, "is not in the memory of a CUDA device", ExchangeTensor(a.array, kind=1), b, out
        )
        self.refused(gemm, ShapeError, "another inner extent", a, ExchangeTensor(b.array[:30]), out)
        self.refused(gemm, ShapeError, "is not m x n", a, b, ExchangeTensor(out.array[:4]))
        self.refused(gemm, ShapeError, "wrong rank", a, ExchangeTensor(b.array.reshape(2, 16, 16)), out)
        self.refused(gemm, ShapeError, "strides that no matrix has", ExchangeTensor(a.array[:, ::-1]), b, out)
        columns = ExchangeTensor(aligned(np.zeros((16, 8), np.float16)).T)
        self.refused(gemm, ShapeError, "strides that no matrix has", a, b, columns)
        row = ExchangeTensor(aligned(np.zeros((1, 64), np.float16))[:, ::4])
        self.refused(gemm, ShapeError, "strides that no matrix has", ExchangeTensor(a.array[:1]), b, row)
        self.refused(gemm, DtypeError, "computes in float16", ExchangeTensor(a.array.astype(np.float32)), b, out)
        self.refused(gemm, OperandError, "overlaps out", a, b, ExchangeTensor(a.array[:, :16]))
        self.refused(gemm, OperandError, "out is read-only", a, b, InterfaceTensor(out.array, read_only=True))
        self.refused(gemm, OperandError, "a is a list", [[1.0]], b, out)
        self.refused(gemm, OperandError, "a is a str", "a", b)
        odd = ExchangeTensor(np.frombuffer(bytes(8 * 32 * 2 + 1), np.uint8)[1:].view(np.float16).reshape(8, 32))
        self.refused(gemm, OperandError, "not aligned to its elements", odd, b, out)
        assert not driver.launches

    def test_gradients(self, driver: StubDriver, gemm: GpuGemm):
        class Learned(ExchangeTensor):
            requires_grad = True  # type: ignore[assignment]  # a property there

        a, b, out = operands(8, 16, 32)
        self.refused(gemm, OperandError, "b requires grad", a, Learned(b.array), out)

    def test_a_framework_that_cannot_describe_its_tensor(self, driver: StubDriver, gemm: GpuGemm):
        class Sparse(ExchangeTensor):
            pass

        a, b, out = (Sparse(operand.array) for operand in operands(8, 16, 32))
        Sparse.__dlpack_c_exchange_api__ = gpu_doubles.refusing_exchange(driver)  # type: ignore[attr-defined]
        for _ in range(2):
            self.refused(gemm, DtypeError, "cannot be read .sparse.; given a Sparse", a, b, out)

    def test_a_workspace_too_small(self, driver: StubDriver, gemm: GpuGemm):
        a, b, out = operands(16, 24, 4100)
        small = ExchangeTensor(aligned(np.zeros(100, np.float16)))
        self.refused(gemm, OperandError, "needs a workspace of 3072 bytes", a, b, out, workspace=small)
        crooked = ExchangeTensor(aligned(np.zeros(4096, np.float16), 2))
        self.refused(gemm, OperandError, "multiple of 16", a, b, out, workspace=crooked)
        other = ExchangeTensor(aligned(np.zeros(4096, np.float16)), 3)
        self.refused(gemm, DeviceError, r"workspace .* is on another device \(3\)", a, b, out, workspace=other)
        self.refused(
            gemm, OperandError, "cannot say how to allocate", *map(DLPackTensor, (a.array, b.array, out.array))
        )

    def test_extents_past_the_kernels(self, driver: StubDriver, tmp_path: Path, gemm: GpuGemm):
        narrow = GpuGemm(make_library(tmp_path, wide=False), 0)
        item = np.zeros(1, np.float16)
        apart = 1 << 42  # nothing here is read: only its description counts
        tall = np.lib.stride_tricks.as_strided(item, (70_000, 40_000), (80_000, 2))
        b, out = operands(1, 8, 40_000)[1], operands(70_000, 8, 1)[2]
        b.shift = apart
        out.shift = 2 * apart
        self.refused(narrow, ShapeError, "larger than the kernels can address", ExchangeTensor(tall), b, out)
        gemm(ExchangeTensor(tall), b, out)
        assert sum(launch.grid[0] for launch in driver.launches) == -(-70_000 // 64)
        one = ExchangeTensor(aligned(np.zeros((1, 1), np.float16)))
        one.shift = apart
        for extent in (2**31, 2**31 - 1, 2**31 - 2**16):
            endless = np.lib.stride_tricks.as_strided(item, (1, extent), (2**32, 2))
            column = np.lib.stride_tricks.as_strided(item, (extent, 1), (2, 2))
            self.refused(gemm, ShapeError, "larger than", ExchangeTensor(endless), ExchangeTensor(column), one)

    def test_a_failing_launch(self, driver: StubDriver, gemm: GpuGemm):
        driver.fail("cuLaunchKernel", 700)
        self.refused(gemm, DeviceError, "CUDA_ERROR_STUB: as the stub was told", *operands(8, 8, 8))

    def test_too_many_streams(self, driver: StubDriver, gemm: GpuGemm):
        a, b, out = operands(1, 8, 4100)
        for stream in range(256):
            gemm(a, b, out, stream=stream + 1)
        self.refused(gemm, OperandError, "one stream too many", a, b, out, stream=257)


class TestOpening:
    def test_no_device(self, driver: StubDriver, library: GpuLibrary):
        driver.describe(devices=0)
        with pytest.raises(DeviceError, match="sees no device"):
            GpuGemm(library, 0)
        gemm = GpuGemm(library)
        assert gemm.device is None and gemm.plan(64, 64, 64).index == 0 and "no device" in repr(gemm)
        for _ in range(2):
            with pytest.raises(DeviceError, match=r"runs on no device: .* sees no device"):
                gemm(*operands(8, 8, 8))

    def test_no_driver(self, library: GpuLibrary, tmp_path: Path):
        write(library, tmp_path / "gemm.vortex")
        program = """
import sys
from pathlib import Path
from vortex.gpu_launcher import GpuGemm
from vortex.gpu_library import read
gemm = GpuGemm(read(Path(sys.argv[1])))
try:
    gemm(1, 2)
except RuntimeError as error:
    print(error, gemm.plan(5, 5, 5).variant.name)
"""
        if Path("/usr/lib/x86_64-linux-gnu/libcuda.so.1").exists():
            pytest.skip("this machine has a driver")
        told = gpu_doubles.in_child(program, str(tmp_path / "gemm.vortex"))
        assert "libcuda.so.1 cannot be opened" in told and "tc_f16" in told

    def test_no_such_device(self, driver: StubDriver, library: GpuLibrary):
        with pytest.raises(DeviceError, match="there is no CUDA device 3; this machine has 1"):
            GpuGemm(library, 3)

    def test_machine_code_serves_later_minor_versions(self, driver: StubDriver, library: GpuLibrary):
        driver.describe(minor=6)
        assert GpuGemm(library, 0).code == "sm_80"

    def test_another_architecture_needs_a_word(self, driver: StubDriver, library: GpuLibrary):
        driver.describe(major=9)
        with pytest.raises(DeviceError, match=r"stub-gpu \(sm_80\) and compute_80 PTX; .*sm_90.* jit=True"):
            GpuGemm(library, 0)
        gemm = GpuGemm(library, 0, jit=True)
        assert gemm.code == "compute_80 PTX, translated by the driver" and "PTX" in repr(gemm)
        driver.on_launch(products(library))
        a, b, out = operands(8, 8, 8)
        gemm(a, b, out)
        assert right(a, b, out)

    def test_an_older_architecture_is_refused(self, driver: StubDriver, library: GpuLibrary):
        driver.describe(major=7, minor=5)
        with pytest.raises(DeviceError, match=r"does not run on device 0, Stub GPU .sm_75."):
            GpuGemm(library, 0, jit=True)

    def test_a_driver_too_old_for_the_ptx(self, driver: StubDriver, library: GpuLibrary):
        driver.describe(major=9, ptx_major=7, ptx_minor=4)
        before = driver.calls.stub_live_modules()
        with pytest.raises(DeviceError, match=r"too old for the PTX of k0\.cubin; update it"):
            GpuGemm(library, 0, jit=True)
        assert driver.calls.stub_live_modules() == before

    def test_machine_code_that_the_driver_refuses(self, driver: StubDriver, library: GpuLibrary):
        parts = {**library.parts, "k1.cubin": gpu_doubles.cubin(["x"], 90)}
        before = driver.calls.stub_live_modules()
        with pytest.raises(LibraryError, match=r"k1\.cubin does not load on this device .*NO_BINARY"):
            GpuGemm(replace(library, parts=parts), 0)
        assert driver.calls.stub_live_modules() == before

    def test_a_kernel_that_the_cubin_lacks(self, driver: StubDriver, library: GpuLibrary):
        parts = {**library.parts, "k1.cubin": gpu_doubles.cubin(["x"], 80)}
        with pytest.raises(LibraryError, match=r"manifest names the kernel .*_split, its cubin has none"):
            GpuGemm(replace(library, parts=parts), 0)

    def test_more_shared_memory_than_there_is(self, driver: StubDriver, tmp_path: Path):
        with pytest.raises(DeviceError, match="needs 200000 bytes of shared memory"):
            GpuGemm(make_library(tmp_path, shared=200_000), 0)

    def test_parameters_unknown_here(self, driver: StubDriver, library: GpuLibrary):
        entries = (replace(library.manifest.entries[0], args=("*A", "alpha")), *library.manifest.entries[1:])
        manifest = replace(library.manifest, entries=entries)
        with pytest.raises(LibraryError, match=r"takes \['alpha'\], unknown here"):
            GpuGemm(replace(library, manifest=manifest), 0)

    def test_host_code_that_does_not_load(self):
        with pytest.raises(LibraryError, match="host code of the library does not load"):
            Door(b"no machine code")

    def test_closing_unloads(self, driver: StubDriver, library: GpuLibrary):
        before = driver.calls.stub_live_modules(), driver.calls.stub_live_contexts()
        gemm = GpuGemm(library, 0)
        assert driver.calls.stub_live_modules() == before[0] + 2
        del gemm
        assert (driver.calls.stub_live_modules(), driver.calls.stub_live_contexts()) == before

    @pytest.mark.parametrize(
        ("arch", "ptx", "device", "jit", "answer"),
        [
            ("sm_80", "compute_80", (8, 0), False, False),
            ("sm_80", "compute_80", (8, 9), False, False),
            ("sm_86", "compute_80", (8, 0), True, True),
            ("sm_80", "compute_80", (9, 0), True, True),
            ("sm_80", "compute_80", (9, 0), False, None),
            ("sm_80", "", (9, 0), True, None),
            ("sm_90a", "compute_90a", (9, 0), False, False),
            ("sm_90a", "compute_90a", (10, 0), True, None),
            ("sm_120", "compute_80", (12, 0), False, False),
        ],
    )
    def test_choice_of_code(
        self, library: GpuLibrary, arch: str, ptx: str, device: tuple[int, int], jit: bool, answer: bool | None
    ):
        manifest = replace(library.manifest, arch=arch, ptx=ptx)
        there = Device(0, "x", *device, 100, 100_000, 13000)
        if answer is None:
            with pytest.raises(DeviceError):
                choose_code(manifest, there, jit)
        else:
            assert choose_code(manifest, there, jit) is answer
