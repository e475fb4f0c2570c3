"""The run on a GPU machine, on a machine without one: operands in host memory, a library that multiplies with torch."""

from __future__ import annotations

import json
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu_doubles
import pytest

from eval.gpu import asked, ingest, parts
from eval.gpu.budget import Budget, Journal, median, read_journal
from eval.suites import Case
from vortex.errors import UnmeasuredError
from vortex.gpu_candidates import Backend
from vortex.gpu_figures import BlockCosts, GpuRates
from vortex.gpu_library import GpuLibrary
from vortex.gpu_profiler import BlockMeasurement
from vortex.gpu_selector import Extents, GpuPlan, GpuSelector, Layout

torch = pytest.importorskip("torch")

from eval.gpu import levels, race, rivals, run_on_device, selection, verify  # noqa: E402  # these import torch
from eval.gpu.torch_gpu import TorchGpu  # noqa: E402


class HostGpu(TorchGpu):
    """The same operations where there is no device; times by the clock of the host."""

    def __init__(self) -> None:
        super().__init__("cpu")

    def about(self) -> dict[str, Any]:
        return {"device": "host", "sms": 4, "memory_bytes": 1 << 34, "torch": torch.__version__}

    def synchronize(self) -> None:
        pass

    def warm(self, call: Any, calls: int = 1, rounds: int = 3) -> list[float]:
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return times

    def cold(self, call: Any, rounds: int = 3) -> list[float]:
        return self.warm(call, 1, rounds)

    def host(self, call: Any, calls: int = 10) -> float:
        return median(self.warm(call))


@dataclass
class HostGemm:
    """A library's callable that multiplies with torch; `harm` spoils a result."""

    library: GpuLibrary
    selector: GpuSelector
    harm: Any = None

    @property
    def manifest(self) -> Any:
        return self.library.manifest

    @property
    def kernels(self) -> Any:
        return self.manifest.kernels

    def plan(self, m: int, n: int, k: int, **flags: Any) -> GpuPlan:
        layout = Layout(flags.get("transpose_a", False), flags.get("transpose_b", False))
        return self.selector.select(Extents(m, n, k), layout, 2)

    def __call__(self, a: Any, b: Any, out: Any = None) -> Any:
        result = (a.float() @ b.float()).to(a.dtype)
        return result if out is None else out.copy_(result)

    def run_planned(self, plan: GpuPlan, a: Any, b: Any, out: Any, **flags: Any) -> Any:
        assert plan.splits == 1 or (plan.splits - 1) * plan.chunk < a.shape[0 if flags.get("transpose_a") else 1]
        a = a.T if flags.get("transpose_a") else a
        b = b.T if flags.get("transpose_b") else b
        out.copy_((a.float() @ b.float()).to(out.dtype))
        if self.harm is not None:
            self.harm(plan, out)
        return out

    def time_selection(self, *_: int) -> float:
        return 1e-7


def selector_of(library: GpuLibrary) -> GpuSelector:
    """One figure for all kernels; those of 16 bytes are a little quicker."""
    variants = tuple(kernel.variant for kernel in library.manifest.kernels)
    names = BlockCosts.__dataclass_fields__
    special = {"per_tile_m": 1 / 64, "per_tile_n": 1 / 64, "per_tile_k": 1 / 32, "resident": 2.0, "most_parts": 8.0}
    row = {name: special.get(name, 1.0) for name in names}
    costs = tuple(BlockCosts(**row | {"work": 1e-6 / variant.vector_bytes}) for variant in variants)
    figures = dict.fromkeys(GpuRates.__dataclass_fields__, 1e-9) | {"sms": 4.0, "per_sm": 0.25, "l2_bytes": 1e6}
    return GpuSelector(variants, GpuRates(**figures), costs, "computed")


@pytest.fixture(scope="module")
def gemm(tmp_path_factory: pytest.TempPathFactory) -> HostGemm:
    library = gpu_doubles.make_library(tmp_path_factory.mktemp("library"))
    selector = selector_of(library)
    return HostGemm(replace(library, manifest=replace(library.manifest, selector=selector.to_json())), selector)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "part.jsonl")


def rows(journal: Journal, kind: str) -> list[dict[str, Any]]:
    return [row for row in read_journal(journal.path) if row["kind"] == kind]


def fake_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A meter that is sure of every kernel but the first."""

    class Meter(AbstractContextManager):
        def __init__(self, library: GpuLibrary, driver: None) -> None:
            self.kernels = library.manifest.kernels

        def __exit__(self, *_: object) -> None:
            pass

        def kernel(self, index: int) -> BlockMeasurement:
            if not index:
                raise UnmeasuredError("its times vary")
            return BlockMeasurement(self.kernels[index].variant.name, 1e-6, 2e-6, 1e-6, 0.01)

    monkeypatch.setattr(levels, "Meter", Meter)
    monkeypatch.setattr(levels, "Driver", lambda: None)


class TestVerify:
    def test_right_kernels_pass(self, gemm: HostGemm, journal: Journal):
        verify.verify(HostGpu(), gemm, "lib", journal, Budget(60), 1, 0)
        found = rows(journal, "verify")
        assert len(found) == 2 * 2 * len(gemm.kernels) and all(row["right"] for row in found)
        assert {row["splits"] for row in found} == {1, 3}

    @pytest.mark.parametrize("library", ["wrong element", "outside", "nothing written"])
    def test_wrong_kernels_do_not(self, gemm: HostGemm, journal: Journal, library: str):
        def harm(plan: GpuPlan, out: Any) -> None:
            if library == "wrong element":
                out[-1, -1] += out.abs().max() / 2 + 1
            elif library == "outside":
                out.as_strided((1,), (1,), out.storage_offset() + out.shape[0] * out.stride(0) + 1)[0] = 1
            else:
                out[3, :] = float("nan")

        verify.verify(HostGpu(), replace(gemm, harm=harm), "lib", journal, Budget(60), 1, 0)
        assert not any(row["right"] for row in rows(journal, "verify"))

    def test_trials_are_ragged_and_of_their_class(self, gemm: HostGemm):
        from vortex.gpu_door import alignment

        for kernel in gemm.kernels:
            tile, stages = kernel.variant.strategy.l1, kernel.variant.strategy.stages
            shift, extra = verify.shift_of(kernel.variant.vector_bytes, 2)
            for trial in verify.trials(kernel, "float16", 5, 0):
                assert trial.m > 2 * tile.m and trial.n > 2 * tile.n and trial.k > 2 * stages * tile.k
                width = trial.n
                assert alignment("float16", 2 * shift, width + extra, width) == kernel.variant.vector_bytes

    def test_every_kernel_is_seen_before_any_twice(self, gemm: HostGemm, journal: Journal):
        verify.verify(HostGpu(), gemm, "lib", journal, Budget(60), 2, 0)
        first = rows(journal, "verify")[: 2 * len(gemm.kernels)]
        assert len({row["kernel"] for row in first}) == len(gemm.kernels)

    def test_a_kernel_that_ends_the_process_is_wrong_and_the_next_process_goes_on(
        self, gemm: HostGemm, journal: Journal
    ):
        names, calls = [kernel.variant.name for kernel in gemm.kernels], []

        def harm(plan: GpuPlan, out: Any) -> None:
            calls.append(plan.variant.name)
            if plan.variant.name == names[1]:
                raise RuntimeError("an illegal address")

        with pytest.raises(RuntimeError):
            verify.verify(HostGpu(), replace(gemm, harm=harm), "lib", journal, Budget(60), 1, 0)
        assert calls == [names[0], names[0], names[1]]
        verify.verify(HostGpu(), replace(gemm, harm=harm), "lib", journal, Budget(60), 1, 0)
        assert names[1] not in calls[3:]
        found = rows(journal, "verify")
        assert {row["kernel"] for row in found if not row["right"]} == {names[1]}
        assert {row["kernel"] for row in found} == set(names)
        assert sum(row["kernel"] == names[0] for row in found) == 4  # whole and cut, numbers of two kinds: once each

    def test_a_part_begins_anew_as_long_as_it_gets_further(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        part, path, begun = replace(parts.PARTS[0], restarts=9), tmp_path / "part.jsonl", []

        def child(name: str, seconds: float, journal: Path, options: Any) -> dict[str, Any]:
            begun.append(name)
            if len(begun) < 4:
                Journal(journal).add("trying", kernel=len(begun))
            return {"part": name, "status": "failed with 1", "seconds": 0.0, "told": "an illegal address"}

        monkeypatch.setattr(run_on_device, "child", child)
        outcome = run_on_device.attempted(part, Budget(60), path, SimpleNamespace())  # type: ignore[arg-type]  # unused
        assert outcome["status"] == "failed with 1" and len(begun) == 4
        begun.clear()
        run_on_device.attempted(replace(part, restarts=0), Budget(60), path, SimpleNamespace())  # type: ignore[arg-type]
        assert len(begun) == 1

    def test_a_few_for_the_slow_checkers(self, gemm: HostGemm):
        assert verify.run_few(HostGpu(), gemm, 4) == 0

        def harm(plan: GpuPlan, out: Any) -> None:
            out[0, 0] = 99

        assert verify.run_few(HostGpu(), replace(gemm, harm=harm), 4) == len(verify.few(gemm, 4)) == 2


class TestMeasuring:
    def test_levels(self, gemm: HostGemm, journal: Journal, monkeypatch: pytest.MonkeyPatch):
        fake_meter(monkeypatch)
        levels.measure(gemm, "lib", journal, Budget(60))
        found = rows(journal, "level")
        (skipped,) = rows(journal, "level_skipped")
        assert len(found) == len(gemm.kernels) - 1 and skipped["kernel"].endswith("v16")
        assert skipped["why"] == "its times vary"
        assert rows(journal, "section") == [
            {
                "kind": "section",
                "library": "lib",
                "section": "levels",
                "planned": len(gemm.kernels),
                "done": len(gemm.kernels),
            }
        ]
        assert [row["kernel"][-3:] for row in found] == ["v16"] * 3 + ["_v2"] * 4, "widest first"

    def test_suites(self, gemm: HostGemm, journal: Journal):
        cases = [Case("s", "s/0", 40, 50, 60), Case("s", "s/1", 33, 20, 70, trans_b=True)]
        race.suites(HostGpu(), gemm, "lib", cases, ("cublas", "triton"), journal, Budget(60))
        found = rows(journal, "suite")
        assert [row["system"] for row in found] == ["vortex", "cublas"] * 2
        assert all(row["right"] for row in found if row["system"] == "vortex")
        assert {row["system"] for row in rows(journal, "absent")} == {"triton"}

    def test_cutlass_is_absent_or_the_fastest_of_its_kernels(self, monkeypatch: pytest.MonkeyPatch):
        """A registry that is not there, and one of three kernels: one refuses, one is slower."""
        a = b = out = torch.zeros(2, 2)
        monkeypatch.setitem(sys.modules, "cutlass.operators", None)
        with pytest.raises(rivals.Absent, match="no CUTLASS operators here"):
            rivals.rival("cutlass", "float16")(a, b, out)
        ran: list[str] = []

        class Operator(SimpleNamespace):
            def compile(self, arguments: Any) -> str:
                if self.name == "refuses":
                    raise RuntimeError("no")
                return f"artifact of {self.name}"

            def run(self, arguments: Any, compiled_artifact: str, stream: Any, assume_supported_args: bool) -> None:
                assert (arguments.a, compiled_artifact, stream) == (1, f"artifact of {self.name}", 77)
                ran.append(self.name)

        registry = SimpleNamespace(
            GemmArguments=lambda *operands, accumulator_type: SimpleNamespace(a=1),
            get_operators=lambda arguments, target_sm: [Operator(name=n) for n in names if target_sm == "90"],
        )
        monkeypatch.setitem(sys.modules, "cutlass.operators", registry)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: 77)
        monkeypatch.setattr(rivals, "_seconds", lambda call: (call(), 1.0 if ran[-1] == "quick" else 2.0)[1])
        names = ["refuses", "slow", "quick"]
        call = rivals.rival("cutlass", "float16")(a, b, out)
        ran.clear()
        call()
        assert ran == ["quick"]
        names = ["refuses"]
        with pytest.raises(rivals.Absent, match="none of 1 kernels"):
            rivals.rival("cutlass", "float16")(a, b, out)

    def test_core_types(self, gemm: HostGemm, journal: Journal):
        race.core_types(HostGpu(), gemm, "lib", [Case("f", "f/0", 1, 64, 64)], 2, journal, Budget(60))
        (row,) = rows(journal, "core_types")
        assert set(row["seconds"]) == {"adaptive", "tensor_core"}, "the library has no CUDA-core kernel"
        assert race.restricted(gemm, (Backend.CUDA_CORE,)) is None

    def test_oracle(self, gemm: HostGemm, journal: Journal):
        race.oracle(HostGpu(), gemm, "lib", [Case("f", "f/0", 65, 65, 641)], 2, journal, Budget(60))
        (row,) = rows(journal, "oracle")
        assert row["all"] and row["chosen"] in {plan["kernel"] for plan in row["plans"]}

    def test_overhead(self, gemm: HostGemm, journal: Journal):
        race.overhead(HostGpu(), gemm, "lib", journal)
        assert len(rows(journal, "overhead")) == 4 and len(rows(journal, "selection")) == 12

    def test_selection_over_shapes(self, gemm: HostGemm):
        one, other = Case("s", "s/0", 40, 50, 60), Case("s", "s/1", 8, 8, 8, trans_b=True)

        class Planner(SimpleNamespace):
            def time_selection(self, m: int, n: int, k: int, repeats: int, **layout: bool) -> float:
                assert layout == {"transpose_a": False, "transpose_b": m == 8}
                return next(self.times[m])

            def regions(self, m: int, n: int, k: int, **layout: bool) -> tuple[None, ...]:
                return (None, None) if m == 40 else (None,)

        planner = Planner(kernels=gemm.kernels, times={40: iter((9e-6, 2e-6, 3e-6)), 8: iter((1e-6,) * 3)})
        found = selection.measured("lib", planner, [one, other], 3)
        assert found.seconds == {one: 3e-6, other: 1e-6} and found.cut == {one} and found.slowest == one
        assert found.row() == "| lib | 8 | 2 | 2.00 | 3.00 (40x50x60 nn) | 1 | 3.00 |"
        assert found.row().count("|") == selection.HEAD.count("|")
        assert len({(c.m, c.n, c.k, c.layout) for c in selection.cases()}) == len(selection.cases()) > 500

    def test_cases_that_do_not_fit_are_left_out(self):
        case = Case("s", "s/0", 100_000, 100_000, 10)
        assert race.fits(case, 2, 1 << 37) and not race.fits(case, 2, 1 << 34)


class TestParts:
    def test_parts_on_a_fake_device(self, gemm: HostGemm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        fake_meter(monkeypatch)
        monkeypatch.setattr(parts.Context, "gpu", lambda self: HostGpu())
        monkeypatch.setattr(parts.Context, "libraries", lambda self, wanted=None: [("lib", gemm)])
        monkeypatch.setattr(parts, "SQUARES", (Case("squares", "squares/64", 64, 64, 64),))
        small = [Case("s", f"s/{n}", 8 * n, 64, 64) for n in range(1, 9)]
        monkeypatch.setattr(parts, "load_suite", lambda name: small)
        for name in ("verify", "suites", "levels", "figure16", "oracle", "few"):
            journal = tmp_path / f"{name}.jsonl"
            arguments = ["--part", name, "--journal", str(journal), "--seconds", "5", "--trials", "1", "--cases", "4"]
            assert run_on_device.main([*arguments, "--bundle", str(tmp_path)]) == 0
            assert name == "few" or read_journal(journal)


def measured_results(gemm: HostGemm, tmp_path: Path) -> Path:
    """A run's file, made with the host in the place of a device."""
    journal, gpu = Journal(tmp_path / "rows.jsonl"), HostGpu()
    verify.verify(gpu, gemm, "lib", journal, Budget(60), 1, 0)
    cases = [Case("s", "s/0", 40, 50, 60), *(Case("squares", f"squares/{n}", n, n, n) for n in (64, 128))]
    race.suites(gpu, gemm, "lib", cases, ("cublas",), journal, Budget(60))
    race.oracle(gpu, gemm, "lib", [Case("f", "f/0", 65, 65, 641)], 2, journal, Budget(60))
    race.overhead(gpu, gemm, "lib", journal)
    seconds = {"adaptive": 1.0, "cuda_core": 2.0, "tensor_core": 0.9}
    journal.add("core_types", library="lib", m=1, n=2, k=3, seconds=seconds, plans={}, spreads={})
    for index, kernel in enumerate(gemm.kernels):
        figures = {"alone_s": 1e-6, "full_s": 2e-6, "start_s": 1e-6, "spread": 0.5 if index == 0 else 0.02}
        journal.add("level", library="lib", kernel=kernel.variant.name, resident=2, **figures)
    journal.add("cpu", id="s/0", m=1, n=2, k=3, seconds={"1": 4.0, "2": 2.0}, numpy_s=3.0, error=0.0)
    results = {
        "bundle": {"specs": {"lib": "stub-gpu"}, "libraries": {}},
        "device": {"device": "Stub GPU", "smi": "Stub GPU, 580", "torch": "2", "cuda": "13"},
        "host": {"cpu": "a CPU", "cores": 2},
        "date": "2030-01-01T00:00:00Z",
        "parts": [{"part": "verify", "status": "done", "seconds": 1.0, "rows": 5}],
        "rows": read_journal(journal.path),
    }
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results))
    return path


class TestIngest:
    def test_a_run_becomes_a_measurement_and_a_page(self, gemm: HostGemm, tmp_path: Path):
        from vortex.gpu_profiler import recording

        (tmp_path / "vortex" / "measurements").mkdir(parents=True)
        path = measured_results(gemm, tmp_path)
        measurement, page = ingest.ingest([path], tmp_path)
        replay = recording(SimpleNamespace(name="stub-gpu"), measurement.parent)  # type: ignore[arg-type]  # a name
        assert replay.basis == "replayed" and len(replay.kernels) == len(gemm.kernels) - 1, "a restless one is left out"
        text = page.read_text()
        assert "| suites over cublas | 3 | 3 |" in text and "| oracle | 1 | 1 |" in text
        assert "all were right" in text and "| 64 | vortex |" in text and "Figure 16" in text
        assert "| 1 | 0.900 | 0.900 | 2.00 |" in text and "CPU library on a CPU" in text
        ingest.ingest([path], tmp_path)
        assert len(recording(SimpleNamespace(name="stub-gpu"), measurement.parent).kernels) == len(replay.kernels)  # type: ignore[arg-type]  # a name

    def test_parts_may_come_from_several_runs_on_one_device(self, gemm: HostGemm, tmp_path: Path):
        results = json.loads(measured_results(gemm, tmp_path).read_text())
        results["bundle"]["libraries"] = {"lib.vortex": "one"}
        checked, timed = ({**results, "rows": [], "parts": [{"part": name}]} for name in ("verify", "suites"))
        checked["rows"], timed["rows"] = results["rows"][:3], results["rows"][3:]
        both = ingest.joined([checked, timed])
        assert both["rows"] == results["rows"] and [part["part"] for part in both["parts"]] == ["verify", "suites"]
        for other in (
            {**timed, "device": {**results["device"], "device": "Another GPU"}},
            {**timed, "bundle": {**results["bundle"], "libraries": {"lib.vortex": "two"}}},
        ):
            with pytest.raises(ingest.IngestError, match="ingest each alone"):
                ingest.joined([checked, other])

    def test_what_is_asked_stands_beside_what_was_found(self, gemm: HostGemm, tmp_path: Path):
        path = measured_results(gemm, tmp_path)
        results = json.loads(path.read_text())
        timed = {"library": "lib", "part": "suites", "n": 4096, "k": 4096, "dtype": "float16", "cold_s": 1.0}
        timed |= {"flops": 1.0, "warm_spread": 0.0, "predicted_s": 1.0}
        kept = [row for row in results["rows"] if row["kind"] not in ("suite", "overhead", "selection")]
        for m, suite, ours, theirs in ((1, "s", 1.0, 1.5), (129, "s", 2.0, 2.0), (4096, "squares", 1.0, 0.5)):
            row = {"kind": "suite", **timed, "id": f"{suite}/{m}", "suite": suite, "m": m}
            kept += [row | {"system": "vortex", "warm_s": ours}, row | {"system": "cublas", "warm_s": theirs}]
            kept.append(row | {"system": "vortex", "warm_s": 99.0, "part": "triton"})
        for what, seconds in (("vortex", 7e-6), ("torch.mm", 4e-6), ("vortex(out=)", 9e-6), ("torch.mm(out=)", 3e-6)):
            kept.append({"kind": "overhead", "library": "lib", "what": what, "shape": "8x8x8", "seconds": seconds})
        kept += [{"kind": "selection", "library": "lib", "seconds": seconds} for seconds in (1e-6, 1.5e-6)]
        results["rows"] = kept
        found = {row.what: row for row in asked.demands(results, "lib", "float16")}
        told = {what: (row.found, row.met) for what, row in found.items()}
        assert told["suites over cuBLAS"] == (pytest.approx(1.5**0.5), "yes")
        assert told["suites, M <= 128"] == (pytest.approx(1.5), "yes")
        assert told["4096^3 over cuBLAS"] == (pytest.approx(0.5), "NO")
        assert told["8192^3 over cuBLAS"] == (None, "not measured")
        assert told["a call beyond torch.mm's, us of the host"] == (pytest.approx(6), "NO")
        assert told["the slowest selection, us"] == (pytest.approx(1.5), "yes")
        assert told["adaptive choice, of the better core type, the worst case"] == (pytest.approx(0.9), "NO")
        assert told["adaptive choice, over the worse core type"] == (pytest.approx(2), "yes")
        assert "suites over cuBLAS" not in {row.what for row in asked.demands(results, "lib", "int8")}
        text = ingest.page(results, "stub-gpu")
        assert "| 4096^3 over cuBLAS | at least 0.85 | 0.50 | NO |" in text
        assert "| the slowest selection, us | at most 2 | 1.50 | yes |" in text
        results["rows"] = [row for row in results["rows"] if row["kind"] in ("verify", "verify_done")]
        assert "asked of the library" not in ingest.page(results, "stub-gpu"), "a library that no suite is for"

    @pytest.mark.parametrize("how", ["out of time", "ended early", "some kernels"])
    def test_an_unfinished_verification_is_in_the_headline(self, gemm: HostGemm, tmp_path: Path, how: str):
        results = json.loads(measured_results(gemm, tmp_path).read_text())
        assert "did not finish" not in ingest.page(results, "stub-gpu")
        done = next(row for row in results["rows"] if row["kind"] == "verify_done")
        if how == "out of time":
            done["finished"] = False
        elif how == "ended early":
            results["rows"].remove(done)
        else:
            results["rows"] = [row for row in results["rows"] if row.get("kernel") != gemm.kernels[0].variant.name]
        title, _, headline = ingest.page(results, "stub-gpu").splitlines()[:3]
        assert title == "# stub-gpu" and headline.startswith("**Verification did not finish: lib: ")

    def test_wrong_kernels_are_no_measurement(self, gemm: HostGemm, tmp_path: Path, capsys: pytest.CaptureFixture):
        path = measured_results(gemm, tmp_path)
        results = json.loads(path.read_text())
        results["rows"][0]["right"] = False
        path.write_text(json.dumps(results))
        assert ingest.main([str(path)]) == 1 and "1 checks failed" in capsys.readouterr().err

    def test_a_foreign_file(self, tmp_path: Path):
        path = tmp_path / "x.json"
        for text in ("[", "{}"):
            path.write_text(text)
            with pytest.raises(ingest.IngestError, match="run_on_device"):
                ingest.load(path)
