"""compile() and load(): operator and spec by name, the cache on disk, the callable."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from vortex import gpu_library, operators
from vortex.errors import LibraryError, OperandError, SpecError, ToolchainError
from vortex.gpu_launcher import GpuGemm
from vortex.launcher import GemmKernel
from vortex.library import FORMAT, Library, read, write

if TYPE_CHECKING:
    from vortex.hardware import HardwareSpec

Progress = Callable[[str, float], None]


def compile(
    op: str | operators.Operator = "gemm",
    hw: str | Path | HardwareSpec = "native",
    *,
    progress: Progress | None = None,
    cache: bool = True,
) -> GemmKernel:
    """Build, or take from the cache on disk, the library of `op` for `hw`, and return it as a callable.

    `op` is an operator or its name; `hw` is a shipped spec's name, `"native"`, the path of a spec file, or a spec.
    `progress` is told what is being done and which share is finished, 0 to 1. Needs the `compile` extra and a C
    compiler; without a cached library it takes seconds to tens of seconds.
    Raises UnknownNameError, SpecError, ToolchainError, CodegenError.
    """
    try:
        from vortex.cache import library_cache
        from vortex.hardware import HardwareSpec
        from vortex.specs import load_spec
    except ModuleNotFoundError as error:
        raise ToolchainError(f"compiling needs {error.name}; run `pip install 'vortex[compile]'`") from error

    operator, spec = operators.named(op), load_spec(hw)
    if not isinstance(spec, HardwareSpec):
        raise SpecError(f"{spec.name} is a GPU: nothing can be compiled for GPUs yet; name the spec of a CPU")
    report = progress or (lambda what, share: None)
    if not cache:
        return GemmKernel(_build(operator, spec, report))
    store, key = library_cache(), cache_key(operator, spec)
    with store.lock(key):
        library = _cached(store.get(key))
        if library is None:
            library = _build(operator, spec, report)
            with tempfile.TemporaryDirectory(prefix="vortex-") as folder:
                built = Path(folder) / "built.vortex"
                write(library, built)
                store.put(key, built)
    return GemmKernel(library)


def _cached(path: Path | None) -> Library | None:
    """A library from the cache; one that is damaged, or was evicted just now, is built again."""
    if path is None:
        return None
    try:
        return read(path)
    except LibraryError:
        return None


def load(path: str | Path, device: int | None = None, *, jit: bool = False) -> GemmKernel | GpuGemm:
    """Read a library that `save` or `vortex compile` wrote. It runs native code: load only files you trust.

    `device` and `jit` are for GPU libraries, see `GpuGemm`: the CUDA device to run on, and whether its driver may
    translate the library's PTX where the machine code is for another architecture.
    """
    if gpu_library.is_gpu_library(Path(path)):
        return GpuGemm(gpu_library.read(Path(path)), device, jit=jit)
    if device is not None or jit:
        raise OperandError(f"{path} is no GPU library; device= and jit= are for those alone")
    return GemmKernel(read(Path(path)))


def _build(operator: operators.Operator, spec: HardwareSpec, report: Progress) -> Library:
    from vortex.codegen.toolchain import check_versions

    check_versions()  # before TVM is imported: with the wrong pair it crashes
    from vortex import compiler

    with tempfile.TemporaryDirectory(prefix="vortex-") as folder:
        return compiler.compile(operator, spec, Path(folder), report, is_here(spec))


def is_here(spec: HardwareSpec) -> bool:
    """Whether L0 timed on this machine speaks for `spec`: the same core, at about the same clock."""
    from vortex.errors import DeviceError
    from vortex.probe import native

    try:
        here = native()
    except DeviceError:
        return False
    return (
        here.llvm_cpu == spec.llvm_cpu
        and spec.features <= here.features
        and 0.75 < spec.clock_hz / here.clock_hz < 1.33
    )


def cache_key(operator: operators.Operator, spec: HardwareSpec) -> str:
    """Everything a library depends on: operator, spec, releases, vortex's own sources and recorded measurements."""
    releases = {}
    for name in ("apache-tvm", "apache-tvm-ffi"):
        try:
            releases[name] = version(name)
        except PackageNotFoundError:
            releases[name] = "none"
    package = Path(__file__).resolve().parent
    sources = hashlib.sha256()
    shell = {"cli.py", "demo.py", "__main__.py", "cache.py"}
    for path in sorted(
        p for p in package.rglob("*") if p.suffix in (".py", ".c", ".h", ".json") and p.name not in shell
    ):
        sources.update(path.read_bytes())
    described = [FORMAT, repr(operator), spec.fingerprint(), releases, sources.hexdigest()]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()
