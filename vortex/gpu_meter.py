"""cost(L1) observed: stages of every kernel timed on the device, through the driver alone.

Two depths of the reduction give what a stage takes and what comes on top; blocks are as many as the device has SMs, and
as many as those hold at a time. Operands are random numbers: zeros take less power, and so less time.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from vortex.cuda_driver import Driver
from vortex.errors import DeviceError
from vortex.gpu_door import ITEM_BYTES, Door, Plan, Regions, open_on
from vortex.gpu_library import DOOR, GpuLibrary
from vortex.gpu_operands import CUDA, DTYPES, described_tensor
from vortex.gpu_profiler import BlockMeasurement, GpuProfile
from vortex.operators import finishing, rebuilt

SHALLOW, DEEP = 8, 72
"""Stages of the two depths."""
LAUNCHES, ROUNDS = 10, 5
MOST_BYTES = 1 << 30
"""Of one operand; a kernel that needs more to be measured is left to the model."""
MOST_SPREAD = 0.25
"""Of a kernel whose times vary by more, nothing is known."""
BLOCK = 1 << 20
"""Random elements, repeated through a buffer."""


@dataclass(frozen=True)
class Observed:
    """Seconds of a stage of all blocks, seconds of a launch beyond its stages, and the larger spread of the two."""

    stage: float
    start: float
    spread: float


class Meter:
    """A library opened on a device of this machine, and buffers to run its kernels on."""

    def __init__(self, library: GpuLibrary, driver: Driver, ordinal: int = 0) -> None:
        self.library, self.driver, self.ordinal = library, driver, ordinal
        self.device = driver.device(ordinal)
        self._door = Door(library.parts[DOOR])
        self._opened = open_on(self._door, library.manifest, driver, ordinal, library.images(jit=False))
        self._buffers: list[int] = []
        self._sizes: list[int] = []

    def __enter__(self) -> Meter:
        self.driver.call("cuCtxPushCurrent_v2", ctypes.c_void_p(self._opened.context))
        self._events = [ctypes.c_void_p(), ctypes.c_void_p()]
        for event in self._events:
            self.driver.call("cuEventCreate", ctypes.byref(event), 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for event in self._events:
            self.driver.call("cuEventDestroy_v2", event)
        for buffer in self._buffers:
            self.driver.call("cuMemFree_v2", ctypes.c_uint64(buffer))
        self.driver.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        self._opened.close()

    def profile(self, progress: Callable[[float], None] = lambda share: None) -> GpuProfile:
        """Every kernel that can be measured."""
        kernels, manifest = [], self.library.manifest
        for index in range(len(manifest.kernels)):
            if (row := self.kernel(index)) is not None:
                kernels.append(row)
            progress((index + 1) / len(manifest.kernels))
        date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        versions = (f"driver {self.device.driver_version}", f"nvrtc {manifest.versions.get('nvrtc', '')}")
        return GpuProfile("measured", self.device.name, date, versions, tuple(kernels))

    def kernel(self, index: int) -> BlockMeasurement | None:
        """One kernel with an SM to each block, and with all blocks that SMs hold; None where nothing sure was seen."""
        manifest = self.library.manifest
        table = manifest.selector
        resident = int(table["costs"][index][table["fields"].index("resident")])
        alone = self.observe(index, self.device.sms)
        full = self.observe(index, self.device.sms * resident) if resident > 1 else alone
        if alone is None or full is None or min(alone.stage, full.stage) <= 0:
            return None
        spread = max(alone.spread, full.spread)
        name = manifest.kernels[index].variant.name
        return None if spread > MOST_SPREAD else BlockMeasurement(name, alone.stage, full.stage, alone.start, spread)

    def observe(self, index: int, blocks: int) -> Observed | None:
        """So many blocks of one kernel, as square a patch of C as they make."""
        strategy = self.library.manifest.kernels[index].variant.strategy
        tile, blocks, wide = strategy.grid_tile, blocks // strategy.cluster, 1
        while blocks % (wide * 2) == 0 and wide * tile.n < (blocks // wide) * tile.m:
            wide *= 2
        m, n = blocks // wide * tile.m, wide * tile.n
        item = ITEM_BYTES[self.library.manifest.dtype]
        if max(m * DEEP * tile.k, n * DEEP * tile.k, m * n) * item > MOST_BYTES:
            return None
        times = {stages: self.seconds(index, m, n, stages * tile.k) for stages in (SHALLOW, DEEP)}
        quick, slow = (float(np.median(times[stages])) for stages in (SHALLOW, DEEP))
        if min(quick, slow) <= 0.0:  # below what events resolve
            return None
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

        def launch(count: int) -> float:
            begin, end = self._events
            self.driver.call("cuEventRecord", begin, None)
            for _ in range(count):
                if status := run(handle, tensors, flags, None, ctypes.byref(plan)):
                    raise DeviceError(f"{v.name} did not run on {self.device}: status {status & 0xFF}, {status >> 16}")
            self.driver.call("cuEventRecord", end, None)
            self.driver.call("cuEventSynchronize", end)
            elapsed = ctypes.c_float()
            self.driver.call("cuEventElapsedTime", ctypes.byref(elapsed), begin, end)
            return elapsed.value * 1e-3 / count

        launch(2)
        return [launch(LAUNCHES) for _ in range(ROUNDS)]

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
        for buffer in self._buffers:
            self.driver.call("cuMemFree_v2", ctypes.c_uint64(buffer))
        self._buffers, self._sizes = [], [max(pair) for pair in zip(sizes, self._sizes or sizes, strict=True)]
        values = random_bytes(self.library.manifest.dtype)
        for size in self._sizes:
            address = ctypes.c_uint64()
            self.driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
            self._buffers.append(address.value)
            for start in range(0, size, len(values)):
                part = ctypes.c_size_t(min(len(values), size - start))
                self.driver.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address.value + start), values, part)


def random_bytes(dtype: str) -> bytes:
    """BLOCK normal numbers as they lie in memory, or integers of all values."""
    if dtype == "int8":
        return np.random.default_rng(0).integers(0, 256, BLOCK, np.uint8).tobytes()
    numbers = np.random.default_rng(0).standard_normal(BLOCK, np.float32)
    if dtype == "bfloat16":
        return (numbers.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return numbers.astype(np.float16 if dtype == "float16" else np.float32).tobytes()
