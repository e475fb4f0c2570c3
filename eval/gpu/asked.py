"""What the specification asks of a run on a GPU, and what the run has found: a row for each demand, met or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eval.gpu.budget import Row, rows_of
from eval.stats import geometric_mean

FEW_ROWS = 128
SPEED = {  # over cuBLAS, by element type: all cases of the suites, those of few rows, large squares
    "float32": (1.0, None, None),
    "float16": (1.0, 1.2, 0.85),
    "bfloat16": (1.0, 1.2, 0.85),
}
LARGE = (4096, 8192)
OF_BETTER_CORE, OVER_WORSE_CORE, OF_ORACLE = 0.98, 1.3, 0.95
CALL_US, SELECTION_US = 5.0, 2.0
OVER_TORCH = 1.0
"""Of reductions."""


@dataclass(frozen=True)
class Demand:
    """One figure: at least, or with `at_most`, at most `asked`; `found` is None where nothing was measured."""

    what: str
    asked: float
    found: float | None
    at_most: bool = False

    @property
    def met(self) -> str:
        if self.found is None:
            return "not measured"
        return "yes" if (self.found <= self.asked if self.at_most else self.found >= self.asked) else "NO"

    def cells(self) -> tuple[str, str, str, str]:
        found = "" if self.found is None else f"{self.found:.2f}"
        return self.what, f"at {'most' if self.at_most else 'least'} {self.asked:g}", found, self.met


def ratios(results: Row, library: str, system: str, mode: str) -> list[tuple[Row, float]]:
    """(our row, their seconds / ours) of every case that both were timed on, in the same part of the run."""

    def timed(system: str) -> dict[tuple[str, str], Row]:
        rows = rows_of(results, "suite", library=library, system=system)
        return {(row.get("part", ""), row["id"]): row for row in rows}

    ours, theirs = timed("vortex"), timed(system)
    pairs = [(ours[case], row) for case, row in theirs.items() if case in ours]
    return [(own, other[f"{mode}_s"] / own[f"{mode}_s"]) for own, other in pairs]


def is_of_reductions(results: Row, library: str) -> bool:
    """Whether the rows of a library are of reductions."""
    return any(row.get("op") == "reduce" for row in results["rows"] if row.get("library") == library)


def demands(results: Row, library: str, dtype: str) -> list[Demand]:
    """Of one library; speed is over cuBLAS with operands where the last call left them, geometric means.

    Of reductions it is over torch, in both states of L2.
    """
    reduces = is_of_reductions(results, library)
    return [
        *(_reductions(results, library) if reduces else _speed(results, library, dtype)),
        *_choice(results, library),
        *_host(results, library, "torch" if reduces else "torch.mm"),
    ]


def _reductions(results: Row, library: str) -> list[Demand]:
    found = {mode: [ratio for _, ratio in ratios(results, library, "torch", mode)] for mode in ("cold", "warm")}
    return [
        Demand("suite over torch, L2 flushed", OVER_TORCH, _mean(found["cold"])),
        Demand("suite over torch", OVER_TORCH, _mean(found["warm"])),
    ]


def _speed(results: Row, library: str, dtype: str) -> list[Demand]:
    if dtype not in SPEED:
        return []
    whole, few, large = SPEED[dtype]
    pairs = ratios(results, library, "cublas", "warm")
    of_suites = [(row, ratio) for row, ratio in pairs if row["suite"] != "squares"]
    found = [Demand("suites over cuBLAS", whole, _mean([ratio for _, ratio in of_suites]))]
    if few is not None:
        found.append(
            Demand(f"suites, M <= {FEW_ROWS}", few, _mean([r for row, r in of_suites if row["m"] <= FEW_ROWS]))
        )
    for size in LARGE if large is not None else ():
        ratio = [r for row, r in pairs if (row["m"], row["n"], row["k"]) == (size, size, size)]
        found.append(Demand(f"{size}^3 over cuBLAS", large or 0.0, _mean(ratio)))
    return found


def _choice(results: Row, library: str) -> list[Demand]:
    cores = [row["seconds"] for row in rows_of(results, "core_types", library=library)]
    both = [(s["adaptive"], s["cuda_core"], s["tensor_core"]) for s in cores if len(s) == 3]
    oracle = [row for row in rows_of(results, "oracle", library=library) if row["all"] and row["plans"]]
    shares = [min(plan["s"] for plan in row["plans"]) / row["chosen_s"] for row in oracle]
    found = [Demand("selection, of the oracle", OF_ORACLE, _mean(shares))]
    if both or any("cuda_core" in s for s in cores):
        better = [min(one, other) / adaptive for adaptive, one, other in both]
        worse = [max(one, other) / adaptive for adaptive, one, other in both]
        found += [
            Demand("adaptive choice, of the better core type, the worst case", OF_BETTER_CORE, min(better)),
            Demand("adaptive choice, over the worse core type", OVER_WORSE_CORE, _mean(worse)),
        ]
    return found


def _host(results: Row, library: str, theirs: str) -> list[Demand]:
    calls = {row["what"]: row["seconds"] for row in rows_of(results, "overhead", library=library)}
    pairs = [(f"vortex{given}", f"{theirs}{given}") for given in ("", "(out=)")]
    more = [calls[one] - calls[other] for one, other in pairs if {one, other} <= set(calls)]
    selections = [row["seconds"] for row in rows_of(results, "selection", library=library)]
    return [
        Demand(f"a call beyond {theirs}'s, us of the host", CALL_US, max(more) * 1e6 if more else None, at_most=True),
        Demand("the slowest selection, us", SELECTION_US, max(selections) * 1e6 if selections else None, at_most=True),
    ]


def _mean(values: Sequence[float]) -> float | None:
    return geometric_mean(values) if values else None


def unverified(results: Row, libraries: Sequence[str]) -> list[str]:
    """What of these libraries was not verified in full, in words; empty where all was."""
    told = []
    for library in libraries:
        done = next(iter(rows_of(results, "verify_done", library=library)), None)
        seen = len({row["kernel"] for row in rows_of(results, "verify", library=library)})
        if done is None:
            told.append(f"{library}: the part ended early, {seen} kernels were checked")
        elif not done["finished"] or seen < done["kernels"]:
            told.append(
                f"{library}: out of time, {seen} of {done['kernels']} kernels were checked, not all on all shapes"
            )
    return told
