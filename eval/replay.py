"""Recorded races, predicted again by today's cost model: whether a change of the model chooses better, without a clock.

A recording holds what a prediction needs (hardware spec, profile of L0, strategies) and what was measured, nothing that
the model computed. `python -m eval.model --record FILE` writes one; tests replay it.
"""

import json
from collections.abc import Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np

from eval.records import Line
from vortex.candidates import Stage, Strategy, Tile
from vortex.hardware import spec_from
from vortex.plans import Grid
from vortex.profiler import Profile
from vortex.rating import rates
from vortex.selector import Selector
from vortex.shapes import shape_of

PICOSECONDS = 1e12
ALWAYS_LOW = 1.0
"""`Rates.narrow_rows` of libraries that were recorded before register tiles grew in narrow products,"""
NEVER_PAST = 1e30
"""`Rates.outer_bytes` of those that were before outputs went past the caches,"""
NONE_KEPT = 0.0
"""`Rates.panel_room` of those that were before row tiles kept panels of a plain B,"""
NO_RUNS = 1.0
"""and `Rates.tile_run` of those that were before tiles that lie alike were a run."""
SHAPE = ("id", "m", "n", "k", "trans_b", "flops", "threads", "packed", "layout", "peak", "operands")


def record(gemm: Any, lines: Sequence[Line], about: dict[str, Any], path: Path) -> None:
    """Writes the races of a library, times as whole picoseconds."""
    manifest = gemm.manifest
    races = [
        {name: line[name] for name in SHAPE}
        | {
            "plans": [
                [e["index"], *e["grid"], e["workers"], *(round(e[half] * PICOSECONDS) for half in ("even", "odd"))]
                for e in line["plans"]
                if not e["regions"]  # a replay chooses one micro-kernel for the whole
            ]
        }
        for line in lines
    ]
    library = {"hardware": manifest.hardware, "profile": manifest.profile, "lanes": manifest.lanes}
    library |= {
        "narrow_rows": manifest.rates.narrow_rows,
        "outer_bytes": manifest.rates.outer_bytes,
        "panel_room": manifest.rates.panel_room,
        "tile_run": manifest.rates.tile_run,
        "panel": manifest.panel,
        "shortlists": manifest.shortlists,
        "strategies": [_flat(strategy) for strategy in manifest.strategies],
    }
    rows = ",\n".join(json.dumps(race, separators=(",", ":")) for race in races)
    path.write_text(f'{{"about": {json.dumps(about)},\n"library": {json.dumps(library)},\n"races": [\n{rows}\n]}}\n')


def _flat(strategy: Strategy) -> list[list[int]]:
    return [[int(value) for value in astuple(part)] for part in (strategy.l0, strategy.l1, strategy.stage)]


def selector_of(library: dict[str, Any]) -> Selector:
    """Today's model over the recorded strategies, with the recorded measurements of L0."""
    profile = Profile.from_json(json.dumps(library["profile"]))
    strategies = tuple(
        Strategy(Tile(*l0), Tile(*l1), Stage(*(bool(flag) for flag in stage)))
        for l0, l1, stage in library["strategies"]
    )
    spec = spec_from(library["hardware"], "a recording")
    of_kernels = {"narrow_rows": ALWAYS_LOW, "outer_bytes": NEVER_PAST, "panel_room": NONE_KEPT, "tile_run": NO_RUNS}
    known = replace(rates(spec, profile), **{name: library.get(name, old) for name, old in of_kernels.items()})
    listed = library.get("shortlists")
    shortlists = tuple(tuple(those) for those in listed) if listed else None
    return Selector(strategies, known, profile.slopes(), library["lanes"], library["panel"], shortlists=shortlists)


def profiled_peak(library: dict[str, Any]) -> float:
    """Flops per second of one core when L0 was timed; of recordings that do not say, of its fastest micro-kernel."""
    profile = library["profile"]
    rows = [row for row in profile["kernels"] if row["start_s"] > 0]
    fastest = max(2 * row["rows"] * row["vectors"] * library["lanes"] / row["slope_s"] for row in rows)
    return float(profile.get("peak_flops_per_s") or fastest)


def replay(path: Path) -> tuple[list[Line], float]:
    """The recorded races with the predictions and the choice of today, and the peak of the profile in flops/s."""
    data = json.loads(path.read_text())
    selector = selector_of(data["library"])
    return [_again(selector, race) for race in data["races"]], profiled_peak(data["library"])


def _again(selector: Selector, race: dict[str, Any]) -> Line:
    shape, costs = shape_of(race["m"], race["n"], race["k"], **race["operands"]), {}
    entries: list[Line] = []
    for index, *grid, workers, even, odd in race["plans"]:
        at = (Grid(*grid), workers)
        if at not in costs:
            costs[at] = np.asarray(selector.costs(shape, *at).total)
        label = f"{selector.strategies[index]}, grid {at[0]}"
        times = {"even": even / PICOSECONDS, "odd": odd / PICOSECONDS}
        entries.append({"label": label, "predicted": float(costs[at][index]), "terms": {}} | times)
    plan = selector.select(shape, race["threads"])
    chosen = f"{plan.strategy}, grid {plan.grid}"
    if chosen not in {entry["label"] for entry in entries}:  # k is cut otherwise than when the plans were timed
        chosen = str(min(entries, key=lambda entry: float(entry["predicted"]))["label"])
    return race | {"kind": "race", "plans": entries, "chosen": chosen}
