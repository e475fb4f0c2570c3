"""Calls of a GPU's library of reductions against a driver that is not there: what is launched, and what is refused."""

from __future__ import annotations

import ctypes
import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import emulator
import gpu_doubles
import numpy as np
import pytest
from doors import RUNTIME
from gpu_doubles import DLPackTensor, ExchangeTensor, InterfaceTensor, Launch, StubDriver, aligned
from needs import a_compiler, an_emulator
from reductions import emitted, of_kind, operands_of, parameters, whole_numbers, with_room
from test_codegen_cuda import an_nvrtc

import vortex
from vortex import gpu_opened, gpu_operands, gpu_reduction_launcher
from vortex.errors import DeviceError, DtypeError, LibraryError, OperandError, ShapeError, VortexError
from vortex.gpu_library import DOOR, GpuLibrary
from vortex.gpu_operands import (
    CUDA_ERROR,
    NEEDS_WORKSPACE,
    ON_HOST,
    ON_OTHER,
    REASONS,
    WRONG_AXES,
    WRONG_SHAPE,
    exchange_api,
)
from vortex.gpu_reduction import ITEM, NARROW, WIDE, GpuReducePlan, ReduceSelector, Sweep
from vortex.gpu_reduction_door import BAD_RANK, BAD_STRIDES, MOST_RANK, NO_KERNEL, TOO_LARGE
from vortex.gpu_reduction_launcher import GpuReduce
from vortex.reduction_tiles import Family


@pytest.fixture(scope="module")
def library(reduction_library: GpuLibrary) -> GpuLibrary:
    return reduction_library


def test_every_refusal_of_the_door_has_words():
    source = (RUNTIME / "gpu_refusals.h").read_text()
    numbers = re.search(r"enum \{\s*NOT_A_TENSOR = 1,(.*?)\}", source, re.S)
    assert numbers is not None and 2 + numbers[1].count(",") == len(REASONS)
    names = ["NOT_A_TENSOR", *re.findall(r"[A-Z_0-9]+", numbers[1])]
    known = {"BAD_RANK": BAD_RANK, "BAD_STRIDES": BAD_STRIDES, "TOO_LARGE": TOO_LARGE, "NO_KERNEL": NO_KERNEL}
    known |= {"BAD_DEVICE": ON_HOST, "OTHER_DEVICE": ON_OTHER, "BAD_OUT_SHAPE": WRONG_SHAPE, "BAD_AXES": WRONG_AXES}
    known |= {"NEEDS_WORKSPACE": NEEDS_WORKSPACE, "CUDA_ERROR": CUDA_ERROR}
    assert all(names.index(name) + 1 == number for name, number in known.items())


def emulating(reduce: GpuReduce) -> Any:
    """A callback that runs every launch in the emulator with exactly what the driver was given."""
    known = {
        block.symbol(reduce.kind, vector): (block, vector)
        for block in reduce.selector.blocks
        for vector in (WIDE, NARROW)
    }

    def run(launch: Launch) -> None:
        block, vector = known[launch.name.decode()]
        text, kernel = emitted(block, reduce.kind, vector)
        given = parameters(launch)
        sizes = [np.int64(given[name]) for name in kernel.args[2:-1]]
        operands = [emulator.Workspace(each, vector) for each in operands_of(given)]
        geometry = tuple(launch.grid), tuple(launch.block), launch.shared
        assert given["*X"] % vector == given["*Y"] % vector == 0
        emulator.run(text, kernel.symbol, *geometry, [*operands, *sizes, given["scale"]], seed=1)

    return run


def opened(driver: StubDriver, library: GpuLibrary, kind: str = "sum") -> GpuReduce:
    reduce = GpuReduce(library if kind == "sum" else of_kind(library, kind), 0)
    driver.on_launch(emulating(reduce))
    return reduce


@a_compiler
@an_nvrtc
@an_emulator
class TestCalls:
    @pytest.mark.parametrize(
        ("shape", "axis"),
        [
            ((37, 100), 1),
            ((37, 101), -1),
            ((5, 7, 11), 0),
            ((5, 8, 12), (0, 1)),
            ((5, 7, 11), (0, 2)),
            ((2, 3, 4, 5), (0, 2)),
            ((6, 5), None),
            ((6, 5), ()),
            ((1,), 0),
            ((), None),
            ((300_001,), 0),
            ((120_000, 2), 0),
        ],
    )
    def test_against_numpy(self, driver: StubDriver, library: GpuLibrary, shape: tuple[int, ...], axis: Any):
        reduce, x = opened(driver, library), whole_numbers(*shape)
        out = reduce(ExchangeTensor(aligned(x)), axis)
        assert (out.array == np.sum(x, axis=axis)).all() and out.shape == np.sum(x, axis=axis).shape
        plan = reduce.plan(shape, axis)
        assert len(driver.launches) == len(plan.sweeps)
        assert [launch.grid[0] for launch in driver.launches] == [sweep.blocks for sweep in plan.sweeps]

    @pytest.mark.parametrize("kind", ["max", "mean"])
    def test_other_kinds(self, driver: StubDriver, library: GpuLibrary, kind: str):
        reduce = opened(driver, library, kind)
        for shape, axis in (((9, 40), 1), ((4, 6, 8), (0, 2)), ((50_000,), None)):
            x = whole_numbers(*shape)
            expected = np.max(x, axis) if kind == "max" else np.sum(x, axis) * np.float32(np.sum(x, axis).size / x.size)
            assert (reduce(ExchangeTensor(aligned(x)), axis).array == expected).all()

    @pytest.mark.parametrize("kind", [ExchangeTensor, DLPackTensor, InterfaceTensor])
    def test_every_kind_of_tensor(self, driver: StubDriver, library: GpuLibrary, kind: Any):
        x, out = whole_numbers(12, 40), aligned(np.zeros((12, 1), np.float32))
        given = kind(out)
        assert opened(driver, library)(kind(aligned(x)), 1, given, keepdims=True) is given
        assert (out == x.sum(axis=1, keepdims=True)).all()

    def test_tensors_of_torch_through_its_own_exchange_api(
        self, driver: StubDriver, library: GpuLibrary, monkeypatch: pytest.MonkeyPatch
    ):
        """In memory of the host, which is called a device's."""
        torch = pytest.importorskip("torch")
        monkeypatch.setattr(gpu_operands, "CPU", gpu_operands.CUDA)
        reduce, x = opened(driver, library), torch.from_numpy(aligned(whole_numbers(4, 6, 8)))
        reduce._exchange[torch.Tensor] = driver.calls.stub_exchange(exchange_api(torch.Tensor))
        driver.calls.stub_set_stream(321)
        out = torch.empty((1, 6, 1))
        assert reduce(x, (0, 2), out, keepdims=True) is out
        assert torch.equal(out, x.sum((0, 2), keepdim=True)) and torch.equal(reduce(x, -1), x.sum(-1))
        assert torch.equal(reduce(x[1:, 2:4].contiguous()), x[1:, 2:4].sum())
        assert torch.equal(reduce(x[:, 2:4, :5], 0), x[:, 2:4, :5].sum(0))
        assert torch.equal(reduce(x.transpose(1, 2), -1), x.sum(1))
        with pytest.raises(ShapeError, match="strides that no reduction reads"):
            reduce(x[:, 2:4], -1)
        with pytest.raises(DtypeError, match="float32"):
            reduce(x.double(), -1)
        assert {launch.stream for launch in driver.launches} == {321}

    @pytest.mark.parametrize(("offset", "width", "vector"), [(0, 40, WIDE), (4, 40, NARROW), (0, 41, NARROW)])
    def test_alignment_chooses_the_accesses_and_no_bit(
        self, driver: StubDriver, library: GpuLibrary, offset: int, width: int, vector: int
    ):
        reduce, x = opened(driver, library), np.random.default_rng(0).standard_normal((12, width)).astype(np.float32)
        reference = reduce(ExchangeTensor(aligned(x)), 1).array
        assert reduce(ExchangeTensor(aligned(x, offset)), 1).array.tobytes() == reference.tobytes()
        assert driver.launches[-1].name.decode().endswith(f"_v{vector}")

    def test_nothing(self, driver: StubDriver, library: GpuLibrary):
        empty, out = ExchangeTensor(aligned(np.zeros((3, 0, 2), np.float32))), np.full((3, 2), 7, np.float32)
        assert (opened(driver, library)(empty, 1, ExchangeTensor(aligned(out))).array == 0).all()
        assert np.isnan(opened(driver, library, "mean")(empty, 1).array).all()
        with pytest.raises(ShapeError, match="no element to take the maximum of"):
            opened(driver, library, "max")(empty, 1)
        count = len(driver.launches)
        assert opened(driver, library, "max")(empty, 0).shape == (0, 2) and len(driver.launches) == count

    def test_a_stream_has_its_workspace_once(self, driver: StubDriver, library: GpuLibrary):
        reduce, x = opened(driver, library), whole_numbers(300_001)
        given = ExchangeTensor(aligned(x))
        for stream in (0, 64, 64, 0):
            assert reduce(given, stream=stream).array == x.sum()
        allocated = [tensor.array.nbytes for tensor in ExchangeTensor.allocated]
        assert allocated.count(library.manifest.workspace_bytes) == 2
        assert [launch.stream for launch in driver.launches] == [None, None, 64, 64, 64, 64, None, None]
        assert driver.calls.stub_uncapturable() == 0

    def test_a_lent_workspace(self, driver: StubDriver, library: GpuLibrary):
        reduce, x = opened(driver, library), whole_numbers(300_001)
        lent, out = (
            ExchangeTensor(aligned(np.zeros(4096, np.float32))),
            ExchangeTensor(aligned(np.zeros((), np.float32))),
        )
        assert reduce(ExchangeTensor(aligned(x)), None, out, workspace=lent).array == x.sum()
        assert lent.array.any() and not ExchangeTensor.allocated
        with pytest.raises(OperandError, match="needs a workspace of"):
            reduce(ExchangeTensor(aligned(x)), None, out, workspace=ExchangeTensor(aligned(np.zeros(1, np.float32))))

    def test_the_context_is_left_as_it_was(self, driver: StubDriver, library: GpuLibrary):
        reduce = opened(driver, library)
        pushes = driver.calls.stub_context_pushes()
        reduce(ExchangeTensor(aligned(whole_numbers(4, 4))), 1)
        assert driver.calls.stub_context_pushes() == pushes + 1
        current = ctypes.c_void_p(1)
        driver.calls.cuCtxGetCurrent(ctypes.byref(current))
        assert not current.value

    def test_a_failed_launch_is_told(self, driver: StubDriver, library: GpuLibrary):
        reduce = opened(driver, library)
        before = driver.calls.stub_context_pushes()
        for name in ("cuLaunchKernel", "cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"):
            driver.fail(name, 719)
            with pytest.raises(DeviceError, match="could not be computed: CUDA_ERROR_STUB: as the stub was told"):
                reduce(ExchangeTensor(aligned(whole_numbers(4, 4))), 1)
        assert driver.calls.stub_context_pushes() == before + 2
        driver.calls.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))  # what failed to be left


def address(launch: Launch, place: int) -> int:
    """A pointer among the parameters of a launch, while it runs."""
    return ctypes.c_void_p.from_address(launch.parameters[place]).value or 0


def tensor(*shape: int, kind: Any = ExchangeTensor) -> Any:
    return kind(aligned(np.zeros(shape, np.float32)))


class Described:
    """Of a rank that NumPy has not."""

    def __init__(self, *shape: int) -> None:
        self.array = np.zeros(1, np.float32)
        self.__cuda_array_interface__ = InterfaceTensor(self.array).__cuda_array_interface__ | {"shape": shape}


@a_compiler
@an_nvrtc
class TestDoor:
    def test_a_call_is_one_native_call(self, driver: StubDriver, library: GpuLibrary, monkeypatch: pytest.MonkeyPatch):
        """No other function of the door, and nothing that describes an operand in Python."""
        reduce, native = GpuReduce(library, 0), []
        x, y, out = tensor(300_001), tensor(8, 40), tensor(8)
        reduce(x, None, tensor())
        driver.calls.stub_reset()

        def counted(*given: Any) -> int:
            native.append(given)
            return int(call(*given))

        def unexpected(*given: Any) -> None:
            raise AssertionError(given)

        call = reduce._reduce
        monkeypatch.setattr(reduce, "_reduce", counted)
        for name in [name for name in vars(reduce._door.calls) if name.startswith("vx_")]:
            monkeypatch.setattr(reduce._door.calls, name, unexpected)
        for name in ("describe", "normalized_axes", "empty"):
            monkeypatch.setattr(gpu_reduction_launcher, name, unexpected)
        for given in ((x, None, tensor()), (y, 1, out), (y, (-1,), out)):
            assert reduce(*given) is given[2]
        assert reduce(x, 0, tensor(1), keepdims=True).array.shape == (1,)
        assert len(native) == 4 and driver.calls.stub_launch_count() == 2 + 1 + 1 + 2

    def test_sweeps_go_through_the_workspace_one_after_the_other(self, driver: StubDriver, library: GpuLibrary):
        """Each reads what the one before has written, in places of whole multiples of 256 bytes."""
        reduce, found = GpuReduce(library, 0), []
        driver.on_launch(lambda launch: found.append((address(launch, 0), address(launch, 1))))
        x, out, lent = tensor(3, 5, 700, 5, 3), tensor(5, 5), tensor(1 << 16)
        reduce(x, (0, 2, 4), out, workspace=lent)
        sweeps, room = reduce.plan(x.shape, (0, 2, 4)).sweeps, lent.array.ctypes.data
        assert len(sweeps) == len(found) >= 3 and found[0][0] == x.array.ctypes.data
        assert found[-1][1] == out.array.ctypes.data
        assert [read for read, _ in found[1:]] == [written for _, written in found[:-1]]
        for (_, written), sweep in zip(found[:-1], sweeps, strict=False):
            assert written == room
            room += -(-ITEM * sweep.outputs // 256) * 256
        need = room - lent.array.ctypes.data
        exact = ExchangeTensor(lent.array[: need // ITEM])
        reduce(x, (0, 2, 4), out, workspace=exact)
        with pytest.raises(OperandError, match=f"needs a workspace of {need} bytes"):
            reduce(x, (0, 2, 4), out, workspace=ExchangeTensor(exact.array[:-1]))

    def test_the_last_sweep_divides_a_mean(self, driver: StubDriver, library: GpuLibrary):
        scales: list[float] = []
        driver.on_launch(lambda launch: scales.append(parameters(launch)["scale"]))
        for kind, last in (("mean", np.float32(1 / 21)), ("sum", 1), ("max", 1)):
            reduce = GpuReduce(library if kind == "sum" else of_kind(library, kind), 0)
            scales.clear()
            reduce(tensor(3, 5, 7), (0, 2), workspace=tensor(4096))
            assert scales == [1, last]

    def test_nothing_is_one_sweep_without_a_depth(self, driver: StubDriver, library: GpuLibrary):
        found: list[tuple[int, ...]] = []

        def look(launch: Launch) -> None:
            given = parameters(launch)
            found.append((*(given[name] for name in ("outer", "depth", "inner", "chunk", "chunks")), *launch.grid))

        driver.on_launch(look)
        for kind in ("sum", "mean"):
            GpuReduce(library if kind == "sum" else of_kind(library, kind), 0)(tensor(300, 0, 20, 0, 2), (1, 3))
        plan = ReduceSelector.from_json(library.manifest.selector).choose((12_000, 1, 1), 0)
        assert found == [(12_000, 0, 1, 1, 1, plan.sweeps[0].blocks, 1, 1)] * 2
        assert GpuReduce(library, 0)(tensor(0, 1 << 15, 4), (0, 1)).shape == (4,)
        count = len(driver.launches)
        for shape, axis in (((0, 4), 1), ((4, 0, 3), (0, 2)), ((0,), ())):
            GpuReduce(of_kind(library, "max"), 0)(tensor(*shape), axis)
        assert len(driver.launches) == count

    def test_strides_that_say_nothing_and_those_that_do(self, driver: StubDriver, library: GpuLibrary):
        reduce, x = GpuReduce(library, 0), aligned(np.zeros(64, np.float32))

        def strided(shape: tuple[int, ...], *steps: int) -> Any:
            return ExchangeTensor(np.lib.stride_tricks.as_strided(x, shape, [ITEM * step for step in steps]))

        dense = (((3, 4), (4, 1)), ((3, 1, 4), (4, 77, 1)), ((1, 4), (-9, 1)), ((0, 4), (9, 9)), ((), ()))
        for shape, steps in dense:
            reduce(strided(shape, *steps), None, tensor())
            reduce(tensor(*shape, 2), -1, strided(shape, *steps))
        odd = (((3, 4), (1, 3)), ((3, 4), (8, 1)), ((2,), (-1,)), ((2, 2), (0, 1)), ((2, 2, 2), (4, 1, 2)))
        for shape, steps in odd:
            with pytest.raises(ShapeError, match=r"x .* has strides that no reduction reads"):
                reduce(strided(shape, *steps), (0, -1) if len(shape) == 2 else None, tensor())
            with pytest.raises(ShapeError, match=r"out .* is not contiguous"):
                reduce(tensor(*shape, 2), -1, strided(shape, *steps))
        for shape, steps in (((2, 3, 4), (24, 1, 6)), ((2, 3, 4), (1, 9, 2)), ((2, 3), (1, -2))):
            with pytest.raises(ShapeError, match=r"x .* has strides that no reduction reads"):
                reduce(strided(shape, *steps), 0, tensor(*shape[1:]))

    @pytest.mark.parametrize(
        ("shape", "steps", "axis", "view", "apart"),
        [
            pytest.param((8, 12), (20, 1), 1, (8, 12, 1), (20, 1), id="rows-in-longer-ones"),
            pytest.param((8, 12), (20, 1), 0, (1, 8, 12), (0, 20), id="columns-of-longer-rows"),
            pytest.param((8, 12), (1, 8), 1, (1, 12, 8), (0, 8), id="turned-over-columns"),
            pytest.param((8, 12), (1, 8), 0, (12, 8, 1), (8, 1), id="turned-over-rows"),
            pytest.param((4, 6, 8), (96, 16, 1), 1, (4, 6, 8), (96, 16), id="layers-of-longer-rows"),
            pytest.param((4, 6, 8), (48, 1, 6), 2, (4, 8, 6), (48, 6), id="turned-over-layers"),
            pytest.param((4, 6, 8), (48, 1, 6), 1, (32, 6, 1), (6, 1), id="rows-of-turned-over-layers"),
            pytest.param((12, 8), (8, 2), 1, (12, 8, 1), (8, 2), id="every-second-element"),
            pytest.param((12,), (5,), 0, (1, 12, 1), (0, 5), id="one-column"),
            pytest.param((6, 5), (0, 1), 0, (1, 6, 5), (0, 0), id="the-same-row-again"),
            pytest.param((6, 5), (1, 0), 1, (1, 5, 6), (0, 0), id="the-same-column-again"),
        ],
    )
    def test_strides(
        self,
        driver: StubDriver,
        library: GpuLibrary,
        shape: tuple[int, ...],
        steps: tuple[int, ...],
        axis: int,
        view: tuple[int, int, int],
        apart: tuple[int, int],
    ):
        """Rows or columns, whichever lie so, are read where they are; the results are NumPy's."""
        reduce, memory, given = opened(driver, library), aligned(whole_numbers(400)), {}
        run = emulating(reduce)

        def look(launch: Launch) -> None:
            given.update(parameters(launch))
            run(launch)

        driver.on_launch(look)
        x = np.lib.stride_tricks.as_strided(memory, shape, [ITEM * step for step in steps])
        assert (reduce(ExchangeTensor(x), axis).array == x.sum(axis)).all()
        assert tuple(given[name] for name in ("outer", "depth", "inner")) == view
        assert (given["outer_stride"], given["depth_stride"]) == apart

    def test_the_runs_after_the_first_read_what_it_left(self, driver: StubDriver, library: GpuLibrary):
        reduce, x = opened(driver, library), whole_numbers(3, 5, 4, 10)[:, :, :, 2:7]
        assert (reduce(ExchangeTensor(x), (0, 2)).array == x.sum((0, 2))).all()
        assert (reduce(ExchangeTensor(x), (1, 3)).array == x.sum((1, 3))).all()

    def test_as_many_axes_as_there_are_bits(self, driver: StubDriver, library: GpuLibrary):
        reduce, lent = GpuReduce(library, 0), tensor(1 << 14, kind=InterfaceTensor)
        most = Described(*(1,) * MOST_RANK)
        reduce(most, tuple(range(0, MOST_RANK, 2)), Described(*(1,) * 32), workspace=lent)
        assert len(driver.launches) == 32
        reduce(most, -MOST_RANK, Described(*(1,) * MOST_RANK), keepdims=True)
        assert len(driver.launches) == 33
        more = Described(*(1,) * (MOST_RANK + 1))
        for axis, out in ((None, Described()), (0, Described(*(1,) * MOST_RANK))):
            with pytest.raises(ShapeError, match=r"x \(Described\) has too many axes; .*reshape it to at most 64"):
                reduce(more, axis, out)
        with pytest.raises(ShapeError, match="out is Described; expected shape"):
            reduce(most, 0, more)
        for asked in (reduce.plan, reduce.predict, reduce.explain):
            with pytest.raises(ShapeError, match="has too many axes; reshape it to at most 64"):
                asked((1,) * 65, 0)
        assert len(driver.launches) == 33

    def test_calls_go_to_the_current_stream_or_the_given_one(self, driver: StubDriver, library: GpuLibrary):
        class Stream:
            cuda_stream = 456

        reduce, x, out = GpuReduce(library, 0), tensor(300_001), tensor()
        ExchangeTensor.stream = 123
        for stream in (None, 5, Stream(), None):
            reduce(x, None, out, stream=stream)
        reduce(InterfaceTensor(x.array, stream=31), None, out, workspace=tensor(4096))
        assert [launch.stream for launch in driver.launches] == [
            each for stream in (123, 5, 456, 123, 31) for each in (stream, stream)
        ]
        assert len(ExchangeTensor.allocated) == 3, "a workspace for each stream, kept"

    @pytest.mark.parametrize("kind", [ExchangeTensor, DLPackTensor, InterfaceTensor])
    @pytest.mark.parametrize(("shape", "axis"), [((8, 40), 1), ((300_001,), None), ((4, 6, 8), (0, 2))])
    def test_a_graph_can_capture_a_call(
        self, driver: StubDriver, library: GpuLibrary, shape: tuple[int, ...], axis: Any, kind: Any
    ):
        """The driver is not asked for memory, nor to wait, and all that is queued is on the one stream."""
        reduce = GpuReduce(library, 0)
        x, lent = tensor(*shape, kind=kind), tensor(4096)
        out = kind(aligned(np.asarray(np.sum(x.array, axis))))
        for workspace in (lent, lent) if kind is not ExchangeTensor else (None, lent):
            reduce(x, axis, out, stream=77, workspace=workspace)
        assert driver.calls.stub_uncapturable() == 0
        assert [launch.stream for launch in driver.launches] == [77] * 2 * len(reduce.plan(shape, axis).sweeps)

    def test_a_lent_workspace_is_for_its_call_alone(self, driver: StubDriver, library: GpuLibrary):
        reduce, x, lent, used = GpuReduce(library, 0), tensor(300_001), tensor(4096), []
        driver.on_launch(lambda launch: used.append(address(launch, 1)))
        for workspace in (lent, None, lent, None):
            reduce(x, workspace=workspace, stream=9)
        first = lent.array.ctypes.data
        assert used[::4] == [first, first] and used[2] == used[6] != first

    def test_the_interpreter_is_let_go_while_a_call_launches(
        self, driver: StubDriver, library: GpuLibrary, monkeypatch: pytest.MonkeyPatch
    ):
        told: list[str] = []
        save = ctypes.PYFUNCTYPE(ctypes.c_void_p)(lambda: told.append("save") or 7)
        restore = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(lambda thread: told.append(f"restore {thread}"))
        addresses = tuple(ctypes.cast(function, ctypes.c_void_p) for function in (save, restore))
        monkeypatch.setattr(gpu_opened, "python_threads", lambda: addresses)
        reduce = GpuReduce(library, 0)
        driver.on_launch(lambda launch: told.append("launch"))
        reduce(tensor(300_001), None, tensor(), workspace=tensor(4096))
        driver.fail("cuLaunchKernel", 719)
        with pytest.raises(DeviceError):
            reduce(tensor(4, 4), 1, tensor(4))
        assert told == ["save", "launch", "launch", "restore 7", "save", "restore 7"]
        reduce(tensor(0, 4), 1, tensor(0))
        assert len(told) == 6, "nothing is launched"

    def test_threads_on_one_stream_do_not_mix_their_sweeps(self, driver: StubDriver, library: GpuLibrary):
        """What one call writes to the workspace is read before another call writes there."""
        reduce, x = GpuReduce(library, 0), tensor(300_001)
        outs = [tensor() for _ in range(8)]
        seen: list[tuple[int, int, int]] = []

        def look(launch: Launch) -> None:
            seen.append((threading.get_ident(), address(launch, 0), address(launch, 1)))
            time.sleep(1e-4)  # others may come between

        reduce(x, None, tensor(), stream=64)
        driver.on_launch(look)
        with ThreadPoolExecutor(len(outs)) as pool:
            calls = [pool.submit(reduce, x, None, out, stream=64) for _ in range(10) for out in outs]
            assert all(call.result() is out for call, out in zip(calls, 10 * outs, strict=True))
        assert len({thread for thread, _, _ in seen}) > 1 and len(seen) == 160
        for (one, source, room), (other, again, _) in zip(seen[::2], seen[1::2], strict=True):
            assert one == other and room == again and source == x.array.ctypes.data
        written = [out for _, _, out in seen[1::2]]
        assert all(written.count(out.array.ctypes.data) == 10 for out in outs)
        assert driver.calls.stub_uncapturable() == 0

    def test_closing_unloads(self, driver: StubDriver, library: GpuLibrary):
        def live() -> tuple[int, int]:
            return driver.calls.stub_live_modules(), driver.calls.stub_live_contexts()

        before = live()
        reduce = GpuReduce(library, 0)
        assert live() == (before[0] + len(library.cubins), before[1] + 1)
        del reduce
        assert live() == before

    def test_parameters_unknown_here(self, driver: StubDriver, library: GpuLibrary):
        first, *others = library.manifest.entries
        manifest = replace(library.manifest, entries=(replace(first, args=("*X", "alpha")), *others))
        with pytest.raises(LibraryError, match=r"takes \('\*X', 'alpha'\), unknown here; compile it again"):
            GpuReduce(replace(library, manifest=manifest), 0)


def given_plan(reduce: GpuReduce, *sweeps: tuple[int, int]) -> GpuReducePlan:
    """Of tiles and chunks alone, which is all that the door is told."""
    blocks = reduce.selector.blocks
    return GpuReducePlan(tuple(Sweep(tile, blocks[tile % len(blocks)], 0, 0, 0, c, 0, False) for tile, c in sweeps), 0)


@a_compiler
@an_nvrtc
class TestGivenPlans:
    @an_emulator
    @pytest.mark.parametrize(
        "kind", ["sum", *(pytest.param(kind, marks=pytest.mark.emulate) for kind in ("max", "mean"))]
    )
    @pytest.mark.parametrize("view", [(5, 1300, 1), (2, 300, 36)])
    def test_every_tile_whole_and_cut(
        self, driver: StubDriver, library: GpuLibrary, kind: str, view: tuple[int, int, int]
    ):
        reduce, x = opened(driver, library, kind), whole_numbers(*view)
        selector, expected = reduce.selector, getattr(x, kind)(axis=1)
        for index in selector.serving(view):
            for parts in (1, 2):
                first = selector.cut(index, view, parts, False)
                sweeps = (first,) if first.chunks == 1 else (first, selector.second(first)[1])
                out, count = tensor(*expected.shape), len(driver.launches)
                assert reduce.run_planned(GpuReducePlan(sweeps, 0), ExchangeTensor(aligned(x)), 1, out) is out
                assert np.allclose(out.array, expected, 1e-6) and (kind == "mean" or (out.array == expected).all())
                ran = driver.launches[count:]
                symbols = [launch.name.decode().rpartition("_v")[0] for launch in ran]
                assert symbols == [sweep.block.symbol(kind, WIDE).rpartition("_v")[0] for sweep in sweeps]
                assert [launch.grid[0] for launch in ran] == [sweep.blocks for sweep in sweeps]

    @an_emulator
    def test_the_selected_plan_is_the_call(self, driver: StubDriver, library: GpuLibrary):
        reduce = opened(driver, library)
        for shape, axis in (((300_001,), None), ((4, 6, 8), (0, 2)), ((3, 5, 70, 5, 3), (0, 2, 4))):
            x = ExchangeTensor(aligned(np.random.default_rng(1).standard_normal(shape).astype(np.float32)))
            called, planned = reduce(x, axis, keepdims=True), tensor(*np.sum(x.array, axis, keepdims=True).shape)
            reduce.run_planned(reduce.plan(shape, axis), x, axis, planned, keepdims=True, stream=5)
            assert planned.array.tobytes() == called.array.tobytes()
            half = len(driver.launches) // 2
            assert [launch.name for launch in driver.launches[:half]] == [
                launch.name for launch in driver.launches[half:]
            ]
            assert {launch.stream for launch in driver.launches[half:]} == {5}
            driver.calls.stub_reset()
            driver.on_launch(emulating(reduce))

    def test_plans_that_do_not_fit_are_refused(self, driver: StubDriver, library: GpuLibrary):
        reduce, x, out = GpuReduce(library, 0), tensor(40_000, 2), tensor(2)
        blocks = reduce.selector.blocks
        columns = [index for index, block in enumerate(blocks) if block.family is Family.COLUMNS]
        rows, fine = columns[0] - 1, columns[0]
        step, most = blocks[fine].step, 1 << 20
        bad: Sequence[tuple[tuple[int, int], ...]] = (
            (),
            ((rows, most),),
            ((-1, most),),
            ((len(blocks), most),),
            ((fine, 0),),
            ((fine, -step),),
            ((fine, step + 1), (fine, most)),
            ((fine, 4 * step),),
            ((fine, 4 * step), (rows, most)),
            ((fine, step), (fine, step), (fine, most)),
            ((fine, most), (fine, most)),
        )
        for sweeps in bad:
            with pytest.raises(OperandError, match=r"x .* cannot be served by the given plan"):
                reduce.run_planned(given_plan(reduce, *sweeps), x, 0, out)
        with pytest.raises(OperandError, match="cannot be served by the given plan"):
            reduce.run_planned(given_plan(reduce, (fine, most)), tensor(0, 2), 0, out)
        with pytest.raises(ShapeError, match=r"expected shape \(2,\)"):
            reduce.run_planned(given_plan(reduce, (fine, most)), x, 0, tensor(3))
        many = tuple(
            ExchangeTensor(np.lib.stride_tricks.as_strided(x.array, (1 << 39, 1), (ITEM, ITEM)), shift=shift)
            for shift in (0, 1 << 45)
        )
        with pytest.raises(OperandError, match="cannot be served by the given plan"):  # more blocks than a grid has
            reduce.run_planned(given_plan(reduce, (rows, most)), many[0], 1, many[1], keepdims=True)
        assert not driver.launches
        for sweeps in (((fine, most),), ((fine, 4 * step), (fine, 40_000))):
            reduce.run_planned(given_plan(reduce, *sweeps), x, 0, out)
        assert len(driver.launches) == 3
        with pytest.raises(DeviceError, match="runs on no device"):
            unopened(library).run_planned(given_plan(reduce, (fine, most)), x, 0, out)


def unopened(library: GpuLibrary) -> GpuReduce:
    """As where no device is."""
    reduce = GpuReduce(library, 0)
    reduce._handle = 0
    return reduce


@a_compiler
@an_nvrtc
class TestRefusals:
    def test_bad_operands(self, driver: StubDriver, library: GpuLibrary):
        reduce, x = GpuReduce(library, 0), whole_numbers(4, 8)
        on_device = ExchangeTensor(aligned(x))

        def out(*shape: int, dtype: Any = np.float32) -> ExchangeTensor:
            return ExchangeTensor(aligned(np.zeros(shape, dtype)))

        cases: Sequence[tuple[tuple[Any, ...], type[VortexError], str]] = (
            (([1.0, 2.0],), OperandError, "x is a list"),
            ((x,), DeviceError, "x .*not in the memory of a CUDA device; copy it"),
            ((on_device, 1, np.zeros(4, np.float32)), DeviceError, "out .*not in the memory"),
            ((ExchangeTensor(x, 3),), DeviceError, r"on another device \(3\)"),
            ((ExchangeTensor(x.astype(np.float16)),), DtypeError, "float32"),
            ((on_device, 1, out(4, dtype=np.float64)), DtypeError, "out"),
            ((on_device, 2), ShapeError, "axis=2"),
            ((on_device, (0, 0)), ShapeError, "twice"),
            ((on_device, 2, out(4)), ShapeError, "axis=2"),
            ((on_device, (0, -2), out(8)), ShapeError, "twice"),
            ((on_device, "1", out(4)), ShapeError, "axis='1'"),
            ((on_device, 1, ExchangeTensor(out(8).array[::2])), ShapeError, "out .* is not contiguous"),
            ((on_device, 0, out(4)), ShapeError, r"expected shape \(8,\)"),
            ((ExchangeTensor(aligned(x).T),), ShapeError, "contiguous copy"),
            ((ExchangeTensor(aligned(x)[:, ::-1]), 0), ShapeError, "strides that no reduction reads"),
            ((on_device, 0, ExchangeTensor(on_device.array[1])), OperandError, "overlaps"),
            ((ExchangeTensor(aligned(x), shift=2),), OperandError, "aligned"),
            (
                (InterfaceTensor(x), 0, InterfaceTensor(np.zeros(8, np.float32), read_only=True)),
                OperandError,
                "read-only",
            ),
        )
        for given, error, told in cases:
            with pytest.raises(error, match=told):
                reduce(*given)
        with pytest.raises(OperandError, match="stream is a str"):
            reduce(on_device, stream="mine")
        for shape in ((4,), (1, 4), (4, 1, 1)):
            with pytest.raises(ShapeError, match=r"expected shape \(4, 1\) for x .*, axis=1"):
                reduce(on_device, 1, out(*shape), keepdims=True)
        assert not driver.launches

    def test_a_bad_workspace(self, driver: StubDriver, library: GpuLibrary):
        reduce, x, out = GpuReduce(library, 0), tensor(300_001), tensor()
        lent = np.zeros(4096, np.float32)
        cases: Sequence[tuple[Any, type[VortexError], str]] = (
            (lent, DeviceError, "workspace .* is not in the memory of a CUDA device"),
            (ExchangeTensor(aligned(lent), 3), DeviceError, r"workspace .* on another device \(3\)"),
            (ExchangeTensor(aligned(lent, 4)), OperandError, "multiple of 16"),
            (ExchangeTensor(aligned(lent[:1])), OperandError, "x .* needs a workspace of .* bytes"),
            (ExchangeTensor(lent[:0]), OperandError, "x .* needs a workspace of .* bytes"),
            ("mine", OperandError, "workspace is a str"),
        )
        for stream in (1, 2):  # the second has one of its own, which is no substitute
            for workspace, error, told in cases:
                with pytest.raises(error, match=told):
                    reduce(x, None, out, stream=stream, workspace=workspace)
            reduce(x, None, out, stream=2)
        with pytest.raises(OperandError, match="cannot say how to allocate"):
            reduce(DLPackTensor(x.array), None, DLPackTensor(out.array), stream=3)
        assert len(driver.launches) == 4

    def test_extents_past_every_grid(self, driver: StubDriver, library: GpuLibrary):
        """Nothing here is read: only its description counts."""
        reduce, item = GpuReduce(library, 0), np.zeros(1, np.float32)

        def endless(*shape: int, shift: int = 0) -> Any:
            steps = [int(ITEM * np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape))]
            return ExchangeTensor(np.lib.stride_tricks.as_strided(item, shape, steps), shift=shift)

        with pytest.raises(ShapeError, match=r"x .* is served by no tile of the library; .*reduce parts of it"):
            reduce(endless(1 << 39, 1), 1, endless(1 << 39, shift=1 << 45))
        with pytest.raises(ShapeError, match=r"x .* has too many elements; .*reduce parts of fewer"):
            reduce(endless(1 << 20, 1 << 20), 1, endless(1 << 20, shift=1 << 45))
        assert not driver.launches
        reduce(endless(1 << 36, 4), 1, endless(1 << 36, shift=1 << 45))
        assert len(driver.launches) == 1

    def test_a_framework_that_cannot_describe_its_tensor(self, driver: StubDriver, library: GpuLibrary):
        class Sparse(ExchangeTensor):
            pass

        reduce = GpuReduce(library, 0)
        Sparse.__dlpack_c_exchange_api__ = gpu_doubles.refusing_exchange(driver)  # type: ignore[attr-defined]
        x, out = Sparse(np.zeros((2, 2), np.float32)), Sparse(np.zeros(2, np.float32))
        for _ in range(2):
            with pytest.raises(DtypeError, match=r"cannot be read .sparse.; given x Sparse"):
                reduce(x, 1, out)

    def test_too_many_streams(self, driver: StubDriver, library: GpuLibrary):
        reduce, x, out = GpuReduce(with_room(library, 1 << 12), 0), tensor(300_001), tensor()
        for stream in range(256):
            reduce(x, None, out, stream=stream + 1)
        with pytest.raises(OperandError, match="one stream too many"):
            reduce(x, None, out, stream=257)
        count = len(driver.launches)
        reduce(x, None, out, stream=257, workspace=tensor(4096))
        reduce(tensor(4, 8), 1, stream=258)
        assert len(driver.launches) == count + 3

    def test_gradients(self, driver: StubDriver, library: GpuLibrary):
        class Parameter(ExchangeTensor):
            requires_grad = True  # type: ignore[assignment]

        with pytest.raises(OperandError, match="requires grad"):
            GpuReduce(library, 0)(Parameter(aligned(whole_numbers(2, 2))))

    def test_another_architecture(self, driver: StubDriver, library: GpuLibrary):
        driver.describe(major=9)
        with pytest.raises(DeviceError, match="jit=True"):
            GpuReduce(library, 0)
        assert GpuReduce(library, 0, jit=True).code.endswith("translated by the driver")


@a_compiler
@an_nvrtc
class TestLibrary:
    def test_it_is_known_for_what_it_is(self, library: GpuLibrary, tmp_path: Path):
        reduce = vortex.load(self.saved(library, tmp_path))
        assert isinstance(reduce, GpuReduce) and repr(reduce).startswith("<vortex reduce sum for a100")
        assert set(library.parts) == {DOOR, *library.cubins, *(name.replace("cubin", "ptx") for name in library.cubins)}
        assert len(library.manifest.entries) == 2 * len(reduce.strategies)

    @staticmethod
    def saved(library: GpuLibrary, folder: Path) -> Path:
        GpuReduce(library).save(folder / "sum.vortex")
        return folder / "sum.vortex"

    def test_plans_tell_why(self, library: GpuLibrary):
        reduce = GpuReduce(library)
        told = reduce.explain((8, 512, 768), (0, 2))
        assert isinstance(told.plan, GpuReducePlan) and told.plan == reduce.plan((8, 512, 768), (0, 2))
        assert told.plan.seconds == reduce.predict((8, 512, 768), (0, 2))
        assert 0 < reduce.time_selection((8, 512, 768), (0, 2), repeats=10) < 1e-3
        assert all(costs["total"] >= told.terms["total"] for _, costs in told.rivals)
        text = str(told)
        assert all(word in text for word in ("GB/s predicted", "runners-up", "FilterByVariety", "computed"))
        with pytest.raises(ShapeError, match="axis=3"):
            reduce.plan((8, 512, 768), 3)
        with pytest.raises(ShapeError, match="shape="):
            reduce.predict((-1,))

    def test_it_says_what_is_missing_where_no_device_is(self, library: GpuLibrary, tmp_path: Path):
        program = (
            "import sys, vortex\n"
            "reduce = vortex.load(sys.argv[1])\n"
            "assert reduce.predict((512, 768), 1) > 0\n"
            "assert not {'tvm', 'pydantic', 'torch'} & set(sys.modules)\n"
            "try: reduce([1.0])\n"
            "except vortex.errors.DeviceError as error: print(error)\n"
        )
        told = gpu_doubles.in_child(program, str(self.saved(library, tmp_path)))
        assert "runs on no device" in told
