"""The little of a launch plan that the evaluation looks at, in one place.

A plan is run with `gemm.run(plan, a, b, out)`; `gemm.plans(m, n, k)` lists every plan of the library for a shape and
`gemm.plan(m, n, k)` is the selector's choice. A plan has a `strategy` (whose `l0` is the register tile), a `grid` and
the predicted `seconds`; `gemm.cost_terms(plan, m, n, k)` gives the named terms of that prediction.
"""

from typing import Any


def strategy(plan: Any) -> str:
    """The strategy in words, the same for every shape it serves."""
    if plan.regions:
        return f"pattern {plan.pattern}"
    return str(plan.strategy)


def label(plan: Any) -> str:
    """Strategy and grid in words: different for any two plans of a shape."""
    if plan.regions:
        regions = "; ".join(f"{r.rows}x{r.columns} by {r.index}, grid {r.grid}" for r in plan.regions)
        return f"pattern {plan.pattern}: {regions}"
    return f"{plan.strategy}, grid {plan.grid}"


def level0(plan: Any) -> str:
    """The register tile, which the paper's Static1 keeps fixed."""
    if plan.regions:
        return f"pattern {plan.pattern}"
    return str(plan.strategy.l0)


def family(plan: Any) -> bool | str:
    """Plans of one family give the same bits: outer products, or dot products along k; regions may be of both."""
    if plan.regions:
        return label(plan)
    return bool(plan.strategy.stage.dot)


def deed(plan: Any, m: int, n: int, k: int) -> Any:
    """What a plan does to this shape: a cut past the end of an axis cuts nothing, so many strategies do the same."""
    if plan.regions:
        return label(plan)
    l0, l1, stage, grid = plan.strategy.l0, plan.strategy.l1, plan.strategy.stage, plan.grid
    if stage.dot:
        return stage, grid.m * grid.n, grid.k
    if stage.swap:
        m, n = n, m
    panels = -(-n // l0.n)
    return stage, grid, l0, min(l1.m, m), min(l1.n, panels * l0.n), min(l1.k, k)


def terms(gemm: Any, plan: Any, m: int, n: int, k: int, **operands: Any) -> dict[str, float]:
    """Predicted seconds of a plan by term."""
    found: dict[str, float] = gemm.cost_terms(plan, m, n, k, **operands)
    return found


def misleading_term(before: dict[str, float], best: dict[str, float]) -> str:
    """The term that spoke most for the chosen plan (`before`) over the one that was really best.

    Plans of different families have no terms in common: then it is the whole.
    """
    alike = before.keys() == best.keys()
    gains = {name: best[name] - before[name] for name in before if (name != "total") == alike and name in best}
    name = max(gains, key=lambda term: (gains[term], term))
    return f"{name} ({gains[name] * 1e6:+.2f} us)" if gains[name] > 0 else "none: predicted as well as the chosen one"


def packs_weight(plan: Any) -> bool:
    """Whether the call lays B out anew before it computes; of a turned product, A is what `pack_b` speaks of."""
    stage = plan.strategy.stage
    return bool(stage.pack_a if stage.swap else stage.pack_b)
