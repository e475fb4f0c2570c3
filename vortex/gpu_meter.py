"""cost(L1) observed: stages of every kernel timed on the device, through the driver alone.

Two depths of the reduction give what a stage takes and what comes on top; blocks are as many as the device has SMs, and
as many as those hold at a time. Operands are random numbers: zeros take less power, and so less time.

A launch takes the host longer than many kernels run, so launches are captured once and replayed as a graph, in which
each kernel waits for the one before, and for nothing else. All rounds are queued behind a first replay, so that none
waits for the host. What the device takes between two replays is in every round, and shared by its launches: `start` has
that share of it, a stage, which is a difference of two depths, has nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from vortex.candidates import Tile
from vortex.cuda_driver import Driver
from vortex.cuda_graph import captured
from vortex.errors import DeviceError, UnmeasuredError
from vortex.gpu_door import ITEM_BYTES, Door, Plan, Regions, open_on
from vortex.gpu_library import DOOR, GpuLibrary
from vortex.gpu_operands import CUDA, DTYPES, REASONS, described_tensor
from vortex.gpu_profiler import BlockMeasurement, GpuProfile
from vortex.operators import finishing, rebuilt

SHALLOW, DEEP = 8, 72
"""Stages of the two depths."""
LAUNCHES, ROUNDS = 20, 5
"""Launches of a replay, and replays that are timed."""
MOST_BYTES = 1 << 30
"""Of one operand; a kernel that needs more to be measured is left to the model."""
MOST_SPREAD = 0.25
"""Of a kernel whose times vary by more, nothing is known."""
BLOCK = 1 << 20
"""Random elements, repeated through a buffer."""
AFTER_OTHERS = 0
"""Flag of a stream: work on the legacy stream, which buffers are filled on, comes first."""


@dataclass(frozen=True)
class Observed:
    """What a kernel takes with so many blocks, in seconds."""

    stage: float
    """Of all blocks."""
    start: float
    """Of one launch among others in a stream, beyond its stages: from one kernel's end to the next one's start too."""
    spread: float
    """The larger one of the two depths."""


class Meter:
    """A library opened on a device of this machine, and buffers to run its kernels on."""

    def __init__(self, library: GpuLibrary, driver: Driver, ordinal: int = 0) -> None:
        self.library, self.driver, self.ordinal = library, driver, ordinal
        self.device = driver.device(ordinal)
        self._door = Door(library.parts[DOOR])
        self._opened = open_on(self._door, library.manifest, driver, ordinal, library.images(jit=False))
        self._stream = ctypes.c_void_p()
        self._events = [ctypes.c_void_p() for _ in range(ROUNDS + 1)]
        self._buffers: list[int] = []
        self._sizes: list[int] = []

    def __enter__(self) -> Meter:
        self.driver.call("cuCtxPushCurrent_v2", ctypes.c_void_p(self._opened.context))
        self.driver.call("cuStreamCreate", ctypes.byref(self._stream), AFTER_OTHERS)
        for event in self._events:
            self.driver.call("cuEventCreate", ctypes.byref(event), 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for event in self._events:
            self.driver.release("cuEventDestroy_v2", event)
        self.driver.release("cuStreamDestroy_v2", self._stream)
        for buffer in self._buffers:
            self.driver.release("cuMemFree_v2", ctypes.c_uint64(buffer))
        self.driver.release("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        self._opened.close()

    def profile(self, progress: Callable[[float], None] = lambda share: None) -> GpuProfile:
        """Every kernel that can be measured."""
        kernels, manifest = [], self.library.manifest
        for index in range(len(manifest.kernels)):
            with contextlib.suppress(UnmeasuredError):
                kernels.append(self.kernel(index))
            progress((index + 1) / len(manifest.kernels))
        date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        versions = (f"driver {self.device.driver_version}", f"nvrtc {manifest.versions.get('nvrtc', '')}")
        return GpuProfile("measured", self.device.name, date, versions, tuple(kernels))

    def kernel(self, index: int) -> BlockMeasurement:
        """One kernel with an SM to each block, and with all blocks that SMs hold. UnmeasuredError where it does not run
        or nothing sure was seen; where the device itself fails, no other kernel can be measured: DeviceError."""
        name = self.library.manifest.kernels[index].variant.name
        try:
            return self._measured(index, name)
        except UnmeasuredError:
            raise
        except DeviceError as error:
            kind = UnmeasuredError if self._is_well() else DeviceError
            raise kind(f"{name} did not run on {self.device}: {error}") from error

    def _is_well(self) -> bool:
        """Whether the device still works: an error that lasts is told by every call that waits."""
        try:
            self.driver.call("cuCtxSynchronize")
        except DeviceError:
            return False
        return True

    def _measured(self, index: int, name: str) -> BlockMeasurement:
        table = self.library.manifest.selector
        resident = int(table["costs"][index][table["fields"].index("resident")])
        alone = self.observe(index, self.device.sms)
        full = self.observe(index, self.device.sms * resident) if resident > 1 else alone
        if min(alone.stage, full.stage) <= 0:
            raise UnmeasuredError(f"{DEEP} stages of {name} are no longer than {SHALLOW}")
        spread = max(alone.spread, full.spread)
        if spread > MOST_SPREAD:
            raise UnmeasuredError(f"the times of {name} vary by {spread:.0%}")
        return BlockMeasurement(name, alone.stage, full.stage, alone.start, spread)

    def observe(self, index: int, blocks: int) -> Observed:
        """So many blocks of one kernel, as square a patch of C as they make."""
        v, item = self.library.manifest.kernels[index].variant, ITEM_BYTES[self.library.manifest.dtype]
        tile, run = v.strategy.grid_tile, max(1, v.vector_bytes // item)
        m, n = patch(blocks // v.strategy.cluster, tile, run if v.transpose_a else 1, run)
        largest = max(m * DEEP * tile.k, n * DEEP * tile.k, m * n) * item
        if largest > MOST_BYTES:
            raise UnmeasuredError(f"{v.name} needs an operand of {largest} bytes to be measured")
        times = {stages: self.seconds(index, m, n, stages * tile.k) for stages in (SHALLOW, DEEP)}
        quick, slow = (float(np.median(times[stages])) for stages in (SHALLOW, DEEP))
        if min(quick, slow) <= 0.0:
            raise UnmeasuredError(f"{v.name} takes less than events resolve")
        stage = (slow - quick) / (DEEP - SHALLOW)
        spread = max((max(row) - min(row)) / float(np.median(row)) for row in times.values())
        return Observed(stage, quick - SHALLOW * stage, spread)

    def seconds(self, index: int, m: int, n: int, k: int) -> list[float]:
        """Seconds of a launch, once per round."""
        v = self.library.manifest.kernels[index].variant
        given = self._operands(m, n, (k, m) if v.transpose_a else (m, k), (n, k) if v.transpose_b else (k, n))
        self._reserve([math.prod(shape) * ITEM_BYTES[dtype] for dtype, shape in given])
        operands = [
            described_tensor(address, shape, (shape[-1], 1)[-len(shape) :], DTYPES[dtype], (CUDA, self.ordinal))
            for address, (dtype, shape) in zip(self._buffers, given, strict=True)
        ]
        tensors = (ctypes.c_void_p * len(operands))(*(operand.tensor for operand in operands))
        table = self.library.manifest.selector
        raster = int(table["costs"][index][table["fields"].index("raster")])
        plan, flags = Regions.of(Plan(index, 1, k, raster, 0.0)), int(v.transpose_a) + 2 * int(v.transpose_b)
        run, handle = self._door.calls.vx_gpu_gemm_planned, self._opened.handle

        def launch(count: int) -> None:
            for _ in range(count):
                if status := run(handle, tensors, flags, self._stream, ctypes.byref(plan)):
                    raise DeviceError(f"{m}x{n}x{k}, {self._told(status)}")

        launch(1)  # a refusal comes here; the driver loads code that it left for a first launch, which no capture may
        with captured(self.driver, self._stream, lambda: launch(LAUNCHES)) as graph:
            return self._replayed(graph)

    def _replayed(self, graph: ctypes.c_void_p) -> list[float]:
        """Seconds of a launch of a graph, once per round: between events, each behind a replay."""
        for event in self._events:
            self.driver.call("cuGraphLaunch", graph, self._stream)
            self.driver.call("cuEventRecord", event, self._stream)
        self.driver.call("cuEventSynchronize", self._events[-1])
        return [self._elapsed(*pair) / LAUNCHES for pair in itertools.pairwise(self._events)]

    def _elapsed(self, begin: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        elapsed = ctypes.c_float()
        self.driver.call("cuEventElapsedTime", ctypes.byref(elapsed), begin, end)
        return elapsed.value * 1e-3

    def _told(self, status: int) -> str:
        """A refusal of the door in words."""
        problem, detail = REASONS[(status & 0xFF) - 1][1], status >> 16
        about = {"dtype": self.library.manifest.dtype, "device": self.device, "cuda": self.driver.error(detail)}
        return f"operand {status >> 8 & 0xFF} {problem.format(detail=detail, **about)}"

    def _operands(self, m: int, n: int, *factors: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
        """Element types and shapes of A, B, C and the tensors of an epilogue."""
        manifest = self.library.manifest
        store = finishing(rebuilt(manifest.operator, manifest.settings))
        found = [(manifest.dtype, shape) for shape in factors]
        if store is None:
            return [*found, (manifest.dtype, (m, n))]
        shapes = {"column": (n,), "row": (m,), "element": (m, n)}
        return [*found, (store.out, (m, n)), *((x.dtype, shapes[x.per]) for x in store.chain.operands)]

    def _reserve(self, sizes: list[int]) -> None:
        """Buffers of at least these sizes, full of random numbers of the library's type."""
        if len(self._sizes) == len(sizes) and all(have >= want for have, want in zip(self._sizes, sizes, strict=True)):
            return
        wanted = [max(pair) for pair in itertools.zip_longest(sizes, self._sizes, fillvalue=0)]
        while self._buffers:
            self.driver.call("cuMemFree_v2", ctypes.c_uint64(self._buffers.pop()))
        self._sizes = []
        values = random_bytes(self.library.manifest.dtype)
        for size in wanted:
            address = ctypes.c_uint64()
            self.driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
            self._buffers.append(address.value)
            self._sizes.append(size)
            for start in range(0, size, len(values)):
                part = ctypes.c_size_t(min(len(values), size - start))
                self.driver.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address.value + start), values, part)


def patch(blocks: int, tile: Tile, run_m: int, run_n: int) -> tuple[int, int]:
    """Extents of C for so many blocks, or a few less, as square as they make: multiples of the tile, and of the runs of
    elements that a kernel's vectors need along m and along n, where one block may be shorter than a vector."""
    tall, wide = math.lcm(tile.m, run_m), math.lcm(tile.n, run_n)
    count = max(1, blocks * tile.m * tile.n // (tall * wide))
    down = min((d for d in range(1, count + 1) if count % d == 0), key=lambda d: d * tall + count // d * wide)
    return down * tall, count // down * wide


def random_bytes(dtype: str) -> bytes:
    """BLOCK normal numbers as they lie in memory, or integers of all values."""
    if dtype == "int8":
        return np.random.default_rng(0).integers(0, 256, BLOCK, np.uint8).tobytes()
    numbers = np.random.default_rng(0).standard_normal(BLOCK, np.float32)
    if dtype == "bfloat16":
        return (numbers.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return numbers.astype(np.float16 if dtype == "float16" else np.float32).tobytes()
