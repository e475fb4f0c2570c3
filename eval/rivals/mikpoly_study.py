"""MikPoly beside Vortex on the paper's products: its oracle, MikPoly-Wave and -Pipe, and n_gen, n_syn, n_mik varied."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from eval.compare import markdown
from eval.rivals.budget import MOST_DOUBLINGS, MOST_SECONDS, until_enough, verdict
from eval.rivals.meter import Call
from eval.rivals.mikpoly import (
    FINALISTS,
    N_GEN,
    N_MIK,
    N_SYN,
    Judge,
    Regions,
    Tuned,
    call_of,
    columns_of,
    modelled,
    ranked,
    rows_of,
    strategies,
    tune,
)
from eval.rivals.setting import Bench, Row, even_sample, median_spread
from eval.rivals.space import Space, read_kernel, written
from eval.stats import geometric_mean
from eval.suites import VORTEX_SUITES, Case, load_suite, relayout

MOST_FLOPS, MOST_CASES = 2e9, 48
RIVALS = ("mikpoly", "oracle")
TRIED_BY_ORACLE = 60
"""Strategies of a shape that the oracle runs: those of least cost."""
VARIED = {"n_gen": (1, 4, 16, 32), "n_syn": (4, 8, 12), "n_mik": (5, 10, 20, 40, 80)}
"""The ranges of the paper's Figure 13, in steps."""
PUBLISHED = {"mikpoly": "0.96", "wave": "0.81", "pipe": "0.72"}
"""Shares of MikPoly-Oracle (section 5.3.2, A100)."""
JUDGES: dict[str, Judge] = {"mikpoly": "both", "wave": "wave", "pipe": "pipe"}


def cases() -> list[Case]:
    """Some products of the paper's Table 3 up to 2 GFLOP, evenly over all, B row-major."""
    found = [case for suite in VORTEX_SUITES for case in load_suite(suite) if case.flops <= MOST_FLOPS]
    every = [replace(case, trans_a=False) for case in relayout(found, "nn")]
    return [every[(2 * at + 1) * len(every) // (2 * MOST_CASES)] for at in range(MOST_CASES)]


@dataclass(frozen=True)
class Pool:
    """What an offline stage measured: micro-kernels with their g_predict."""

    tuned: list[Tuned]
    timings: int
    seconds: float


def offline(bench: Bench, space: Space, trials: int, n_gen: int = N_GEN) -> Pool:
    """Micro-kernels of at most n_gen register tiles a side; from what was kept where it ran before."""

    def measured() -> dict[str, Any]:
        meter = bench.meter(trials)
        small = replace(space, rungs=tuple(rung for rung in space.rungs if rung <= n_gen))
        rates = tune(small, meter, bench.setting.seed)
        meter.budget = 1 << 30  # g_predict takes as many timings as there are micro-kernels and lengths
        tuned = [[written(each.kernel), each.seconds] for each in modelled(rates, meter, FINALISTS * N_MIK)]
        return {"tuned": tuned, "timings": meter.trials, "seconds": meter.seconds}

    kept = bench.recall(f"mikpoly {trials} n_gen {n_gen}", measured)
    return Pool([Tuned(read_kernel(of), tuple(s)) for of, s in kept["tuned"]], kept["timings"], kept["seconds"])


@dataclass(frozen=True)
class Experiment:
    """Every variant on one shape."""

    bench: Bench
    sets: dict[str, list[Tuned]]
    used: Row

    def measure(self, case: Case) -> list[Row]:
        """Seconds of every variant; results are checked first."""
        runner, cores, sets = self.bench.runner, self.bench.setting.threads, self.sets
        chosen = {name: strategies(some, case, cores)[0] for name, some in sets.items()}
        chosen |= {name: strategies(sets["mikpoly"], case, cores, judge)[0] for name, judge in JUDGES.items()}
        chosen["oracle"] = oracle(self.bench, sets["mikpoly"], case)
        chosen["one micro-kernel"] = next(
            found for found in strategies(sets["mikpoly"], case, cores) if len(found.programs) == 1
        )
        different = {regions.programs: name for name, regions in reversed(chosen.items())}
        calls = {"vortex": runner.ours(case)}
        for name in different.values():
            calls[name] = call_of(runner, chosen[name], case)
            runner.verify(calls[name], case, rows_of(chosen[name]), columns_of(chosen[name]))
        raced = self.bench.race(calls)
        seconds = {name: raced[different[regions.programs]].seconds for name, regions in chosen.items()}
        seconds["vortex"] = raced["vortex"].seconds + runner.selection(case)
        about = {"id": case.id, "m": case.m, "n": case.n, "k": case.k, "seconds": seconds, "used": self.used}
        regions = [str(program.kernel) for program in chosen["mikpoly"].programs]
        kernels = {name: "; ".join(str(p.kernel) for p in chosen[name].programs) for name in RIVALS}
        about |= {"regions": regions, "kernels": kernels}
        return [about | {"spread": max(found.spread for found in raced.values())}]


def budget(bench: Bench, space: Space) -> dict[str, Any]:
    """The trials that were enough, and whether the bound ended their doubling; from what was kept."""
    cores, shapes = bench.setting.threads, even_sample(cases())

    def gains(once: Pool, twice: Pool) -> float:
        pools = {name: ranked(of.tuned, cores, N_SYN, N_MIK) for name, of in (("once", once), ("twice", twice))}

        def pair(case: Case) -> dict[str, Call]:
            chosen = {name: strategies(some, case, cores)[0] for name, some in pools.items()}
            if chosen["once"].programs == chosen["twice"].programs:
                return {}
            return {name: call_of(bench.runner, regions, case) for name, regions in chosen.items()}

        return bench.gained(map(pair, shapes))

    def found() -> dict[str, Any]:
        first = bench.setting.trials
        enough = until_enough(lambda trials: offline(bench, space, trials), gains, lambda pool: pool.seconds, first)
        return {"trials": enough.trials, "bounded": enough.bounded}

    asked = f"mikpoly's budget from {bench.setting.trials}, doubled {MOST_DOUBLINGS} times in {MOST_SECONDS} s"
    kept: dict[str, Any] = bench.recall(asked, found)
    return kept


def opened(bench: Bench) -> Experiment:
    """The offline stage with a budget that is enough, with twice of it, and with fewer sizes of micro-kernels."""
    cores, space = bench.setting.threads, bench.space(cases()[0])
    enough = budget(bench, space)
    trials = enough["trials"]
    pool, twice = offline(bench, space, trials), offline(bench, space, 2 * trials)
    used = enough | {"timings": pool.timings, "searched": pool.seconds, "modelled": len(pool.tuned)}
    sets = {name: ranked(of.tuned, cores, N_SYN, N_MIK) for name, of in (("mikpoly", pool), ("twice", twice))}
    for n_gen in VARIED["n_gen"]:
        some = pool if n_gen == N_GEN else offline(bench, space, trials, n_gen)
        sets[f"n_gen={n_gen}"] = ranked(some.tuned, cores, N_SYN, N_MIK)
    sets |= {f"n_syn={n_syn}": ranked(pool.tuned, cores, n_syn, N_MIK) for n_syn in VARIED["n_syn"]}
    sets |= {f"n_mik={n_mik}": ranked(pool.tuned, cores, N_SYN, n_mik) for n_mik in VARIED["n_mik"]}
    return Experiment(bench, sets, used | {"space": len(space.kernels)})


def oracle(bench: Bench, some: Sequence[Tuned], case: Case) -> Regions:
    """The fastest of the strategies of least cost, each run."""
    found = strategies(some, case, bench.setting.threads)[:TRIED_BY_ORACLE]
    calls = {at: call_of(bench.runner, regions, case) for at, regions in enumerate(found)}
    return found[bench.fastest(calls)]


def tables(rows: Sequence[Row]) -> list[str]:
    """Shares of the oracle beside the paper's, Vortex over each, and what the parameters do."""
    seconds = [row["seconds"] for row in rows]

    def over(slow: str, fast: str) -> list[float]:
        return [of[slow] / of[fast] for of in seconds]

    lines = [
        [name, f"{geometric_mean(over('oracle', name)):.2f}", PUBLISHED.get(name, ""), *faster(over(name, "vortex"))]
        for name in (*JUDGES, "one micro-kernel", "oracle")
    ]
    header = ("variant", "share of MikPoly-Oracle", "its paper (A100)", "Vortex is faster by", "worst")
    varied = [
        [name, str(value), f"{geometric_mean(over('oracle', f'{name}={value}')):.3f}"]
        for name, values in VARIED.items()
        for value in values
    ]
    used, spread = rows[0]["used"], median_spread(rows)
    once, twice = ([of[name] for of in seconds] for name in ("mikpoly", "twice"))
    judged = verdict(once, twice, spread, used.get("bounded", False))
    polymerized = sum(len(row["regions"]) > 1 for row in rows)
    told = (
        f"MikPoly: {used['space']:,} micro-kernels, {used['trials']:,} trials and g_predict of {used['modelled']} of "
        f"them: {used['timings']:,} timings, {used['searched']:.0f} s; {judged}. Two micro-kernels on "
        f"{polymerized} of {len(rows)} shapes. Spread of a timing over its rounds: median {spread:.1%}."
    )
    return [markdown(header, lines), markdown(("parameter", "value", "share of MikPoly-Oracle"), varied), told]


def faster(ratios: Sequence[float]) -> list[str]:
    return [f"{geometric_mean(ratios):.2f}x", f"{min(ratios):.2f}x"]
