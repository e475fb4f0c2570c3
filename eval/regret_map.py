"""The map of `eval.regret`: the chosen strategy over M x N at a fixed K, and the measured regret."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from eval import races
from eval.records import Line
from eval.sampling import Domain

POINTS = 140
"""Shapes asked for their choice along each axis of the background."""
WORST = 0.3
"""Regret at the dark end of the scale."""


def draw(gemm: Any, domain: Domain, choice: Callable[..., Any], lines: Sequence[Line], path: Path) -> None:
    """Two panels: strategies as colours; regrets as dots, circled where they pass 15 %."""
    k = domain.least[2]
    m, n = (np.geomspace(domain.least[axis], domain.most[axis], POINTS) for axis in (0, 1))
    chosen = np.full((POINTS, POINTS), np.nan)
    for row, x in enumerate(m):
        for column, y in enumerate(n):
            shape = round(float(x)), round(float(y)), k
            if domain.holds(shape):
                chosen[row, column] = choice(*shape)[0]
    present = sorted({int(index) for index in chosen[~np.isnan(chosen)]})
    places = np.full_like(chosen, np.nan)
    for place, index in enumerate(present):
        places[chosen == index] = place
    colours = ListedColormap([colormaps["tab20"](place % 20) for place in range(len(present))])
    figure = Figure(figsize=(13.0, 6.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    norm = BoundaryNorm(np.arange(len(present) + 1) - 0.5, max(len(present), 1))
    left.pcolormesh(n, m, places, cmap=colours, norm=norm, shading="nearest")
    handles = [Patch(color=colours(place), label=str(gemm.strategies[index])) for place, index in enumerate(present)]
    left.legend(handles=handles, fontsize=6, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=1, frameon=False)
    right.contour(
        n, m, np.nan_to_num(places, nan=-1), levels=np.arange(len(present)) - 0.5, colors="0.8", linewidths=0.5
    )
    regrets = 1 - races.shares(lines)
    rows, columns = ([line[axis] for line in lines] for axis in ("m", "n"))
    dots = right.scatter(columns, rows, c=regrets, cmap="viridis_r", vmin=0, vmax=WORST, s=28)
    bad = regrets > 0.15
    right.scatter(np.array(columns)[bad], np.array(rows)[bad], s=90, facecolors="none", edgecolors="red")
    figure.colorbar(dots, ax=right, label="regret: share of the best plan's performance that is missing")
    first = lines[0]
    about = f"K = {k}, {first['layout']} B, {first['threads']} thread(s)"
    for axes, title in ((left, f"chosen strategy, {about}"), (right, f"measured regret, {about}")):
        axes.set(xscale="log", yscale="log", xlabel="N", ylabel="M", title=title)
        axes.set_xlim(domain.least[1], domain.most[1])
        axes.set_ylim(domain.least[0], domain.most[0])
    figure.savefig(path, dpi=110)
