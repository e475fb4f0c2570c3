"""The host code of a GPU library: selector and door in one shared library for any x86-64 processor."""

from pathlib import Path

import tvm_ffi

from vortex.codegen.gpu_selector import emit
from vortex.codegen.link import RUNTIME, link
from vortex.gpu_selector import GpuSelector

DOOR = tuple(RUNTIME / name for name in ("gpu_door.c", "gpu_opened.c", "gpu_operands.c", "gpu_conv.c", "gpu_launch.c"))
"""Sources of the door, which needs `vx_gpu_choose` and `vx_gpu_divide` of a selector."""


def emit_door(selector: GpuSelector, folder: Path) -> Path:
    """Compile the selector and link it with the door. Only DLPack's header is used of tvm-ffi."""
    objects, sources = emit(selector, folder)
    library = folder / "door.so"
    link(library, objects, [*sources, *DOOR], [Path(tvm_ffi.libinfo.find_include_path())])
    return library
