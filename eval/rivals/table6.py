"""Table 6 of the paper: Vortex over the DietCode method, which was given the shapes with M in [128, 256).

Inside its samples DietCode runs what it was tuned for; outside, its decision tree extrapolates and its micro-kernels
pad: besides, they are timed with their choice unchanged but the residues partitioned as Vortex does, which tells the
cost of the padding from that of the choice. Beside that, how many of the shapes a program made for the sampled range
could run at all (MikPoly's Table 6).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from eval.compare import markdown
from eval.rivals.budget import verdict
from eval.rivals.dietcode import program_of, valid
from eval.rivals.dispatch import Tree, compiled
from eval.rivals.searched import Searched, searched
from eval.rivals.setting import Bench, Row, median_spread
from eval.stats import geometric_mean
from eval.suites import Case, load_suite, relayout

SAMPLED = (128, 256)
RANGES = ((0, 128), (128, 256), (256, 384))
PUBLISHED = {"[0, 128)": 2.8, "[128, 256)": 1.4, "[256, 384)": 2.1}
"""Mean speedups that the paper prints (Table 6; A100, CUDA cores)."""
OWN_BEST = ("best_plan", "best_grid")
OWN = (
    "Why: seconds over those of Vortex's choice, of the plan of its library that runs quickest (what selection loses; "
    "the rest is the library's), and of its strategies on every grid of up to 16 x 8 tasks, more than it considers."
)


def cases() -> list[Case]:
    """The 96 shapes (M, 768, 2304), M = 1, 5, ..., 381. With B transposed only packing micro-kernels could serve."""
    return relayout(load_suite("vortex_table6_96"), "nn")


def range_of(m: int) -> str:
    low, high = next((low, high) for low, high in RANGES if low <= m < high)
    return f"[{low}, {high})"


def samples(shapes: Sequence[Case]) -> list[Case]:
    return [case for case in shapes if SAMPLED[0] <= case.m < SAMPLED[1]]


@dataclass(frozen=True)
class Experiment:
    """DietCode tuned with a budget that is enough, and with twice of it."""

    bench: Bench
    found: Searched
    samples: list[Case]

    def measure(self, case: Case) -> list[Row]:
        """Vortex, the best that its library can do, and DietCode of either budget, in turns; results are checked."""
        runner = self.bench.runner
        programs = {
            name: program_of(tree.choose(case.m, case.n, case.k), case)
            for name, tree in (("dietcode", self.found.once), ("dietcode_twice", self.found.twice))
        }
        for program in programs.values():
            runner.verify_program(program, case)
        partitioned = replace(programs["dietcode"], partitioned=True)
        same = programs["dietcode"] == programs["dietcode_twice"]
        calls = {"vortex": runner.ours(case), "dietcode": runner.program(programs["dietcode"], case)}
        calls["partitioned"] = runner.program(partitioned, case)
        for name, grids in zip(OWN_BEST, (False, True), strict=True):
            plans = runner.plans(case, grids)
            calls[name] = plans[self.bench.fastest(plans)]
            runner.verify(calls[name], case, case.m, case.n)
        if not same:
            calls["dietcode_twice"] = runner.program(programs["dietcode_twice"], case)
        raced = self.bench.race(calls)
        seconds = {name: found.seconds for name, found in raced.items()}
        seconds["vortex"] += runner.selection(case)
        if same:
            seconds["dietcode_twice"] = seconds["dietcode"]
        about = {
            "id": case.id,
            "m": case.m,
            "range": range_of(case.m),
            "speedup": seconds["dietcode"] / seconds["vortex"],
            "useful": programs["dietcode"].useful,
            "kernel": str(programs["dietcode"].kernel),
            "valid": valid(self.found.once, self.samples, [case])[0],
            "spread": max(found.spread for found in raced.values()),
            "tuning": self.found.told() | {"vortex_offline_seconds": self.bench.offline_seconds()},
        }
        return [about | seconds]


def opened(bench: Bench) -> Experiment:
    """Searches; the exported dispatcher is compared with the tree."""
    given = samples(cases())
    found = searched(bench, given, bench.setting.trials)
    check_export(found.once, cases())
    return Experiment(bench, found, given)


def check_export(tree: Tree, shapes: Sequence[Case]) -> None:
    """The exported C chooses what the tree chooses."""
    dispatch = compiled(tree.source)
    for case in shapes:
        chosen = tree.kernels[dispatch(case.m, case.n, case.k)]
        if chosen != tree.choose(case.m, case.n, case.k):
            raise AssertionError(f"{case}: the exported dispatcher chooses {chosen}")


def tables(rows: Sequence[Row]) -> list[str]:
    """The table beside the paper's, and what the rival was allowed."""
    lines = []
    for name, paper in PUBLISHED.items():
        of = [row for row in rows if row["range"] == name]
        if not of:
            continue
        ratios = [row["speedup"] for row in of]
        lines.append(
            [
                name + (" (sampled)" if name == f"[{SAMPLED[0]}, {SAMPLED[1]})" else ""),
                str(len(of)),
                f"{sum(ratios) / len(ratios):.2f}x",
                f"{geometric_mean(ratios):.2f}x",
                f"{min(ratios):.2f}x",
                f"{paper}x",
                f"{geometric_mean(row['partitioned'] / row['vortex'] for row in of):.2f}x",
                *(over(of, name) for name in OWN_BEST),
                f"{sum(row['useful'] for row in of) / len(of):.0%}",
                f"{sum(row['valid'] for row in of)} of {len(of)}",
            ]
        )
    speedups = ("mean speedup", "geometric mean", "worst", "the paper (A100)", "geometric mean, partitioned")
    own = ("its library's best plan", "its best on any grid")
    header = ("M", "cases", *speedups, *own, "useful", "valid runs")
    return [markdown(header, lines), OWN, budget(rows)]


def over(rows: Sequence[Row], name: str) -> str:
    """Seconds of a call over those of Vortex's choice; a dash for lines that were measured without it."""
    return f"{geometric_mean(row[name] / row['vortex'] for row in rows):.2f}" if name in rows[0] else "-"


def budget(rows: Sequence[Row]) -> str:
    inside = [row for row in rows if SAMPLED[0] <= row["m"] < SAMPLED[1]] or list(rows)
    once, twice = ([row[name] for row in inside] for name in ("dietcode", "dietcode_twice"))
    tuning: dict[str, Any] = rows[0]["tuning"]
    told = verdict(once, twice, median_spread(inside), tuning.get("bounded", False))
    return (
        f"DietCode: {tuning['samples']} sampled shapes, {tuning['space']:,} micro-kernels, {tuning['trials']:,} trials "
        f"in {tuning['seconds']:.0f} s (nothing is compiled in them; Vortex's whole offline time is "
        f"{tuning['vortex_offline_seconds']:.0f} s), {tuning['kernels']} micro-kernels dispatched, f_OCC with k = "
        f"{tuning['occupancy_slope']:.2f}; {told}. Spread of a timing over its rounds: median "
        f"{median_spread(rows):.1%}."
    )
