"""What travels to a machine with a GPU and the script that runs there, as far as neither torch nor a GPU is needed."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_doubles
import pytest
from reductions import of_kind
from test_codegen_cuda import an_nvrtc

from eval.gpu import bundle, host_cpu, ingest, parts, run_on_device
from eval.gpu.budget import Budget, Journal, covered, median, read_journal, spread
from eval.suites import CONV_SUITES, Case
from vortex.errors import LibraryError
from vortex.gpu_library import GpuLibrary, write
from vortex.reduction import KINDS


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> GpuLibrary:
    return gpu_doubles.make_library(tmp_path_factory.mktemp("library"))


class TestBudget:
    def test_time_runs_out(self):
        assert list(Budget(60).within(range(3))) == [0, 1, 2] and list(Budget(0).within(range(3))) == []

    def test_a_killed_part_leaves_its_whole_lines(self, tmp_path: Path):
        journal = Journal(tmp_path / "j")
        journal.add("a", x=1)
        with journal.path.open("a") as file:
            file.write('{"kind": "b", "x')
        assert read_journal(journal.path) == [{"kind": "a", "x": 1}] and read_journal(tmp_path / "none") == []

    def test_a_section_tells_how_far_it_came(self, tmp_path: Path):
        journal = Journal(tmp_path / "j")
        assert list(covered(journal, Budget(60), "lib", "all", "abc")) == ["a", "b", "c"]
        assert list(covered(journal, Budget(0), "lib", "none", "abc")) == []
        section = covered(journal, Budget(60), "lib", "killed", "abc")
        assert next(section) == "a"
        found = [(row["section"], row["done"], row["planned"]) for row in read_journal(journal.path)]
        assert found == [("all", 3, 3), ("none", 0, 3)]

    def test_statistics(self):
        assert median([3, 1, 2]) == 2 and median([4, 1, 2, 3]) == 2.5 and spread([1, 2, 3]) == 1


class TestBundle:
    @pytest.fixture
    def made(self, library: GpuLibrary, library_path: Path, tmp_path: Path) -> Path:
        path = tmp_path / "stub-float16.vortex"
        write(library, path)
        assert bundle.main([str(path), str(library_path), "--out", str(tmp_path / "bundle")]) == 0
        return tmp_path / "bundle"

    def test_it_runs_alone(self, made: Path):
        """Every module it needs is in it: an interpreter that sees nothing else imports them all."""
        program = """
import sys
from importlib.util import find_spec
refused = {"tvm", "tvm_ffi", "pydantic", "typer", "rich", "psutil", "filelock", "platformdirs"}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in refused:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Refuse())
sys.path.insert(0, sys.argv[1])
import vortex, eval
assert vortex.__file__.startswith(sys.argv[1]) and eval.__file__.startswith(sys.argv[1])
import eval.gpu.run_on_device, eval.gpu.host_cpu
if find_spec("torch"):
    import eval.gpu.verify, eval.gpu.levels, eval.gpu.race, eval.gpu.rivals, eval.gpu.conv_race
    import eval.gpu.reduction_verify, eval.gpu.reduction_race
from vortex.gpu_library import read
from vortex.gpu_launcher import GpuGemm
from pathlib import Path
(path,) = (Path(sys.argv[1]) / "libraries").glob("*.vortex")
assert GpuGemm(read(path)).plan(64, 64, 64).splits == 1
"""
        done = subprocess.run(
            [sys.executable, "-S", "-c", f"import site; site.main()\n{program}", str(made)],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=made,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        )
        assert done.returncode == 0, done.stderr

    def test_without_a_device_it_says_so_and_still_writes(self, made: Path, tmp_path: Path):
        out = tmp_path / "out" / "results.json"
        out.parent.mkdir()
        command = [sys.executable, "-m", "eval.gpu.run_on_device", "--bundle", str(made), "--out", str(out)]
        command += ["--seconds", "27", "--only", "verify", "cpu"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, cwd=made, env=run_on_device.environment()
        )
        results = json.loads(out.read_text())
        assert done.returncode == 1 and "error" in results["device"]
        verified, host = results["parts"]
        assert verified["status"].startswith("failed") and host["status"] == "done"
        with pytest.raises(ingest.IngestError, match="the device did not answer"):
            ingest.ingest([out], tmp_path)

    def test_what_is_damaged_does_not_travel(self, library: GpuLibrary, tmp_path: Path):
        path = tmp_path / "x.vortex"
        write(library, path)
        path.write_bytes(path.read_bytes()[:-100])
        assert bundle.main([str(path), "--out", str(tmp_path / "b")]) == 1

    def test_libraries_of_every_operator_travel(self, library: GpuLibrary, tmp_path: Path):
        path = tmp_path / "int8.vortex"
        write(replace(library, manifest=replace(library.manifest, dtype="int8", settings={"dtype": "int8"})), path)
        assert bundle.make([path], tmp_path / "bundle") > path.stat().st_size
        assert all((tmp_path / "bundle" / "eval" / "suites" / f"{name}.csv").is_file() for name in CONV_SUITES)

    @an_nvrtc
    def test_reductions_travel_with_what_opens_them(self, reduction_library: GpuLibrary, tmp_path: Path):
        paths = [tmp_path / f"a100-{kind}.vortex" for kind in KINDS]
        for kind, path in zip(KINDS, paths, strict=True):
            write(reduction_library if kind == "sum" else of_kind(reduction_library, kind), path)
        assert bundle.make(paths, tmp_path / "bundle") < bundle.MOST_BYTES / 10
        told = json.loads((tmp_path / "bundle" / "bundle.json").read_text())
        assert told["specs"] == {path.stem: reduction_library.manifest.hardware["name"] for path in paths}
        program = (
            "from pathlib import Path\n"
            "from vortex.gpu_library import read\n"
            "from vortex.gpu_reduction_launcher import GpuReduce\n"
            "from eval.operator_cases import reductions\n"
            "for path in sorted(Path('libraries').iterdir()):\n"
            "    reduce = GpuReduce(read(path))\n"
            "    for case in reductions():\n"
            "        assert reduce.predict(tuple(case.extents.values()), 1) > 0\n"
            "    print(reduce.kind)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path / "bundle",
            env=os.environ | {"PYTHONPATH": str(tmp_path / "bundle")},
        )
        assert done.stdout.split() == sorted(KINDS), done.stderr

    def test_what_is_too_large_is_refused(self, library: GpuLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        path = tmp_path / "x.vortex"
        write(library, path)
        monkeypatch.setattr(bundle, "MOST_BYTES", 1 << 10)
        with pytest.raises(LibraryError, match="the bundle would have"):
            bundle.make([path], tmp_path / "b")
        assert not (tmp_path / "b").exists()

    def test_an_existing_folder_is_left_alone(self, tmp_path: Path):
        with pytest.raises(LibraryError, match="give a new folder"):
            bundle.make([], tmp_path)

    def test_it_is_written_for_python_3_10(self):
        """The machine with the GPU may be older than the one that compiles."""
        for path in bundle.closure(bundle.ENTRIES):
            tree = ast.parse(path.read_text(), feature_version=(3, 10))
            imported = {
                alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
            }
            assert not {"StrEnum", "Self", "assert_never", "reveal_type", "LiteralString"} & imported, path
            assert not {"tomllib"} & set(bundle.imported(path)), path


class TestParts:
    def test_shares_are_of_one_whole(self):
        assert sum(part.share for part in parts.PARTS) == pytest.approx(1)

    def test_a_part_that_hangs_is_ended(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        def hang(*_: Any, **options: Any) -> Any:
            raise subprocess.TimeoutExpired("x", options["timeout"])

        monkeypatch.setattr(subprocess, "run", hang)
        options = run_on_device.parser().parse_args(["--bundle", str(tmp_path)])
        assert run_on_device.child("verify", 1.0, tmp_path / "j", options)["status"] == "ended: out of time"


class TestHost:
    def test_the_host(self, library_path: Path, tmp_path: Path):
        journal = Journal(tmp_path / "j")
        host_cpu.run(library_path, [Case("s", "s/0", 30, 40, 50)], journal, Budget(60), (1, 2))
        (row,) = read_journal(journal.path)
        assert set(row["seconds"]) == {"1", "2"} and row["error"] < 1e-5
        assert host_cpu.core_counts()[0] == 1 and host_cpu.core_counts()[-1] == len(os.sched_getaffinity(0))
