"""MikPoly's Tables 6 and 7 on DietCode: the wider its range of M, the worse its choice.

(M, 3072, 768); DietCode samples eight M evenly over [1, end] for each of five ends. Counted: the shapes M = 1, ...,
8192 that a program made for that range can run. Measured: M in [1, 128], Vortex over DietCode.
"""

from collections.abc import Sequence

from eval.compare import markdown
from eval.rivals.dense import searched
from eval.rivals.dietcode import program_of, valid
from eval.rivals.setting import Bench, Row, gain, median_spread, verdict
from eval.stats import geometric_mean
from eval.suites import Case

N, K = 3072, 768
ENDS = (128, 512, 1024, 2048, 8192)
SAMPLES, COUNTED, MEASURED, MOST_CASES = 8, 8192, 128, 32
PUBLISHED = {128: (254, 1.68), 512: (572, 1.81), 1024: (1136, 1.92), 2048: (2144, 2.25), 8192: (8192, 2.37)}
"""Valid runs of DietCode, and speedups of MikPoly over it inside the range (A100)."""


def case_of(m: int) -> Case:
    return Case("ranges", f"ranges/{m}", m, N, K)


def samples(end: int) -> list[Case]:
    """Eight M, evenly, the last one the end of the range."""
    return [case_of(end * (at + 1) // SAMPLES) for at in range(SAMPLES)]


def run(bench: Bench) -> list[Row]:
    """One row for each range and measured M."""
    setting, runner = bench.setting, bench.runner
    step = -(-MEASURED // min(setting.sample, MOST_CASES))
    found = {end: searched(bench, samples(end), setting.trials) for end in ENDS}
    counts = {
        end: sum(valid(one.once, samples(end), [case_of(m) for m in range(1, COUNTED + 1)]))
        for end, one in found.items()
    }
    rows = []
    for case in [case_of(m) for m in range(step, MEASURED + 1, step)]:
        programs = {f"once {end}": program_of(one.once.choose(case.m, N, K), case) for end, one in found.items()}
        programs |= {f"twice {end}": program_of(one.twice.choose(case.m, N, K), case) for end, one in found.items()}
        different = {program: name for name, program in programs.items()}
        for program in different:
            runner.verify_program(program, case)
        calls = {name: runner.program(program, case) for program, name in different.items()}
        raced = bench.race({"vortex": runner.ours(case)} | calls)
        ours = raced["vortex"].seconds + runner.selection(case)
        seconds = {name: raced[different[program]].seconds for name, program in programs.items()}
        spread = max(one.spread for one in raced.values())
        rows += [
            {"id": case.id, "m": case.m, "end": end, "vortex": ours, "dietcode": seconds[f"once {end}"]}
            | {"dietcode_twice": seconds[f"twice {end}"], "valid": counts[end], "spread": spread}
            | {"trials": setting.trials, "seconds": found[end].seconds}
            for end in ENDS
        ]
    return rows


def tables(rows: Sequence[Row]) -> list[str]:
    """Valid runs and speedups for each range beside those of the paper, and the budgets."""
    lines, budgets = [], []
    for end in ENDS:
        of = [row for row in rows if row["end"] == end]
        ratios = [row["dietcode"] / row["vortex"] for row in of]
        valid_runs, speedup = PUBLISHED[end]
        measured = [f"{of[0]['valid']:,}", f"{valid_runs:,}", f"{sum(ratios) / len(ratios):.2f}x"]
        lines.append([f"[1, {end}]", *measured, f"{geometric_mean(ratios):.2f}x", f"{min(ratios):.2f}x", f"{speedup}x"])
        share = gain([row["dietcode"] for row in of], [row["dietcode_twice"] for row in of])
        budgets.append(f"- [1, {end}]: {of[0]['trials']:,} trials, {of[0]['seconds']:.0f} s; {verdict(share)}")
    header = ("range of M", f"valid of {COUNTED:,}", "in the paper", "Vortex over DietCode", "geometric mean", "worst")
    spread = f"Spread of a timing over its rounds: median {median_spread(rows):.1%}."
    return [markdown((*header, "MikPoly over DietCode (A100)"), lines), "\n".join(budgets), spread]
