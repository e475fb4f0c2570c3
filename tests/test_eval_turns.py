"""This checkout against another: whose sources run, how turns alternate, and what is made of them."""

from pathlib import Path
from typing import Any

import pytest

from eval import turns
from eval.process import WorkerProcess

STUB = """
import json, sys
print("{}", flush=True)
for line in sys.stdin:
    print(json.dumps({"versions": {"stub": __file__}}), flush=True)
"""


def test_a_side_runs_the_sources_of_its_checkout(tmp_path: Path) -> None:
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "__init__.py").write_text("")
    (tmp_path / "eval" / "worker.py").write_text(STUB)
    with WorkerProcess("vortex", 1, root=tmp_path) as worker:
        worker.start()
        assert worker.versions == {"stub": str(tmp_path / "eval" / "worker.py")}


def test_turns_alternate_and_ratios_are_of_neighbours() -> None:
    """The machine gets three times as slow in the middle; one side is twice as slow as the other throughout."""
    asked: list[str] = []

    class Side:
        def __init__(self, name: str, slow: float) -> None:
            self.name, self.slow = name, slow

        def ask(self, request: dict[str, Any]) -> dict[str, Any]:
            if request["do"] == "prepare":
                return {}
            asked.append(self.name)
            return {"best": self.slow * (1.0 if len(asked) <= 6 else 3.0)}

    sides: Any = {turns.HERE: Side("here", 1e-3), turns.OTHER: Side("other", 2e-3)}
    line = turns.raced(turns.Contest("x", {"do": "prepare"}, {"do": "measure"}), sides, 5)
    assert asked[:6] == ["here", "other", "other", "here", "here", "other"]
    assert line["ratio"] == line["least"] == line["most"] == 2
    told = turns.summary([{**line, "threads": 1, "here_commit": "new", "other_commit": "old"}])
    assert "new is 2.000 times as fast as old" in told and "| x |" in told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--shape", "1,2,3"], "expected a checkout"),
        (["--shape", "1,2"], "expected M,N,K"),
        (["--shape", "1,0,2"], "expected M,N,K"),
        ([], "expected a checkout"),
    ],
)
def test_wrong_usage_is_told(given: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        turns.main([str(tmp_path), *given])
    assert told in capsys.readouterr().err


def test_products_or_networks(capsys: pytest.CaptureFixture[str]) -> None:
    for given in ([], ["--shape", "1,2,3", "--network", "gpt2"]):
        with pytest.raises(SystemExit):
            turns.main([str(turns.ROOT), *given])
        assert "expected products" in capsys.readouterr().err


def test_suites_of_other_operators_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = turns.parser().parse_args([str(tmp_path), "--suite", "vortex_deepbench_conv_107"])
    with pytest.raises(SystemExit):
        list(turns.products(options))
    assert "vortex_deepbench_conv_107: no products" in capsys.readouterr().err
