"""The arithmetic of a cost while it is native code: float32 expressions of TVM, lane by lane; of CPUs and of GPUs.

What is known when they are built is a number in them, and what is made of numbers alone is one too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx


class Term:
    """A float32 TVM expression whose products are never fused."""

    __array_ufunc__ = None  # of what NumPy's numbers are multiplied with, we make terms

    def __init__(self, expression: Any) -> None:
        self.expression = expression

    def __add__(self, other: Any) -> Term:
        return Term(self.expression + constant(other))

    def __radd__(self, other: Any) -> Term:
        return Term(constant(other) + self.expression)

    def __sub__(self, other: Any) -> Term:
        return Term(self.expression - constant(other))

    def __rsub__(self, other: Any) -> Term:
        return Term(constant(other) - self.expression)

    def __mul__(self, other: Any) -> Term:
        return fenced(self.expression * constant(other))

    def __rmul__(self, other: Any) -> Term:
        return fenced(constant(other) * self.expression)

    def __truediv__(self, other: Any) -> Term:
        return Term(self.expression / constant(other))

    def __rtruediv__(self, other: Any) -> Term:
        return Term(constant(other) / self.expression)

    def __le__(self, other: Any) -> Term:
        return Term(self.expression <= constant(other))

    def __gt__(self, other: Any) -> Term:
        return Term(self.expression > constant(other))


def constant(value: Any) -> Any:
    """The expression of a term, or a float32 literal."""
    return value.expression if isinstance(value, Term) else tirx.FloatImm("float32", float(np.float32(value)))


def known(expression: Any) -> bool:
    """Whether TVM made one number of it."""
    return isinstance(expression, tirx.FloatImm | tirx.IntImm)


def fenced(product: Any) -> Term:
    if known(product):
        return Term(product)
    return Term(tirx.call_llvm_pure_intrin("float32", "llvm.arithmetic.fence", product))


class LaneArithmetic:
    """Builds statements: every named intermediate is computed once, lane by lane; what costs of CPUs and of GPUs share.

    It is kept in a slot of a local buffer, one element per lane, which LLVM turns back into a register. A bound
    variable would do the same, but TVM's analysis follows variables to their values: minutes on an expression as long
    as the cost.
    """

    def __init__(self, lane: tirx.Var, lanes: int, slots: int) -> None:
        self.statements: list[tirx.Stmt] = []
        self.lane, self.lanes, self.slots, self.used = lane, lanes, slots, 0
        self.kept = tirx.decl_buffer((slots * lanes,), "float32", name="kept", scope="local")

    def least(self, x: Any, y: Any) -> Term:
        return Term(tirx.min(constant(x), constant(y)))

    def most(self, x: Any, y: Any) -> Term:
        return Term(tirx.max(constant(x), constant(y)))

    def floor(self, x: Any) -> Term:
        return Term(tirx.call_llvm_pure_intrin("float32", "llvm.floor", constant(x)))

    def ceil(self, x: Any) -> Term:
        return Term(tirx.call_llvm_pure_intrin("float32", "llvm.ceil", constant(x)))

    def where(self, condition: Any, x: Any, y: Any) -> Term:
        if known(condition.expression):
            return Term(constant(x if condition.expression.value else y))
        return Term(tirx.Select(condition.expression, constant(x), constant(y)))

    def name(self, label: str, x: Any) -> Term:
        if known(constant(x)):
            return Term(constant(x))
        kept = self.slot()
        self.change(kept, x)
        return kept

    def slot(self) -> Term:
        """An intermediate without a value."""
        kept = Term(self.kept[self.used * self.lanes + self.lane])
        self.used += 1
        assert self.used <= self.slots, "the cost names more intermediates than there are slots"
        return kept

    def change(self, kept: Term, x: Any) -> None:
        """Give a named intermediate another value."""
        self.statements.append(tirx.BufferStore(self.kept, constant(x), list(kept.expression.indices)))
