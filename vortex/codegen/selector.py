"""The cost as native code: `cost.predict` evaluated on TVM expressions, one strategy per vector lane.

    vortex_costs(strategies, slopes, totals, blocks, <fields of cost.Problem>)

fills `totals[strategy]` with predicted seconds, for so many blocks of strategies, each a row per field and a column per
lane. Every product is fenced: fused into an addition it would round once
instead of twice, and the Python selector, which cannot fuse, would now and then choose otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import PointerType, PrimType

from vortex.arithmetic import Array
from vortex.cost import predict
from vortex.problem import Problem, Strategies
from vortex.rates import Rates
from vortex.selector import SlopeTable

FIELDS = tuple(field.name for field in fields(Strategies))


@dataclass(frozen=True)
class Model:
    """A cost: its native name, the columns of its strategies, the scalars of a call, and the formula."""

    symbol: str
    strategies: type[Any]
    problem: type[Any]
    predict: Callable[..., Any]


GEMM = Model("vortex_costs", Strategies, Problem, predict)


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


def fenced(product: Any) -> Term:
    return Term(tirx.call_llvm_pure_intrin("float32", "llvm.arithmetic.fence", product))


INTERMEDIATES = 128


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
        return Term(tirx.Select(condition.expression, constant(x), constant(y)))

    def name(self, label: str, x: Any) -> Term:
        kept = Term(self.kept[self.used * self.lanes + self.lane])
        self.used += 1
        assert self.used <= self.slots, "the cost names more intermediates than there are slots"
        self.change(kept, x)
        return kept

    def change(self, kept: Term, x: Any) -> None:
        """Give a named intermediate another value."""
        self.statements.append(tirx.BufferStore(self.kept, constant(x), list(kept.expression.indices)))


class TirArithmetic(LaneArithmetic):
    """With the measured micro-kernels of a CPU."""

    def __init__(self, slopes: tirx.Buffer, columns: int, rows: int, lane: tirx.Var, lanes: int) -> None:
        super().__init__(lane, lanes, INTERMEDIATES)
        self.slopes, self.vectors_limit, self.rows_limit = slopes, rows - 1, columns - 1

    def slope(self, vectors: Any, rows: Any) -> Term:
        v = tirx.min(tirx.Cast("int32", constant(vectors)), self.vectors_limit)
        r = tirx.min(tirx.Cast("int32", constant(rows)), self.rows_limit)
        return self.name("slope", Term(self.slopes[v * (self.rows_limit + 1) + r]))


def costs(rates: Rates, table: SlopeTable, lanes: int, model: Model = GEMM) -> tirx.PrimFunc:
    """The cost of any number of strategies, `lanes` at a time."""
    names = tuple(field.name for field in fields(model.strategies))
    rows, columns = table.seconds.shape
    pointer = PointerType(PrimType("float32"))
    data = [tirx.Var(name, pointer) for name in ("strategies", "slopes", "totals")]
    blocks = tirx.Var("blocks", "int32")
    sizes = (len(names) * lanes * blocks, rows * columns, lanes * blocks)
    buffers = [
        tirx.decl_buffer((size,), "float32", name=f"{variable.name}_buffer")
        for variable, size in zip(data, sizes, strict=True)
    ]
    arguments = [tirx.Var(name, "float32") for name in (field.name for field in fields(model.problem))]
    outer, inner = tirx.Var("block", "int32"), tirx.Var("lane", "int32")

    arithmetic = TirArithmetic(buffers[1], columns, rows, inner, lanes)
    strategies = model.strategies(
        **{
            name: arithmetic.name(name, Term(buffers[0][(outer * len(names) + place) * lanes + inner]))
            for place, name in enumerate(names)
        }
    )
    problem = model.problem(**{variable.name: Term(variable) for variable in arguments})
    # What the formula makes of rates alone is rounded as the Python selector rounds it.
    single = Rates(*(np.float32(value) for value in astuple(rates)))  # type: ignore[arg-type]  # float32, not float
    total = model.predict(arithmetic, single, strategies, problem).total
    store = tirx.BufferStore(buffers[2], constant(total), [outer * lanes + inner])
    body = tirx.SeqStmt([*arithmetic.statements, store])
    loop = tirx.For(outer, 0, blocks, tirx.ForKind.SERIAL, tirx.For(inner, 0, lanes, tirx.ForKind.VECTORIZED, body))
    declared = [tirx.DeclBuffer(buffer, data=variable) for buffer, variable in zip(buffers, data, strict=True)]
    room = tirx.AllocBuffer(arithmetic.kept)
    function = tirx.PrimFunc([*data, blocks, *arguments], tirx.SeqStmt([*declared, room, loop]))
    return function.with_attr("global_symbol", model.symbol).with_attr("tirx.noalias", True)


def padded_columns(strategies: Strategies, lanes: int) -> Array:
    """The strategies as the native cost reads them, [block, field, lane], padded with some that accept nothing."""
    table = np.stack([getattr(strategies, name) for name in FIELDS])
    missing = -table.shape[1] % lanes
    padding = np.repeat(table[:, :1], missing, axis=1)
    padding[[FIELDS.index(name) for name in ("plain", "transposed", "prepacked")]] = 0.0
    whole = np.concatenate([table, padding], axis=1)
    return np.ascontiguousarray(whole.reshape(len(FIELDS), -1, lanes).swapaxes(0, 1))
