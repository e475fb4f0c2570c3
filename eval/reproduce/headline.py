"""The table that README and docs/performance.md open with: speedups over every vendor, of the lines of table5."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from eval.compare import BEST, LARGE, MKL_EITHER, MKL_WAYS, Table, baselines, markdown, pairs, tables
from eval.records import Line
from eval.stats import geometric_mean, speedup

BEGIN, END = "<!-- headline:begin, written by `python -m eval.paper table5 --draw --docs` -->", "<!-- headline:end -->"
PEERS = {
    "mkl": "MKL (`torch.mm`)",
    "onednn": "oneDNN, plain weights",
    "openblas": "OpenBLAS (NumPy)",
    "onednn_packed": "oneDNN, packed weights",
    "onnxruntime": "ONNX Runtime, packed weights",
    BEST: "the best of them, case by case",
}
OURS = {"vortex": "unpacked", "vortex_packed": "packed"}


def headline(lines: Sequence[Line]) -> str:
    """Geometric means and worst cases, plain and packed B on every number of threads, and how they were measured."""
    measured = [table for table in tables(row for line in lines for row in line["rows"]) if "vortex" in table.systems()]
    columns = [(ours, table) for ours in OURS for table in measured if pairs(table, ours, BEST)]
    header = ("Vortex over", *(f"{OURS[ours]}, {threads_of(table)}" for ours, table in columns))
    either = any(mkl(ours, table) == MKL_EITHER for ours, table in columns)
    labels = PEERS | ({"mkl": "MKL (the quicker of `torch.mm` and `cblas_sgemm`)"} if either else {})
    rows = [[label, *(over(table, ours, peer) for ours, table in columns)] for peer, label in labels.items()]
    rows.append(["not slower than MKL, within 2 %", *(not_slower(table, ours) for ours, table in columns)])
    rows.append(["share of the roofline over 10 MFLOP", *(share(table, ours) for ours, table in columns)])
    return "\n\n".join([markdown(header, rows), how(lines, measured)])


def threads_of(table: Table) -> str:
    return f"{table.threads} thread{'s' if table.threads > 1 else ''}"


def mkl(ours: str, table: Table) -> str:
    """The baseline that counts as MKL: the quicker of its two ways where both were timed."""
    return MKL_EITHER if MKL_EITHER in baselines(ours, table) else "mkl"


def over(table: Table, ours: str, peer: str) -> str:
    name = mkl(ours, table) if peer == "mkl" else peer
    found = speedup(pairs(table, ours, name)) if name in baselines(ours, table) else None
    return f"{found.geometric:.2f} (worst {found.worst:.2f})" if found else "-"


def not_slower(table: Table, ours: str) -> str:
    found = speedup(pairs(table, ours, mkl(ours, table)), tolerance=0.02)
    return f"{found.wins:.0%}" if found else "-"


def share(table: Table, ours: str) -> str:
    lines = [row[ours] for row in table.lines.values() if ours in row and row[ours]["error"] is None]
    large = [line["roofline_share"] for line in lines if line["flops"] > LARGE]
    return f"{geometric_mean(large):.2f}" if large else "-"


def how(lines: Sequence[Line], measured: Sequence[Table]) -> str:
    """Machine, commit, days, and on every number of threads the cases, the peak of the runs and the spread."""
    told = [f"Measured on {listed(lines, lambda line: line['device'])}"]
    told.append(
        f"at commit {listed(lines, lambda line: line['commit'])}, {listed(lines, lambda line: line['time'][:10])}"
    )
    for table in measured:
        cases = {case: by_system for case, by_system in table.lines.items() if "vortex" in by_system}
        rows = [row for by_system in cases.values() for row in by_system.values() if row["error"] is None]
        peaks = [row["peak_flops_per_s"] / 1e9 for row in rows]
        spreads = [row["spread"] for row in rows]
        high = statistics.quantiles(spreads, n=10)[-1] if len(spreads) > 1 else spreads[0]
        told.append(
            f"{len(cases)} products on {threads_of(table)}, FMA peak {min(peaks):.0f} to {max(peaks):.0f} GFLOP/s, "
            f"spread of a timing {statistics.median(spreads):.1%} in the median, nine in ten below {high:.0%}"
        )
        told += mkl_ways(table, list(cases)) + openblas_cores(table)
    return "; ".join(told) + "."


def mkl_ways(table: Table, cases: Sequence[str]) -> list[str]:
    """In how many products both ways of MKL were timed, where in some and not in all."""
    both = sum(all(table.seconds(case, way) is not None for way in MKL_WAYS) for case in cases)
    return [f"both ways of MKL were timed in {both} of them"] if 0 < both < len(cases) else []


def openblas_cores(table: Table) -> list[str]:
    """The kernels that OpenBLAS ran, by the core type that its versions end with: it takes a CPU newer than its release
    for an older one."""
    found = set()
    for line in (row["openblas"] for row in table.lines.values() if "openblas" in row):
        _, _, core = (line.get("versions") or {}).get("openblas", "").rpartition(" ")
        if core.isalnum():  # a reason why it is unknown ends in a bracket
            found.add(core)
    return [f"OpenBLAS ran its {', '.join(sorted(found))} kernels"] if found else []


def listed(lines: Sequence[Line], of: Callable[[Line], str]) -> str:
    return ", ".join(sorted({of(line) for line in lines if any(row["system"] == "vortex" for row in line["rows"])}))


def write(pages: Sequence[Path], lines: Sequence[Line]) -> None:
    """Puts the headline between the markers of each page; ValueError where a page has none."""
    for page in pages:
        before, begin, rest = page.read_text().partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise ValueError(f"{page}: expected the lines {BEGIN!r} and {END!r}; add them where the table belongs")
        page.write_text(f"{before}{begin}\n\n{headline(lines)}\n\n{end}{after}")
