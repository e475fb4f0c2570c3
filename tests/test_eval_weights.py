"""The comparison of quantized weights: turns of the systems, a budget, going on, the table."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ml_dtypes")

from eval import weights

LINE = {"m": 1, "n": 4096, "k": 4096, "error": 1e-6}
SECONDS = {"float32": 4e-3, "int8": 1e-3, "int4": 2e-3}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The turns that were taken; nothing is compiled or run."""
    turns: list[tuple[str, int]] = []

    def answer(system: str, threads: int, options: Any) -> list[dict[str, Any]]:
        turns.append((system, threads))
        return [{**LINE, "system": system, "threads": threads, "seconds": SECONDS[system] * len(turns)}]

    monkeypatch.setattr(weights, "ask", answer)
    monkeypatch.setattr(weights, "compile_library", lambda *given: None)
    monkeypatch.setattr(weights.machine, "check_idle", lambda: None)
    return turns


def test_a_run_goes_on_where_its_time_was_up(
    asked: list[tuple[str, int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "weights.jsonl"
    run = ["--threads", "2", "--systems", "int8", "--rounds", "2", "--out", str(out), "--resume"]
    weights.main([*run, "--max-seconds", "-1"])
    assert asked == [] and "stopped before round 0" in capsys.readouterr().err
    weights.main([*run[:4], "--rounds", "1", *run[6:]])
    assert asked == [("float32", 2), ("int8", 2)]
    weights.main(run)
    assert asked[2:] == [("float32", 2), ("int8", 2)]
    assert [json.loads(line)["round"] for line in out.read_text().splitlines()] == [0, 0, 1, 1]
    weights.main(run)
    assert len(asked) == 4
    assert "| 2 | 1 x 4096 x 4096 | 8.00 | 2.67 |" in capsys.readouterr().out  # (4 + 12) / 2 over (2 + 4) / 2 ms
    weights.main(run[:-1])
    assert len(asked) == 8


def test_what_was_not_measured_has_no_figure() -> None:
    lines = [{**LINE, "system": name, "threads": 1, "seconds": SECONDS[name]} for name in ("float32", "int8")]
    told = weights.table(weights.summary(lines), ["float32", "int8", "int4"])
    assert "| 1 | 1 x 4096 x 4096 | 4.00 | 4.00 | - |" in told
    assert weights.table(weights.summary(lines[1:]), ["float32", "int8"]).count("\n") == 1


def test_a_wrong_result_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ran:
        stdout = json.dumps({**LINE, "error": 1e-3, "system": "int8", "threads": 1, "seconds": 1.0})

    monkeypatch.setattr(weights.subprocess, "run", lambda *given, **more: Ran)
    options = type("Options", (), {"seconds": 0.1, "rows": [1]})
    with pytest.raises(ArithmeticError, match="more than 1e-4"):
        weights.ask("int8", 1, options)
