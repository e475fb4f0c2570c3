"""Reductions in the run on a GPU machine: real door, fake driver, NumPy for kernels, torch tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu_doubles
import pytest
from gpu_doubles import ExchangeTensor, StubDriver
from needs import a_compiler, an_emulator
from reductions import computing, of_kind, with_room
from test_codegen_cuda import an_nvrtc

from eval.gpu import asked, ingest, parts
from eval.gpu.budget import Budget, Journal, read_journal
from eval.operator_cases import OperatorCase, reductions
from vortex.gpu_library import GpuLibrary, write
from vortex.gpu_reduction import PIECE, WIDE
from vortex.gpu_reduction_launcher import GpuReduce
from vortex.reduction import KINDS
from vortex.reduction_tiles import Family

torch = pytest.importorskip("torch")

from test_eval_gpu import HostGpu  # noqa: E402  # these import torch
from test_gpu_reduction_launcher import emulating  # noqa: E402

from eval.gpu import kinds, reduction_race, reduction_verify  # noqa: E402

pytestmark = [a_compiler, an_nvrtc]

SMALL = tuple(
    OperatorCase(
        "reductions", f"reductions/{place}", "reduce", dict(zip(("outer", "depth", "inner"), view, strict=True))
    )
    for place, view in enumerate(((1, 40_000, 1), (64, 100, 1), (3, 50, 24)))
)


@dataclass
class Handed:
    """A library's callable that is handed torch tensors of the host; `harm` spoils a result."""

    reduce: GpuReduce
    harm: Callable[[Any], None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reduce, name)

    def __call__(self, x: Any, axis: Any, out: Any = None) -> Any:
        return self.reduce(self.handed(x), axis, None if out is None else self.handed(out))

    def run_planned(self, plan: Any, x: Any, axis: Any, out: Any) -> None:
        self.reduce.run_planned(plan, self.handed(x), axis, self.handed(out))
        if self.harm is not None:
            self.harm(out)

    @staticmethod
    def handed(tensor: Any) -> ExchangeTensor:
        return ExchangeTensor(tensor.numpy())


def opened(driver: StubDriver, library: GpuLibrary, kind: str = "sum", names: list[str] | None = None) -> Handed:
    small = with_room(library if kind == "sum" else of_kind(library, kind), 1 << 20)
    reduce = GpuReduce(small, 0)
    driver.on_launch(computing(reduce, names))
    return Handed(reduce)


def rows(journal: Journal, kind: str) -> list[dict[str, Any]]:
    return [row for row in read_journal(journal.path) if row["kind"] == kind]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "part.jsonl")


class TestVerify:
    @pytest.mark.parametrize("kind", KINDS)
    def test_right_kernels_pass(self, driver: StubDriver, reduction_library: GpuLibrary, journal: Journal, kind: str):
        reduce = opened(driver, reduction_library, kind)
        reduction_verify.verify(HostGpu(), reduce, "lib", journal, Budget(600), 2, 0)
        found = rows(journal, "verify")
        symbols = {entry.symbol for entry in reduce.manifest.entries}
        assert all(row["right"] and row["same"] for row in found) and {row["kernel"] for row in found} == symbols
        assert [kernel for kernel, _ in groupby(row["kernel"] for row in found[: 2 * len(symbols)])] == [
            reduce.selector.blocks[tile].symbol(kind, vector) for tile, vector in reduction_verify.entries(reduce)
        ], "one trial of each before any other"
        for symbol in symbols:
            tried = {
                (row["integers"], row["parts"] > 1, len(row["axes"]) > 1) for row in found if row["kernel"] == symbol
            }
            assert tried == {
                (integers, *how) for integers in (True, False) for how in ((False, False), (True, False), (False, True))
            }
        (done,) = rows(journal, "verify_done")
        assert done["finished"] and done["kernels"] == len(symbols) and done["trials"] == 4 * len(symbols)
        assert asked.unverified({"rows": read_journal(journal.path)}, ["lib"]) == []

    def test_trials_run_the_kernels_they_are_for(self, driver: StubDriver, reduction_library: GpuLibrary):
        """By the access that the door chooses: the moved operand may lead to the twin, and a second sweep to any."""
        names: list[str] = []
        reduce, gpu = opened(driver, reduction_library, names=names), HostGpu()
        for tile, vector in reduction_verify.entries(reduce):
            block = reduce.selector.blocks[tile]
            for trial in reduction_verify.trials(block, vector, 3, 0):
                names.clear()
                assert reduction_verify.check(gpu, reduce, tile, trial, 0, True)["right"]
                plan = reduction_verify.plan_of(reduce, tile, trial)
                one = len(plan.sweeps)
                assert len(names) == 3 * one and names[0] == names[one] == block.symbol("sum", vector)
                first = plan.sweeps[0]
                assert first.chunks == trial.parts and first.outer > 2 * block.rows and first.depth > 3 * block.step
                assert block.family is Family.ROWS or first.inner > 2 * block.columns
                kept = first.depth if block.family is Family.ROWS else first.inner
                assert (kept % PIECE == 0) == (vector == WIDE or trial.shift == 1)

    @pytest.mark.parametrize("integers", [True, False])
    @pytest.mark.parametrize("kind", KINDS)
    def test_wrong_kernels_do_not(self, driver: StubDriver, reduction_library: GpuLibrary, kind: str, integers: bool):
        reduce, gpu, calls = opened(driver, reduction_library, kind), HostGpu(), [0]

        def element(out: Any) -> None:
            out.view(-1)[-1] += 0.25

        def nothing(out: Any) -> None:
            out.view(-1)[1] = float("nan")

        def outside(out: Any) -> None:
            out.as_strided((1,), (1,), out.storage_offset() + out.numel())[0] = 5

        def sometimes(out: Any) -> None:
            calls[0] += 1
            out.view(-1).view(torch.int32)[0] += calls[0] == 2  # the last bit

        for tile in (0, len(reduce.selector.blocks) - 1):
            trial = next(reduction_verify.trials(reduce.selector.blocks[tile], WIDE, 1, 0))
            for harm in (element, nothing, outside, sometimes):
                calls[0], reduce.harm = 0, harm
                row = reduction_verify.check(gpu, reduce, tile, trial, 3, integers)
                assert not row["right"] and row["same"] == (harm is not sometimes), harm
            reduce.harm = None
            assert reduction_verify.check(gpu, reduce, tile, trial, 3, integers)["right"]

    def test_the_bound_is_of_additions(self, driver: StubDriver, reduction_library: GpuLibrary):
        """By hand: four accumulators over a row of one step, its lanes, its warps."""
        selector = opened(driver, reduction_library).selector
        for index, block in enumerate(selector.blocks):
            if str(block) == "rows, threads 1x256x1":
                assert reduction_verify.additions(selector.cut(index, (9, block.step, 1), 1, False)) == 4 + 2 + 5 + 7
                assert reduction_verify.additions(selector.cut(index, (9, 3 * block.step, 1), 1, False)) == 12 + 14
                return
        raise AssertionError("no such tile")

    @an_emulator
    def test_a_few_for_the_slow_checkers(self, driver: StubDriver, reduction_library: GpuLibrary):
        """The kernels themselves, thread by thread."""
        reduce = opened(driver, reduction_library)
        driver.on_launch(emulating(reduce.reduce))
        assert reduction_verify.run_few(HostGpu(), reduce) == 0
        driver.on_launch(computing(reduce.reduce))
        reduce.harm = lambda out: out.view(-1)[0].add_(1)
        assert reduction_verify.run_few(HostGpu(), reduce) == 4


class TestRace:
    def test_the_suite(self, driver: StubDriver, reduction_library: GpuLibrary, journal: Journal):
        for kind in KINDS:
            reduce = opened(driver, reduction_library, kind)
            reduction_race.suite(HostGpu(), reduce, kind, SMALL, journal, Budget(60))
        found = rows(journal, "suite")
        assert [row["system"] for row in found] == ["vortex", "torch"] * 9
        ours = [row for row in found if row["system"] == "vortex"]
        assert all(row["right"] for row in ours)
        for row in ours:
            case = next(case for case in SMALL if case.id == row["id"])
            assert row["predicted_s"] == reduce.predict(tuple(case.extents.values()), 1)
            assert row["bytes"] == case.footprint_bytes and row["reduction"] == row["library"]
        assert {(row["done"], row["planned"]) for row in rows(journal, "section")} == {(3, 3)}

    def test_a_wrong_maximum_is_not_right(self, driver: StubDriver, reduction_library: GpuLibrary, journal: Journal):
        """One of many: no share of a bound makes it right."""
        reduce = opened(driver, reduction_library, "max")
        driver.on_launch(computing(reduce.reduce))
        x, out = reduction_race.operands(HostGpu(), SMALL[1])
        reduce(x, 1, out)
        plan = reduce.plan(tuple(x.shape), 1)
        assert reduction_verify.judged("max", plan, x, (1,), out) == {"error": 0.0, "right": True}
        out[5] += 1
        assert reduction_verify.judged("max", plan, x, (1,), out) == {"error": 1.0, "right": False}

    def test_every_plan_that_was_considered(self, driver: StubDriver, reduction_library: GpuLibrary):
        reduce = opened(driver, reduction_library)
        for case in reductions():
            view, room = tuple(case.extents.values()), reduce.manifest.workspace_bytes
            plans = list(reduction_race.considered(reduce.selector, view, room))
            assert min(plan.seconds for plan in plans) == reduce.predict(view, 1) and len(set(plans)) == len(plans)
            assert {plan.sweeps[0].index for plan in plans} == set(reduce.selector.serving(view))
            assert reduce.plan(view, 1) in plans

    def test_the_oracle(self, driver: StubDriver, reduction_library: GpuLibrary, journal: Journal):
        reduce = opened(driver, reduction_library)
        reduction_race.oracle(HostGpu(), reduce, "lib", SMALL[:1], journal, Budget(60))
        (row,) = rows(journal, "oracle")
        assert row["all"] and row["chosen"] == row["plans"][0]["kernel"] and len(row["plans"]) > 4
        predicted = [plan["predicted_s"] for plan in row["plans"]]
        assert predicted == sorted(predicted) and all(plan["s"] > 0 for plan in row["plans"])
        reduction_race.oracle(HostGpu(), reduce, "lib", SMALL, journal, Budget(0))
        assert [(row["done"], row["planned"]) for row in rows(journal, "section")] == [(1, 1), (0, 3)]

    def test_the_host_and_the_memory(self, driver: StubDriver, reduction_library: GpuLibrary, journal: Journal):
        for kind in KINDS:
            reduction_race.overhead(HostGpu(), opened(driver, reduction_library, kind), kind, SMALL, journal)
        assert len(rows(journal, "overhead")) == 12 and len(rows(journal, "selection")) == 9
        reduction_race.bandwidth(HostGpu(), journal, 1 << 20)
        (row,) = rows(journal, "bandwidth")
        assert row["bytes"] == 2 << 20 and row["seconds"] > 0


class TestParts:
    def test_libraries_of_reductions_are_opened_for_what_they_are(
        self, driver: StubDriver, reduction_library: GpuLibrary, journal: Journal, tmp_path: Path
    ):
        (tmp_path / "libraries").mkdir()
        write(reduction_library, tmp_path / "libraries" / "a100-sum.vortex")
        write(gpu_doubles.make_library(tmp_path), tmp_path / "libraries" / "stub.vortex")
        context = parts.Context(tmp_path, SimpleNamespace(jit=False), journal, Budget(60))  # type: ignore[arg-type]  # options
        for wanted, names in ((kinds.is_reduction, ["a100-sum"]), (None, ["stub"])):
            assert [name for name, _ in context.libraries(wanted)] == names
        ((_, reduce),) = context.libraries(kinds.is_reduction)
        assert isinstance(reduce, GpuReduce)
        told = {row["library"]: row["kernels"] for row in rows(journal, "library")}
        assert told == {"a100-sum": len(reduction_library.manifest.entries), "stub": 8}

    def test_parts_on_a_fake_device(
        self, driver: StubDriver, reduction_library: GpuLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        reduce = opened(driver, reduction_library)
        asked_for: list[bool] = []

        def libraries(context: Any, wanted: Any = None) -> list[tuple[str, Any]]:
            asked_for.append(wanted(reduce.manifest))
            return [("lib", reduce)]

        monkeypatch.setattr(parts.Context, "gpu", lambda self: HostGpu())
        monkeypatch.setattr(parts.Context, "libraries", libraries)
        monkeypatch.setattr(parts, "reductions", lambda: list(SMALL))
        monkeypatch.setattr(reduction_race, "COPIED_BYTES", 1 << 20)
        for name in ("verify", "reductions", "few"):
            options = SimpleNamespace(trials=1, seed=0)
            journal = Journal(tmp_path / f"{name}.jsonl")
            part = next(part for part in (*parts.PARTS, *parts.HIDDEN) if part.name == name)
            part.run(parts.Context(tmp_path, options, journal, Budget(60)))  # type: ignore[arg-type]  # options
            kinds = {row["kind"] for row in read_journal(journal.path)}
            assert (
                kinds
                == {
                    "verify": {"trying", "verify", "verify_done"},
                    "reductions": {"bandwidth", "suite", "overhead", "selection", "oracle", "section"},
                    "few": set(),
                }[name]
            )
        assert asked_for == [True] * 3
        reduce.harm = lambda out: out.view(-1)[0].add_(1)
        with pytest.raises(SystemExit, match="4 kernels are wrong"):
            parts.part_few(parts.Context(tmp_path, options, journal, Budget(60)))  # type: ignore[arg-type]  # options


class TestIngest:
    def results(self, driver: StubDriver, library: GpuLibrary, journal: Journal) -> dict[str, Any]:
        """A run's file, made with the host in the place of a device; times are set by hand."""
        reduce, gpu = opened(driver, library), HostGpu()
        reduction_verify.verify(gpu, reduce, "lib", journal, Budget(60), 1, 0)
        reduction_race.bandwidth(gpu, journal, 1 << 20)
        reduction_race.overhead(gpu, reduce, "lib", SMALL, journal)
        reduction_race.suite(gpu, reduce, "lib", SMALL, journal, Budget(60))
        reduction_race.oracle(gpu, reduce, "lib", SMALL[:1], journal, Budget(60))
        found = [row | {"part": "reductions"} for row in read_journal(journal.path)]
        for row in found:
            if row["kind"] == "suite":
                ours = row["system"] == "vortex"
                row |= {"cold_s": 2e-6 if ours else 3e-6, "warm_s": 1e-6 if ours else 0.5e-6, "cold_spread": 0.25}
                row |= {"predicted_s": 3e-6} if ours else {}
            if row["kind"] == "bandwidth":
                row |= {"bytes": 10**6, "seconds": 1e-6}
            if row["kind"] == "oracle":
                row["chosen_s"], row["plans"] = 2.0, [{"kernel": "x", "predicted_s": 1.0, "s": 1.5}]
            if row["kind"] == "overhead":
                row["seconds"] = 9e-6 if row["what"].startswith("vortex") else 3e-6
            if row["kind"] == "selection":
                row["seconds"] = 1.5e-6
        return {
            "bundle": {"specs": {"lib": "stub-gpu"}, "libraries": {}},
            "device": {"device": "Stub GPU"},
            "date": "2030-01-01T00:00:00Z",
            "parts": [{"part": "reductions", "status": "done", "seconds": 1.0, "rows": len(found)}],
            "rows": found,
        }

    def test_a_page_has_what_was_measured(self, driver: StubDriver, reduction_library: GpuLibrary, journal: Journal):
        results = self.results(driver, reduction_library, journal)
        text, entries = ingest.page(results, "stub-gpu"), len(reduction_library.manifest.entries)
        assert f"{entries} of {entries} kernels ran {6 * entries} checks" in text and "did not finish" not in text
        assert "the same bits from call to call and at every alignment); all were right" in text
        assert "| torch | cold | reductions | 3 | 1.50 | 100% | 1.50 (1x40000x1) |" in text
        assert "| torch | warm | reductions | 3 | 0.50 | 0% | 0.50 (1x40000x1) |" in text
        assert "| 1x40000x1 | 2.0 | 25% | 3.0 | 3.0 | 80 | 8% |" in text, "160 004 bytes in 2 us, a copy 1 TB/s"
        assert "Predicted against measured seconds, median error: 50%." in text
        assert "| suite over torch | 3 | 3 |" in text and "| oracle | 1 | 1 |" in text
        assert "| oracle cases | share of the fastest kernel | least |" in text and "| 1 | 0.750 | 0.750 |" in text
        assert "| call on 64x64 | us of the host |" in text and "| vortex(out=) | 9.00 |" in text

    def test_what_is_asked_stands_beside_what_was_found(
        self, driver: StubDriver, reduction_library: GpuLibrary, journal: Journal
    ):
        results = self.results(driver, reduction_library, journal)
        text = ingest.page(results, "stub-gpu")
        for line in (
            "| suite over torch, L2 flushed | at least 1 | 1.50 | yes |",
            "| suite over torch | at least 1 | 0.50 | NO |",
            "| selection, of the oracle | at least 0.95 | 0.75 | NO |",
            "| a call beyond torch's, us of the host | at most 5 | 6.00 | NO |",
            "| the slowest selection, us | at most 2 | 1.50 | yes |",
        ):
            assert line in text, line
        assert "cuBLAS" not in text
        results["rows"] = [row for row in results["rows"] if row["kind"] != "suite"]
        text = ingest.page(results, "stub-gpu")
        assert "| suite over torch | at least 1 |  | not measured |" in text and "of a copy's GB/s" not in text

    def test_wrong_reductions_are_no_measurement(
        self, driver: StubDriver, reduction_library: GpuLibrary, journal: Journal, tmp_path: Path
    ):
        import json

        results = self.results(driver, reduction_library, journal)
        next(row for row in results["rows"] if row["kind"] == "suite")["right"] = False
        path = tmp_path / "results.json"
        path.write_text(json.dumps(results))
        with pytest.raises(ingest.IngestError, match=r"1 checks failed \(reductions/0\)"):
            ingest.load(path)
