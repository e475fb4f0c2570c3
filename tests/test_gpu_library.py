"""The artifact of a GPU: written whole, read back equal, refused when damaged or when its parts do not match."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import gpu_doubles
import pytest

from vortex.errors import LibraryError
from vortex.gpu_library import GpuLibrary, cubin_arch, cubin_symbols, read, verify, write
from vortex.library import is_gpu_library

COMPILE = """
import pathlib, sys
from vortex.codegen.nvrtc import compile_nvrtc
source = 'extern "C" __global__ void first(float *a) { a[0] = 1; } extern "C" __global__ void second() {}'
pathlib.Path(sys.argv[1]).write_bytes(compile_nvrtc(source, "sm_90a").cubin)
"""
LIGHT = """
import sys
allowed = {*sys.stdlib_module_names, "vortex", "numpy"}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed and not name.startswith("__editable__"):
            raise ModuleNotFoundError(f"{name} is not for run time", name=name)
sys.meta_path.insert(0, Refuse())
import vortex
gemm = vortex.load(sys.argv[1])
assert gemm.plan(64, 64, 64).splits == 1
gemm.save(sys.argv[1] + "2")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> GpuLibrary:
    return gpu_doubles.make_library(tmp_path_factory.mktemp("library"))


@pytest.fixture
def path(library: GpuLibrary, tmp_path: Path) -> Path:
    write(library, tmp_path / "gemm.vortex")
    return tmp_path / "gemm.vortex"


def rewritten(path: Path, changes: dict[str, bytes]) -> Path:
    """The file with parts replaced or, where empty, left out; hashes stay as they were."""
    with zipfile.ZipFile(path) as old:
        parts, comment = {name: old.read(name) for name in old.namelist()}, old.comment
    parts |= changes
    with zipfile.ZipFile(path, "w") as new:
        new.comment = comment
        for name, content in parts.items():
            if content:
                new.writestr(name, content)
    return path


class TestReading:
    def test_what_is_written_is_read(self, library: GpuLibrary, path: Path):
        found = read(path)
        assert found == library and found.identity == library.identity
        assert is_gpu_library(path) and not is_gpu_library(Path(__file__))

    def test_nothing_half_written_stays(self, library: GpuLibrary, path: Path, monkeypatch: pytest.MonkeyPatch):
        before = path.read_bytes()

        def full(*_: object) -> None:
            raise OSError("disk full")

        monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
        with pytest.raises(OSError, match="disk full"):
            write(library, path)
        assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]

    def test_no_file(self, tmp_path: Path):
        with pytest.raises(LibraryError, match="no such file"):
            read(tmp_path / "none.vortex")

    @pytest.mark.parametrize("keep", [0, 100, 5000])
    def test_a_truncated_file(self, path: Path, keep: int):
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(LibraryError, match="not a vortex library, or a truncated one"):
            read(path)

    @pytest.mark.parametrize("part", ["manifest.json", "door.so", "k0.cubin", "k1.ptx"])
    def test_an_altered_part(self, path: Path, part: str):
        with zipfile.ZipFile(path) as zipped:
            content = zipped.read(part)
        with pytest.raises(LibraryError, match=f"{part} was altered"):
            read(rewritten(path, {part: content[:-1] + bytes([content[-1] ^ 1])}))

    def test_a_missing_and_an_added_part(self, path: Path):
        with pytest.raises(LibraryError, match="the manifest lists"):
            read(rewritten(path, {"k0.cubin": b""}))
        with pytest.raises(LibraryError, match="the manifest lists"):
            read(rewritten(path, {"k0.cubin": b"x", "other": b"y"}))

    @pytest.mark.parametrize("change", [{"format": 99}, {"kind": "cpu"}, {"entries": 3}, {"kernels": [{}]}])
    def test_a_foreign_manifest(self, path: Path, change: dict):
        import hashlib

        with zipfile.ZipFile(path) as zipped:
            text = json.dumps(json.loads(zipped.read("manifest.json")) | change).encode()
        rewritten(path, {"manifest.json": text})
        with zipfile.ZipFile(path, "a") as zipped:
            zipped.comment = json.dumps({"manifest.json": hashlib.sha256(text).hexdigest()}).encode()
        with pytest.raises(LibraryError, match=r"has format|cannot be read"):
            read(path)

    @pytest.mark.parametrize("size", [0, 10, 60])
    def test_any_damage_is_refused_by_name(self, path: Path, size: int):
        """Whatever byte is wrong, it is a LibraryError; the archive's own directory included."""
        whole = path.read_bytes()
        for at in range(size, len(whole), len(whole) // 60):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
            try:
                found = read(path)
            except LibraryError:
                continue
            assert found.parts["door.so"] == found.parts["door.so"]  # a date or an attribute: nothing that is read


class TestMatching:
    def test_a_symbol_that_the_cubin_lacks(self, library: GpuLibrary, tmp_path: Path):
        parts = {**library.parts, "k1.cubin": gpu_doubles.cubin(["someone_else"])}
        write(replace(library, parts=parts), tmp_path / "x.vortex")
        with pytest.raises(LibraryError, match=r"names the kernel .*_split, k1\.cubin has none"):
            read(tmp_path / "x.vortex")

    def test_another_architecture(self, library: GpuLibrary):
        manifest = replace(library.manifest, arch="sm_90a")
        with pytest.raises(LibraryError, match=r"k0\.cubin is for sm_80, the manifest says sm_90a"):
            verify(replace(library, manifest=manifest), "x")

    @pytest.mark.parametrize("name", ["k0.cubin", "k1.ptx", "door.so"])
    def test_a_part_that_is_named_and_not_there(self, library: GpuLibrary, name: str):
        parts = {key: value for key, value in library.parts.items() if key != name}
        with pytest.raises(LibraryError, match="which the file does not hold"):
            verify(replace(library, parts=parts), "x")

    @pytest.mark.parametrize("change", [{"reduce": -1}, {"reduce": 99}, {"entries": 3}])
    def test_references_that_lead_nowhere(self, library: GpuLibrary, change: dict):
        entries = library.manifest.entries
        whole = {"entries": entries[: change["entries"]]} if "entries" in change else change
        with pytest.raises(LibraryError, match="do not match"):
            verify(replace(library, manifest=replace(library.manifest, **whole)), "x")

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({"spills": 8}, "has 8 bytes of spills and 0 of stack"),
            ({"stack": 16}, "has 0 bytes of spills and 16 of stack"),
            ({"shared_bytes": 166913}, "takes 166913 bytes of shared memory, a block of stub-gpu has 166912"),
        ],
    )
    def test_a_kernel_that_does_not_fit(self, library: GpuLibrary, change: dict, told: str):
        *entries, last = library.manifest.entries
        manifest = replace(library.manifest, entries=(*entries, replace(last, **change)))
        with pytest.raises(LibraryError, match=f"x: reduce_float16 {told}"):
            verify(replace(library, manifest=manifest), "x")

    def test_as_much_shared_memory_as_a_block_has(self, library: GpuLibrary):
        *entries, last = library.manifest.entries
        manifest = replace(library.manifest, entries=(*entries, replace(last, shared_bytes=166912)))
        verify(replace(library, manifest=manifest), "x")

    def test_no_machine_code(self):
        for image in (b"", b"\x7fELF" + bytes(100), gpu_doubles.cubin(["x"])[:-70]):
            with pytest.raises(LibraryError):
                cubin_symbols(image, "x")

    def test_real_machine_code(self, tmp_path: Path):
        pytest.importorskip("tvm", reason="needs the `compile` extra")
        made = tmp_path / "made.cubin"
        gpu_doubles.in_child(COMPILE, str(made))  # NVRTC looks for a driver, and here it would find the fake one
        image = made.read_bytes()
        assert {"first", "second"} <= cubin_symbols(image, "x") and cubin_arch(image) == "sm_90"


class TestLight:
    def test_loading_needs_numpy_at_most(self, path: Path):
        gpu_doubles.in_child(LIGHT, str(path))
        assert read(Path(f"{path}2")) == read(path)
