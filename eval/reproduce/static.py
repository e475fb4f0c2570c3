"""One library for all shapes against programs made for one shape each: TVM's MetaSchedule and dlight.

The paper names static-shape compilers as what is too slow to be its rival; this is by how much, and what it would buy.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack

from eval.compare import markdown
from eval.records import Line
from eval.report import failures
from eval.reproduce.result import Measure, Options, Page, Result
from eval.reproduce.vendors import open_systems
from eval.stats import geometric_mean
from eval.suites import VORTEX_SUITES, Case, load_suite, sample

SYSTEMS = {"tvm_metaschedule": "MetaSchedule", "tvm_dlight": "dlight"}
CASES, MOST_FLOPS = 8, 5e8
TRIALS, SMOKE_TRIALS = 64, 4
TIMEOUT = 900.0


def few_products(options: Options) -> Sequence[Case]:
    """Some products of Table 3, drawn once for all; for a smoke run the smallest."""
    small = [case for suite in VORTEX_SUITES for case in load_suite(suite) if case.flops <= MOST_FLOPS]
    found = sorted(sample(small, CASES, seed=0), key=lambda case: case.flops)
    return found[:1] if options.smoke else found


def open_static(options: Options, stack: ExitStack) -> Measure:
    os.environ["EVAL_TVM_TRIALS"] = str(SMOKE_TRIALS if options.smoke else TRIALS)
    return open_systems(options, stack, ("vortex", *SYSTEMS), TIMEOUT)[0]


def static(lines: Sequence[Line]) -> Page:
    blocks, losses = [], []
    for threads in sorted({line["threads"] for line in lines}):
        rows, ratios, slower = [], [], []
        for line in lines:
            if line["threads"] != threads:
                continue
            found = {row["system"]: row for row in line["rows"] if row["error"] is None}
            if "vortex" not in found:
                continue
            ours, shape = found["vortex"], f"{line['rows'][0]['m']}x{line['rows'][0]['n']}x{line['rows'][0]['k']}"
            cells = []
            for system in SYSTEMS:
                speedup = found[system]["seconds"] / ours["seconds"] if system in found else None
                cells.append(f"{speedup:.2f}" if speedup else "-")
                if speedup and speedup < 1:
                    slower.append([shape, SYSTEMS[system], f"{speedup:.2f}"])
            if "tvm_metaschedule" in found:
                ratios.append(found["tvm_metaschedule"]["seconds"] / ours["seconds"])
            detail = found["tvm_metaschedule"]["detail"] if "tvm_metaschedule" in found else "-"
            rows.append([line["id"], shape, f"{ours['seconds'] * 1e6:.1f}", *cells, detail])
        header = (
            "case",
            "shape",
            "our us",
            *(f"speedup over {name}" for name in SYSTEMS.values()),
            "MetaSchedule's search",
        )
        blocks += [f"### {threads} thread{'s' * (threads > 1)}", markdown(header, rows)]
        if ratios:
            blocks.append(
                f"Over MetaSchedule {geometric_mean(ratios):.2f} in the geometric mean of {len(ratios)} shapes."
            )
        if slower:
            losses += [f"At {threads} thread(s):", markdown(("shape", "slower than", "speedup"), slower)]
    return Page([*blocks, *failures([row for line in lines for row in line["rows"]])], losses)


STATIC = Result(
    "static",
    "one library against a program for each shape",
    f"the paper has no such figure. MetaSchedule measures {TRIALS} programs a shape on this machine, which is minutes, "
    "with its random cost model; dlight has a rule for a matrix times a vector alone.",
    few_products,
    open_static,
    static,
    seconds=120.0,
    opening=10.0,
)
