"""The libraries that serve a network: one for each epilogue, made when it is first met, kept on disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from vortex import api
from vortex.epilogue import NOTHING, Epilogue, bias, gelu, relu, residual, silu
from vortex.operators import BatchGemm, Conv2d, Gemm, Operator

log = logging.getLogger(__name__)

STEPS: dict[str, Callable[[], Epilogue]] = {
    "bias": bias,
    "residual": residual,
    "relu": relu,
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": lambda: gelu("tanh"),
}
"""The epilogues that graphs are searched for, by the words that patterns use."""
Finish = tuple[str, ...]


def chain(finish: Finish) -> Epilogue:
    """The epilogue of these words."""
    steps = NOTHING
    for word in finish:
        steps = steps >> STEPS[word]()
    return steps


class Libraries:
    """Kernels for one device, each compiled (or taken from the cache on disk) once."""

    def __init__(self, hardware: Any = "native") -> None:
        self.hardware = hardware
        self._kernels: dict[Operator, Any] = {}

    def product(self, finish: Finish) -> Any:
        """x W with an epilogue."""
        return self._kernel(Gemm(epilogue=chain(finish)))

    def products(self) -> Any:
        """Products of a batch."""
        return self._kernel(BatchGemm())

    def convolution(self, finish: Finish) -> Any:
        """Activations by shape [batch, channels, height, width], however they lie in memory."""
        return self._kernel(Conv2d(layout="nchw", epilogue=chain(finish)))

    def _kernel(self, operator: Operator) -> Any:
        if operator not in self._kernels:
            begin = time.perf_counter()
            self._kernels[operator] = api.compile(operator, self.hardware)
            log.info("library of %s: %.1f s", operator, time.perf_counter() - begin)
        return self._kernels[operator]


NATIVE = Libraries()
