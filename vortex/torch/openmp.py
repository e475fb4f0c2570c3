"""The OpenMP threads of PyTorch, lent to the libraries."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

from vortex.errors import ToolchainError
from vortex.threads import borrow_threads, get_num_threads, set_num_threads

RUN_TIMES = ("libgomp", "libiomp5", "libomp")


@cache
def _run_time() -> ctypes.CDLL:
    """The OpenMP run time that PyTorch has loaded; all of them have GCC's entry points."""
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    for path in sorted(mapped):
        if Path(path).name.startswith(RUN_TIMES):
            found = ctypes.CDLL(path)
            if hasattr(found, "GOMP_parallel"):
                return found
    raise ToolchainError(
        f"PyTorch {torch.__version__} has loaded none of {RUN_TIMES}; expected a build with OpenMP; install its wheel"
    )


def fork_join() -> int:
    """Where what runs a function on all of PyTorch's threads is: GCC's GOMP_parallel."""
    entry = ctypes.cast(_run_time().GOMP_parallel, ctypes.c_void_p).value
    assert entry is not None
    return entry


def share_threads() -> None:
    """From now on every library of this process computes on PyTorch's threads, as many as PyTorch uses.

    Otherwise two pools would poll on the same cores, which halves the speed of both.
    """
    if get_num_threads() != torch.get_num_threads():
        set_num_threads(torch.get_num_threads())
    borrow_threads(fork_join())
