"""Performance over utilization of the register file (the paper's Figure 5 for L0): the evidence for the sieve's bounds.

    python -m eval.utilization --out docs/performance

Every register tile that fits the instruction set is timed when a library is compiled; this draws those measurements.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from vortex.api import compile as compile_library
from vortex.candidates import registers_needed


def rows(gemm: object) -> list[tuple[float, float, int, int]]:
    """(share of the vector registers, share of the peak of one core, rows, vectors) of every measured register tile."""
    manifest = gemm.manifest  # type: ignore[attr-defined]
    (isa,) = [i for i in manifest.hardware["instructions"] if i["lanes"] == manifest.lanes]
    peak = isa["issue_per_cycle"] * isa["lanes"] * 2 * manifest.hardware["clock_hz"]
    found = []
    for kernel in manifest.profile["kernels"]:
        r, v = kernel["rows"], kernel["vectors"]
        speed = 2 * r * v * manifest.lanes / kernel["slope_s"]
        found.append((registers_needed(r, v) / isa["registers"], speed / peak, r, v))
    return found


def draw(points: list[tuple[float, float, int, int]], low: float, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for vectors, mark in ((1, "o"), (2, "s"), (3, "^")):
        chosen = [p for p in points if p[3] == vectors]
        axes.plot([p[0] for p in chosen], [p[1] for p in chosen], mark, label=f"{vectors} vector(s) wide", ms=4)
    wide = [p for p in points if p[3] > 3]
    axes.plot([p[0] for p in wide], [p[1] for p in wide], "x", label="wider", ms=4, color="grey")
    axes.axvspan(low, 1.0, alpha=0.1, color="green", label="admitted as main tile")
    axes.set(xlabel="share of the vector registers", ylabel="share of one core's peak", xlim=(0, 1.02), ylim=(0, 1.05))
    axes.legend(loc="lower center")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/performance"))
    out = parser.parse_args().out
    gemm = compile_library("gemm", hw="native")
    if gemm.manifest.basis != "measured":
        raise SystemExit("the library's L0 was not measured on this machine; there is nothing to draw")
    points = rows(gemm)
    low = gemm.manifest.hardware["levels"][0]["min_utilization"]
    out.mkdir(parents=True, exist_ok=True)
    draw(points, low, out / "utilization.png")
    for edge in (0.0, 0.25, 0.5, 0.75):
        inside = [p[1] for p in points if edge < p[0] <= edge + 0.25]
        if inside:
            mean = sum(inside) / len(inside)
            print(f"{edge:.0%} to {edge + 0.25:.0%} of the registers: best {max(inside):.2f}, mean {mean:.2f} of peak")


if __name__ == "__main__":
    main()
