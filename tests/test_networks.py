"""Whole networks of the evaluation: cases, how their lines become a page, and that torch is needed by workers alone."""

import math
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

pytest.importorskip("psutil")

from eval.networks.models import NETWORKS, SYSTEMS
from eval.reproduce import networks
from eval.reproduce.result import Options

CHECKOUT = Path(__file__).parent.parent


def line(rows: list[dict[str, Any]], name: str = "bert-base") -> dict[str, Any]:
    return {"id": name, "threads": 2, "rows": rows}


def row(system: str, seconds: float, extents: str = "31", again: int = 0) -> dict[str, Any]:
    return {"system": system, "input": extents, "seconds": seconds, "compilations": again}


class TestCases:
    def test_lengths_are_those_of_the_paper(self):
        lengths = [length for _, length in NETWORKS["bert-base"].inputs]
        assert (len(lengths), min(lengths), max(lengths)) == (17, 1, 476)

    def test_a_smoke_run_takes_few(self):
        every, few = (networks.networks(Options(2, smoke=smoke)) for smoke in (False, True))
        assert [case.id for case in every] == list(NETWORKS) and len(few) < len(every)

    def test_inputs_are_spread_over_all(self):
        every = networks.inputs_of("resnet18", Options(2))
        few = networks.inputs_of("resnet18", Options(2, inputs=5))
        assert sorted(every) == sorted(NETWORKS["resnet18"].inputs) and few == every[:5]
        assert {size for *_, size in few} > {224} and max(batch for batch, *_ in few) > 1


class Worker:
    """A system that takes a second for a thousand elements, on a clock of its own."""

    clock = 0.0
    versions: ClassVar[dict[str, str]] = {}

    def __init__(self, system: str, threads: int, module: str) -> None:
        pass

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def ask(self, request: dict[str, Any], timeout: float = 0.0) -> dict[str, Any]:
        match request["do"]:
            case "prepare":
                Worker.clock += math.prod(request["input"]) / 1000 / len(SYSTEMS)
                return {"difference": 0.0, "compilations": 0}
            case "open":
                return {"seconds": 1.0}
        return {"calls": 1, "best": 1.0, "median": 1.0}


@pytest.mark.parametrize(("seconds", "lengths"), [(0.0, {"1"}), (0.4, {"1", "31", "120", "238"}), (math.inf, None)])
def test_inputs_that_no_longer_fit_are_left_out(
    monkeypatch: pytest.MonkeyPatch, seconds: float, lengths: set[str] | None
):
    monkeypatch.setattr(Worker, "clock", 0.0)
    monkeypatch.setattr(networks, "WorkerProcess", Worker)
    monkeypatch.setattr(networks, "undisturbed", lambda timed, options: timed())
    monkeypatch.setattr(networks, "time", SimpleNamespace(monotonic=lambda: Worker.clock))
    with ExitStack() as stack:
        one = networks.open_networks(Options(2, allow_busy=True), stack)
        rows = one(networks.within(networks.Whole("bert-base"), seconds))
    found = [row["input"] for row in rows if "input" in row and row["system"] == "vortex"]
    assert found == sorted(found, key=int)
    assert set(found) == (lengths or {str(length) for _, length in NETWORKS["bert-base"].inputs})


class TestPage:
    def test_speedups_are_of_the_fastest_rival_that_ran(self):
        lines = [line([row("vortex", 1.0), row("eager", 3.0), row("inductor", 2.0), row("onnxruntime", 1.5)])]
        assert networks.speedups(lines, "bert-base", "eager") == {"31": 3.0}
        assert networks.speedups(lines, "bert-base", "best") == {"31": 1.5}
        assert networks.speedups([line([row("eager", 3.0)])], "bert-base", "eager") == {}

    def test_what_is_slower_or_was_compiled_again_or_failed_is_told(self):
        rows = [row("vortex", 1.0, again=2), row("eager", 3.0), row("inductor", 0.5)]
        page = networks.fig13([line([*rows, {"system": "onnxruntime", "error": "no exporter"}])])
        told = "\n".join(page.blocks)
        assert page.losses == ["- bert-base, 31: 0.50 of the best rival"]
        assert (
            "2 in 1 of 17 inputs" in told and "no exporter" in told and "| bert-base | 3.00 | 0.50 | - | 0.50 |" in told
        )


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_can_be_made_and_run(name: str):
    pytest.importorskip("transformers", reason="the language models are its classes")
    torch = pytest.importorskip("torch")
    from eval.networks.build import input_of, made
    from eval.networks.systems import RUNNERS

    assert tuple(RUNNERS) == SYSTEMS
    if name in ("bert-large", "roberta", "distilbert", "vgg16"):
        pytest.skip("as large as it is; its kin are run")
    with torch.no_grad():
        module = made(name, small=True)
        first = [module(input_of(extents, 0)) for extents in NETWORKS[name].first]
    assert all(torch.isfinite(found).all() for found in first)


def test_cases_need_no_torch():
    program = (
        "import sys; sys.modules['torch'] = None; from eval.reproduce.registry import result; "
        "assert len(result('fig13').cases(__import__('eval.reproduce.result').reproduce.result.Options(2))) == 10"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=CHECKOUT)
