"""`python -m eval.offline`: what compiling costs: time from nothing and from the cache, memory, size, candidates.

Each compilation runs in a fresh process with a cache folder of its own.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval import machine, records
from eval.commands import command, ended, shown
from eval.process import ROOT

CHILD = """
import json, os, resource, sys, time
start = time.perf_counter()
import vortex
imported = time.perf_counter()
gemm = vortex.compile(sys.argv[3], hw=sys.argv[1])
done = time.perf_counter()
gemm.save(sys.argv[2])
path = sys.argv[2]
files = [path] if os.path.isfile(path) else [os.path.join(d, f) for d, _, fs in os.walk(path) for f in fs]
own, children = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
try:
    sieve = {str(k): int(v) for k, v in dict(gemm.explain(m=128, n=768, k=768).sieve).items()}
except (AttributeError, TypeError, ValueError):
    sieve = {}
print(json.dumps({"import": imported - start, "compile": done - imported, "memory": max(own, children) * 1024,
                  "size": sum(map(os.path.getsize, files)), "sieve": sieve}))
"""


def compile_once(hw: str, cache: Path, operator: str = "gemm") -> dict[str, Any]:
    """Figures of one compilation in a fresh process, with `cache` as its cache folder."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"VORTEX_CACHE_DIR": str(cache), "XDG_CACHE_HOME": str(cache), "PYTHONPATH": path}
    with tempfile.TemporaryDirectory() as folder:
        target = str(Path(folder, "gemm.vortex"))
        done = subprocess.run(
            [sys.executable, "-c", CHILD, hw, target, operator],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"compiling for {hw} failed:\n{done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def figures(hw: str, operator: str = "gemm") -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        first, second = (compile_once(hw, Path(folder), operator) for _ in range(2))
    named = [
        ("import vortex", first["import"], "s"),
        ("compile from nothing", first["compile"], "s"),
        ("compile from the cache", second["compile"], "s"),
        ("peak memory", first["memory"] / 1e6, "MB"),
        ("library", first["size"] / 1e6, "MB"),
        *((name, count, "candidates") for name, count in first["sieve"].items()),
    ]
    return [{"kind": "offline", "name": name, "value": value, "unit": unit, "hw": hw} for name, value, unit in named]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command(__doc__)
    parser.add_argument("--hw", default="native", help="a shipped spec, a path, or native")
    parser.add_argument("--out", type=Path, default=Path("results/offline.jsonl"), help="lines are added to it")
    parser.add_argument("--allow-busy", action="store_true", help="measure on a busy machine too")
    options = parser.parse_args(arguments)
    if not options.allow_busy:
        machine.check_idle()
    about = {"commit": machine.commit(), "device": machine.device()}
    try:
        lines = [line | about for line in figures(options.hw)]
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    records.append(options.out, lines)
    for line in lines:
        print(f"{line['name']:40} {shown(line['value']):>12} {line['unit']}")
    return 0


if __name__ == "__main__":
    ended(main)
