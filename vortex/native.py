"""The machine code of a library in this process."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

from vortex.affinity import cpu_flags, request_tiles
from vortex.errors import DeviceError, LibraryError
from vortex.library import Library


class _Absent(MetaPathFinder):
    """A finder that says of torch and of CUDA's bindings that they are not there, to the thread that made it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname in ("torch", "cuda") and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"no {fullname} for tvm-ffi and TVM", name=fullname)


@contextmanager
def on_its_own() -> Iterator[None]:
    """While tvm-ffi or TVM are imported: without torch (seconds) and CUDA's bindings, which they would import for what
    nobody here asks them for. Torch tensors are still taken; what is imported already stays."""
    absent = _Absent()
    sys.meta_path.insert(0, absent)
    try:
        yield
    finally:
        sys.meta_path.remove(absent)


def light_tvm_ffi() -> Any:
    """tvm-ffi, imported on its own."""
    if "tvm_ffi" not in sys.modules:
        with on_its_own():
            import tvm_ffi  # noqa: F401
    return sys.modules["tvm_ffi"]


def native_module(library: Library[Any]) -> Any:
    """The machine code of a library, loaded; DeviceError where this machine cannot run it."""
    missing = sorted(set(library.manifest.features) - cpu_flags())
    if missing:
        raise DeviceError(
            f"the library was built for {library.manifest.hardware['name']} and needs the CPU features {missing}, "
            "which this machine lacks; compile for this machine with hw='native'"
        )
    if any(feature.startswith("amx") for feature in library.manifest.features):
        request_tiles()
    with tempfile.TemporaryDirectory(prefix="vortex-") as folder:
        path = Path(folder) / "library.so"
        path.write_bytes(library.binary)
        try:
            return light_tvm_ffi().load_module(os.fspath(path))
        except (RuntimeError, OSError) as error:
            raise LibraryError(f"the machine code of the library does not load: {error}") from error


Signatures = Mapping[str, tuple[Any, Sequence[Any]]]
"""Functions by name: what each returns and takes, as ctypes knows it."""


def host_code(code: bytes, signatures: Signatures, version: str, abi: int) -> ctypes.PyDLL:
    """The `door.so` of a GPU's library, with functions of these signatures; `version` is the one that tells its form.

    A call keeps the interpreter's lock: operands are Python objects, and a choice is shorter than letting it go.
    Raises LibraryError for code that does not load, or of another form than `abi`.
    """
    with tempfile.TemporaryDirectory(prefix="vortex-") as folder:
        path = Path(folder) / "door.so"
        path.write_bytes(code)
        try:
            calls = ctypes.PyDLL(os.fspath(path))
        except OSError as error:
            raise LibraryError(f"the host code of the library does not load ({error}); compile it again") from error
    try:
        for name, (result, arguments) in signatures.items():
            function = getattr(calls, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError as error:
        raise LibraryError(f"the host code of the library lacks a function ({error}); compile it again") from error
    if (found := getattr(calls, version)()) != abi:
        raise LibraryError(f"the library's host code has form {found}, this vortex reads {abi}; compile it again")
    return calls
