"""What an operator does to each element before it is stored, and to each element of A before it is multiplied.

A chain is written from left to right: `bias() >> gelu() >> residual()`. It is one value, hashable and printable, with
one reference in NumPy; code for a device is generated from the same steps.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from vortex.errors import DtypeError, OperandError, UnknownNameError
from vortex.steps import KINDS, PER, Bias, Cast, Clamp, Gelu, Multiply, Operand, Per, Relu, Scale, Silu, Step

OPERAND_DTYPES = ("float32", "bfloat16", "float16")
CASTS = ("float32", "bfloat16", "float16", "int8", "uint8", "int32")
MOST_OPERANDS = 4
"""That one chain may read."""
RESERVED = (
    "a",
    "b",
    "x",
    "w",
    "out",
    "stride",
    "padding",
    "dilation",
    "groups",
    "transpose_a",
    "transpose_b",
    "zero_a",
)
"""Words that calls give a meaning of their own."""


@dataclass(frozen=True)
class Epilogue:
    """Steps in the order in which they are done; without any, nothing happens."""

    steps: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        casts = [place for place, step in enumerate(self.steps) if isinstance(step, Cast)]
        if casts and casts != [len(self.steps) - 1]:
            raise OperandError(f"{self}: a cast is the last step of a chain, and there is one at most; drop the others")
        names = [operand.name for operand in self.operands]
        for name in names:
            if not name.isidentifier() or name in RESERVED or names.count(name) > 1:
                raise OperandError(
                    f"{self}: {name!r} cannot name an operand of it (taken, or no identifier); "
                    f"give each its own, for example bias(operand='bias2')"
                )
        if len(names) > MOST_OPERANDS:
            raise OperandError(f"{self}: {len(names)} operands; expected {MOST_OPERANDS} at most; drop some")

    def __rshift__(self, then: Epilogue) -> Epilogue:
        if not isinstance(then, Epilogue):
            raise UnknownNameError(f"{then!r} is no epilogue; expected bias(), relu(), ... of vortex.operators")
        return Epilogue(self.steps + then.steps)

    def __bool__(self) -> bool:
        return bool(self.steps)

    def __str__(self) -> str:
        return " >> ".join(map(str, self.steps)) or "nothing"

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The tensors that a call must bring, in the order of the steps."""
        return tuple(
            Operand(step.operand, step.per, step.dtype) for step in self.steps if isinstance(step, Bias | Scale)
        )

    @property
    def dtype(self) -> str | None:
        """The element type that the chain ends in, if it casts."""
        last = self.steps[-1] if self.steps else None
        return last.dtype if isinstance(last, Cast) else None

    @property
    def scales(self) -> bool:
        """Whether a step multiplies by a scale."""
        return any(isinstance(step, Scale | Multiply) for step in self.steps)

    @property
    def turned(self) -> Epilogue:
        """The same for a transposed output: what was per row is per column."""
        other: dict[Per, Per] = {"row": "column", "column": "row", "element": "element"}
        return Epilogue(
            tuple(
                type(step)(other[step.per], step.operand, step.dtype) if isinstance(step, Bias | Scale) else step
                for step in self.steps
            )
        )

    def reference(self, x: Any, **operands: Any) -> Any:
        """The chain in NumPy, in float64 up to a cast; `x` is [m, n], or anything that the operands broadcast to."""
        import numpy as np

        x = np.asarray(x, np.float64)
        shaped = {}
        for operand in self.operands:
            value = np.asarray(operands[operand.name], np.float64)
            shaped[operand.name] = value[..., None] if operand.per == "row" else value
        for step in self.steps:
            x = step.apply(x, shaped)
        return x

    def settings(self) -> list[dict[str, Any]]:
        """The chain as JSON knows it."""
        return [{"kind": step.kind, **asdict(step)} for step in self.steps]


NOTHING = Epilogue()


@dataclass(frozen=True)
class Store:
    """What becomes of finished sums: the chain, the element type they have, and the one they get."""

    chain: Epilogue = NOTHING
    sums: str = "float32"
    out: str = "float32"

    @property
    def needed(self) -> bool:
        """Whether the sums are not simply the output."""
        return self.apart or any(not isinstance(step, Cast) for step in self.chain.steps)

    def __str__(self) -> str:
        """The steps in words; none where sums are stored as they are."""
        steps = [str(self.chain)] if self.chain else []
        if self.apart and self.chain.dtype is None:
            steps.append(str(Cast(self.out)))
        return " >> ".join(steps) if self.needed else ""

    @property
    def apart(self) -> bool:
        """Whether partial sums cannot be kept in the output."""
        return self.sums != self.out


def rebuilt(steps: list[dict[str, Any]]) -> Epilogue:
    """The chain that `settings` described."""
    return Epilogue(tuple(KINDS[step["kind"]](**{k: v for k, v in step.items() if k != "kind"}) for step in steps))


def check_epilogue(operator: str, chain: Any, out_dtype: str | None) -> None:
    """Refuse what is no chain, an unknown element type of the output, and two that contradict each other."""
    if not isinstance(chain, Epilogue):
        raise UnknownNameError(
            f"{operator}(epilogue={chain!r}): expected a chain of vortex.operators, for example bias() >> relu()"
        )
    if out_dtype is not None and out_dtype not in CASTS:
        raise DtypeError(f"{operator}(out_dtype={out_dtype!r}): expected one of {CASTS}")
    if out_dtype is not None and chain.dtype not in (None, out_dtype):
        raise DtypeError(f"{operator}: out_dtype={out_dtype!r}, but the epilogue ends {chain}; drop one of them")


def check_prologue(operator: str, chain: Any) -> None:
    """Refuse what is no chain, and steps that need a tensor or another element type."""
    if not isinstance(chain, Epilogue):
        raise UnknownNameError(f"{operator}(prologue={chain!r}): expected a chain of vortex.operators, as relu()")
    if chain.operands or chain.dtype:
        raise OperandError(f"{operator}(prologue={chain}): it takes no tensors and casts nothing; do that to a first")


def _operand(step: type[Bias] | type[Scale], per: str, operand: str, dtype: str) -> Epilogue:
    if per not in PER:
        raise UnknownNameError(f"{step.kind}(per={per!r}): expected one of {PER}")
    if dtype not in OPERAND_DTYPES:
        raise DtypeError(f"{step.kind}(dtype={dtype!r}): expected one of {OPERAND_DTYPES}; cast the operand")
    return Epilogue((step(per, operand, dtype),))


def bias(per: str = "column", *, operand: str = "bias", dtype: str = "float32") -> Epilogue:
    """x + operand[n] (`per="column"`) or operand[m] (`per="row"`); the call takes it by the keyword `operand`."""
    return _operand(Bias, per, operand, dtype)


def scale(
    factor: float | None = None, *, per: str = "column", operand: str = "scale", dtype: str = "float32"
) -> Epilogue:
    """x * factor, or without one x * operand, as `bias`."""
    return _operand(Scale, per, operand, dtype) if factor is None else Epilogue((Multiply(_finite("scale", factor)),))


def residual(*, operand: str = "residual", dtype: str = "float32") -> Epilogue:
    """x + operand[m, n], whose rows are contiguous and any distance apart."""
    return _operand(Bias, "element", operand, dtype)


def relu() -> Epilogue:
    """max(x, 0)."""
    return Epilogue((Relu(),))


def clamp(low: float, high: float) -> Epilogue:
    """x inside low..high."""
    if not _finite("clamp", low) <= _finite("clamp", high):
        raise OperandError(f"clamp({low}, {high}): expected low <= high; exchange them")
    return Epilogue((Clamp(float(low), float(high)),))


def gelu(approximate: str = "none") -> Epilogue:
    """0.5 x (1 + erf(x / sqrt(2))); with `approximate="tanh"` 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    if approximate not in ("none", "tanh"):
        raise UnknownNameError(f"gelu({approximate!r}): expected 'none' (exact) or 'tanh'")
    return Epilogue((Gelu(approximate),))  # type: ignore[arg-type]  # one of both, as was just found


def silu() -> Epilogue:
    """x / (1 + exp(-x))."""
    return Epilogue((Silu(),))


def cast(dtype: str) -> Epilogue:
    """x as another element type: the one that the output has in memory."""
    if dtype not in CASTS:
        raise DtypeError(f"cast({dtype!r}): expected one of {CASTS}")
    return Epilogue((Cast(dtype),))


def _finite(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise OperandError(f"{name}: {value!r} is no finite number; expected a constant; pass tensors at the call")
    return float(value)
