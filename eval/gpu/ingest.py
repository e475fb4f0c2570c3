"""`python -m eval.gpu.ingest`: a run on a device becomes a recorded measurement and a page of tables.

The measurement goes to `vortex/measurements/<spec>.json`, where compiling for that device replays it; the page to
`docs/performance/<spec>.md`. A run with wrong kernels is refused: its times are of something else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.commands import command
from eval.gpu.asked import demands, is_of_reductions, ratios, unverified
from eval.gpu.budget import Row, median, rows_of
from eval.operator_cases import shape_of
from eval.stats import geometric_mean
from vortex.gpu_profiler import BlockMeasurement, GpuProfile

ROOT = Path(__file__).resolve().parent.parent.parent
MOST_SPREAD = 0.25
"""A kernel whose times varied by more is left to the model."""


class IngestError(ValueError):
    """A result file that cannot become a measurement."""


def load(path: Path) -> Row:
    try:
        results: Row = json.loads(path.read_text(encoding="utf-8"))
        missing = [name for name in ("bundle", "device", "parts", "rows", "date") if name not in results]
    except (OSError, json.JSONDecodeError, TypeError) as error:
        raise IngestError(f"{path} cannot be read ({error}); give the file that run_on_device wrote") from error
    if missing:
        raise IngestError(f"{path} has no {missing}; give the file that run_on_device wrote")
    if "error" in results["device"]:
        raise IngestError(f"{path}: the device did not answer: {results['device']['error'].splitlines()[-1]}")
    wrong = [row for row in results["rows"] if row.get("right") is False]
    if wrong:
        told = ", ".join(sorted({str(row.get("kernel", row.get("id"))) for row in wrong})[:5])
        raise IngestError(f"{path}: {len(wrong)} checks failed ({told}); mend those kernels first")
    return results


def joined(runs: Sequence[Row]) -> Row:
    """Runs of different parts on one device as one: IngestError where devices or libraries are not the same."""
    devices = {run["device"]["device"] for run in runs}
    libraries: dict[str, str] = {}
    for run in runs:
        other = [name for name, made in run["bundle"]["libraries"].items() if libraries.setdefault(name, made) != made]
        if other or len(devices) > 1:
            raise IngestError(f"runs of {', '.join(sorted(devices))} with other libraries ({other}); ingest each alone")
    specs = {name: spec for run in runs for name, spec in run["bundle"]["specs"].items()}
    both = {name: [row for run in runs for row in run[name]] for name in ("parts", "rows")}
    return {**runs[-1], **both, "bundle": {"libraries": libraries, "specs": specs}}


def profiles(results: Row) -> dict[str, GpuProfile]:
    """What was measured of L1, by the name of the hardware spec that the libraries were built for."""
    device, specs = results["device"], results["bundle"]["specs"]
    versions = tuple(f"{name} {device[name]}" for name in ("smi", "torch", "cuda") if device.get(name))
    found: dict[str, dict[str, BlockMeasurement]] = {}
    for row in rows_of(results, "level"):
        if row["spread"] > MOST_SPREAD or min(row["alone_s"], row["full_s"]) <= 0:
            continue
        spec = specs[row["library"]]
        figures = (row["alone_s"], row["full_s"], max(row["start_s"], 0.0), row["spread"])
        found.setdefault(spec, {})[row["kernel"]] = BlockMeasurement(row["kernel"], *figures)
    return {
        spec: GpuProfile("measured", device["device"], results["date"], versions, tuple(kernels.values()))
        for spec, kernels in found.items()
    }


def merged(old: GpuProfile, new: GpuProfile) -> GpuProfile:
    """Kernels of both; the new run wins. Of another device nothing is kept."""
    if old.device != new.device:
        return new
    kernels = {row.kernel: row for row in (*old.kernels, *new.kernels)}
    return GpuProfile(new.basis, new.device, new.date, new.versions, tuple(kernels[name] for name in sorted(kernels)))


def store(profile: GpuProfile, path: Path) -> None:
    if path.is_file():
        profile = merged(GpuProfile.from_json(path.read_text(encoding="utf-8")), profile)
    path.write_text(profile.to_json() + "\n", encoding="utf-8")


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows), ""]


def speedups(results: Row, library: str, system: str, mode: str) -> dict[str, list[tuple[str, float]]]:
    """(case, their seconds / ours) by suite."""
    found: dict[str, list[tuple[str, float]]] = {}
    for row, ratio in ratios(results, library, system, mode):
        found.setdefault(row["suite"], []).append((shape_of(row), ratio))
    return found


def suite_tables(results: Row, library: str) -> list[str]:
    lines: list[str] = []
    systems = sorted({row["system"] for row in rows_of(results, "suite", library=library)} - {"vortex"})
    rows = []
    for system in systems:
        for mode in ("warm", "cold"):
            for suite, pairs in sorted(speedups(results, library, system, mode).items()):
                ratios = [ratio for _, ratio in pairs]
                case, worst = min(pairs, key=lambda pair: pair[1])
                wins = sum(ratio >= 1 for ratio in ratios) / len(ratios)
                mean = geometric_mean(ratios)
                rows.append((system, mode, suite, len(ratios), f"{mean:.2f}", f"{wins:.0%}", f"{worst:.2f} ({case})"))
    if rows:
        lines += table(("over", "L2", "suite", "cases", "geometric mean", "at least as fast", "worst"), rows)
    large = rows_of(results, "suite", library=library, suite="squares")
    if large:
        lines += table(
            ("square", "system", "TFLOP/s warm", "spread"),
            (
                (row["m"], row["system"], f"{row['flops'] / row['warm_s'] * 1e-12:.1f}", f"{row['warm_spread']:.0%}")
                for row in large
            ),
        )
    return lines


def conv_table(results: Row, library: str) -> list[str]:
    """Convolutions against cuDNN, by suite."""
    timed = {
        system: {row["id"]: row for row in rows_of(results, "conv", library=library, system=system)}
        for system in ("vortex", "cudnn")
    }
    ratios: dict[tuple[str, str], list[float]] = {}
    for case, row in timed["cudnn"].items():
        for mode in ("warm", "cold") if case in timed["vortex"] else ():
            ratio = row[f"{mode}_s"] / timed["vortex"][case][f"{mode}_s"]
            ratios.setdefault((row["suite"], mode), []).append(ratio)
    rows = [
        (suite, mode, len(found), f"{geometric_mean(found):.2f}", f"{sum(r >= 1 for r in found) / len(found):.0%}")
        for (suite, mode), found in sorted(ratios.items())
    ]
    return table(("convolutions over cuDNN", "L2", "cases", "geometric mean", "at least as fast"), rows) if rows else []


def reduction_tables(results: Row, library: str) -> list[str]:
    """Each case with L2 flushed, as it is priced: bytes per second beside those of a copy in the same run."""
    if not is_of_reductions(results, library):
        return []
    torchs = {row["id"]: row["cold_s"] for row in rows_of(results, "suite", library=library, system="torch")}
    copies = {row["part"]: row["bytes"] / row["seconds"] for row in rows_of(results, "bandwidth")}
    rows = []
    for row in rows_of(results, "suite", library=library, system="vortex"):
        rate, copied, theirs = row["bytes"] / row["cold_s"], copies.get(row["part"]), torchs.get(row["id"])
        rows.append(
            (
                shape_of(row),
                f"{row['cold_s'] * 1e6:.1f}",
                f"{row['cold_spread']:.0%}",
                f"{row['predicted_s'] * 1e6:.1f}",
                f"{theirs * 1e6:.1f}" if theirs else "",
                f"{rate * 1e-9:.0f}",
                f"{rate / copied:.0%}" if copied else "",
            )
        )
    head = (
        "outer x depth x inner",
        "us, L2 flushed",
        "spread",
        "us predicted",
        "us of torch",
        "GB/s",
        "of a copy's GB/s",
    )
    return table(head, rows) if rows else []


def section_table(results: Row, library: str) -> list[str]:
    """How far each section came that ended by itself."""
    rows = [(row["section"], row["done"], row["planned"]) for row in rows_of(results, "section", library=library)]
    return table(("section", "done", "of"), rows) if rows else []


def choice_tables(results: Row, library: str) -> list[str]:
    lines: list[str] = []
    cores = rows_of(results, "core_types", library=library)
    both = [row["seconds"] for row in cores if {"cuda_core", "tensor_core"} <= set(row["seconds"])]
    if both:
        worst = [max(s["cuda_core"], s["tensor_core"]) / s["adaptive"] for s in both]
        best = [min(s["cuda_core"], s["tensor_core"]) / s["adaptive"] for s in both]
        figures = (len(both), f"{geometric_mean(best):.3f}", f"{min(best):.3f}", f"{geometric_mean(worst):.2f}")
        lines += table(("Figure 16 cases", "of the better core type", "least", "over the worse one"), [figures])
    shares = [
        min(plan["s"] for plan in row["plans"]) / row["chosen_s"]
        for row in rows_of(results, "oracle", library=library)
        if row["all"] and row["plans"]
    ]
    if shares:
        told = (len(shares), f"{geometric_mean(shares):.3f}", f"{min(shares):.3f}")
        lines += table(("oracle cases", "share of the fastest kernel", "least"), [told])
    calls = rows_of(results, "overhead", library=library)
    if calls:
        rows = ((row["what"], f"{row['seconds'] * 1e6:.2f}") for row in calls)
        lines += table((f"call on {calls[0]['shape']}", "us of the host"), rows)
    return lines


def checks(results: Row, library: str) -> list[str]:
    tried = rows_of(results, "verify", library=library)
    kernels = len({row["kernel"] for row in tried})
    done = next(iter(rows_of(results, "verify_done", library=library)), {"kernels": "?", "trials": "?"})
    same = ", the same bits from call to call and at every alignment" if any("same" in row for row in tried) else ""
    return [
        f"{kernels} of {done['kernels']} kernels ran {len(tried)} checks (integers bit by bit, random numbers against "
        f"float64 samples, guards around every operand{same}); all were right.",
        "",
    ]


def asked_table(results: Row, library: str) -> list[str]:
    """Of a library that the suites are for: others are verified alone, or race cuDNN."""
    if not any(rows_of(results, kind, library=library) for kind in ("suite", "oracle", "overhead")):
        return []
    dtype = next((row["dtype"] for row in rows_of(results, "suite", library=library)), "")
    return table(
        ("asked of the library", "", "found", "met"), (row.cells() for row in demands(results, library, dtype))
    )


def host_table(results: Row) -> list[str]:
    rows = rows_of(results, "cpu")
    if not rows:
        return []
    counts = list(rows[0]["seconds"])
    first = counts[0]
    scaling = [(n, f"{geometric_mean(r['seconds'][first] / r['seconds'][n] for r in rows):.2f}") for n in counts]
    over = geometric_mean(row["numpy_s"] / row["seconds"][counts[-1]] for row in rows)
    told = f"CPU library on {results['host']['cpu']}, {len(rows)} cases; on all cores {over:.2f} times NumPy's BLAS."
    return ["## Host", "", told, "", *table(("threads", "speedup over one"), scaling)]


def page(results: Row, spec: str) -> str:
    device = results["device"]
    lines = [f"# {spec}", "", f"Measured {results['date']} on {device['device']} ({device.get('smi', '')})."]
    lines += [f"torch {device.get('torch')}, CUDA {device.get('cuda')}. Times are medians of CUDA events.", ""]
    libraries = [name for name, built_for in results["bundle"]["specs"].items() if built_for == spec]
    if open_checks := unverified(results, libraries):
        lines[2:2] = [f"**Verification did not finish: {'; '.join(open_checks)}.**", ""]
    for library in libraries:
        lines += [f"## {library}", "", *checks(results, library), *asked_table(results, library)]
        lines += [*suite_tables(results, library), *conv_table(results, library), *reduction_tables(results, library)]
        lines += [*choice_tables(results, library), *section_table(results, library)]
        mode = "cold_s" if is_of_reductions(results, library) else "warm_s"  # as their operands are priced
        errors = [
            abs(row["predicted_s"] / row[mode] - 1)
            for row in rows_of(results, "suite", library=library, system="vortex")
        ]
        if errors:
            lines += [f"Predicted against measured seconds, median error: {median(errors):.0%}.", ""]
    lines += host_table(results)
    lines += ["## Parts", "", *table(("part", "status", "s", "rows"), (_part(part) for part in results["parts"]))]
    return "\n".join(lines)


def _part(part: Mapping[str, Any]) -> tuple[Any, ...]:
    return part["part"], part["status"], part["seconds"], part["rows"]


def ingest(paths: Sequence[Path], root: Path = ROOT) -> list[Path]:
    """Write what runs of different parts have shown; the files written."""
    results = joined([load(path) for path in paths])
    written = []
    for spec, profile in profiles(results).items():
        target = root / "vortex" / "measurements" / f"{spec}.json"
        store(profile, target)
        written.append(target)
    for spec in sorted(set(results["bundle"]["specs"].values())):
        target = root / "docs" / "performance" / f"{spec}.md"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page(results, spec), encoding="utf-8")
        written.append(target)
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    top = command(__doc__ or "")
    top.add_argument(
        "results",
        nargs="+",
        type=Path,
        metavar="RESULTS.json",
        help="what `eval.gpu.run_on_device` wrote, part by part",
    )
    options = top.parse_args(arguments)
    try:
        for path in ingest(options.results):
            print(path)
    except IngestError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
