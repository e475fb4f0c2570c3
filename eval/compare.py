"""From result lines to comparisons: one table of seconds, speedups over each peer and over the best of them. Pure."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eval.operator_cases import shape_of
from eval.records import Line
from eval.registry import RIVALS
from eval.stats import Speedup, deciles, geometric_mean, speedup

BEST = "best of all"
MKL_WAYS = ("mkl", "mkl_cblas")
MKL_EITHER = "MKL (the quicker of torch.mm and cblas_sgemm)"
LARGE = 10_000_000
"""Flops from which a case counts for the share of the roofline that is aimed at."""
Setting = tuple[int, str]  # threads, mode


@dataclass(frozen=True, slots=True)
class Table:
    """Seconds of every system on every case, at one number of threads and one cache mode."""

    threads: int
    mode: str
    lines: dict[str, dict[str, Line]]  # case id -> system -> line

    @property
    def title(self) -> str:
        return f"{self.threads} thread{'s' if self.threads > 1 else ''}, {self.mode} caches"

    def systems(self) -> list[str]:
        return sorted({system for by_system in self.lines.values() for system in by_system})

    def seconds(self, case: str, system: str) -> float | None:
        line = self.lines[case].get(system)
        return None if line is None or line["error"] is not None else float(line["seconds"])

    def measured(self, system: str) -> bool:
        """Whether the system has a timing of any case."""
        return any(self.seconds(case, system) is not None for case in self.lines)

    def flops(self, cases: Iterable[str]) -> dict[str, int]:
        return {case: next(iter(self.lines[case].values()))["flops"] for case in cases}

    def by_suite(self) -> dict[str, list[str]]:
        suites: dict[str, list[str]] = {}
        for case, by_system in self.lines.items():
            suites.setdefault(next(iter(by_system.values()))["suite"], []).append(case)
        return dict(sorted(suites.items()))


def tables(lines: Iterable[Line]) -> list[Table]:
    """One table per number of threads and mode."""
    found: dict[Setting, dict[str, dict[str, Line]]] = {}
    for line in lines:
        setting = found.setdefault((line["threads"], line["mode"]), {})
        setting.setdefault(line["id"], {})[line["system"]] = line
    return [Table(threads, mode, cases) for (threads, mode), cases in sorted(found.items())]


def baselines(ours: str, table: Table) -> list[str]:
    """The peers that were tried, the quicker of MKL's two ways where both were timed, and the best of all."""
    present = set(table.systems())
    peers = [peer for peer in RIVALS.get(ours, ()) if peer in present]
    if set(MKL_WAYS) <= set(peers) and all(table.measured(way) for way in MKL_WAYS):
        peers.insert(peers.index(MKL_WAYS[-1]) + 1, MKL_EITHER)
    return [*peers, BEST] if peers else []


def _members(baseline: str, ours: str) -> Sequence[str]:
    if baseline == BEST:
        return RIVALS[ours]
    return MKL_WAYS if baseline == MKL_EITHER else (baseline,)


def pairs(table: Table, ours: str, baseline: str, cases: Iterable[str] | None = None) -> list[tuple[str, float, float]]:
    """(case, seconds of the baseline, our seconds) where both exist."""
    found = []
    for case in table.lines if cases is None else cases:
        mine = table.seconds(case, ours)
        theirs = [t for t in (table.seconds(case, peer) for peer in _members(baseline, ours)) if t is not None]
        if mine is not None and theirs:
            found.append((case, min(theirs), mine))
    return found


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, numbers to the right."""
    listed = list(rows)
    right = [i > 0 and all(row[i][:1].isdigit() or row[i][:1] in "-+" for row in listed) for i in range(len(header))]
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join("---:" if side else "---" for side in right) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in listed])


def _row(label: str, result: Speedup | None, slack: Speedup | None) -> list[str]:
    if result is None or slack is None:
        return [label, "0", *["-"] * 5]
    figures = (f"{result.arithmetic:.2f}", f"{result.geometric:.2f}", f"{result.worst:.2f} ({result.worst_id})")
    return [label, str(result.cases), f"{result.wins:.1%}", f"{slack.wins:.1%}", *figures]


def overall(table: Table, ours: str) -> str:
    """Win rate, means and worst case against each baseline."""
    header = ("speedup over", "cases", "faster", "within 2 %", "arithmetic mean", "geometric mean", "worst")
    rows = []
    for baseline in baselines(ours, table):
        found = pairs(table, ours, baseline)
        rows.append(_row(baseline, speedup(found), speedup(found, tolerance=0.02)))
    return markdown(header, rows)


def grouped(table: Table, ours: str, groups: dict[str, list[str]], first: str) -> str:
    """Geometric-mean speedup of every group of cases against every baseline, and the worst against the best."""
    names = baselines(ours, table)
    rows = []
    for label, cases in groups.items():
        results = [speedup(pairs(table, ours, name, cases)) for name in names]
        worst = results[-1] if results else None
        means = [f"{result.geometric:.2f}" if result else "-" for result in results]
        rows.append([label, str(len(cases)), *means, f"{worst.worst:.2f}" if worst else "-"])
    return markdown((first, "cases", *names, "worst over best"), rows)


def decile_groups(table: Table) -> dict[str, list[str]]:
    flops = table.flops(table.lines)
    groups: dict[str, list[str]] = {}
    for cases in deciles(flops):
        low, high = _flop(flops[cases[0]]), _flop(flops[cases[-1]])
        groups.setdefault(low if low == high else f"{low} to {high}", []).extend(cases)
    return groups


def _flop(count: int) -> str:
    for unit, size in (("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} FLOP"


def roofline(table: Table) -> str:
    """Share of the roofline and speed of each system."""
    rows = []
    for system in table.systems():
        lines = [row[system] for row in table.lines.values() if system in row and row[system]["error"] is None]
        if not lines:
            continue
        large = [line for line in lines if line["flops"] > LARGE]
        means = [
            f"{geometric_mean(line['roofline_share'] for line in some):.3f}" if some else "-" for some in (lines, large)
        ]
        spread = statistics.median(line["spread"] for line in lines)
        speed = geometric_mean(line["gflops"] for line in lines)
        rows.append([system, str(len(lines)), f"{speed:.1f}", means[0], f"{means[1]} ({len(large)})", f"{spread:.1%}"])
    header = ("system", "cases", "GFLOP/s, geo. mean", "share of roofline", "over 10 MFLOP (cases)", "median spread")
    return markdown(header, rows)


def losing(table: Table, ours: str, count: int = 15) -> str:
    """The cases with the lowest speedup over the best peer."""
    found = sorted(pairs(table, ours, BEST), key=lambda pair: pair[1] / pair[2])[:count]
    rows = []
    for case, theirs, mine in found:
        line = table.lines[case][ours]
        peers = {peer: table.seconds(case, peer) for peer in RIVALS[ours]}
        best = min((peer for peer in peers if peers[peer] is not None), key=lambda peer: peers[peer] or 0.0)
        rows.append(
            [case, shape_of(line), f"{theirs / mine:.2f}", best, f"{mine * 1e6:.1f}", f"{line['roofline_share']:.2f}"]
        )
    return markdown(("case", "shape", "speedup over best", "best peer", "our us", "share of roofline"), rows)
