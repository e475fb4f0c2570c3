"""DietCode's dynamic dense layer (its section 5.3), M = 16 T rows: DietCode, Nimble, buckets and a search per shape.

Eight values of T are sampled as in its artifact, eight others lie between them. *Nimble* searches for the largest shape
and applies what it found to all, by loop partitioning. *Buckets* search for each power of two and pad the rows of a
shape to the next one, copying. *Static* searches for each shape by itself, the place of Ansor in that paper. All
searches are DietCode's, over the same space, with the same number of trials: per dynamic workload, or per shape.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eval.compare import markdown
from eval.rivals.dietcode import Search, program_of
from eval.rivals.dispatch import Tree
from eval.rivals.meter import Call
from eval.rivals.setting import Bench, Row, gain, median_spread, verdict
from eval.rivals.space import MicroKernel, Program
from eval.stats import geometric_mean
from eval.suites import Case

BATCH, N, K = 16, 2304, 768
SAMPLED = (5, 24, 43, 62, 81, 100, 119, 128)
BETWEEN = (1, 15, 34, 53, 72, 91, 110, 124)
RIVALS = ("static", "nimble", "buckets", "dietcode")
PUBLISHED = {"static": "30.5 %", "nimble": "23.9 %"}
"""Time that DietCode saves in its paper (T4, float32; Ansor for static)."""


@dataclass(frozen=True)
class Searched:
    """A search with its budget, and with twice of it."""

    once: Tree
    twice: Tree
    trials: int
    seconds: float
    """With the first budget."""


@dataclass(frozen=True)
class Budget:
    """What a method measured, and how many searches it made."""

    searches: int
    trials: int
    seconds: float

    @classmethod
    def of(cls, found: Sequence[Searched]) -> "Budget":
        return cls(len(found), sum(f.trials for f in found), sum(f.seconds for f in found))


def cases() -> list[Case]:
    """(16 T, 2304, 768) with a row-major B."""
    return [Case("dense", f"dense/T{t}", BATCH * t, N, K) for t in sorted((*SAMPLED, *BETWEEN))]


def sampled(case: Case) -> bool:
    return case.m // BATCH in SAMPLED


def searched(bench: Bench, samples: Sequence[Case], trials: int) -> Searched:
    setting = bench.setting
    search = Search(bench.space(samples[0]), samples, bench.meter(trials), setting.threads, setting.seed)
    search.run()
    once, seconds = search.dispatcher(), search.meter.seconds
    search.meter.budget *= 2
    search.run()
    return Searched(once, search.dispatcher(), trials, seconds)


def bucket(m: int) -> int:
    """The power of two that the rows are padded to."""
    return 1 << (m - 1).bit_length()


def with_rows(case: Case, m: int) -> Case:
    return Case(case.suite, f"{case.suite}/{m}", m, case.n, case.k, case.trans_a, case.trans_b)


Choice = Callable[[Tree, Case], MicroKernel]


def run(bench: Bench) -> list[Row]:
    """One row a shape: seconds of every method with its budget and with twice of it."""
    runner, setting = bench.runner, bench.setting
    shapes = setting.thinned(cases())
    largest = max(shapes, key=lambda case: case.m)
    ends = sorted({bucket(case.m) for case in shapes})
    dietcode = searched(bench, [c for c in shapes if sampled(c)] or shapes, setting.trials)
    nimble = searched(bench, [largest], setting.trials)
    buckets = {end: searched(bench, [with_rows(largest, end)], setting.trials // len(ends)) for end in ends}
    static = {case: searched(bench, [case], setting.trials) for case in shapes}
    used = {"dietcode": Budget.of([dietcode]), "nimble": Budget.of([nimble])}
    used |= {"buckets": Budget.of(list(buckets.values())), "static": Budget.of(list(static.values()))}
    told = {name: [budget.searches, budget.trials, budget.seconds] for name, budget in used.items()}

    def programs(case: Case, which: Callable[[Searched], Tree]) -> dict[str, Program]:
        end = with_rows(case, bucket(case.m))
        return {
            "dietcode": program_of(which(dietcode).choose(case.m, case.n, case.k), case),
            "nimble": Program(which(nimble).kernels[0], case.m, case.n, case.k, partitioned=True),
            "buckets": program_of(which(buckets[end.m]).kernels[0], end),
            "static": program_of(which(static[case]).kernels[0], case),
        }

    def call(name: str, program: Program, case: Case) -> Call:
        return runner.padded_globally(program, case) if name == "buckets" else runner.program(program, case)

    rows = []
    for case in shapes:
        once = programs(case, lambda found: found.once)
        twice = {name: p for name, p in programs(case, lambda found: found.twice).items() if p != once[name]}
        for program in (*once.values(), *twice.values()):
            runner.verify_program(program, case)
        calls = {"vortex": runner.ours(case)} | {name: call(name, program, case) for name, program in once.items()}
        calls |= {f"{name}_twice": call(name, program, case) for name, program in twice.items()}
        raced = bench.race(calls)
        seconds = {name: found.seconds for name, found in raced.items()}
        seconds["vortex"] += runner.selection(case)
        rows.append(
            {"id": case.id, "m": case.m, "sampled": sampled(case), "seconds": seconds, "used": told}
            | {"kernels": {name: str(program.kernel) for name, program in once.items()}}
            | {"spread": max(found.spread for found in raced.values())}
        )
    return rows


def tables(rows: Sequence[Row]) -> list[str]:
    """Vortex over each method, DietCode's savings beside its paper's, and the budgets."""
    header = ("method", "shapes", "Vortex is faster by", "worst", "DietCode saves", "its paper (T4)")
    lines = []
    for name in RIVALS:
        for told, of in (
            ("sampled", [row["seconds"] for row in rows if row["sampled"]]),
            ("between", [row["seconds"] for row in rows if not row["sampled"]]),
        ):
            if not of:
                continue
            ratios = [seconds[name] / seconds["vortex"] for seconds in of]
            saved = sum(1.0 - seconds["dietcode"] / seconds[name] for seconds in of) / len(of)
            figures = (f"{geometric_mean(ratios):.2f}x", f"{min(ratios):.2f}x")
            saves = "" if name == "dietcode" else f"{saved:.1%}"
            lines.append([name, f"{len(of)} {told}", *figures, saves, PUBLISHED.get(name, "")])
    budgets = "\n".join(f"- {budget(name, rows)}" for name in RIVALS)
    spread = f"Spread of a timing over its rounds: median {median_spread(rows):.1%}."
    return [markdown(header, lines), budgets, spread]


def budget(name: str, rows: Sequence[Row]) -> str:
    searches, trials, seconds = rows[0]["used"][name]
    once = [row["seconds"][name] for row in rows]
    share = gain(once, [row["seconds"].get(f"{name}_twice", row["seconds"][name]) for row in rows])
    return f"{name}: {searches} search(es), {trials:,} trials, {seconds:.0f} s; {verdict(share)}"
