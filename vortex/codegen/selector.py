"""The cost as native code: `cost.predict` evaluated on TVM expressions, one strategy per vector lane.

    vortex_costs(strategies, slopes, totals, blocks, <fields of cost.Problem>)

fills `totals[strategy]` with predicted seconds, for so many blocks of strategies, each a row per field and a column per
lane. Where a lane has a grid and a region of its own,

    vortex_outer_ways_<kind>(strategies, slopes, totals, blocks, order, own, <the other fields of cost.Problem>)

fills `totals[lane]`, `order[lane]` being its strategy, of those for this kind of B, and `own` blocks of a row for each
of `OWN`; `vortex_dot_ways_<kind>` that of the dot family, whatever the order. What is alike for all of a kind is known
when they are compiled: of 1700 instructions 1420 are left for a plain B, 1080 for a transposed or a packed one, which
one core of an Emerald Rapids does in 0.8 to 0.9, 0.7 and 0.65 of the time.

Every product is fenced: fused into an addition it would round once instead of twice, and the Python selector, which
cannot fuse, would now and then choose otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import groupby
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import PointerType, PrimType
from tvm.script import tirx as T
from tvm.target import codegen

from vortex.arithmetic import Array
from vortex.codegen.cpu_tile import PERMUTE
from vortex.codegen.lower import cpu_target
from vortex.codegen.terms import LaneArithmetic, Term, constant
from vortex.codegen.trees import substitute
from vortex.cost import predict, predict_dot, predict_outer
from vortex.plans import OperandB
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
WAYS = "vortex_outer_ways", "vortex_dot_ways"
"""Native names of the costs of the two families, every lane on a grid of its own, before that of the kind of B."""
OWN = "grid_m", "grid_n", "splits", "active", "m", "n", "others"
"""Fields of a problem that every lane has its own of: its grid, and the region of the output that it is about."""


INTERMEDIATES = 200
LOOKUPS = 8
"""Of measured micro-kernels in a cost, at most."""
WIDE, WIDE_FLAG = 16, "avx512f"
"""Lanes of the vectors that are looked up whole, and a flag of the processors that do."""
PERMUTE_FLAGS = {8: "avx2", 16: WIDE_FLAG}
"""By lanes, a flag of the processors that take each lane from any of a vector: 3 instructions for a field of a strategy
in one of two vectors of eight lanes, where lane by lane there are 20 (a Zen 2: 289 to 223 ns for eight plans)."""
GATHER = "llvm.x86.avx512.mask.gather.dps.512"
"""Looks as many numbers up in a table. TVM takes indices apart instead, by which four lookups are 60 of the 165 ns of a
cost on a Zen 5, where four of these take 35."""


def in_order(statements: list[tirx.Stmt]) -> tirx.Stmt:
    return tirx.SeqStmt(statements) if len(statements) > 1 else statements[0]


@dataclass(frozen=True)
class Whole:
    """A statement about all lanes at once."""

    statement: tirx.Stmt


class TirArithmetic(LaneArithmetic):
    """With the measured micro-kernels of a CPU."""

    def __init__(self, slopes: tirx.Buffer, columns: int, rows: int, lane: tirx.Var, lanes: int, wide: bool) -> None:
        super().__init__(lane, lanes, INTERMEDIATES)
        self.slopes, self.vectors_limit, self.rows_limit = slopes, rows - 1, columns - 1
        self.wide, self.lookups = wide, 0
        self.places = tirx.decl_buffer((LOOKUPS * lanes,), "int32", name="places", scope="local")

    def slope(self, vectors: Any, rows: Any) -> Term:
        v = tirx.min(tirx.Cast("int32", constant(vectors)), self.vectors_limit)
        r = tirx.min(tirx.Cast("int32", constant(rows)), self.rows_limit)
        place = v * (self.rows_limit + 1) + r
        return self.gathered(place) if self.wide else self.name("slope", Term(self.slopes[place]))

    def gathered(self, place: Any) -> Term:
        """Of every lane what the slopes have at its place, by one instruction."""
        assert self.lookups < LOOKUPS, "the cost looks more micro-kernels up than there are places for"
        first, nothing = self.lookups * self.lanes, T.broadcast(T.float32(0), self.lanes)
        self.lookups += 1
        self.statements.append(tirx.BufferStore(self.places, place, [first + self.lane]))
        places, every = self.places[T.ramp(first, 1, self.lanes)], T.broadcast(T.bool(True), self.lanes)
        return self.whole(GATHER, nothing, self.slopes.data, places, every, T.int32(np.dtype(np.float32).itemsize))

    def whole(self, instruction: str, *operands: Any) -> Term:
        """An intermediate that one instruction makes of whole vectors."""
        at = T.ramp(self.used * self.lanes, 1, self.lanes)
        made = T.call_llvm_pure_intrin(f"float32x{self.lanes}", instruction, *operands)
        kept = self.slot()
        self.statements.append(Whole(tirx.BufferStore(self.kept, made, [at])))
        return kept

    def loops(self, last: tirx.Stmt) -> list[tirx.Stmt]:
        """All statements in order: those of single lanes in vector loops around them."""
        found: list[tirx.Stmt] = []
        for whole, run in groupby([*self.statements, last], lambda each: isinstance(each, Whole)):
            if whole:
                found += [each.statement for each in run]
            else:
                lane = tirx.Var("lane", "int32")
                body = substitute(in_order([*run]), {self.lane: lane})
                found.append(tirx.For(lane, 0, self.lanes, tirx.ForKind.VECTORIZED, body))
        return found


@dataclass(frozen=True)
class Function:
    """A native cost while it is built: its pointers, the block of lanes it is at, and what is computed in a lane."""

    data: dict[str, tirx.Buffer]
    pointers: list[tirx.Var]
    blocks: tirx.Var
    block: tirx.Var
    ops: TirArithmetic
    rates: Rates

    def of(self, symbol: str, total: Term, arguments: list[tirx.Var]) -> tirx.PrimFunc:
        ops = self.ops
        store = tirx.BufferStore(self.data["totals"], constant(total), [self.block * ops.lanes + ops.lane])
        loop = tirx.For(self.block, 0, self.blocks, tirx.ForKind.SERIAL, in_order(ops.loops(store)))
        pairs = zip(self.data.values(), self.pointers, strict=True)
        declared = [tirx.DeclBuffer(buffer, data=variable) for buffer, variable in pairs]
        rooms = [tirx.AllocBuffer(buffer) for buffer in (ops.kept, ops.places)]
        first, more = self.pointers[:3], self.pointers[3:]
        function = tirx.PrimFunc([*first, self.blocks, *more, *arguments], in_order([*declared, *rooms, loop]))
        return function.with_attr("global_symbol", symbol).with_attr("tirx.noalias", True)


def function(
    rates: Rates, table: SlopeTable, lanes: int, llvm_cpu: str, fields: int, stored_blocks: int = 0, **more: Any
) -> Function:
    """Of strategies with so many fields, of which as many blocks are stored as are priced if `stored_blocks` is 0;
    `more` pointers with the type and the number of elements in a block."""
    rows, columns = table.seconds.shape
    blocks, block = tirx.Var("blocks", "int32"), tirx.Var("block", "int32")
    sizes: dict[str, tuple[str, Any]] = {
        "strategies": ("float32", fields * lanes * (stored_blocks or blocks)),
        "slopes": ("float32", rows * columns),
        "totals": ("float32", lanes * blocks),
        **{name: (dtype, size * blocks) for name, (dtype, size) in more.items()},
    }
    pointers = [tirx.Var(name, PointerType(PrimType(dtype))) for name, (dtype, _) in sizes.items()]
    data = {name: tirx.decl_buffer((size,), dtype, name=f"{name}_buffer") for name, (dtype, size) in sizes.items()}
    wide = lanes == WIDE and codegen.llvm_cpu_has_features(WIDE_FLAG, cpu_target(llvm_cpu))
    ops = TirArithmetic(data["slopes"], columns, rows, tirx.Var("lane", "int32"), lanes, wide)
    # What the formula makes of rates alone is rounded as the Python selector rounds it.
    single = Rates(*(np.float32(value) for value in astuple(rates)))  # type: ignore[arg-type]  # float32, not float
    return Function(data, pointers, blocks, block, ops, single)


def costs(rates: Rates, table: SlopeTable, lanes: int, llvm_cpu: str, model: Model = GEMM) -> tirx.PrimFunc:
    """The cost of any number of strategies, `lanes` at a time."""
    names = tuple(field.name for field in fields(model.strategies))
    made = function(rates, table, lanes, llvm_cpu, len(names))
    ops, stored = made.ops, made.data["strategies"]
    strategies = model.strategies(
        **{
            name: ops.name(name, Term(stored[(made.block * len(names) + place) * lanes + ops.lane]))
            for place, name in enumerate(names)
        }
    )
    arguments = [tirx.Var(field.name, "float32") for field in fields(model.problem)]
    problem = model.problem(**{variable.name: Term(variable) for variable in arguments})
    return made.of(model.symbol, model.predict(ops, made.rates, strategies, problem).total, arguments)


@dataclass(frozen=True)
class Shortlist:
    """The strategies that one kind of B is chosen from."""

    b: OperandB
    columns: Strategies
    """Of all strategies,"""
    listed: tuple[int, ...]
    """of which these."""

    @property
    def symbols(self) -> tuple[str, str]:
        """Of the costs of outer products and of the dot family."""
        outer, dot = (f"{symbol}_{self.b.name.lower()}" for symbol in WAYS)
        return outer, dot

    def alike(self, name: str) -> float | None:
        """What all that are no dot products have in a column."""
        values = {float(getattr(self.columns, name)[index]) for index in self.listed if not self.columns.dot[index]}
        return values.pop() if len(values) == 1 else None

    def asked(self, name: str) -> float | None:
        """What all calls have in a field."""
        kinds = {"plain": OperandB.PLAIN, "transposed": OperandB.TRANSPOSED, "prepacked": OperandB.PACKED}
        return float(self.b is kinds[name]) if name in kinds else None


def ways(
    shortlist: Shortlist, rates: Rates, table: SlopeTable, lanes: int, llvm_cpu: str, stored_blocks: int, dot: bool
) -> tirx.PrimFunc:
    """The cost of strategies of a list in any order, each on a grid of its own; so many blocks of them are stored."""
    order, own = ("int32", lanes), ("float32", len(OWN) * lanes)
    made = function(rates, table, lanes, llvm_cpu, len(FIELDS), stored_blocks, order=order, own=own)
    ops, stored = made.ops, made.data["strategies"]
    permutes = codegen.llvm_cpu_has_features(PERMUTE_FLAGS.get(lanes, ""), cpu_target(llvm_cpu))
    first = made.block * lanes

    def permuted(block: int, place: int) -> Term:
        row, chosen = (block * len(FIELDS) + place) * lanes, made.data["order"][T.ramp(first, 1, lanes)]
        return ops.whole(PERMUTE[lanes], stored[T.ramp(row, 1, lanes)], chosen)

    def strategy(place: int) -> Term:
        value = shortlist.alike(FIELDS[place])
        if value is not None:
            return Term(constant(value))
        index = made.data["order"][first + ops.lane]
        if permutes and stored_blocks <= 2:
            low, *high = (permuted(block, place) for block in range(stored_blocks))
            return ops.name(FIELDS[place], ops.where(Term(index < lanes), low, high[0])) if high else low
        block, lane = tirx.truncdiv(index, lanes), tirx.truncmod(index, lanes)
        return ops.name(FIELDS[place], Term(stored[(block * len(FIELDS) + place) * lanes + lane]))

    asked = {name: shortlist.asked(name) for name in (field.name for field in fields(Problem))}
    arguments = {name: tirx.Var(name, "float32") for name, value in asked.items() if value is None}
    given = {name: Term(arguments[name] if value is None else constant(value)) for name, value in asked.items()}
    for place, name in enumerate(OWN):
        at = (made.block * len(OWN) + place) * lanes + ops.lane
        given[name] = ops.name(name, Term(made.data["own"][at]))
    problem, others = Problem(**given), [variable for name, variable in arguments.items() if name not in OWN]
    symbol = shortlist.symbols[dot]
    if dot:
        return made.of(symbol, predict_dot(ops, made.rates, problem), others)
    strategies = Strategies(**{name: strategy(place) for place, name in enumerate(FIELDS)})
    return made.of(symbol, predict_outer(ops, made.rates, strategies, problem).total, others)


def padded_columns(strategies: Strategies, lanes: int, listed: Sequence[int] | None = None, blocks: int = 0) -> Array:
    """The strategies, or the listed ones, as the native cost reads them, [block, field, lane], in so many blocks at
    least, padded with some that accept nothing."""
    every = np.stack([getattr(strategies, name) for name in FIELDS])
    table = every if listed is None else every[:, list(listed)]
    missing = max(-table.shape[1] % lanes, blocks * lanes - table.shape[1])
    padding = np.repeat(every[:, :1], missing, axis=1)
    padding[[FIELDS.index(name) for name in ("plain", "transposed", "prepacked")]] = 0.0
    whole = np.concatenate([table, padding], axis=1)
    return np.ascontiguousarray(whole.reshape(len(FIELDS), -1, lanes).swapaxes(0, 1))
