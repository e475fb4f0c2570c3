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

from eval.networks.models import NETWORKS, SYSTEMS, WARM_CALLS
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

    def test_batches_are_those_of_the_paper(self):
        batches = [batch for batch, *_, size in NETWORKS["vgg16"].inputs if size == 224]
        assert batches == [1, *range(4, 65, 4)] and len(batches) == 17

    def test_a_smoke_run_takes_few(self):
        every, few = (networks.networks(Options(2, smoke=smoke)) for smoke in (False, True))
        assert [case.id for case in every] == list(NETWORKS) and len(few) < len(every)

    def test_inputs_are_spread_over_all(self):
        every = networks.inputs_of("resnet18", Options(2))
        few = networks.inputs_of("resnet18", Options(2, inputs=5))
        assert sorted(every) == sorted(NETWORKS["resnet18"].inputs) and few == every[:5]
        assert {size for *_, size in few} > {224} and max(batch for batch, *_ in few) > 1


class Worker:
    """A system of which a call takes a millisecond for each element, on a clock of its own."""

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
                self.call = math.prod(request["input"]) / 1000
                Worker.clock += (1 + WARM_CALLS) * self.call
                return {"difference": 0.0, "compilations": 0}
            case "open":
                return {"seconds": 1.0, "call_s": math.prod(NETWORKS[request["network"]].first[-1]) / 1000}
            case "count":
                return {"compilations": 1}
        Worker.clock += max(request["seconds"], self.call)
        return {"calls": 1, "best": self.call, "median": self.call}


@pytest.mark.parametrize(
    ("seconds", "lengths"), [(0.0, {"1"}), (11.0, {"1", "120"}), (25.0, {"1", "60", "476"}), (math.inf, None)]
)
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
    every = {str(length) for _, length in NETWORKS["bert-base"].inputs}
    found = [row["input"] for row in rows if "input" in row and row["system"] == "vortex"]
    assert found == sorted(found, key=int) and set(found) == every, "what is compiled is counted over all inputs"
    measured = [row["input"] for row in rows if "seconds" in row and row["system"] == "vortex"]
    assert set(measured) == (lengths or every)
    page = networks.fig13([line(rows)])
    assert f"{len(every) - len(measured)} in 17 of 17 inputs" in "\n".join(page.blocks)


def test_programs_compiled_for_an_input_are_counted(monkeypatch: pytest.MonkeyPatch):
    torch = pytest.importorskip("torch")
    from eval.networks import systems, worker

    class Traced(systems.Compiled):
        def load(self, module: Any, example: Any) -> Any:
            return torch.compile(module, dynamic=True, backend="eager")

    class Asks(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.sum() if x.shape[-1] > 100 else x.mean()

    monkeypatch.setitem(systems.RUNNERS, "traced", Traced)
    monkeypatch.setattr(worker, "made", lambda name, small: Asks())
    one = worker.Worker("traced", torch.get_num_threads())
    one.answer({"do": "open", "network": "alexnet", "small": True})
    again = [one.answer({"do": "count", "input": (1, 3, size, size), "seed": 0}) for size in (64, 224, 128)]
    assert [answer["compilations"] for answer in again] == [0, 1, 0]


def test_pooling_to_a_given_size_is_exported():
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from eval.networks import systems

    layers = torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(6), torch.nn.Dropout(), torch.nn.Flatten()
    module = torch.nn.Sequential(*layers).eval()
    with torch.no_grad():
        run = systems.OnnxRuntime(torch.get_num_threads()).load(module, torch.zeros(1, 3, 15, 15))
        for extents in ((1, 3, 15, 15), (2, 3, 15, 15), (1, 3, 8, 8), (2, 3, 4, 22)):
            x = torch.randn(extents)
            assert torch.allclose(run(x), module(x), atol=1e-5)
    assert not module.training and not layers[2].training, "the exporter leaves the layers as they were"


class TestPage:
    def test_speedups_are_of_the_fastest_rival_that_ran(self):
        lines = [line([row("vortex", 1.0), row("eager", 3.0), row("inductor", 2.0), row("onnxruntime", 1.5)])]
        assert networks.speedups(lines, "bert-base", "eager") == {"31": 3.0}
        assert networks.speedups(lines, "bert-base", "best") == {"31": 1.5}
        assert networks.speedups([line([row("eager", 3.0)])], "bert-base", "eager") == {}
        (_, table) = networks.fig13(
            [line([row("vortex_modules", 2.0), row("eager", 3.0), row("inductor", 4.0)])]
        ).blocks
        assert "| bert-base | - | - | - | - | 1.50 | 2.00 |" in table

    def test_what_is_slower_or_was_compiled_again_or_failed_is_told(self):
        rows = [row("vortex", 1.0, again=2), row("eager", 3.0), row("inductor", 0.5)]
        page = networks.fig13([line([*rows, {"system": "onnxruntime", "error": "no exporter"}])])
        told = "\n".join(page.blocks)
        assert "| - | - | 2 in 1 of" in told, "no swapped modules were measured"
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
