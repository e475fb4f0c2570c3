"""The arithmetic that costs are evaluated with in Python: float32 arrays over strategies or kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
F32 = np.float32


def single(x: Array | float) -> Any:
    """A number of Python as float32, since two of them would make doubles; arrays as they are."""
    return F32(x) if isinstance(x, float) else x


class ArrayArithmetic:
    """What the costs of CPUs and of GPUs share; see `vortex.effects.Arithmetic`."""

    def least(self, x: Array, y: Array) -> Array:
        return np.minimum(single(x), single(y))

    def most(self, x: Array, y: Array) -> Array:
        return np.maximum(single(x), single(y))

    def floor(self, x: Array) -> Array:
        return np.floor(single(x))

    def ceil(self, x: Array) -> Array:
        return np.ceil(single(x))

    def where(self, condition: Array, x: Array, y: Array) -> Array:
        return np.where(condition, single(x), single(y))

    def name(self, label: str, x: Array) -> Array:
        return x
