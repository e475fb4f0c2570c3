"""`python -m eval.offline`: what compiling costs: time from nothing and from the cache, memory, size, candidates.

Each compilation runs in a fresh process. Memory is the sum over that process and all that it starts, sampled every
50 ms of a compilation that is not timed: the sampling takes time of its own. The hardware need not be at hand: without
it nothing is measured while compiling.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from eval import machine, records
from eval.commands import command, ended, shown
from eval.compare import markdown
from eval.memory import PeakMemory
from eval.operator_libraries import DTYPES, NAMES
from eval.process import ROOT

COSTS = (
    "import vortex",
    "compile from nothing",
    "compile from the cache",
    "peak memory",
    "library",
    "kernels",
)
"""The figures of every operator; counts of the sieve follow them."""
CHILD = """
import json, os, sys, time
start = time.perf_counter()
import vortex
imported = time.perf_counter()
from eval.operator_libraries import operator_named
hw, path, name, dtype = sys.argv[1:5]
run = vortex.compile(operator_named(name, dtype or None), hw=hw)
done = time.perf_counter()
run.save(path)
files = [path] if os.path.isfile(path) else [os.path.join(d, f) for d, _, fs in os.walk(path) for f in fs]
manifest = run.library.manifest
kernels = len(manifest.kernels if hasattr(manifest, "kernels") else manifest.strategies)
sieve = {f"{a.level} {a.filter}": a.count for a in manifest.admitted}
print(json.dumps({"import": imported - start, "compile": done - imported, "size": sum(map(os.path.getsize, files)),
                  "kernels": kernels, "dtype": manifest.dtype, "sieve": sieve}))
"""


def compile_once(
    hw: str, cache: Path, operator: str = "gemm", dtype: str | None = None, sampled: bool = False
) -> dict[str, Any]:
    """Figures of one compilation in a fresh process, with `cache` as its cache folder.

    With `sampled` its `memory` in bytes is one of them, and its seconds are longer than they would be.
    """
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"VORTEX_CACHE_DIR": str(cache), "XDG_CACHE_HOME": str(cache), "PYTHONPATH": path}
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, hw, str(Path(folder, "built.vortex")), operator, dtype or ""],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with PeakMemory(child.pid) if sampled else nullcontext() as memory:
            told, errors = child.communicate()
    if child.returncode:
        raise RuntimeError(f"compiling {operator} for {hw} failed:\n{errors[-2000:]}")
    figures: dict[str, Any] = json.loads(told.splitlines()[-1])
    return figures | ({"memory": memory.peak_bytes} if memory else {})


def stages(library: Any) -> dict[str, float]:
    """Seconds of every stage of compiling a library from nothing: with objects that were there it is made again."""
    manifest = library.manifest
    if not manifest.reused:
        told: dict[str, float] = manifest.offline_seconds
        return told
    from eval.link_table import hardware_of
    from vortex import api, operators

    operator = operators.rebuilt(manifest.operator, manifest.settings)
    again: dict[str, float] = api.compile(operator, hardware_of(library), cache=False).manifest.offline_seconds
    return again


def figures(hw: str, operator: str = "gemm", dtype: str | None = None) -> list[dict[str, Any]]:
    """One line a figure: those of COSTS, then the candidates after each filter of the sieve.

    RuntimeError with the end of what the compilation wrote where it failed.
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        first, second = (compile_once(hw, Path(folder), operator, dtype) for _ in range(2))
        memory = compile_once(hw, Path(other), operator, dtype, sampled=True)["memory"]
    costs = (
        (first["import"], "s"),
        (first["compile"], "s"),
        (second["compile"], "s"),
        (memory / 1e6, "MB"),
        (first["size"] / 1e6, "MB"),
        (first["kernels"], "kernels"),
    )
    named = [(name, *cost) for name, cost in zip(COSTS, costs, strict=True)]
    named += [(name, count, "candidates") for name, count in first["sieve"].items()]
    about = {"kind": "offline", "operator": operator, "dtype": first["dtype"], "hw": hw}
    about |= {"note": f"{operator} of {first['dtype']} for {hw}"}
    return [about | {"name": name, "value": value, "unit": unit} for name, value, unit in named]


def table(lines: Sequence[dict[str, Any]]) -> str:
    """A row for every operator, element type and hardware; the last line of a figure counts."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for line in lines:
        found.setdefault((line["operator"], line["dtype"], line["hw"]), {})[line["name"]] = line
    units = {name: line["unit"] for rows in found.values() for name, line in rows.items() if name in COSTS}
    heads = ("operator", "dtype", "hardware", *(n if units[n] == n else f"{n}, {units[n]}" for n in units))
    return markdown(heads, [[*at, *(shown(rows[name]["value"]) for name in units)] for at, rows in found.items()])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command(__doc__)
    parser.add_argument("--operator", nargs="+", choices=NAMES, default=["gemm"], help="what to compile")
    parser.add_argument("--dtype", choices=DTYPES, help="of the operands; default: the operator's own")
    parser.add_argument("--hw", default="native", help="a shipped spec, a path, or native")
    parser.add_argument("--out", type=Path, default=Path("results/offline.jsonl"), help="lines are added to it")
    parser.add_argument("--allow-busy", action="store_true", help="measure on a busy machine too")
    options = parser.parse_args(arguments)
    if not options.allow_busy:
        machine.check_idle()
    about = {"commit": machine.commit(), "device": machine.device()}
    lines = []
    for operator in options.operator:
        try:
            new = [line | about for line in figures(options.hw, operator, options.dtype)]
        except RuntimeError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        records.append(options.out, new)
        lines += new
        counts = ", ".join(f"{line['name']} {shown(line['value'])}" for line in new if line["unit"] == "candidates")
        print(f"{new[0]['note']}: {counts}", file=sys.stderr)
    print(table(lines))
    return 0


if __name__ == "__main__":
    ended(main)
