"""DietCode's section 4.1 on a CPU, and its RFC's cost of one program for all shapes against one for each.

*Compiled*: one C program (ablation.c) with checks at fetch, multiplication and write-back, with global padding, loop
partitioning or local padding, and each with the extents as parameters or as constants; one thread. *Kernels*: a
micro-kernel of this project's link table padded globally, partitioned, or padded locally. Its accesses are masked, so a
variant with checks everywhere does not exist there.
"""

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from eval.compare import markdown
from eval.link_table import hardware_of
from eval.machine import aligned
from eval.operands import Operands, check
from eval.rivals.hidet import TILES, schedules
from eval.rivals.meter import Call
from eval.rivals.setting import Bench, Row, median_spread
from eval.rivals.space import Program
from eval.stats import geometric_mean
from eval.suites import Case
from vortex import operators
from vortex.rkernel import decompose
from vortex.sieve import register_tiles

SOURCE = Path(__file__).with_name("ablation.c")
WAYS = ("checks_everywhere", "global_padding", "loop_partitioning", "local_padding")
KERNEL_WAYS = ("global_padding", "loop_partitioning", "local_padding")
LAYERS = ((2304, 768), (768, 2304), (64, 128))
"""(n, k): two dense layers, and a product of attention, whose loops are too short to be partitioned."""
ROWS = (5, 24, 43, 62, 81, 100, 119, 128, 384, 1000)
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC")


@dataclass(frozen=True)
class Programs:
    """ablation.c for one register tile, with the extents of one shape where they are constants."""

    rows: int
    lanes: int
    shape: tuple[int, int, int] | None = None

    @cached_property
    def library(self) -> ctypes.CDLL:
        defined = {"TM": self.rows, "LANES": self.lanes} | dict(zip("MNK", self.shape or (), strict=False))
        options = [f"-D{name}={value}" for name, value in defined.items()]
        with tempfile.TemporaryDirectory(prefix="vortex-eval-") as folder:
            binary = Path(folder) / "ablation.so"
            command = [os.environ.get("CC", "cc"), *FLAGS, *options, "-o", str(binary), str(SOURCE)]
            subprocess.run(command, check=True)
            return ctypes.CDLL(str(binary))

    def call(self, way: str, operands: Operands, local: np.ndarray) -> Call:
        """One call; `local` has `room(case)` elements."""
        function: Any = getattr(self.library, way)
        function.restype = None
        arrays = (operands.a, operands.b, operands.out, local)
        pointers = [each.ctypes.data_as(ctypes.c_void_p) for each in arrays]  # these keep their arrays alive
        case = operands.case
        extents = [ctypes.c_long(extent) for extent in (case.m, case.n, case.k)]
        return lambda: function(*pointers, *extents)

    def room(self, case: Case) -> int:
        """Elements of the workspace and of globally padded operands."""
        padded = -(-case.m // self.rows) * self.rows
        return self.rows * case.k + padded * (case.k + case.n)


def cases() -> list[Case]:
    return [Case("ablation", f"ablation/{m:04d}x{n}x{k}", m, n, k) for n, k in LAYERS for m in ROWS]


def compiled_calls(dynamic: Programs, operands: Operands) -> dict[str, Call]:
    """Every way with the extents as parameters and as constants; results are checked."""
    case = operands.case
    static = Programs(dynamic.rows, dynamic.lanes, (case.m, case.n, case.k))
    local = aligned(dynamic.room(case))
    calls = {}
    for way in WAYS:
        for name, programs in ((way, dynamic), (f"{way} static", static)):
            call = programs.call(way, operands, local)
            operands.out.fill(np.nan)
            call()
            check(operands, operands.out)
            calls[name] = call
    return calls


def tallest_of_two_vectors(gemm: Any) -> int:
    """Rows of the register tile that ablation.c is written for."""
    tiles, _ = register_tiles(decompose(operators.named(gemm.manifest.operator), hardware_of(gemm)))
    return max(tile.m for tile in tiles if tile.n == 2 * gemm.manifest.lanes)


@dataclass(frozen=True)
class Experiment:
    """Every way on one shape."""

    bench: Bench

    def measure(self, case: Case) -> list[Row]:
        """Seconds of every way, compiled and by micro-kernels; results are checked first."""
        runner, space = self.bench.runner, self.bench.space(case)
        lanes = runner.vortex.manifest.lanes
        tall = tallest_of_two_vectors(runner.vortex)
        calls = compiled_calls(Programs(tall, lanes), runner.workspace.operands(case, case.m, case.n))
        kernel = schedules(runner.vortex, space, TILES)[0]
        padded = Program(kernel, case.m, case.n, case.k)
        partitioned = Program(kernel, case.m, case.n, case.k, partitioned=True)
        for program in (padded, partitioned):
            runner.verify_program(program, case)
        calls["kernels global_padding"] = runner.padded_globally(padded, case)
        calls["kernels loop_partitioning"] = runner.program(partitioned, case)
        calls["kernels local_padding"] = runner.program(padded, case)
        raced = self.bench.race(calls)
        about = {"id": case.id, "m": case.m, "n": case.n, "k": case.k, "tile": f"{tall}x{2 * lanes}"}
        about |= {"kernel": str(kernel), "seconds": {name: found.seconds for name, found in raced.items()}}
        return [about | {"spread": max(found.spread for found in raced.values())}]


def tables(rows: Sequence[Row]) -> list[str]:
    """What each way takes over local padding, by layer, and what variable extents cost over constant ones."""
    lines = []
    for n, k in dict.fromkeys((row["n"], row["k"]) for row in rows):
        of = [row["seconds"] for row in rows if (row["n"], row["k"]) == (n, k)]
        for prefix, ways in (("", WAYS), ("kernels ", KERNEL_WAYS)):
            for way in ways:
                ratios = [seconds[prefix + way] / seconds[f"{prefix}local_padding"] for seconds in of]
                dynamic = ""
                if not prefix:
                    dynamic = f"{geometric_mean(s[way] / s[f'{way} static'] for s in of):.3f}"
                told = [f"m x {n} x {k}", "kernels" if prefix else "compiled", way.replace("_", " "), str(len(of))]
                lines.append([*told, f"{geometric_mean(ratios):.2f}", f"{max(ratios):.2f}", dynamic])
    header = ("shapes", "code", "rows beyond the end", "cases", "over local padding", "most", "dynamic over static")
    where = (
        f"Compiled: register tiles of {rows[0]['tile']}, one thread; kernels: {rows[0]['kernel']}, all threads. "
        f"Spread of a timing over its rounds: median {median_spread(rows):.1%}."
    )
    return [markdown(header, lines), where]
