"""compile() and load(): operator and spec by name, the cache on disk, the callable."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from vortex import operators
from vortex.axes import fixed
from vortex.errors import DeviceError, DtypeError, LibraryError, OperandError, ShapeError, ToolchainError
from vortex.keys import cache_key, makers
from vortex.launcher import GemmKernel
from vortex.library import Library, is_gpu_library, read, write
from vortex.reduction import Reduce

if TYPE_CHECKING:  # What GPUs need is imported for them alone: opening a library takes a fraction of a second.
    from vortex.batch_launcher import BatchGemmKernel
    from vortex.conv_launcher import ConvKernel
    from vortex.gpu_launcher import GpuGemm
    from vortex.gpu_library import GpuLibrary
    from vortex.grouped_launcher import GroupedGemmKernel
    from vortex.hardware import HardwareSpec
    from vortex.reduction_launcher import ReduceKernel
    from vortex.specs import Spec
    from vortex.targets import Target

Progress = Callable[[str, float], None]
INSTALL = "`pip install '.[compile]'` in a checkout"


@overload
def compile(
    op: Reduce,
    hw: str | Path | Spec = ...,
    *,
    dtype: str | None = ...,
    invariant: str | None = ...,
    compiler: str | None = ...,
    progress: Progress | None = ...,
    cache: bool = ...,
) -> ReduceKernel: ...
@overload
def compile(
    op: operators.Conv2d,
    hw: str | Path | Spec = ...,
    *,
    dtype: str | None = ...,
    compiler: str | None = ...,
    progress: Progress | None = ...,
    cache: bool = ...,
) -> ConvKernel: ...
@overload
def compile(
    op: operators.BatchGemm,
    hw: str | Path | Spec = ...,
    *,
    dtype: str | None = ...,
    invariant: str | None = ...,
    compiler: str | None = ...,
    progress: Progress | None = ...,
    cache: bool = ...,
) -> BatchGemmKernel: ...
@overload
def compile(
    op: operators.GroupedGemm,
    hw: str | Path | Spec = ...,
    *,
    dtype: str | None = ...,
    invariant: str | None = ...,
    compiler: str | None = ...,
    progress: Progress | None = ...,
    cache: bool = ...,
) -> GroupedGemmKernel: ...
@overload
def compile(
    op: str | operators.Gemm = ...,
    hw: Literal["native"] = ...,
    *,
    dtype: str | None = ...,
    invariant: str | None = ...,
    progress: Progress | None = ...,
    cache: bool = ...,
) -> GemmKernel: ...
@overload
def compile(
    op: str | operators.Gemm = ...,
    hw: str | Path | Spec = ...,
    *,
    dtype: str | None = ...,
    invariant: str | None = ...,
    compiler: str | None = ...,
    progress: Progress | None = ...,
    cache: bool = ...,
) -> GemmKernel | GpuGemm: ...
def compile(
    op: str | operators.Operator = "gemm",
    hw: str | Path | Spec = "native",
    *,
    dtype: str | None = None,
    invariant: str | None = None,
    compiler: str | None = None,
    progress: Progress | None = None,
    cache: bool = True,
) -> Any:
    """Build, or take from the cache on disk, the library of `op` for `hw`, and return it as a callable.

    `op` is an operator or its name; `hw` is a shipped spec's name, `"native"` for this CPU, `"cuda"` for this GPU, the
    path of a spec file, or a spec. `dtype` is that of the operands, float32 unless the operator says otherwise; a GPU
    also knows float16, bfloat16, and tfloat32: float32 operands that its Tensor Cores round. A GPU library is built
    with no GPU at hand, by NVRTC or, with `compiler="nvcc"`, by that. With `invariant="m"` a row of a product has the
    same bits whatever m it is computed with (CPUs). `progress` is told what is being done and which share is finished,
    0 to 1. Needs the `compile` extra and a C compiler, for GPUs the `cuda` extra; without a cached library it takes up
    to minutes. Raises UnknownNameError, SpecError, DtypeError, ShapeError, OperandError, ToolchainError, CodegenError.
    """
    try:
        from vortex.cache import library_cache
        from vortex.targets import target
    except ModuleNotFoundError as error:
        raise ToolchainError(
            f"compiling needs {error.name}; install vortex with its `compile` extra: {INSTALL}"
        ) from error

    operator, device = operators.named(op), target(hw)
    if dtype is not None:
        operator = replace(operator, dtype=dtype)  # type: ignore[arg-type]  # the operator refuses other names
    check_demands(operator, device, invariant, compiler)
    report = progress or (lambda what, share: None)
    built_for = _built_for(operator, device)
    if not cache:
        return _opened(_serving(operator, _build(built_for, device.spec, report, invariant, compiler)))
    made_by = makers(compiler or "")
    store, key = library_cache(), cache_key(built_for, device.fingerprint, made_by, invariant)
    library = _cached(store.get(key))  # entries appear in one step: to take one needs no lock
    if library is None:
        with store.lock(key):
            library = _cached(store.get(key))  # made by another process meanwhile
            if library is None:
                library = _build(built_for, device.spec, report, invariant, compiler, made_by)
                with tempfile.TemporaryDirectory(prefix="vortex-") as folder:
                    built = Path(folder) / "built.vortex"
                    _write(library, built)
                    store.put(key, built)
    return _opened(_serving(operator, library))


def _built_for(operator: operators.Operator, device: Target) -> operators.Operator:
    """The operator whose library serves this one on a device."""
    if not device.is_cpu:
        return operator.open if isinstance(operator, operators.Conv2d) else operator
    if isinstance(operator, operators.Conv2d) and operator.dtype != "float32":
        told = "CPUs have convolutions of float32 alone, whatever their instructions; cast the operands, or name a GPU"
        raise DtypeError(f"conv2d(dtype={operator.dtype!r}) on {device.name}: {told}")
    return operators.compiled_as(operator)


def _serving(operator: operators.Operator, library: Library[Any] | GpuLibrary) -> Library[Any] | GpuLibrary:
    """The library as that of `operator`: other operators, and other settings of one, share machine code."""
    manifest: Any = library.manifest
    return replace(library, manifest=replace(manifest, operator=operator.name, settings=operators.settings(operator)))


def _cached(path: Path | None) -> Library[Any] | GpuLibrary | None:
    """A library from the cache; one that is damaged, or was evicted just now, is built again."""
    if path is None:
        return None
    try:
        return read_any(path)
    except LibraryError:
        return None


def read_any(path: Path) -> Library[Any] | GpuLibrary:
    """Read and verify a library of either kind."""
    if not is_gpu_library(path):
        return read(path)
    from vortex import gpu_library

    return gpu_library.read(path)


def _write(library: Library[Any] | GpuLibrary, path: Path) -> None:
    if isinstance(library, Library):
        write(library, path)
    else:
        from vortex import gpu_library

        gpu_library.write(library, path)


GEMM_LAUNCHER = ("vortex.launcher", "GemmKernel")
FUSED_LAUNCHER = ("vortex.fused", "FusedGemm")
WEIGHTED_LAUNCHER = ("vortex.weighted", "WeightedGemm")
LAUNCHERS = {
    "batch_gemm": ("vortex.batch_launcher", "BatchGemmKernel"),
    "grouped_gemm": ("vortex.grouped_launcher", "GroupedGemmKernel"),
    "conv2d": ("vortex.conv_launcher", "ConvKernel"),
    "reduce": ("vortex.reduction_launcher", "ReduceKernel"),
}
"""Where the callable of an operator on CPUs lives."""
GPU_LAUNCHER = ("vortex.gpu_launcher", "GpuGemm")
FUSED_GPU_LAUNCHER = ("vortex.gpu_fused", "FusedGpuGemm")
GPU_LAUNCHERS = {
    "batch_gemm": ("vortex.gpu_batch", "GpuBatchGemm"),
    "grouped_gemm": ("vortex.gpu_grouped", "GpuGroupedGemm"),
    "conv2d": ("vortex.gpu_conv", "GpuConv"),
    "reduce": ("vortex.gpu_reduction_launcher", "GpuReduce"),
}


def _opened(library: Library[Any] | GpuLibrary, device: int | None = None, jit: bool = False) -> Any:
    """The callable of a library: the launcher of its operator."""
    if isinstance(library, Library):
        manifest = library.manifest
        plain = manifest.operator != "gemm" or manifest.dtype == "float32"
        fused = not plain or operators.store_of(operators.rebuilt(manifest.operator, manifest.settings)).needed
        product = FUSED_LAUNCHER if fused else GEMM_LAUNCHER
        product = WEIGHTED_LAUNCHER if manifest.settings.get("weights") else product
        home, launcher = LAUNCHERS.get(manifest.operator, product)
        return getattr(import_module(home), launcher)(library)
    operator = operators.rebuilt(library.manifest.operator, library.manifest.settings)
    fused = operators.finishing(operator) is not None
    home, launcher = GPU_LAUNCHERS.get(operator.name, FUSED_GPU_LAUNCHER if fused else GPU_LAUNCHER)
    return getattr(import_module(home), launcher)(library, device, jit=jit)


def load(path: str | Path, device: int | None = None, *, jit: bool = False) -> Any:
    """Read a library that `save` or `vortex compile` wrote. It runs native code: load only files you trust.

    `device` and `jit` are for GPU libraries, see `GpuGemm`: the CUDA device to run on, and whether its driver may
    translate the library's PTX where the machine code is for another architecture.
    """
    if not isinstance(path, str | os.PathLike):
        raise LibraryError(f"{path!r} is a {type(path).__name__}; expected the path of a library")
    library = read_any(Path(path))
    if isinstance(library, Library) and (device is not None or jit):
        raise OperandError(f"{path} is no GPU library; device= and jit= are for those alone")
    return _opened(library, device, jit)


def check_demands(operator: operators.Operator, device: Target, invariant: str | None, compiler: str | None) -> None:
    """Refuse what no library of this operator on this device can promise."""
    if compiler is not None and device.is_cpu:
        raise OperandError(f"compiler={compiler!r} on {device.name}: only GPU libraries take one; leave it out")
    known = fixed(operator)
    if known and not device.is_cpu:
        told = ", ".join(f"{axis}={extent}" for axis, extent in known.items())
        raise ShapeError(f"{told} on {device.name}: only CPU libraries know fixed extents; leave every extent open")
    if getattr(operator, "weights", None) and not device.is_cpu:
        raise DeviceError(f"quantized weights on {device.name}: only CPU libraries widen them; name a CPU's spec")
    if invariant is None:
        return
    if invariant != "m":
        raise OperandError(f"invariant={invariant!r}: expected 'm', the axis whose extent changes no bit of a row")
    if not device.is_cpu or not operator.name.endswith("gemm"):
        raise OperandError(f"invariant='m' for {operator.name} on {device.name}: only products on CPUs can promise it")


def _build(
    operator: operators.Operator,
    spec: Spec,
    report: Progress,
    invariant: str | None,
    compiler: str | None,
    made_by: str = "",
) -> Library[Any] | GpuLibrary:
    """Of objects in the cache on disk too, if it is said what makes them."""
    from vortex.cache import object_files
    from vortex.codegen.object_cache import ObjectCache
    from vortex.codegen.toolchain import enter_tvm
    from vortex.hardware import HardwareSpec

    enter_tvm()
    with tempfile.TemporaryDirectory(prefix="vortex-") as folder:
        if isinstance(spec, HardwareSpec):
            if isinstance(operator, Reduce):
                from vortex import reduction_compiler

                return reduction_compiler.compile(operator, spec, Path(folder), report, is_here(spec))
            from vortex import compiler as for_cpus

            objects = ObjectCache(object_files(), made_by) if made_by else None
            return for_cpus.compile(operator, spec, Path(folder), report, is_here(spec), invariant, objects)
        if isinstance(operator, Reduce):
            from vortex import gpu_reduction_compiler

            return gpu_reduction_compiler.compile(operator, spec, Path(folder), report, compiler or "nvrtc")
        from vortex import gpu_compiler

        here = gpu_compiler.is_here(spec)
        return gpu_compiler.compile(operator, spec, Path(folder), report, here, compiler or "nvrtc")


def is_here(spec: HardwareSpec) -> bool:
    """Whether L0 timed on this machine speaks for `spec`: the same core, at about the same clock."""
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
