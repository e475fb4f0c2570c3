"""The command: what it prints, what it writes, how it ends."""

import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace

import needs
import pytest

import vortex
from vortex.cache import Cache, object_files
from vortex.cli import run
from vortex.specs import load_spec, spec_directory

COMMANDS = ("compile", "explain", "check", "probe", "cache", "demo")


@pytest.fixture(scope="module")
def compiled() -> object:
    """The library of this machine is in the cache, so that the command finds it there."""
    return vortex.compile("gemm")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command says of arguments that it refuses: one line on standard error, nothing on standard output."""
    assert run(list(arguments)) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ") and told.err.count("\n") == 1
    return told.err


class TestWholeCommand:
    def test_help_names_every_command(self, capsys: pytest.CaptureFixture[str]):
        assert run(["--help"]) == 0
        told = capsys.readouterr().out
        assert all(command in told for command in COMMANDS)

    @pytest.mark.parametrize("command", [*COMMANDS, "cache list", "cache clear"])
    def test_every_command_has_help(self, capsys: pytest.CaptureFixture[str], command: str):
        assert run([*command.split(), "--help"]) == 0
        assert "Usage: vortex " + command in capsys.readouterr().out

    def test_version(self, capsys: pytest.CaptureFixture[str]):
        assert run(["--version"]) == 0
        assert capsys.readouterr().out == f"vortex {vortex.__version__}\n"

    @pytest.mark.parametrize(
        "arguments",
        [
            "frobnicate",
            "compile",
            "compile gemm --frobnicate",
            "compile gemm --no-cache",
            "compile gemm -o /nowhere/at/all.vortex",
            "explain gemm",
            "explain gemm --shape 1,2",
            "explain gemm --shape 1,2,x",
            "explain batch_gemm --shape 1,2,3",
            "explain gemm --shape 1,-2,3",
            "explain gemm --shape 1,2,3 --threads 0",
            "explain reduce --shape 1,2",
            "explain conv2d --shape 1,2,3",
            "explain conv2d --shape 1,8,8,4,5,3,3 --groups 3",
            "explain conv2d --shape 1,8,8,4,5,3,3 --packed",
            "explain gemm --shape 1,2,3 --padding 0",
            "check",
            "probe -o /nowhere/at/all.toml",
        ],
    )
    def test_wrong_usage_ends_with_2(self, capsys: pytest.CaptureFixture[str], arguments: str):
        assert run(arguments.split()) == 2
        assert capsys.readouterr().out == ""

    def test_help_is_quick(self):
        heavy = "{'numpy', 'tvm', 'tvm_ffi', 'torch', 'pydantic', 'matplotlib'}"
        program = f"from vortex.cli import run; import sys; run(['--help']); assert not {heavy} & set(sys.modules)"
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60, stdout=subprocess.DEVNULL)
        assert time.perf_counter() - start < 5

    def test_as_a_module(self):
        done = subprocess.run([sys.executable, "-m", "vortex", "check", "/absent.toml"], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("error: /absent.toml")

    def test_without_the_compile_extra(self):
        program = "import sys; sys.modules['typer'] = None; from vortex.__main__ import main; main()"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (
            1,
            "error: the command needs typer; install vortex with its `compile` extra\n",
        )


@needs.a_compiler
class TestCompile:
    def test_writes_a_library_that_loads(self, compiled: object, capsys: pytest.CaptureFixture[str], tmp_path: Path):
        path = tmp_path / "gemm.vortex"
        assert run(["compile", "gemm", "-o", str(path)]) == 0
        assert f"{path}: " in capsys.readouterr().out
        assert vortex.load(path).strategies
        assert list(tmp_path.iterdir()) == [path]

    def test_into_the_cache_only(self, compiled: object, capsys: pytest.CaptureFixture[str]):
        assert run(["compile", "gemm", "--hw", "native"]) == 0
        assert capsys.readouterr().out.startswith("cached: ")

    def test_unknown_names(self, capsys: pytest.CaptureFixture[str]):
        assert "did you mean 'gemm'?" in refused(capsys, "compile", "gemmm")
        assert "did you mean 'native'?" in refused(capsys, "compile", "gemm", "--hw", "nativ")


@needs.a_compiler
class TestExplain:
    def test_an_operator_without_plans(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("vortex.api.compile", lambda *arguments, **named: object())
        assert run(["explain", "grouped_gemm", "--shape", "1,2,3"]) != 0
        assert "grouped_gemm has no plans by extents" in capsys.readouterr().err

    @pytest.mark.parametrize(
        "device, arguments, told",
        [
            (
                "cpu",
                "conv2d --shape 2,30,31,64,32,3,5 --padding 1 --groups 4 --threads 2",
                "(2, 30, 31, 64) (32, 16, 3, 5) groups=4 padding=1 threads=2",
            ),
            ("cpu", "batch_gemm --shape 9,1,2,3", "9 1 2 3 packed=False threads=None transpose_a=False"),
            ("gpu", "batch_gemm --shape 9,1,2,3 --transpose-b", "1 2 3 batch=9 transpose_a=False transpose_b=True"),
        ],
    )
    def test_what_the_callable_is_asked(
        self,
        device: str,
        arguments: str,
        told: str,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ):
        class Kernel:
            manifest = SimpleNamespace(hardware={"kind": device})

            def explain(self, *given: object, **named: object) -> str:
                return " ".join([*map(str, given), *(f"{name}={named[name]}" for name in sorted(named))])

        monkeypatch.setattr("vortex.api.compile", lambda *arguments, **named: Kernel())
        assert run(["explain", *arguments.split()]) == 0
        assert told in capsys.readouterr().out

    def test_prints_plan_and_rivals(self, compiled: object, capsys: pytest.CaptureFixture[str]):
        assert run(["explain", "gemm", "--hw", "native", "--shape", "105,1024,12544", "--threads", "1"]) == 0
        told = capsys.readouterr().out
        assert "105x1024x12544" in told and "1 thread" in told and "runners-up" in told and "candidates" in told

    def test_kinds_of_b(self, compiled: object, capsys: pytest.CaptureFixture[str]):
        for option, word in (("--transpose-b", "transposed B"), ("--packed", "packed B")):
            assert run(f"explain gemm --shape 7,64,64 --shape 8x64x64 {option}".split()) == 0
            told = capsys.readouterr().out
            assert told.count(f"({word})") == told.count(f"of these for a {word}") == 2


class TestCheck:
    def test_every_shipped_spec_is_fine(self, capsys: pytest.CaptureFixture[str]):
        paths = sorted(map(str, spec_directory().glob("*.toml")))
        assert run(["check", "--no-compare", *paths]) == 0
        assert [line.split(": ")[:2] for line in capsys.readouterr().out.splitlines()] == [[p, "fine"] for p in paths]

    def test_by_name(self, capsys: pytest.CaptureFixture[str]):
        assert run(["check", "--no-compare", "xeon-8255c", "epyc-zen4"]) == 0
        assert capsys.readouterr().out.count(": fine: ") == 2
        assert "did you mean 'epyc-zen4'?" in refused(capsys, "check", "epyc-zen44")

    def test_one_bad_spec_among_good_ones(self, capsys: pytest.CaptureFixture[str], tmp_path: Path):
        good = spec_directory() / "xeon-8255c.toml"
        bad = tmp_path / "bad.toml"
        bad.write_text(good.read_text().replace("cores =", "coers ="))
        assert run(["check", "--no-compare", str(bad), str(good)]) == 1
        told = capsys.readouterr()
        assert f"{bad}" in told.err and "coers" in told.err
        assert told.out.startswith(f"{good}: fine")

    def test_another_device_is_not_compared(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
        spec = load_spec("xeon-8255c")
        monkeypatch.setattr("vortex.probe.native", lambda: spec.model_copy(update={"llvm_cpu": "another"}))
        assert run(["check", str(spec_directory() / "xeon-8255c.toml")]) == 0
        told = capsys.readouterr()
        assert "fine" in told.out and "not compared" in told.err


@needs.a_compiler
class TestProbe:
    def test_writes_a_spec_that_passes_the_check(self, capsys: pytest.CaptureFixture[str], tmp_path: Path):
        path = tmp_path / "here.toml"
        assert run(["probe", "-o", str(path)]) == 0
        assert run(["check", "--compare", str(path)]) == 0
        told = capsys.readouterr().out
        assert "measured" in told and "!" not in told
        assert list(tmp_path.iterdir()) == [path]

    def test_prints_toml(self, capsys: pytest.CaptureFixture[str]):
        assert run(["probe"]) == 0
        assert tomllib.loads(capsys.readouterr().out)["name"] == "native"


class TestCache:
    @pytest.fixture
    def cache(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cache:
        monkeypatch.setenv("VORTEX_CACHE_DIR", str(tmp_path))
        monkeypatch.delenv("VORTEX_CACHE_BYTES", raising=False)
        return Cache(tmp_path / "libraries")

    def test_empty(self, cache: Cache, capsys: pytest.CaptureFixture[str]):
        assert run(["cache", "list"]) == 0
        told = capsys.readouterr()
        assert told.out == "" and "0 libraries" in told.err and "0 objects" in told.err

    @needs.a_compiler
    def test_list_and_clear(self, compiled, cache: Cache, capsys: pytest.CaptureFixture[str], tmp_path: Path):
        compiled.save(tmp_path / "gemm.vortex")
        cache.put("good", tmp_path / "gemm.vortex")
        (tmp_path / "foreign").write_text("not a library")
        cache.put("foreign", tmp_path / "foreign")
        object_files().put("one", tmp_path / "foreign")
        assert run(["cache", "list"]) == 0
        told = capsys.readouterr()
        assert "gemm float32 for native" in told.out and "cannot be read" in told.out
        assert "2 libraries" in told.err and "1 object," in told.err
        assert run(["cache", "clear"]) == 0
        told = capsys.readouterr()
        assert "removed 2 libraries" in told.out and "removed 1 object " in told.out
        assert cache.entries() == object_files().entries() == []

    def test_a_bad_limit(self, cache: Cache, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("VORTEX_CACHE_BYTES", "lots")
        assert "VORTEX_CACHE_BYTES" in refused(capsys, "cache", "list")


class TestDemo:
    def test_a_wrong_result_is_a_failure(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ):
        from test_demo import results

        for error, code in ((0.5, 0), (2.0, 1)):
            monkeypatch.setattr("vortex.demo.run_demo", lambda progress, error=error: results(error))
            assert run(["demo", "-o", str(tmp_path / "demo")]) == code
            assert ("WRONG" in capsys.readouterr().out) == bool(code)
