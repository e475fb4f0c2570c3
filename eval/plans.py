"""The little of a launch plan that the evaluation looks at, in one place.

A plan is run with `gemm.run(plan, a, b, out)`; `gemm.plans(m, n, k)` lists every plan of the library for a shape and
`gemm.plan(m, n, k)` is the selector's choice. A plan has a `strategy` (whose `l0` is the register tile), a `grid` and
the predicted `seconds`; `gemm.cost_terms(plan, m, n, k)` gives the named terms of that prediction.
"""

from typing import Any


def strategy(plan: Any) -> str:
    """The strategy in words, the same for every shape it serves."""
    return str(plan.strategy)


def label(plan: Any) -> str:
    """Strategy and grid in words: different for any two plans of a shape."""
    return f"{plan.strategy}, grid {plan.grid.m}x{plan.grid.n}"


def level0(plan: Any) -> str:
    """The register tile, which the paper's Static1 keeps fixed."""
    return str(plan.strategy.l0)


def misleading_term(before: dict[str, float], best: dict[str, float]) -> str:
    """The term that spoke most for the chosen plan (`before`) over the one that was really best."""
    if not before or not best:
        return "unknown"
    gains = {name: best.get(name, 0.0) - before.get(name, 0.0) for name in before.keys() | best.keys()}
    name = max(gains, key=lambda term: (gains[term], term))
    return f"{name} ({gains[name] * 1e6:+.2f} us)"
