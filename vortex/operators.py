"""What can be compiled: each operator names its axes, how operands are accessed, and what a tile of it costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vortex import epilogue
from vortex.axes import Access, Axis, Extent, Hint, OverAxes, Role, between, check_extent, often
from vortex.convolution import Conv2d as Conv2d
from vortex.dtypes import ITEM_BYTES, SUMS, Weights
from vortex.epilogue import (
    NOTHING,
    Epilogue,
    Store,
    bias,
    cast,
    check_epilogue,
    check_prologue,
    clamp,
    gelu,
    relu,
    residual,
    scale,
    silu,
)
from vortex.errors import DtypeError, OperandError, UnknownNameError, suggestion
from vortex.reduction import Reduce
from vortex.steps import Cast

__all__ = [
    "OPERATORS", "BatchGemm", "Conv2d", "Epilogue", "Gemm", "GroupedGemm", "Hint", "Operator", "Reduce", "Weights",
    "between", "bias", "cast", "clamp", "finishing", "gelu", "named", "often", "prologue_of", "rebuilt", "relu",
    "residual", "scale", "settings", "silu", "store_of",
]  # fmt: skip


class Summed(OverAxes):
    """A product: what is done to A, and what becomes of its sums, which are float32, or int32 of int8."""

    epilogue: Epilogue
    prologue: Epilogue
    out_dtype: str | None

    @property
    def store(self) -> Store:
        sums = SUMS.get(self.dtype, "float32")
        plain = sums if self.dtype in SUMS else self.storage
        return Store(self.epilogue, sums, self.epilogue.dtype or self.out_dtype or plain)

    def check(self, operator: str) -> None:
        """Refuse element types and chains that no product has."""
        check_epilogue(operator, self.epilogue, self.out_dtype)
        check_prologue(operator, self.prologue)
        if self.dtype not in ITEM_BYTES:
            raise DtypeError(
                f"{operator}(dtype={self.dtype!r}): expected one of {sorted(ITEM_BYTES)}; cast the operands"
            )
        if self.prologue and self.dtype in SUMS:
            raise OperandError(
                f"{operator}(dtype={self.dtype!r}, prologue={self.prologue}): integers have no prologue; drop it, or "
                "multiply in a float type"
            )
        store = self.store
        if store.sums == "int32" and store.out in ("int8", "uint8") and not store.chain.scales:
            raise DtypeError(
                f"{operator}(dtype={self.dtype!r}) with an output of {store.out} and no scale: sums of products of "
                f"bytes do not fit into one; expected out_dtype='int32', or scale() in the epilogue (scale(1.0) where "
                f"they shall saturate)"
            )


@dataclass(frozen=True)
class Gemm(Summed):
    """C[m, n] (+)= A[m, k] B[k, n], row-major; A and B each plain or transposed at the call.

    Every extent is dynamic, unless it is fixed (`Gemm(n=2304, k=768)`: a call with another one is refused) or expected
    (`m=between(1, 512)`, `m=often({1: 0.9, 128: 0.1})`: any other one is served too). What is known makes the library
    smaller and quicker to build.

    `dtype` is the element type of all three operands; sums are kept in float32, those of int8 in int32, which is then
    what C is unless the epilogue or `out_dtype` says otherwise. `tfloat32` takes and gives float32 operands and rounds
    the factors to 10 bits of fraction: a loss that must be asked for. A device multiplies what its spec has
    instructions for; a CPU without one for bfloat16 or float16 widens them to float32 on their way.
    """

    dtype: Literal["float32", "tfloat32", "float16", "bfloat16", "int8"] = "float32"
    epilogue: Epilogue = NOTHING
    """What is done to every element of A B before it is stored; its tensors are keywords of a call."""
    prologue: Epilogue = NOTHING
    """What is done to every element of A before it is multiplied, while A is packed: steps without tensors, on float32.
    Where elements are multiplied as bfloat16 or float16 they are rounded to it again."""
    out_dtype: str | None = None
    """The element type of C in memory, if not that of the operands; a cast at the end of the epilogue says the same."""
    m: Extent = None
    n: Extent = None
    k: Extent = None
    weights: Weights | None = None
    """B is quantized and comes packed: `pack(q, scales)`. In float32 every weight is widened to the float32 that it
    stands for; bfloat16 is multiplied by the integers, and the sums of groups by their scales."""

    def __post_init__(self) -> None:
        if self.weights is not None:
            check_weights(self)
        for name in "mnk":
            check_extent(name, getattr(self, name))
        self.check("Gemm")

    @property
    def name(self) -> str:
        return "gemm"

    @property
    def axes(self) -> tuple[Axis, ...]:
        return Axis("m", Role.SPATIAL), Axis("n", Role.SPATIAL), Axis("k", Role.REDUCTION)

    @property
    def inputs(self) -> tuple[Access, ...]:
        return Access("a", ("m", "k")), Access("b", ("k", "n"))

    @property
    def output(self) -> Access:
        return Access("c", ("m", "n"))

    def reference(self, a: Any, b: Any, **operands: Any) -> Any:
        """The operator in NumPy, in float64 up to a cast; `operands` are those of the epilogue."""
        import numpy as np

        return self.epilogue.reference(np.matmul(self.prologue.reference(a), np.asarray(b, np.float64)), **operands)


@dataclass(frozen=True)
class BatchGemm(Summed):
    """C[..., m, n] (+)= A[..., m, k] B[..., k, n] for up to two batch axes, each equal in A and B or 1 in one of them.

    `transpose_a` and `transpose_b` say how the operands of a call lie unless the call says otherwise. Every extent is
    dynamic; element types, sums, epilogue and prologue are as for Gemm. The operands of an epilogue have batch axes
    too, or do without.
    """

    dtype: Literal["float32", "tfloat32", "float16", "bfloat16", "int8"] = "float32"
    transpose_a: bool = False
    transpose_b: bool = False
    epilogue: Epilogue = NOTHING
    out_dtype: str | None = None
    prologue: Epilogue = NOTHING

    def __post_init__(self) -> None:
        self.check("BatchGemm")

    @property
    def name(self) -> str:
        return "batch_gemm"

    @property
    def axes(self) -> tuple[Axis, ...]:
        return Axis("b", Role.BATCH), *Gemm().axes

    @property
    def inputs(self) -> tuple[Access, ...]:
        return Access("a", ("b", "m", "k")), Access("b", ("b", "k", "n"))

    @property
    def output(self) -> Access:
        return Access("c", ("b", "m", "n"))

    def reference(self, a: Any, b: Any, **operands: Any) -> Any:
        """The operator in NumPy, in float64 up to a cast; `a` and `b` lie as the operator says."""
        import numpy as np

        left, right = self.prologue.reference(a), np.asarray(b, np.float64)
        left = left.swapaxes(-1, -2) if self.transpose_a else left
        right = right.swapaxes(-1, -2) if self.transpose_b else right
        spread = {x.name: np.expand_dims(operands[x.name], -2) for x in self.epilogue.operands if x.per == "column"}
        return self.epilogue.reference(np.matmul(left, right), **{**operands, **spread})


@dataclass(frozen=True)
class GroupedGemm(Summed):
    """C (+)= A B in groups of rows: `rows[g]` rows of A[m, k], one group after the other, times B[g] of B[g, k, n].

    What a mixture of experts computes. Transposes as for BatchGemm, element types, sums, epilogue and prologue as for
    Gemm; what the epilogue reads per column may be of each group: [groups, n].
    """

    dtype: Literal["float32", "tfloat32", "float16", "bfloat16", "int8"] = "float32"
    transpose_a: bool = False
    transpose_b: bool = False
    epilogue: Epilogue = NOTHING
    out_dtype: str | None = None
    prologue: Epilogue = NOTHING

    def __post_init__(self) -> None:
        self.check("GroupedGemm")

    @property
    def name(self) -> str:
        return "grouped_gemm"

    @property
    def axes(self) -> tuple[Axis, ...]:
        return Axis("g", Role.BATCH), *Gemm().axes

    @property
    def inputs(self) -> tuple[Access, ...]:
        return Access("a", ("m", "k")), Access("b", ("g", "k", "n"))

    @property
    def output(self) -> Access:
        return Access("c", ("m", "n"))

    def reference(self, a: Any, b: Any, rows: Any, **operands: Any) -> Any:
        """The operator in NumPy, in float64 up to a cast; `a` and `b` lie as the operator says."""
        import numpy as np

        left, right = self.prologue.reference(a), np.asarray(b, np.float64)
        left = left.T if self.transpose_a else left
        right = right.swapaxes(-1, -2) if self.transpose_b else right
        ends = np.cumsum(np.asarray(rows, np.int64))
        parts = [left[end - count : end] @ factor for end, count, factor in zip(ends, rows, right, strict=True)]
        sums = np.concatenate(parts) if parts else np.zeros((0, right.shape[-1]))
        of_groups = {
            x.name: np.repeat(operands[x.name], rows, axis=0)
            for x in self.epilogue.operands
            if x.per == "column" and np.ndim(operands[x.name]) == 2
        }
        return self.epilogue.reference(sums, **{**operands, **of_groups})


def check_weights(operator: Gemm) -> None:
    """Quantized weights are widened to numbers with a fraction: other factors have no use for them."""
    if not isinstance(operator.weights, Weights):
        raise DtypeError(f"Gemm(weights={operator.weights!r}): expected Weights, such as Weights('int4', group=128)")
    if operator.dtype not in ("float32", "bfloat16", "float16"):
        told = f"Gemm(dtype={operator.dtype!r}, weights={operator.weights})"
        raise DtypeError(f"{told}: expected float32, bfloat16 or float16; cast A")
    if operator.prologue:
        raise DtypeError(f"Gemm(prologue={operator.prologue}, weights={operator.weights}): expected one or the other")


Operator = Gemm | BatchGemm | GroupedGemm | Conv2d | Reduce
OPERATORS: dict[str, type[Operator]] = {
    "gemm": Gemm,
    "batch_gemm": BatchGemm,
    "grouped_gemm": GroupedGemm,
    "conv2d": Conv2d,
    "reduce": Reduce,
}


def named(operator: str | Operator) -> Operator:
    """The operator itself, or the default instance of the one with that name."""
    if all(hasattr(operator, part) for part in ("name", "axes", "dtype")):
        return operator  # type: ignore[return-value]  # an operator of the user's
    if not isinstance(operator, str) or operator not in OPERATORS:
        told = f"unknown operator {operator!r}; expected one of {', '.join(sorted(OPERATORS))}, or an instance"
        raise UnknownNameError(told + suggestion(str(operator), OPERATORS))
    return OPERATORS[operator]()


def store_of(operator: Operator) -> Store:
    """What becomes of the sums of an operator; they are stored as they are where it says nothing of them."""
    found = getattr(operator, "store", None)
    return found if isinstance(found, Store) else Store()


def finishing(operator: Operator) -> Store | None:
    """The store stage of an operator whose output is anything but its sums in the element type of the operands."""
    if not isinstance(operator, Summed | Conv2d):
        return None
    store = operator.store
    plain = store.out == operator.storage and all(isinstance(step, Cast) for step in store.chain.steps)
    return None if plain else store


def prologue_of(operator: Operator) -> Epilogue:
    """What an operator does to its first operand before it is multiplied."""
    found = getattr(operator, "prologue", None)
    return found if isinstance(found, Epilogue) else NOTHING


def compiled_as(operator: Operator) -> Operator:
    """The operator whose library serves this one: batched and grouped products run on that of single ones, a
    convolution with a window of its own on that of any."""
    if isinstance(operator, Conv2d):
        return operator.open
    if not isinstance(operator, BatchGemm | GroupedGemm):
        return operator
    return Gemm(operator.dtype, operator.epilogue, operator.prologue, operator.out_dtype)


def settings(operator: Operator) -> dict[str, Any]:
    """The fields of an operator as JSON knows them: what a library remembers."""
    remembered = Epilogue | Hint | Weights
    return {
        field.name: value.settings() if isinstance(value := getattr(operator, field.name), remembered) else value
        for field in dataclasses.fields(operator)
    }


def rebuilt(name: str, fields: Mapping[str, Any]) -> Operator:
    """The operator that a library was built from; one of a user's is rebuilt as the product whose fields it has."""
    chains: dict[str, Any] = {key: epilogue.rebuilt(fields[key]) for key in ("epilogue", "prologue") if key in fields}
    hints = {key: Hint.rebuilt(fields[key]) for key in "mnk" if isinstance(fields.get(key), list)}
    if fields.get("weights"):
        chains["weights"] = Weights(**fields["weights"])
    return OPERATORS.get(name, Gemm)(**{**fields, **chains, **hints})
