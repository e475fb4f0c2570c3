"""MikPoly's Tables 6 and 7 on DietCode: the wider its range of M, the worse its choice.

(M, 3072, 768); DietCode samples eight M evenly over [1, end] for each of five ends. Counted: the shapes M = 1, ...,
8192 that a program made for that range can run. Measured: M in [1, 128], Vortex over DietCode.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from eval.compare import markdown
from eval.rivals.budget import verdict
from eval.rivals.dietcode import program_of, valid
from eval.rivals.searched import searched
from eval.rivals.setting import Bench, Row, median_spread
from eval.stats import geometric_mean
from eval.suites import Case

N, K = 3072, 768
ENDS = (128, 512, 1024, 2048, 8192)
SAMPLES, COUNTED, MEASURED, STEP = 8, 8192, 128, 4
RIVALS = ("dietcode",)
PUBLISHED = {128: (254, 1.68), 512: (572, 1.81), 1024: (1136, 1.92), 2048: (2144, 2.25), 8192: (8192, 2.37)}
"""Valid runs of DietCode, and speedups of MikPoly over it inside the range (A100)."""


def case_of(m: int, end: int) -> Case:
    return Case("ranges", f"ranges/{end:04d}/{m:04d}", m, N, K)


def cases() -> list[Case]:
    """Every range with the M that are measured, range by range."""
    return [case for end in ENDS for case in measured(end)]


def measured(end: int) -> list[Case]:
    return [case_of(m, end) for m in range(STEP, MEASURED + 1, STEP)]


def end_of(case: Case) -> int:
    """The end of the range that DietCode was given for a case."""
    return int(case.id.split("/")[1])


def samples(end: int) -> list[Case]:
    """Eight M, evenly, the last one the end of the range."""
    return [case_of(end * (at + 1) // SAMPLES, end) for at in range(SAMPLES)]


@dataclass(frozen=True)
class Experiment:
    """Vortex and DietCode of one range on one M."""

    bench: Bench

    def measure(self, case: Case) -> list[Row]:
        """Results are checked first; `valid` counts the shapes that DietCode's programs can run."""
        runner, end = self.bench.runner, end_of(case)
        found = searched(self.bench, samples(end), self.bench.setting.trials, measured(end))
        once, twice = (program_of(tree.choose(case.m, N, K), case) for tree in (found.once, found.twice))
        for program in {once, twice}:
            runner.verify_program(program, case)
        calls = {"vortex": runner.ours(case), "dietcode": runner.program(once, case)}
        if twice != once:
            calls["dietcode_twice"] = runner.program(twice, case)
        raced = self.bench.race(calls)
        seconds = {name: one.seconds for name, one in raced.items()}
        seconds["vortex"] += runner.selection(case)
        every = [case_of(m, end) for m in range(1, COUNTED + 1)]
        about = {"id": case.id, "m": case.m, "n": N, "k": K, "end": end, "seconds": seconds, "tuning": found.told()}
        about |= {"valid": sum(valid(found.once, samples(end), every)), "kernels": {"dietcode": str(once.kernel)}}
        return [about | {"spread": max(one.spread for one in raced.values())}]


def tables(rows: Sequence[Row]) -> list[str]:
    """Valid runs and speedups for each range beside those of the paper, and the budgets."""
    lines, budgets = [], []
    for end in ENDS:
        of = [row for row in rows if row["end"] == end]
        if not of:
            continue
        seconds = [row["seconds"] for row in of]
        ratios = [one["dietcode"] / one["vortex"] for one in seconds]
        (valid_runs, speedup), tuning = PUBLISHED[end], of[0]["tuning"]
        counted = [str(len(of)), f"{of[0]['valid']:,}", f"{valid_runs:,}", f"{sum(ratios) / len(ratios):.2f}x"]
        lines.append([f"[1, {end}]", *counted, f"{geometric_mean(ratios):.2f}x", f"{min(ratios):.2f}x", f"{speedup}x"])
        once = [s["dietcode"] for s in seconds]
        twice = [s.get("dietcode_twice", s["dietcode"]) for s in seconds]
        told = verdict(once, twice, median_spread(of), tuning.get("bounded", False))
        budgets.append(f"- [1, {end}]: {tuning['trials']:,} trials, {tuning['seconds']:.0f} s; {told}")
    runs = ("range of M", "M measured", f"valid of {COUNTED:,}", "in the paper")
    header = (*runs, "Vortex over DietCode", "geometric mean", "worst", "MikPoly over DietCode (A100)")
    spread = f"Spread of a timing over its rounds: median {median_spread(rows):.1%}."
    return [markdown(header, lines), "\n".join(budgets), spread]
