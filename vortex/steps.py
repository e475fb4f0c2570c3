"""The steps of a chain that is applied to every element: what each reads, and what it does, in NumPy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

Per = Literal["column", "row", "element"]
PER: tuple[Per, ...] = ("column", "row", "element")


@dataclass(frozen=True)
class Operand:
    """A tensor that a step reads: [n] per column, [m] per row, [m, n] per element."""

    name: str
    per: Per
    dtype: str


@dataclass(frozen=True)
class Bias:
    """x + operand."""

    kind: ClassVar[str] = "bias"
    per: Per = "column"
    operand: str = "bias"
    dtype: str = "float32"

    def __str__(self) -> str:
        return f"{self.operand} per {self.per}"

    def apply(self, x: Any, operands: Mapping[str, Any]) -> Any:
        return x + operands[self.operand]


@dataclass(frozen=True)
class Scale:
    """x * operand."""

    kind: ClassVar[str] = "scale"
    per: Per = "column"
    operand: str = "scale"
    dtype: str = "float32"

    def __str__(self) -> str:
        return f"times {self.operand} per {self.per}"

    def apply(self, x: Any, operands: Mapping[str, Any]) -> Any:
        return x * operands[self.operand]


@dataclass(frozen=True)
class Multiply:
    """x * factor, a constant of the library."""

    kind: ClassVar[str] = "multiply"
    factor: float

    def __str__(self) -> str:
        return f"times {self.factor:g}"

    def apply(self, x: Any, operands: Mapping[str, Any]) -> Any:
        return x * self.factor


@dataclass(frozen=True)
class Relu:
    """The greater of x and 0; NaN stays NaN."""

    kind: ClassVar[str] = "relu"

    def __str__(self) -> str:
        return "relu"

    def apply(self, x: Any, operands: Mapping[str, Any]) -> Any:
        import numpy as np

        return np.maximum(x, 0)


@dataclass(frozen=True)
class Clamp:
    """x, but at least `low` and at most `high`; NaN stays NaN."""

    kind: ClassVar[str] = "clamp"
    low: float
    high: float

    def __str__(self) -> str:
        return f"clamp to {self.low:g}..{self.high:g}"

    def apply(self, x: Any, operands: Mapping[str, Any]) -> Any:
        import numpy as np

        return np.clip(x, self.low, self.high)


@dataclass(frozen=True)
class Gelu:
    """x times the normal distribution function of x, or its usual approximation by a hyperbolic tangent."""

    kind: ClassVar[str] = "gelu"
    approximate: Literal["none", "tanh"] = "none"

    def __str__(self) -> str:
        return "gelu" if self.approximate == "none" else "gelu (tanh)"

    def apply(self, x: Any, operands: Mapping[str, Any]) -> Any:
        import numpy as np

        if self.approximate == "tanh":
            return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return 0.5 * x * np.vectorize(math.erfc, otypes=[np.float64])(-x / math.sqrt(2))


@dataclass(frozen=True)
class Silu:
    """x / (1 + exp(-x))."""

    kind: ClassVar[str] = "silu"

    def __str__(self) -> str:
        return "silu"

    def apply(self, x: Any, operands: Mapping[str, Any]) -> Any:
        import numpy as np

        return 0.5 * x * (1 + np.tanh(0.5 * x))


@dataclass(frozen=True)
class Cast:
    """x in another element type, the last step of a chain; integers are rounded to the nearest even and saturate."""

    kind: ClassVar[str] = "cast"
    dtype: str

    def __str__(self) -> str:
        return f"as {self.dtype}"

    def apply(self, x: Any, operands: Mapping[str, Any]) -> Any:
        import numpy as np

        if self.dtype == "bfloat16":
            return rounded_to_bfloat16(np.asarray(x, np.float32))
        if self.dtype.startswith("float"):
            return np.asarray(x).astype(self.dtype)
        limits = np.iinfo(self.dtype)
        return np.clip(np.rint(x), limits.min, limits.max).astype(self.dtype)


Step = Bias | Scale | Multiply | Relu | Clamp | Gelu | Silu | Cast
KINDS: dict[str, type[Step]] = {step.kind: step for step in (Bias, Scale, Multiply, Relu, Clamp, Gelu, Silu, Cast)}


def rounded_to_bfloat16(x: Any) -> Any:
    """Float32 values with the 8 bits of fraction that bfloat16 has: NumPy knows no such type."""
    import numpy as np

    bits = np.atleast_1d(np.asarray(x, np.float32)).view(np.uint32)
    even = ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(x), np.float32(np.nan), even.reshape(np.shape(x)))
