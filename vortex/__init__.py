"""Kernels for dynamic shapes: one compile, any (m, n, k), nothing compiled or tuned at run time."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "compile": "vortex.api",
    "load": "vortex.api",
    "set_num_threads": "vortex.threads",
    "get_num_threads": "vortex.threads",
    "HardwareSpec": "vortex.hardware",
    "VortexError": "vortex.errors",
    "SpecError": "vortex.errors",
    "UnknownNameError": "vortex.errors",
    "ShapeError": "vortex.errors",
    "DtypeError": "vortex.errors",
    "DeviceError": "vortex.errors",
    "OperandError": "vortex.errors",
    "LibraryError": "vortex.errors",
    "CodegenError": "vortex.errors",
    "ToolchainError": "vortex.errors",
}
__all__ = ["operators", *_HOMES]

if TYPE_CHECKING:
    from vortex import operators
    from vortex.api import compile, load
    from vortex.errors import (
        CodegenError,
        DeviceError,
        DtypeError,
        LibraryError,
        OperandError,
        ShapeError,
        SpecError,
        ToolchainError,
        UnknownNameError,
        VortexError,
    )
    from vortex.hardware import HardwareSpec
    from vortex.threads import get_num_threads, set_num_threads


def __getattr__(name: str) -> Any:
    if name == "operators":
        return import_module("vortex.operators")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'vortex' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
