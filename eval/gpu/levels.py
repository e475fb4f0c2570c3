"""L1 of every kernel, measured for the analyzer: seconds of a stage with one block on an SM, and with all it holds.

Two depths of the reduction give slope and start. One row of blocks shares its columns of B; blocks are as many as SMs,
or as many as the SMs hold at a time.
"""

from __future__ import annotations

from typing import Any

from eval.gpu.budget import Budget, Journal, median, spread
from eval.gpu.torch_gpu import TorchGpu
from eval.gpu.verify import raster_of
from vortex.gpu_selector import GpuPlan

SHALLOW, DEEP = 8, 72
"""Stages of the two depths."""
MOST_ELEMENTS = 1 << 30


def stage_seconds(gpu: TorchGpu, gemm: Any, index: int, blocks: int) -> tuple[float, float, float]:
    """Seconds of a stage, seconds beyond the stages, and their spread, with so many blocks on the device."""
    kernel, dtype = gemm.kernels[index], gemm.manifest.dtype
    v, tile = kernel.variant, kernel.variant.strategy.l1
    wide = 1
    while blocks % (wide * 2) == 0 and wide * tile.n < (blocks // wide) * tile.m:
        wide *= 2
    m, n = blocks // wide * tile.m, wide * tile.n
    times = {}
    for stages in (SHALLOW, DEEP):
        k = stages * tile.k
        if max(m, n) * k > MOST_ELEMENTS:
            raise ValueError(f"{v.name}: {m}x{n}x{k} is too much to measure")
        a = gpu.operand(*((k, m) if v.transpose_a else (m, k)), dtype, 1, False)
        b = gpu.operand(*((n, k) if v.transpose_b else (k, n)), dtype, 2, False)
        out = gpu.empty(m, n, dtype)
        plan = GpuPlan(index, v, 1, k, raster_of(gemm, index), 0.0)

        def call(a: Any = a, b: Any = b, out: Any = out, plan: GpuPlan = plan) -> None:
            gemm.run_planned(plan, a, b, out, transpose_a=v.transpose_a, transpose_b=v.transpose_b)

        times[stages] = gpu.warm(call, rounds=5)
    slow, quick = median(times[DEEP]), median(times[SHALLOW])
    stage = (slow - quick) / (DEEP - SHALLOW)
    return stage, quick - SHALLOW * stage, max(map(spread, times.values()))


def measure(gpu: TorchGpu, gemm: Any, name: str, sms: int, journal: Journal, budget: Budget) -> None:
    """Kernels of the widest alignment class and the plain layout first: the others are told from those if time ends."""
    table = gemm.manifest.selector
    resident = [int(row[table["fields"].index("resident")]) for row in table["costs"]]
    order = sorted(
        range(len(gemm.kernels)),
        key=lambda i: (-gemm.kernels[i].variant.vector_bytes, gemm.kernels[i].variant.transpose_a, i),
    )
    for index in budget.within(order):
        kernel = gemm.kernels[index]
        try:
            alone, start, first = stage_seconds(gpu, gemm, index, sms)
            full, _, second = stage_seconds(gpu, gemm, index, sms * max(1, resident[index]))
        except ValueError as error:
            journal.add("level_skipped", library=name, kernel=kernel.variant.name, why=str(error))
            continue
        journal.add(
            "level",
            library=name,
            kernel=kernel.variant.name,
            alone_s=alone,
            full_s=full,
            start_s=start,
            resident=resident[index],
            spread=max(first, second),
        )
