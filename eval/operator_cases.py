"""Cases of operators beyond the plain product: convolutions, batches, reductions, epilogues, low precision."""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.suites import SUITE_DIR, Case, load_suite

FLOAT_BYTES = 4
GEMM_VARIANTS = ("bias_gelu", "bfloat16", "int8")
"""What cases of GEMM suites may be measured as."""
CONV_FIELDS = (*"nchwkrspq", "stride_h", "stride_w", "pad_h", "pad_w", "dilation", "groups")
REDUCTIONS = (
    ((1 << 24,), 0),
    ((1 << 18,), 0),
    ((4096, 4096), 1),
    ((4096, 4096), 0),
    ((16_384, 768), 1),
    ((16_384, 768), 0),
    ((512, 768), 1),
    ((512, 768), 0),
    ((32, 56, 56, 256), 0),
    ((32, 49, 2048), 1),
    ((1_000_000, 16), 1),
    ((1_000_000, 3), 1),
    ((1_000_000, 16), 0),
    ((96, 384, 384), 2),
    ((8, 1000, 1000), 1),
    ((197, 197), 1),
)
"""Shapes that networks reduce: whole tensors, normalisation over features and rows, pooling, attention, thin tables."""


@dataclass(frozen=True, slots=True)
class OperatorCase:
    """One call of an operator that is no plain product; `extents` are what the operator calls its sizes."""

    suite: str
    id: str
    op: str
    extents: dict[str, int]

    def __getitem__(self, name: str) -> int:
        return self.extents[name]

    @property
    def item_bytes(self) -> int:
        return {"bfloat16": 2, "int8": 1}.get(self.op, FLOAT_BYTES)

    @property
    def flops(self) -> int:
        """Multiplications and additions of the definition; of a reduction, its additions or comparisons."""
        e = self.extents
        if self.op == "conv2d":
            return 2 * e["n"] * e["k"] * e["p"] * e["q"] * (e["c"] // e["groups"]) * e["r"] * e["s"]
        if self.op == "reduce":
            return e["outer"] * e["depth"] * e["inner"]
        return 2 * e.get("batch", 1) * e["m"] * e["n"] * e["k"]

    @property
    def least_flops(self) -> float:
        """What the roofline is drawn with: no algorithm in use needs less.

        Winograd F(4x4, 3x3) multiplies a quarter as often; taps in the padding need no multiplication.
        """
        if self.op != "conv2d":
            return self.flops
        e = self.extents
        winograd = (e["r"], e["s"], e["stride_h"], e["stride_w"], e["dilation"]) == (3, 3, 1, 1, 1)
        inside = math.prod(
            min(1.0, (e[size] + 0.0) / (e[size] + 2 * e[pad])) for size, pad in (("h", "pad_h"), ("w", "pad_w"))
        )
        return self.flops * inside * (0.25 if winograd else 1.0)

    @property
    def multiplied(self) -> str:
        """The element type that is multiplied."""
        return self.op if self.op in ("bfloat16", "int8") else "float32"

    @property
    def read_bytes(self) -> int:
        e = self.extents
        if self.op == "conv2d":
            weights = e["k"] * (e["c"] // e["groups"]) * e["r"] * e["s"]
            return self.item_bytes * (e["n"] * e["c"] * e["h"] * e["w"] + weights)
        if self.op == "reduce":
            return self.item_bytes * self.flops
        return self.item_bytes * e.get("batch", 1) * (e["m"] * e["k"] + e["k"] * e["n"])

    @property
    def write_bytes(self) -> int:
        e = self.extents
        if self.op == "conv2d":
            return self.item_bytes * e["n"] * e["k"] * e["p"] * e["q"]
        if self.op == "reduce":
            return self.item_bytes * e["outer"] * e["inner"]
        return (FLOAT_BYTES if self.op == "int8" else self.item_bytes) * e.get("batch", 1) * e["m"] * e["n"]

    @property
    def footprint_bytes(self) -> int:
        return self.read_bytes + self.write_bytes

    @property
    def memory_bytes(self) -> int:
        """Operands, a second copy of them in the layout of a peer, a second output, and room to transform."""
        return 3 * self.footprint_bytes

    @property
    def shape(self) -> str:
        """The extents as one word, for tables."""
        e = self.extents
        if self.op == "conv2d":
            image = f"{e['n']}x{e['c']}x{e['h']}x{e['w']}"
            step = "" if (e["stride_h"], e["stride_w"]) == (1, 1) else f"/{e['stride_h']}"
            groups = f" g{e['groups']}" if e["groups"] > 1 else ""
            return f"{image} {e['k']}x{e['r']}x{e['s']}{step}{groups}"
        return "x".join(str(e[name]) for name in ("batch", "outer", "m", "n", "depth", "inner", "k") if name in e)

    def __str__(self) -> str:
        return f"{self.id} {self.op} {self.shape}"


def shape_of(line: dict[str, Any]) -> str:
    """The extents of a result line's case as one word."""
    if "extents" in line:
        return OperatorCase(line["suite"], line["id"], line["op"], line["extents"]).shape
    return f"{line['m']}x{line['n']}x{line['k']}"


def case_of(fields: dict[str, Any]) -> Case | OperatorCase:
    """A case from its fields, as a request or a result line carries them."""
    return OperatorCase(**fields) if "extents" in fields else Case(**fields)


def read_operator_suite(path: Path) -> Iterator[OperatorCase]:
    """The cases of a stored suite of convolutions or batches, in file order."""
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["op"] == "conv2d":
                extents = {name: int(row[name]) for name in CONV_FIELDS}
            else:
                extents = {name: int(row[name]) for name in ("batch", "m", "n", "k")}
                extents |= {name: int(row[name] == "True") for name in ("trans_a", "trans_b")}
            yield OperatorCase(row["suite"], row["id"], row["op"], extents)


def reductions() -> list[OperatorCase]:
    """The suite `reductions`: every shape of REDUCTIONS as (outer, depth, inner)."""
    cases = []
    for place, (shape, axis) in enumerate(REDUCTIONS):
        sizes = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
        extents = dict(zip(("outer", "depth", "inner"), sizes, strict=True))
        cases.append(OperatorCase("reductions", f"reductions/{place:04d}", "reduce", extents))
    return cases


def load_any_suite(name: str) -> list[Case] | list[OperatorCase]:
    """The cases of a suite of any operator."""
    if name == "reductions":
        return reductions()
    path = SUITE_DIR / f"{name}.csv"
    if path.is_file() and "op" in (head := path.open().readline().split(",")) and {"r", "batch"} & set(head):
        return list(read_operator_suite(path))
    return load_suite(name)


def as_variant(case: Case, variant: str) -> OperatorCase:
    """A product of a suite as another operator of the same extents."""
    extents = {"m": case.m, "n": case.n, "k": case.k}
    return OperatorCase(case.suite, f"{case.id}:{variant}", variant, extents)
