"""Benchmark cases: the suites stored as CSV, random shapes, and which of them fit in memory."""

import csv
import math
import random
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol, TypeVar

SUITE_DIR = Path(__file__).parent / "suites"
# The paper's four GEMM suites (its Table 3), and the classifier layers in the orientation that inference uses.
VORTEX_SUITES = ("vortex_deepbench_gemm_84", "vortex_transformer_gemm_192", "vortex_cnn_fc_80", "vortex_gnn_gemm_150")
MAIN_SUITES = (*VORTEX_SUITES, "cnn_fc_forward_80")
CONV_SUITES = ("vortex_deepbench_conv_107", "vortex_cnn_conv_584")
FLOAT_BYTES = 4
Layout = Literal["case", "nn", "nt", "tn", "tt"]


class Measurable(Protocol):
    """What the harness asks of a case, whatever its operator."""

    @property
    def suite(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def flops(self) -> int: ...
    @property
    def least_flops(self) -> float: ...
    @property
    def multiplied(self) -> str: ...
    @property
    def read_bytes(self) -> int: ...
    @property
    def write_bytes(self) -> int: ...
    @property
    def footprint_bytes(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...


C = TypeVar("C", bound=Measurable)


@dataclass(frozen=True, slots=True)
class Case:
    """One GEMM of a suite: C[m,n] = op(A) op(B), row-major; a transposed operand is stored as its transpose."""

    suite: str
    id: str
    m: int
    n: int
    k: int
    trans_a: bool = False
    trans_b: bool = False

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def least_flops(self) -> float:
        """What no system in use does with less."""
        return self.flops

    @property
    def multiplied(self) -> str:
        """The element type that is multiplied."""
        return "float32"

    @property
    def read_bytes(self) -> int:
        return FLOAT_BYTES * (self.m * self.k + self.k * self.n)

    @property
    def write_bytes(self) -> int:
        return FLOAT_BYTES * self.m * self.n

    @property
    def footprint_bytes(self) -> int:
        return self.read_bytes + self.write_bytes

    @property
    def memory_bytes(self) -> int:
        """What one system may hold: the operands, a packed copy of B, and a second output where it allocates one."""
        return self.footprint_bytes + FLOAT_BYTES * self.k * self.n + self.write_bytes

    @property
    def layout(self) -> str:
        return ("t" if self.trans_a else "n") + ("t" if self.trans_b else "n")

    def __str__(self) -> str:
        return f"{self.id} {self.m}x{self.n}x{self.k} {self.layout}"


def suite_names() -> list[str]:
    """Every suite that is stored beside this module."""
    return sorted(path.stem for path in SUITE_DIR.glob("*.csv"))


def load_suite(name: str) -> list[Case]:
    """The GEMM cases of one stored suite, in file order."""
    path = SUITE_DIR / f"{name}.csv"
    if not path.is_file():
        raise LookupError(f"no suite {name!r}; known: {', '.join(suite_names())}, random")
    with path.open(newline="") as file:
        return [
            Case(
                suite=row["suite"],
                id=row["id"],
                m=int(row["m"]),
                n=int(row["n"]),
                k=int(row["k"]),
                trans_a=row["trans_a"] == "True",
                trans_b=row["trans_b"] == "True",
            )
            for row in csv.DictReader(file)
        ]


def random_cases(count: int = 300, seed: int = 0, max_extent: int = 8192, max_flops: float = 4e10) -> list[Case]:
    """Shapes with log-uniform extents from 1 to `max_extent`; those over `max_flops` are drawn again."""
    draw = random.Random(seed)
    cases: list[Case] = []
    while len(cases) < count:
        m, n, k = (max(1, round(math.exp(draw.uniform(0.0, math.log(max_extent))))) for _ in range(3))
        if 2 * m * n * k <= max_flops:
            cases.append(Case(f"random_{seed}", f"random_{seed}/{len(cases):04d}", m, n, k))
    return cases


def fresh_seed() -> int:
    """A seed that nobody could have tuned for; callers print it so that the run can be repeated."""
    return random.SystemRandom().randrange(1_000_000)


def relayout(cases: list[Case], layout: Layout) -> list[Case]:
    """The cases with another operand layout; `case` leaves each as its suite says."""
    if layout == "case":
        return cases
    return [replace(case, trans_a=layout[0] == "t", trans_b=layout[1] == "t") for case in cases]


def fitting(cases: list[C], budget_bytes: float) -> tuple[list[C], list[tuple[C, str]]]:
    """The cases that fit in `budget_bytes`, and those left out, each with the reason."""
    kept, left_out = [], []
    for case in cases:
        if case.memory_bytes <= budget_bytes:
            kept.append(case)
        else:
            need, have = case.memory_bytes / 1e9, budget_bytes / 1e9
            left_out.append((case, f"does not fit in memory: needs {need:.1f} GB of a budget of {have:.1f} GB"))
    return kept, left_out


def sample(cases: list[C], count: int, seed: int) -> list[C]:
    """A seeded sample of `count` cases with every suite represented in proportion (at least one case each)."""
    if count >= len(cases):
        return cases
    by_suite: dict[str, list[C]] = {}
    for case in cases:
        by_suite.setdefault(case.suite, []).append(case)
    chosen: set[str] = set()
    for suite, members in sorted(by_suite.items()):
        share = max(1, round(count * len(members) / len(cases)))
        draw = random.Random(seed ^ zlib.crc32(suite.encode()))
        chosen.update(case.id for case in draw.sample(members, min(share, len(members))))
    return [case for case in cases if case.id in chosen]
