"""DietCode's dynamic dense layers (its section 5.3), M = 16 T rows: DietCode, Nimble, buckets and a search per shape.

Eight values of T are sampled as in its artifact, eight others lie between them; the layers are its own, those of BERT.
*Nimble* searches for the largest shape and applies what it found to all, by loop partitioning. *Buckets* search for
each power of two and pad the rows of a shape to the next one, copying. *Static* searches for each shape by itself, the
place of Ansor in that paper. All searches are DietCode's, over the same space.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eval.compare import markdown
from eval.rivals.budget import verdict
from eval.rivals.dietcode import program_of
from eval.rivals.dispatch import Tree
from eval.rivals.meter import Call
from eval.rivals.searched import Searched, searched
from eval.rivals.setting import Bench, Row, median_spread
from eval.rivals.space import Program
from eval.stats import geometric_mean
from eval.suites import Case

BATCH = 16
LAYERS = ((2304, 768), (768, 768), (3072, 768), (768, 3072))
"""(n, k) of its sets dietcode_dense and dietcode_bert_dense."""
SAMPLED = (5, 24, 43, 62, 81, 100, 119, 128)
BETWEEN = (1, 15, 34, 53, 72, 91, 110, 124)
RIVALS = ("static", "nimble", "buckets", "dietcode")
SINGLE, BUCKET = 4, 8
"""Of a search for one shape, and for one bucket: what its budget is divided by at first."""
PUBLISHED = {"static": "30.5 %", "nimble": "23.9 %"}
"""Time that DietCode saves in its paper (T4, float32; Ansor for static)."""


def cases() -> list[Case]:
    """(16 T, n, k) with a row-major B, layer by layer."""
    lengths = sorted((*SAMPLED, *BETWEEN))
    return [Case("dense", f"dense/{n}x{k}/{t:03d}", BATCH * t, n, k) for n, k in LAYERS for t in lengths]


def sampled(case: Case) -> bool:
    return case.m // BATCH in SAMPLED


def bucket(m: int) -> int:
    """The power of two that the rows are padded to."""
    return 1 << (m - 1).bit_length()


def with_rows(case: Case, m: int) -> Case:
    return Case(case.suite, f"{case.suite}/{m}", m, case.n, case.k, case.trans_a, case.trans_b)


def searches(bench: Bench, case: Case) -> dict[str, Searched]:
    """What each method searched for that serves this shape."""
    trials = bench.setting.trials
    samples = [with_rows(case, BATCH * t) for t in SAMPLED]
    return {
        "dietcode": searched(bench, samples, trials),
        "nimble": searched(bench, samples[-1:], trials // SINGLE),
        "buckets": searched(bench, [with_rows(case, bucket(case.m))], trials // BUCKET),
        "static": searched(bench, [case], trials // SINGLE),
    }


@dataclass(frozen=True)
class Experiment:
    """Every method on one shape; the searches are made when a shape first needs them."""

    bench: Bench

    def measure(self, case: Case) -> list[Row]:
        """Seconds of every method with its budget and with twice of it; results are checked first."""
        runner, found = self.bench.runner, searches(self.bench, case)

        def programs(which: Callable[[Searched], Tree]) -> dict[str, Program]:
            chosen = {name: which(one).choose(case.m, case.n, case.k) for name, one in found.items()}
            return {name: program_of(kernel, case) for name, kernel in chosen.items()} | {
                "nimble": Program(chosen["nimble"], case.m, case.n, case.k, partitioned=True),
                "buckets": program_of(chosen["buckets"], with_rows(case, bucket(case.m))),
            }

        def call(name: str, program: Program) -> Call:
            return runner.padded_globally(program, case) if name == "buckets" else runner.program(program, case)

        once = programs(lambda one: one.once)
        twice = {name: p for name, p in programs(lambda one: one.twice).items() if p != once[name]}
        for program in (*once.values(), *twice.values()):
            runner.verify_program(program, case)
        calls = {"vortex": runner.ours(case)} | {name: call(name, program) for name, program in once.items()}
        calls |= {f"{name}_twice": call(name, program) for name, program in twice.items()}
        raced = self.bench.race(calls)
        seconds = {name: one.seconds for name, one in raced.items()}
        seconds["vortex"] += runner.selection(case)
        about = {"id": case.id, "m": case.m, "n": case.n, "k": case.k, "sampled": sampled(case), "seconds": seconds}
        used = {name: [str(one.shapes), one.trials, one.seconds] for name, one in found.items()}
        about["bounded"] = [name for name, one in found.items() if one.bounded]
        kernels = {name: str(program.kernel) for name, program in once.items()}
        return [about | {"used": used, "kernels": kernels, "spread": max(one.spread for one in raced.values())}]


def tables(rows: Sequence[Row]) -> list[str]:
    """Vortex over each method, DietCode's savings beside its paper's, by layer, and the budgets."""
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
    layers = []
    for n, k in dict.fromkeys((row["n"], row["k"]) for row in rows):
        of = [row["seconds"] for row in rows if (row["n"], row["k"]) == (n, k)]
        ratio = (geometric_mean(seconds[name] / seconds["vortex"] for seconds in of) for name in RIVALS)
        layers.append([f"m x {n} x {k}", str(len(of)), *(f"{value:.2f}x" for value in ratio)])
    by_layer = markdown(("layer", "shapes", *(f"Vortex over {name}" for name in RIVALS)), layers)
    budgets = "\n".join(f"- {budget(name, rows)}" for name in RIVALS)
    spread = f"Spread of a timing over its rounds: median {median_spread(rows):.1%}."
    return [markdown(header, lines), by_layer, budgets, spread]


def budget(name: str, rows: Sequence[Row]) -> str:
    """What all searches of a method took, each counted once, and what twice of it gains."""
    found = {row["used"][name][0]: row["used"][name][1:] for row in rows}
    trials, seconds = (sum(column) for column in zip(*found.values(), strict=True))
    once = [row["seconds"][name] for row in rows]
    twice = [row["seconds"].get(f"{name}_twice", row["seconds"][name]) for row in rows]
    bounded = any(name in row.get("bounded", ()) for row in rows)
    told = verdict(once, twice, median_spread(rows), bounded)
    return f"{name}: {len(found)} search(es), {trials:,} trials, {seconds:.0f} s; {told}"
