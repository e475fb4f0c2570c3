"""`python -m eval.report`: markdown tables and plots from result lines, such as `results/*.jsonl`."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from eval import records
from eval.commands import command, shown
from eval.compare import decile_groups, grouped, losing, markdown, overall, roofline, tables
from eval.records import Line
from eval.registry import RIVALS
from eval.stats import geometric_mean

EXPECTED = {
    "bench": "python -m eval.bench",
    "oracle": "python -m eval.oracle",
    "overhead": "python -m eval.overhead",
    "offline": "python -m eval.offline",
}


def summary_text(lines: Sequence[Line]) -> str:
    """The tables against each baseline, for the end of a run."""
    parts = []
    for table in tables(lines):
        parts.append(f"\n{table.title}, {len(table.lines)} cases\n\n{roofline(table)}")
        parts += [f"\n{ours}:\n\n{overall(table, ours)}" for ours in RIVALS if table.measured(ours)]
    return "\n".join(parts)


def bench_section(lines: Sequence[Line]) -> list[str]:
    parts = []
    for table in tables(lines):
        parts += [f"## {table.title}", f"{len(table.lines)} cases.", roofline(table)]
        for ours in RIVALS:
            if not table.measured(ours):
                parts.append(f"No results of `{ours}` at {table.title}.")
                continue
            parts += [f"### {ours}", overall(table, ours), "By suite, geometric means:"]
            parts += [grouped(table, ours, table.by_suite(), "suite"), "By size, geometric means:"]
            parts += [grouped(table, ours, decile_groups(table), "floating-point operations")]
            parts += ["The lowest speedups over the best peer:", losing(table, ours)]
    return parts + failures(lines)


def failures(lines: Sequence[Line]) -> list[str]:
    """What has no timing and why: nothing disappears from a report."""
    counts: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        if line["error"] is not None:
            counts.setdefault((line["system"], line["error"].split("\n")[0][:160]), []).append(line["id"])
    if not counts:
        return []
    rows = [[system, str(len(ids)), error.replace("|", "/"), ids[0]] for (system, error), ids in sorted(counts.items())]
    return ["## Without a result", markdown(("system", "lines", "error", "for example"), rows)]


def about(lines: Sequence[Line]) -> list[str]:
    """Where and with what the lines were made; several values of one thing are all listed."""

    def values(name: str) -> str:
        return "; ".join(sorted({str(line[name]) for line in lines if line.get(name) is not None})) or "unknown"

    versions: dict[str, set[str]] = {}
    for line in lines:
        for name, version in (line.get("versions") or {}).items():
            versions.setdefault(name, set()).add(version)
    listed = ", ".join(f"{name} {'/'.join(sorted(found))}" for name, found in sorted(versions.items()))
    busy = sum(bool(line.get("busy")) for line in lines)
    items = [f"- device: {values('device')}", f"- commit: {values('commit')}", f"- seed: {values('seed')}"]
    items += [f"- {measured}" for measured in sorted({_limits(line) for line in lines if line.get("limits")})]
    items += [f"- versions: {listed}"]
    if busy:
        items.append(f"- **{busy} of {len(lines)} lines were measured on a busy machine**")
    return ["\n".join(items)]


def _limits(line: Line) -> str:
    levels = ", ".join(f"{level['name']} {level['read_bytes_per_s'] / 1e9:.0f}" for level in line["limits"]["levels"])
    peak = line["limits"]["peak_flops_per_s"] / 1e9
    return f"{line['threads']} thread{'s' * (line['threads'] > 1)}: FMA peak {peak:.0f} GFLOP/s, read GB/s: {levels}"


def oracle_section(lines: Sequence[Line]) -> list[str]:
    """Selection against the best strategy found by running all of them."""
    parts = ["## Selection against the oracle"]
    for here in oracle_groups(lines):
        rows = [
            [label, f"{geometric_mean(line[name] for line in here):.3f}", f"{min(line[name] for line in here):.3f}"]
            for label, name in (("ours", "ours"), ("static1", "static1"), ("static2", "static2"))
        ]
        parts += [f"### {oracle_title(here)}", _among(here)]
        parts.append(markdown(("choice", "geometric mean", "worst"), rows))
        worst = sorted(here, key=lambda line: line["ours"])[: max(1, len(here) // 20)]
        rows = [
            [
                f"{line['m']}x{line['n']}x{line['k']}",
                f"{line['ours']:.3f}",
                line["chosen"],
                line["best"],
                line["misled"],
            ]
            for line in worst
        ]
        parts.append("The worst 5 %, with the cost term that spoke most for the chosen strategy over the best one:")
        parts.append(markdown(("shape", "share", "chosen", "best", "term"), rows))
    return parts


def oracle_groups(lines: Sequence[Line]) -> list[list[Line]]:
    """Lines that are compared with each other: as many threads, as many strategies, B as it was."""
    groups: dict[tuple[int, bool, bool], list[Line]] = {}
    for line in lines:
        groups.setdefault((line["threads"], line["unpruned"], line.get("packed", False)), []).append(line)
    return [groups[at] for at in sorted(groups)]


def oracle_title(group: Sequence[Line]) -> str:
    first = group[0]
    strategies = "strategies of the link table" if first["unpruned"] else "strategies of the library"
    packed = ", packed B" if first.get("packed") else ""
    return f"{first['threads']} thread{'s' if first['threads'] > 1 else ''}{packed}, {strategies}"


def _among(group: Sequence[Line]) -> str:
    """What the oracle chose from."""
    counts = sorted({str(line["strategies"]) for line in group})
    told = f"{len(group)} shapes, {' or '.join(counts)} strategies"
    if any(line.get("sampled") for line in group):
        told += " (an even sample)"
    tried = [line["tried"] for line in group if "tried" in line]
    if tried:
        mean = sum(tried) / len(tried)
        told += f"; in the mean {mean:.0f} different plans for a shape, grids included"
    return f"{told}. The oracle is 1."


def figures_section(title: str, lines: Sequence[Line]) -> list[str]:
    """Named figures as they were measured."""
    rows = [[str(line["name"]), shown(line["value"]), str(line["unit"]), str(line.get("note", ""))] for line in lines]
    return [f"## {title}", markdown(("figure", "value", "unit", "note"), rows)]


def report(lines: Sequence[Line], pictures: Iterable[str] = ()) -> str:
    """The whole document. Kinds of data that are missing are named, with the command that makes them."""
    bench = list(records.settled(lines).values())
    parts = ["# Measured performance"]
    if bench:
        parts += about(bench)
    parts += [f"![{name}]({name})" for name in pictures]
    if bench:
        parts += bench_section(bench)
    for kind, title in (("oracle", ""), ("overhead", "Run-time overhead"), ("offline", "Offline cost")):
        found = [line for line in lines if line.get("kind") == kind]
        if found:
            parts += oracle_section(found) if kind == "oracle" else figures_section(title, found)
    missing = [kind for kind in EXPECTED if not any(line.get("kind") == kind for line in lines)]
    if missing:
        parts += ["## Missing", "\n".join(f"- no {kind} results: run `{EXPECTED[kind]}`" for kind in missing)]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command(__doc__)
    parser.add_argument("results", nargs="+", type=Path, help="files of result lines")
    parser.add_argument("--out", type=Path, help="folder for report.md and the plots; default: text to stdout")
    options = parser.parse_args(arguments)
    if absent := [str(path) for path in options.results if not path.is_file()]:
        parser.error(f"no such file: {', '.join(absent)}")
    lines = records.read(options.results)
    if options.out is None:
        print(report(lines))
        return 0
    from eval import plots  # matplotlib, only where it is used

    options.out.mkdir(parents=True, exist_ok=True)
    pictures = plots.draw_all(lines, options.out)
    (options.out / "report.md").write_text(report(lines, pictures))
    print(f"{options.out / 'report.md'} and {len(pictures)} plots")
    return 0


if __name__ == "__main__":
    sys.exit(main())
