"""Layers as C finds them: what `vortex/torch/layers.c` is told of the program that a thread runs."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from vortex.codegen.link import link
from vortex.errors import OperandError, ToolchainError, VortexError
from vortex.native import light_tvm_ffi
from vortex.operands import REASONS
from vortex.torch.openmp import fork_join

CONSTANTS, NUMBERS = 2, 15
UNREADABLE = -1
SHIMS = {
    "dense": "AOTITorchError aoti_torch_cpu_dense(AtenTensorHandle, int64_t, AtenTensorHandle *)",
    "convolve": "AOTITorchError aoti_torch_cpu_convolve(AtenTensorHandle, int64_t, AtenTensorHandle *)",
    "convolve_added": "AOTITorchError aoti_torch_cpu_convolve_added("
    "AtenTensorHandle, AtenTensorHandle, int64_t, AtenTensorHandle *)",
    "gather_channels": "AOTITorchError aoti_torch_cpu_gather_channels("
    "const AtenTensorHandle *, int64_t, const int64_t *, int64_t, AtenTensorHandle *)",
    "pool": "AOTITorchError aoti_torch_cpu_pool("
    "AtenTensorHandle, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, AtenTensorHandle *)",
}
"""The operators that layers.c and pools.c have, and how Inductor is to declare them."""


class LayerCall(ctypes.Structure):
    """A door with what it is told at every call: `layer` of layers.c."""

    _fields_ = (
        ("door", ctypes.c_void_p),
        ("constants", ctypes.c_void_p * CONSTANTS),
        ("operands", ctypes.c_int64),
        ("numbers", ctypes.c_int64 * NUMBERS),
    )

    def __init__(self, door: Any, constants: Sequence[Any], numbers: Sequence[int]) -> None:
        """`constants` are the packed weights, and an operand of the epilogue; tvm-ffi holds them and the door."""
        self._held = door, *constants
        handles = [each.__chandle__() for each in self._held]
        super().__init__(handles[0], tuple(handles[1:]), len(constants) - 1, tuple(numbers))


class Program(ctypes.Structure):
    """Layers by number: `program` of layers.c."""

    _fields_ = (("first", ctypes.c_int64), ("count", ctypes.c_int64), ("layers", ctypes.c_void_p))

    def __init__(self, layers: Mapping[int, LayerCall]) -> None:
        first, end = min(layers, default=0), max(layers, default=-1) + 1
        table = (ctypes.c_void_p * (end - first))()
        for number, layer in layers.items():
            table[number - first] = ctypes.addressof(layer)
        self._held = table, layers
        super().__init__(first, end - first, ctypes.cast(table, ctypes.c_void_p))
        self.address = ctypes.addressof(self)
        """What `vortex_run` takes."""


@cache
def native() -> ctypes.CDLL:
    """The operators: compiled, and where the code that Inductor makes finds them."""
    torch_library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    headers = Path(light_tvm_ffi().libinfo.find_include_path())
    with tempfile.TemporaryDirectory(prefix="vortex-") as folder:
        path = Path(folder) / "torch_layers.so"
        link(path, [torch_library], [Path(__file__).with_name(name) for name in ("layers.c", "pools.c")], [headers])
        try:
            code = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise _unsuited(str(error)) from error
    code.vortex_run.restype, code.vortex_run.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    code.vortex_status.restype = ctypes.c_int64
    code.vortex_register.argtypes = [ctypes.c_void_p]
    if code.vortex_register(fork_join()):
        raise _unsuited("it does not take operators in C")
    return code


def _unsuited(why: str) -> ToolchainError:
    return ToolchainError(f"PyTorch {torch.__version__} cannot call layers in C ({why}); tested is 2.13; install that")


def refusal() -> VortexError | None:
    """Why this thread's last layer has no result; None if it has one."""
    status = native().vortex_status()
    if not status:
        return None
    code = status & 0xFF
    if status == UNREADABLE or code > len(REASONS):
        return OperandError(
            "a layer that vortex serves cannot read its input, or has no memory for its result; "
            "expected float32 on the CPU with at most 8 dimensions"
        )
    kind, problem, remedy = REASONS[code - 1]
    return kind(f"an operand of a layer that vortex serves {problem}; {remedy}")
