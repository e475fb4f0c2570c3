"""The offline flow of a GPU library on a few kernels: NVRTC's machine code, manifest, cache, command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from needs import a_compiler
from test_emulation import LAYOUTS, along_k, cuda_core, tensor_core

import vortex
from vortex import cli, gpu_compiler
from vortex.candidates import Admitted
from vortex.codegen import nvrtc
from vortex.codegen.cuda import Emitted
from vortex.cuda_driver import Device
from vortex.errors import CodegenError, DeviceError, DtypeError, OperandError, ToolchainError, UnknownNameError
from vortex.gpu_candidates import Backend, Variant
from vortex.gpu_compiler import filter_by_spills, laid_out
from vortex.gpu_launcher import GpuGemm
from vortex.gpu_library import GpuLibrary, read, verify
from vortex.gpu_profiler import BlockMeasurement, GpuProfile
from vortex.gpu_variety import Variety
from vortex.keys import cache_key, makers
from vortex.specs import load_spec

try:
    nvrtc.version()
except ToolchainError as missing:
    pytest.skip(str(missing), allow_module_level=True)

pytestmark = a_compiler

FEW = {
    Backend.TENSOR_CORE: tuple(
        Variant(tensor_core("float16"), *layout, size) for layout in LAYOUTS for size in (16, 2)
    ),
    Backend.CUDA_CORE: tuple(Variant(cuda_core("float16"), *layout, 16) for layout in LAYOUTS[:2]),
    Backend.SKINNY: (Variant(along_k("float16"), False, True, 16),),
}


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def few_kernels(monkeypatch: pytest.MonkeyPatch, cache_folder: Path) -> list[Backend]:
    """In the place of the sieve, which takes seconds; what was built is noted. A cache of this module's own."""
    built: list[Backend] = []

    def choose(rkernel: Any, backend: Backend) -> Variety:
        built.append(backend)
        return Variety(FEW[backend], (Admitted(f"{backend.value} library", "Variants", len(FEW[backend])),))

    monkeypatch.setattr(gpu_compiler, "choose", choose)
    monkeypatch.setenv("VORTEX_CACHE_DIR", str(cache_folder))
    return built


@pytest.fixture(scope="module")
def emitted() -> list[Emitted]:
    rows = []
    for backend in FEW:
        for v in FEW[backend]:
            rows.append(Emitted(v, v.name, "u.cubin", ("*A", "chunk"), (32, 1, 1), 0, 99, 0, 0, split=False))
            rows.append(replace(rows[-1], args=("*A", "*W"), split=True))
    return [*rows, Emitted(None, "reduce_float16", "u.cubin", ("*W",), (256, 1, 1), 0, 9, 0, 0, split=False)]


class TestSpine:
    def test_a_library_of_machine_code(self, few_kernels: list[Backend], tmp_path: Path):
        told = []
        gemm = vortex.compile("gemm", "a100", dtype="float16", progress=lambda what, share: told.append(share))
        assert isinstance(gemm, GpuGemm) and set(few_kernels) == set(FEW)
        assert told == sorted(told) and told[0] == 0 and told[-1] == 1
        manifest = gemm.manifest
        assert (manifest.arch, manifest.ptx, manifest.basis) == ("sm_80", "compute_80", "computed")
        assert [kernel.variant for kernel in manifest.kernels] == [v for group in FEW.values() for v in group]
        assert all(entry.spills == entry.stack == 0 < entry.registers for entry in manifest.entries)
        assert all(gemm.library.parts[name.replace("cubin", "ptx")][:2] == b"//" for name in gemm.library.cubins)
        assert manifest.admitted[-1] == Admitted("library", "FilterBySpills", 11) and manifest.spilled == 0
        verify(gemm.library, "compiled")

        before = len(few_kernels)
        again = vortex.compile("gemm", "a100", dtype="float16")
        assert len(few_kernels) == before and again.library == gemm.library, "from the cache"
        gemm.save(tmp_path / "x.vortex")
        loaded = vortex.load(tmp_path / "x.vortex")
        assert isinstance(loaded, GpuGemm) and loaded.library == gemm.library

    def test_choices_and_their_reasons_without_a_device(self):
        gemm = vortex.compile("gemm", load_spec("a100"), dtype="float16")
        assert isinstance(gemm, GpuGemm)
        thin, square = gemm.explain(1, 4096, 4096, transpose_b=True), gemm.explain(4096, 4096, 4096)
        assert thin.plan.variant.strategy.backend is Backend.SKINNY
        assert square.plan.variant.strategy.backend is Backend.TENSOR_CORE
        assert "computed" in str(square) and "FilterBySpills" in str(square)
        assert gemm.plan(1, 4096, 4096, transpose_b=True).index == thin.plan.index
        assert gemm.predict(4096, 4096, 4096) == pytest.approx(square.plan.seconds, rel=1e-5)
        odd = gemm.plan(64, 63, 64)
        assert odd.variant.vector_bytes == 2
        if gemm.device is None:
            with pytest.raises(DeviceError, match="runs on no device"):
                gemm(1, 2)

    def test_no_nvrtc(self, monkeypatch: pytest.MonkeyPatch):
        def missing() -> Path:
            raise ToolchainError("compiling for CUDA needs NVRTC")

        nvrtc._library.cache_clear()
        monkeypatch.setattr(nvrtc, "library_path", missing)
        try:
            with pytest.raises(ToolchainError, match="needs NVRTC"):
                vortex.compile("gemm", "a100", cache=False)
        finally:
            nvrtc._library.cache_clear()

    def test_other_element_types_are_refused(self):
        with pytest.raises(DtypeError, match="float64"):
            vortex.compile("gemm", "a100", dtype="float64")

    def test_every_element_type_has_its_own_key(self):
        spec = load_spec("a100")
        keys = {
            cache_key(vortex.operators.Gemm(dtype), spec.fingerprint(), makers("nvrtc"))
            for dtype in ("float32", "tfloat32", "float16")
        }
        assert len(keys) == 3

    def test_a_cpu_library_has_no_device(self, library_path: Path):
        with pytest.raises(OperandError, match="no GPU library"):
            vortex.load(library_path, device=0)


class TestCompilers:
    def test_a_library_by_nvcc(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
        try:
            release = nvrtc.release("nvcc")
        except ToolchainError as missing:
            pytest.skip(str(missing))
        few = {Backend.SKINNY: FEW[Backend.SKINNY]}
        monkeypatch.setattr(gpu_compiler, "choose", lambda rkernel, backend: Variety(few.get(backend, ()), ()))
        assert cli.run(["compile", "gemm", "--hw", "a100", "--dtype", "float16", "--compiler", "nvcc"]) == 0
        assert "cached: 1 strategies" in capsys.readouterr().out
        gemm = vortex.compile("gemm", "a100", dtype="float16", compiler="nvcc")
        assert isinstance(gemm, GpuGemm) and gemm.manifest.versions["nvcc"] == release
        assert "nvrtc" not in gemm.manifest.versions and len(gemm.kernels) == 1
        assert all(entry.spills == entry.stack == 0 < entry.registers for entry in gemm.manifest.entries)

    def test_what_is_asked_for_is_what_compiles(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        """The children are forked, so that they have the function that stands in nvcc's place here."""
        monkeypatch.setitem(nvrtc.RELEASES, "nvcc", lambda: "1.2.3")
        monkeypatch.setitem(nvrtc.COMPILERS, "nvcc", lambda source, arch: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            vortex.compile("gemm", "a100", dtype="float16", compiler="nvcc", cache=False)

    def test_every_compiler_has_its_own_key(self, monkeypatch: pytest.MonkeyPatch):
        operator, spec, keys = vortex.operators.Gemm("float16"), load_spec("a100"), set()
        for release in ("1.2.3", "1.2.4"):
            monkeypatch.setitem(nvrtc.RELEASES, "nvcc", lambda release=release: release)
            keys.add(cache_key(operator, spec.fingerprint(), makers("nvcc")))
        assert len({*keys, cache_key(operator, spec.fingerprint(), makers())}) == 3

    @pytest.mark.parametrize("cache", [True, False])
    def test_another_name_is_refused_before_any_work(self, few_kernels: list[Backend], cache: bool):
        with pytest.raises(UnknownNameError, match="compiler='clang': expected nvrtc or nvcc"):
            vortex.compile("gemm", "a100", dtype="float16", compiler="clang", cache=cache)
        assert few_kernels == []

    def test_libraries_of_cpus_take_none(self):
        with pytest.raises(OperandError, match="compiler='nvcc' on native: only GPU libraries take one"):
            vortex.compile("gemm", compiler="nvcc")


class TestDevice:
    def test_where_the_device_is_l1_is_measured(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        class Meter(AbstractContextManager):
            def __init__(self, library: GpuLibrary, driver: object) -> None:
                self.kernels = library.manifest.kernels

            def __exit__(self, *_: object) -> None:
                pass

            def profile(self, progress: Callable[[float], None]) -> GpuProfile:
                progress(1.0)
                rows = tuple(BlockMeasurement(k.variant.name, 1e-6, 2e-6, 9e-6, 0.0) for k in self.kernels[:-1])
                return GpuProfile("measured", "x", "", (), rows)

        monkeypatch.setattr(gpu_compiler, "Meter", Meter)
        monkeypatch.setattr(gpu_compiler, "Driver", lambda: None)
        operator, spec, shares = vortex.operators.Gemm("float16"), load_spec("a100"), []
        library = gpu_compiler.compile(operator, spec, tmp_path, lambda what, share: shares.append(share), True)
        assert library.manifest.basis == "measured" and shares == sorted(shares)
        table = library.manifest.selector
        starts = [row[table["fields"].index("chain")] for row in table["costs"]]
        assert starts[0] == 1e-6 and "measure" in library.manifest.offline_seconds

    def test_the_device_is_told_by_architecture_and_sms(self, monkeypatch: pytest.MonkeyPatch):
        def fake(major: int, minor: int, sms: int) -> None:
            device = Device(0, "x", major, minor, sms, 1, 1)
            monkeypatch.setattr(gpu_compiler, "Driver", lambda: SimpleNamespace(device=lambda _: device))

        fake(8, 0, 108)
        assert gpu_compiler.is_here(load_spec("a100")) and not gpu_compiler.is_here(load_spec("h200"))
        fake(9, 0, 132)
        assert gpu_compiler.is_here(load_spec("h200")) and not gpu_compiler.is_here(load_spec("a100"))

        def none() -> None:
            raise DeviceError("no driver")

        monkeypatch.setattr(gpu_compiler, "Driver", none)
        assert not gpu_compiler.is_here(load_spec("a100"))


class TestParts:
    def test_kernels_point_at_their_entries(self, emitted: list[Emitted]):
        variants = tuple(v for group in FEW.values() for v in group)
        kernels, entries = laid_out(variants, emitted)
        for kernel, variant in zip(kernels, variants, strict=True):
            assert kernel.variant == variant and entries[kernel.direct].symbol == variant.name
            assert "*W" in entries[kernel.split].args and kernel.box_a == (0, 0)

    def test_what_spills_is_left_out(self, emitted: list[Emitted]):
        variants = tuple(v for group in FEW.values() for v in group)
        gone = FEW[Backend.CUDA_CORE][0]
        assert filter_by_spills(variants, [row for row in emitted if row.variant != gone]) == tuple(
            variant for variant in variants if variant != gone
        )

    def test_how_many_were_left_out_is_recorded(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        gone, kept = (Variant(along_k("float16"), False, True, size) for size in (16, 2))
        few = {Backend.SKINNY: Variety((gone, kept), (Admitted("skinny library", "Variants", 2),))}
        monkeypatch.setattr(gpu_compiler, "choose", lambda rkernel, backend: few.get(backend, Variety((), ())))
        emit = gpu_compiler.emit
        monkeypatch.setattr(gpu_compiler, "emit", lambda *given: [r for r in emit(*given) if r.variant != gone])
        operator, spec = vortex.operators.Gemm("float16"), load_spec("a100")
        gemm = GpuGemm(gpu_compiler.compile(operator, spec, tmp_path, lambda what, share: None))
        assert gemm.manifest.spilled == 1 and [kernel.variant for kernel in gemm.kernels] == [kept]
        assert "1 kernels, 1 left out for spills" in repr(gemm)
        told = str(gemm.explain(64, 64, 64, transpose_b=True))
        assert re.search(r"skinny library Variants +2\n +library FilterBySpills +1", told)

    def test_a_layout_that_loses_all_its_kernels_is_an_error(self, emitted: list[Emitted]):
        variants = tuple(v for group in FEW.values() for v in group)
        kept = [row for row in emitted if row.variant is None or not row.variant.transpose_a]
        with pytest.raises(CodegenError, match="spill"):
            filter_by_spills(variants, kept)


class TestCommands:
    def test_compile_explain_and_list(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
        path = tmp_path / "a100.vortex"
        arguments = ["compile", "gemm", "--hw", "a100", "--dtype", "float16", "-o", str(path)]
        assert cli.run(arguments) == 0
        assert "3 strategies" in capsys.readouterr().out and len(read(path).manifest.kernels) == 11
        shapes = ["--shape", "3,1024,1024", "--shape", "64x64x64"]
        assert cli.run(["explain", "gemm", "--hw", "a100", "--dtype", "float16", *shapes]) == 0
        told = capsys.readouterr().out
        assert "gemm 3x1024x1024" in told and "gemm 64x64x64" in told and "core types" in told
        assert cli.run(["cache", "list"]) == 0
        assert "gemm float16 for a100-sxm4-40gb, L0 computed" in capsys.readouterr().out

    def test_packing_is_for_cpus(self, capsys: pytest.CaptureFixture[str]):
        arguments = ["explain", "gemm", "--hw", "a100", "--dtype", "float16", "--shape", "3,4,5", "--packed"]
        assert cli.run(arguments) == 2 and "not for GPUs" in capsys.readouterr().err

    def test_an_element_type_that_the_device_lacks(self, capsys: pytest.CaptureFixture[str]):
        assert cli.run(["compile", "gemm", "--hw", "t4", "--dtype", "int8"]) == 1
        assert "no instruction for int8" in capsys.readouterr().err
