"""Store stage of L1 on CPUs: the steps of an epilogue on vectors of finished sums, masked at an edge.

No function of a library is called inside the loops; each approximation says its error. Sums of `lanes` columns are
read, go through every step in registers and are written once, in the element type of the output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import PointerType, PrimType

from vortex.codegen.cpu_round import rounded
from vortex.codegen.cpu_tile import stream
from vortex.epilogue import MOST_OPERANDS, Epilogue, Store
from vortex.steps import Bias, Cast, Clamp, Gelu, Multiply, Per, Relu, Scale, Silu

STORE_STAGE_SYMBOL, PAST_STAGE_SYMBOL = "vortex_epilogue", "vortex_epilogue_past"
PROLOGUE_SYMBOL = "vortex_prologue"
SLOTS = 64
"""Named intermediates of one chain, at most."""
INFINITY = 0x7F800000
"""Its bits: a float32 with more, but for the sign, is NaN."""
LOG2_E = 1.4426950408889634
ROUNDER = 1.5 * 2.0**23
"""Added to a float32 of less than 2^22, it leaves the nearest integer in the low bits of the sum."""
LEAST_EXPONENT, MOST_EXPONENT = -120.0, 120.0
EXP2 = (1.0000001192, 0.6931469440, 0.2402212024, 0.0555071346, 0.0096755410, 0.0013276403)
"""2^x for |x| <= 1/2, relative error below 8e-8: fitted for the least greatest error, like the quotients below."""
GELU = {
    "none": (
        28.09,
        (0.79788363, 0.10413379, 0.011398295, 0.00068316195, 1.2528079e-05),
        (1.0, 0.29717171, 0.038827647, 0.0028632502, 0.00012251761, 5.2976770e-07),
    ),
    "tanh": (
        25.0,
        (0.79788405, 0.073633842, 0.0073780315, 0.00032983095, 9.0223984e-06),
        (1.0, 0.25977424, 0.027191805, 0.0014358307, 7.2803472e-05, 4.3796280e-07),
    ),
}
"""erf(x / sqrt(2)), and the tanh of its approximation, are x P(t) / Q(t) with t = x^2 up to the first figure, and past
it within 1.5e-7 of 1: error below 1.5e-7. In gelu that is 1e-7 |x|, and rounding adds as much again."""
MEMORY = {"bfloat16": "uint16"}
"""Element types that are moved as others."""


class Vectors:
    """Statements on vectors of `lanes`; what is used more than once is kept in a slot, which LLVM makes a register."""

    def __init__(self, lanes: int, rounds: bool = False) -> None:
        """`rounds`: bfloat16 is made by an instruction, see `cpu_round`."""
        self.lanes, self.rounds, self.used = lanes, rounds, 0
        self.statements: list[tirx.Stmt] = []
        self.slots = tirx.decl_buffer((SLOTS * lanes,), "float32", name="slots", scope="local")

    def keep(self, value: Any) -> Any:
        at = tirx.Ramp(self.used * self.lanes, 1, self.lanes)
        self.used += 1
        assert self.used <= SLOTS, "the chain has more intermediates than there are slots"
        self.put(self.slots, value, at)
        return tirx.BufferLoad(self.slots, [at])

    def put(self, buffer: Any, value: Any, at: Any) -> None:
        self.statements.append(tirx.BufferStore(buffer, value, [at]))

    def do(self, call: Any) -> None:
        self.statements.append(tirx.Evaluate(call))

    def taken(self) -> tirx.Stmt:
        """What was said since the last time; the slots are free again."""
        statements, self.statements, self.used = self.statements, [], 0
        return tirx.SeqStmt(statements) if len(statements) > 1 else statements[0]

    def of(self, value: float, dtype: str = "float32") -> Any:
        return tirx.Broadcast(tirx.const(value, dtype), self.lanes)

    def call(self, intrinsic: str, *values: Any) -> Any:
        return tirx.call_llvm_pure_intrin(f"float32x{self.lanes}", intrinsic, *values)

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        return self.call("llvm.fma", x, y, z)

    def times(self, x: Any, y: Any) -> Any:
        """x y, rounded: LLVM would make one multiply-add of it and a sum, but not in all kernels: bits would differ."""
        return self.call("llvm.arithmetic.fence", x * y)

    def polynomial(self, coefficients: tuple[float, ...], x: Any) -> Any:
        """c0 + c1 x + c2 x^2 + ..., by Horner's rule."""
        value = self.of(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            value = self.fma(value, x, self.of(coefficient))
        return value

    def least(self, x: Any, limit: float) -> Any:
        """The lesser of a kept x and a constant; NaN stays NaN."""
        return tirx.Select(x > self.of(limit), self.of(limit), x)

    def most(self, x: Any, limit: float) -> Any:
        return tirx.Select(x < self.of(limit), self.of(limit), x)

    def bits(self, x: Any, dtype: str) -> Any:
        return tirx.reinterpret(f"{dtype}x{self.lanes}", x)

    def exp2(self, x: Any) -> Any:
        """2^x, relative error below 1.5e-7 and |x| 6e-8 more for the rounding of x; x is cut at -120 and 120."""
        x = self.keep(self.most(x, LEAST_EXPONENT))
        x = self.keep(self.least(x, MOST_EXPONENT))
        shifted = self.keep(x + self.of(ROUNDER))
        fraction = self.keep(x - (shifted - self.of(ROUNDER)))
        power = self.polynomial(EXP2, fraction)
        exponent = self.bits(shifted, "int32") << self.of(23, "int32")
        return self.bits(self.bits(power, "int32") + exponent, "float32")

    def gelu(self, x: Any, approximate: str) -> Any:
        """x (1 + erf(x / sqrt(2))) / 2 or its tanh form: absolute error below 3e-7 max(1, |x|)."""
        end, over, under = GELU[approximate]
        half = self.keep(x * self.of(0.5))
        square = self.keep(x * x)
        t = self.keep(self.least(square, end))
        size = self.keep(self.call("llvm.fabs", half))
        halved = tuple(coefficient / 2 for coefficient in over)
        share = self.keep(square * self.polynomial(halved, t) / self.polynomial(under, t))
        return half + tirx.Select(share > size, size, share)

    def silu(self, x: Any) -> Any:
        """x / (1 + 2^(-x log2 e)): absolute error below 3e-7 max(1, |x|)."""
        return x / (self.of(1.0) + self.exp2(self.keep(x * self.of(-LOG2_E))))


@dataclass(frozen=True)
class Source:
    """One tensor of the store stage: its elements from where it is pointed to, and how many there are between rows."""

    dtype: str
    buffer: Any
    stride: Any

    def address(self, index: Any) -> Any:
        return tirx.address_of(tirx.BufferLoad(self.buffer, [index]))

    def widened(self, vectors: Vectors, elements: Any, dtype: str) -> Any:
        """float32 values of a vector of elements."""
        if dtype == "bfloat16":
            wide = tirx.Cast(f"uint32x{vectors.lanes}", elements)
            return vectors.bits(wide << vectors.of(16, "uint32"), "float32")
        return elements if dtype == "float32" else tirx.Cast(f"float32x{vectors.lanes}", elements)

    def load(self, vectors: Vectors, index: Any, mask: Any) -> Any:
        """A vector of neighbours as float32; lanes that are masked off touch no memory and are 0."""
        memory = memory_type(self.dtype)
        elements = tirx.call_llvm_pure_intrin(
            f"{memory}x{vectors.lanes}", "llvm.masked.load", self.address(index), mask, vectors.of(0, memory)
        )
        return self.widened(vectors, elements, self.dtype)

    def broadcast(self, vectors: Vectors, index: Any) -> Any:
        """One element in every lane."""
        element = tirx.Broadcast(tirx.BufferLoad(self.buffer, [index]), vectors.lanes)
        return self.widened(vectors, element, self.dtype)

    def store(self, vectors: Vectors, index: Any, mask: Any, value: Any) -> None:
        what = narrowed(vectors, value, self.dtype)
        vectors.do(tirx.call_llvm_intrin("void", "llvm.masked.store", what, self.address(index), mask))

    def stream(self, vectors: Vectors, index: Any, value: Any) -> None:
        """The same for whole vectors on their boundaries, past the caches."""
        vectors.do(stream(self.address(index), value))

    def vector(self, vectors: Vectors, per: Per, i: Any, column: Any, mask: Any) -> Any:
        """What an operand has for the columns from `column` on in row `i`."""
        if per == "row":
            return self.broadcast(vectors, i * self.stride)
        return self.load(vectors, column if per == "column" else i * self.stride + column, mask)


def memory_type(dtype: str) -> str:
    """The element type that elements of `dtype` are moved as."""
    return MEMORY.get(dtype, dtype)


def argument(name: str, dtype: str, rows: Any) -> tuple[Source, Any]:
    """A tensor whose pointer and stride are parameters of a function; and the pointer."""
    stride, memory = tirx.Var(f"{name}_stride", "int64"), memory_type(dtype)
    elements = tirx.decl_buffer((rows * stride,), memory, name=f"{name}_elements", data_alignment=1)
    return Source(dtype, elements, stride), tirx.Var(name, PointerType(PrimType(memory)))


INTEGERS = {"int8": (-128.0, 127.0), "uint8": (0.0, 255.0), "int32": (-2147483648.0, 2147483520.0)}
"""What integers saturate at, as float32 values; the last is the greatest below 2^31."""


def is_nan(vectors: Vectors, value: Any) -> Any:
    """By its bits: TVM takes it for granted that a number equals itself."""
    return (vectors.bits(value, "int32") & vectors.of(0x7FFFFFFF, "int32")) > vectors.of(INFINITY, "int32")


def narrowed(vectors: Vectors, value: Any, dtype: str) -> Any:
    """float32 in another element type: to the nearest, ties to even; integers saturate, and NaN is their 0."""
    lanes = vectors.lanes
    if dtype == "float32":
        return value
    if dtype == "float16":
        return tirx.Cast(f"float16x{lanes}", value)
    if dtype == "bfloat16" and vectors.rounds:
        return rounded(value, lanes)
    value = vectors.keep(value)
    if dtype == "bfloat16":
        bits = vectors.bits(value, "uint32")
        odd = (bits >> vectors.of(16, "uint32")) & vectors.of(1, "uint32")
        nearest = bits + vectors.of(0x7FFF, "uint32") + odd
        quiet = tirx.Select(is_nan(vectors, value), vectors.of(0x7FC00000, "uint32"), nearest)
        return tirx.Cast(f"uint16x{lanes}", quiet >> vectors.of(16, "uint32"))
    low, high = INTEGERS[dtype]
    value = vectors.keep(tirx.Select(is_nan(vectors, value), vectors.of(0.0), value))
    value = vectors.keep(vectors.most(value, low))
    value = vectors.keep(vectors.least(value, high))
    whole = tirx.Cast(f"int32x{lanes}", vectors.call("llvm.rint", value))
    return whole if dtype == "int32" else tirx.Cast(f"{dtype}x{lanes}", whole)


def apply(vectors: Vectors, chain: Epilogue, value: Any, operands: dict[str, Any]) -> Any:
    """Every step of the chain but a cast on a vector of float32; `operands` are vectors by name."""
    for step in chain.steps:
        value = vectors.keep(value)
        if isinstance(step, Bias):
            value = value + operands[step.operand]
        elif isinstance(step, Scale):
            value = vectors.times(value, operands[step.operand])
        elif isinstance(step, Multiply):
            value = vectors.times(value, vectors.of(step.factor))
        elif isinstance(step, Relu):
            value = vectors.most(value, 0.0)
        elif isinstance(step, Clamp):
            value = vectors.least(vectors.keep(vectors.most(value, step.low)), step.high)
        elif isinstance(step, Gelu):
            value = vectors.gelu(value, step.approximate)
        elif isinstance(step, Silu):
            value = vectors.silu(value)
        else:
            assert isinstance(step, Cast), step
    return value


def load_stage(chain: Epilogue, lanes: int) -> tirx.PrimFunc:
    """`vortex_prologue`: copies rows into the CacheBuffer like `vortex_copy`, each element through the chain."""
    return _elementwise(Store(chain), lanes, 0).with_attr("global_symbol", PROLOGUE_SYMBOL)


def store_stage(store: Store, lanes: int, rounds: bool = False) -> tirx.PrimFunc:
    """`vortex_epilogue(c, out, rows, columns, ldc, ldo, x0, stride0, ..., x3, stride3)`: see runtime/vortex_runtime.h.

    out[i, j] = chain(c[i, j]), each in its own element type; strides are in elements, and `out` may be `c`. Operand
    number x is found at [j] if it is per column, at [i * stride] per row, at [i * stride + j] per element.
    """
    return _elementwise(store, lanes, MOST_OPERANDS, rounds).with_attr("global_symbol", STORE_STAGE_SYMBOL)


def store_symbols(store: Store) -> tuple[str, ...]:
    """Of the functions that `store_stages` makes, as many as the store needs."""
    return (STORE_STAGE_SYMBOL, PAST_STAGE_SYMBOL)[: store.needed * (2 if store.out == "float32" else 1)]


def store_stages(store: Store, lanes: int, rounds: bool = False) -> list[tirx.PrimFunc]:
    """The store stage, and where outputs are float32 the one past the caches."""
    made = zip((store_stage, past_stage), store_symbols(store), strict=False)
    return [make(store, lanes, rounds) for make, _ in made]


def past_stage(store: Store, lanes: int, rounds: bool = False) -> tirx.PrimFunc:
    """`vortex_epilogue_past`: the same past the caches, for float32 outputs whose vectors begin on their boundaries."""
    function = _elementwise(store, lanes, MOST_OPERANDS, rounds, past=True)
    return function.with_attr("global_symbol", PAST_STAGE_SYMBOL)


def _elementwise(store: Store, lanes: int, room: int, rounds: bool = False, past: bool = False) -> tirx.PrimFunc:
    """The function with arguments for `room` operands; of outputs, whole vectors go `past` the caches or not."""
    chain = store.chain
    rows, columns = tirx.Var("rows", "int64"), tirx.Var("columns", "int64")
    i, j = tirx.Var("i", "int64"), tirx.Var("j", "int64")
    (source, from_), (target, to) = argument("c", store.sums, rows), argument("out", store.out, rows)
    extras = [argument(operand.name, operand.dtype, rows) for operand in chain.operands]
    vectors = Vectors(lanes, rounds)

    def one(column: Any, mask: Any, whole: bool) -> tirx.Stmt:
        """A vector from row i, `column` on, to the output."""
        operands = {
            operand.name: tensor.vector(vectors, operand.per, i, column, mask)
            for operand, (tensor, _) in zip(chain.operands, extras, strict=True)
        }
        value = apply(vectors, chain, source.load(vectors, i * source.stride + column, mask), operands)
        if past and whole:
            target.stream(vectors, i * target.stride + column, value)
        else:
            target.store(vectors, i * target.stride + column, mask, value)
        return vectors.taken()

    zero, serial = tirx.const(0, "int64"), tirx.ForKind.SERIAL
    whole = tirx.truncdiv(columns, tirx.const(lanes, "int64"))
    rest = tirx.Cast("int32", columns - whole * lanes)
    full = tirx.For(j, zero, whole, serial, one(j * lanes, vectors.of(1, "bool"), True))
    within = tirx.Ramp(tirx.const(0, "int32"), 1, lanes) < tirx.Broadcast(rest, lanes)
    edge = tirx.IfThenElse(rest > 0, one(whole * lanes, within, False), None)
    outer = tirx.For(i, zero, rows, serial, tirx.SeqStmt([full, edge]))
    declared = [tirx.DeclBuffer(tensor.buffer, data=at) for tensor, at in [(source, from_), (target, to), *extras]]
    unused = [
        variable
        for place in range(len(extras), room)
        for variable in (tirx.Var(f"x{place}", PointerType(PrimType("float32"))), tirx.Var(f"s{place}", "int64"))
    ]
    given = [variable for tensor, at in extras for variable in (at, tensor.stride)]
    parameters = [from_, to, rows, columns, source.stride, target.stride, *given, *unused]
    body = tirx.SeqStmt([*declared, tirx.AllocBuffer(vectors.slots), outer])
    return tirx.PrimFunc(parameters, body)
