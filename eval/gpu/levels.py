"""L1 of every kernel, measured for the analyzer by `vortex.gpu_meter`, kernel by kernel as long as time is left."""

from __future__ import annotations

from typing import Any

from eval.gpu.budget import Budget, Journal, covered
from vortex.cuda_driver import Driver
from vortex.errors import UnmeasuredError
from vortex.gpu_meter import Meter


def measure(gemm: Any, name: str, journal: Journal, budget: Budget) -> None:
    """Kernels of the widest alignment class first: others can be told from those."""
    kernels = gemm.kernels
    order = sorted(range(len(kernels)), key=lambda i: (-kernels[i].variant.vector_bytes, i))
    with Meter(gemm.library, Driver()) as meter:
        for index in covered(journal, budget, name, "levels", order):
            kernel = kernels[index].variant.name
            try:
                row = meter.kernel(index)
            except UnmeasuredError as error:
                journal.add("level_skipped", library=name, kernel=kernel, why=str(error))
                continue
            figures = {"alone_s": row.alone_s, "full_s": row.full_s, "start_s": row.start_s, "spread": row.spread}
            journal.add("level", library=name, kernel=kernel, **figures)
