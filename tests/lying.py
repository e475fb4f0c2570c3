"""Matrices at places of memory, and how large they are that no cache has room for them."""

from __future__ import annotations

import needs
import numpy as np
import pytest

from vortex.conv_launcher import ConvKernel
from vortex.launcher import GemmKernel
from vortex.operands import aligned_zeros


def integers(*shape: int, seed: int = 0) -> np.ndarray:
    """Sums of products of these are exact in float32."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def caches(kernel: GemmKernel | ConvKernel) -> int:
    """Elements that all of them hold."""
    needs.memory(4)
    floats = int(kernel.manifest.rates.outer_bytes) // 4
    if floats > 1 << 26:
        pytest.skip("the caches hold more than 256 MiB")
    return floats


def within(rows: int, columns: int, shift: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Memory full of -7, and a matrix in it that begins `shift` elements after a line, its rows `stride` apart."""
    memory = aligned_zeros(rows * stride + shift + 64)
    memory[:] = -7
    return memory, np.lib.stride_tricks.as_strided(memory[shift:], (rows, columns), (4 * stride, 4))
