"""L0 of the held family on CPUs: B stays in registers, as much of it as a step of k takes, while rows of A stream past.

It serves products of short k, where a register tile is over before its start has paid for itself: this kernel walks
over the rows on its own, a few at a time, and reads them in the order they lie in memory. An element of C is the same
chain of fused multiply-adds in the order of k as in `cpu_kernels`: bitwise the same result. Of words (`cpu_words`) it
is the same chain of dot instructions; what is half a word at the end of k is loaded as such.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from vortex.candidates import Strategy, longest_run
from vortex.codegen.cpu_finish import EXTRAS, Finish, in_registers
from vortex.codegen.cpu_own import own
from vortex.codegen.cpu_round import rounding_ir, rounds_bare_sums
from vortex.codegen.cpu_rows import compile_tiles
from vortex.codegen.cpu_tile import ADDS, LINE, STREAMS, masked_load, masked_store, stream
from vortex.codegen.cpu_words import dot, imported_ir
from vortex.codegen.lower import compile_object, cpu_target
from vortex.dtypes import STORED_BYTES, WordFormat
from vortex.epilogue import Store

HELD_SYMBOL, HELD_FINISH_SYMBOL = "vortex_held", "vortex_held_finish"
"""With the lanes of the kernel behind them."""
WIDTHS = 3
"""Of kernels: `VX_HELD_WIDTHS`."""
LEAST_LANES = 4


@dataclass(frozen=True)
class Run:
    """Neighbouring steps of k that are all there or all missing, their B in registers from `first` on."""

    first: int
    steps: int
    whole: bool
    """One of the longest runs, of which a k has as many as fit; else it is there if k has the bit `steps`."""


def runs(depth: int) -> tuple[Run, ...]:
    """Runs that make up every k of at most `depth`, see `longest_run`: of 23 steps 8, 8, 4, 2 and 1."""
    longest = longest_run(depth)
    sizes = [longest] * ((depth + 1) // longest - 1)
    sizes += [longest >> shift for shift in range(1, longest.bit_length())]
    return tuple(Run(sum(sizes[:at]), size, size == longest) for at, size in enumerate(sizes))


def held_tile(strategies: Sequence[Strategy]) -> tuple[int, int] | None:
    """Rows and depth of the kernel of the held family, if it is among the strategies."""
    return next(((s.l0.m, s.l0.k) for s in strategies if s.stage.held), None)


def widths(lanes: int, words: WordFormat | None = None) -> tuple[int, ...]:
    """Lanes of the kernels: those of a whole vector, a half and a quarter, but four at least; of words of whole ones.

    Few columns in a narrow one: its masked stores seldom straddle two lines, and a core that starts one whole vector a
    cycle starts two halves.
    """
    return tuple(lanes if words else max(lanes >> shift, LEAST_LANES) for shift in range(WIDTHS))


def emit_held(
    store: Store, words: WordFormat | None, tile: tuple[int, int], lanes: int, llvm_cpu: str, path: Path
) -> None:
    each = sorted(set(widths(lanes, words)))
    finishing = [finishing_held_kernel(*tile, width, store, words) for width in each if in_registers(store)]
    kernels = [*(held_kernel(*tile, width, words) for width in each), *finishing]
    if words:
        text = imported_ir(words, lanes) + rounding_ir(lanes)
        compile_object(kernels, cpu_target(llvm_cpu), path, share=False, llvm_ir=text)
    else:
        compile_tiles(kernels, tile[0], lanes, llvm_cpu, path)


def held_table(held: tuple[int, int] | None, lanes: int, store: Store, words: WordFormat | None = None) -> list[str]:
    """C source that hands the kernels to `runtime/held.c`, or says that there are none."""
    plain = "const float *, const float *, float *, " + "int64_t, " * 5 + "int32_t, int32_t"
    finishing = "const float *, const float *, const float *, void *, " + "int64_t, " * 6 + "int32_t, int32_t" + EXTRAS
    each = widths(lanes, words)
    found = [f"{HELD_SYMBOL}_{width}" if held else "0" for width in each]
    ends = [f"{HELD_FINISH_SYMBOL}_{width}" if held and in_registers(store) else "0" for width in each]
    return [
        *(f"extern int32_t {HELD_SYMBOL}_{width}({plain});" for width in sorted(set(each))),
        *(f"extern int32_t {HELD_FINISH_SYMBOL}_{width}({finishing});" for width in sorted(set(each))),
        f"const vx_held vx_held_tiles[VX_HELD_WIDTHS] = {{{', '.join(found)}}};",
        f"const vx_held_finish vx_held_finish_tiles[VX_HELD_WIDTHS] = {{{', '.join(ends)}}};",
    ]


def _element(words: WordFormat | None) -> tuple[str, int]:
    """The type of an element of A, and its bytes."""
    return (words.stored, words.item_bytes) if words else ("float32", 4)


def _statements(depth: int, lanes: int, words: WordFormat | None) -> tuple[Callable[..., Any], ...]:
    """Statements in TVMScript of the kernels of k of at most `depth` steps: B into registers, some rows of C or zeros
    into `acc`, and all of k for them; and the mask of a vector with `last` columns.

    Of words the last step has a register of its own, which in a shorter k holds what is half a word.
    """
    most = depth - 1 if words else depth
    parts, longest, per_step = runs(most), runs(most)[0].steps, words.per_word if words else 1

    def words_of(k: Any) -> Any:
        return T.truncdiv(k, T.int64(per_step))

    def steps(k: Any) -> Any:
        """Steps in runs."""
        return T.min(words_of(k), T.int64(most)) if words else k

    def there(run: Run, k: Any) -> Any:
        found = steps(k)
        return found >= run.first + longest if run.whole else T.bitwise_and(found, T.int64(run.steps)) != 0

    def start(run: Run, k: Any) -> Any:
        return T.int64(run.first) if run.whole else T.bitwise_and(steps(k), T.int64(-2 * run.steps))

    def at(place: int) -> list[Any]:
        return [T.ramp(place * lanes, 1, lanes)]

    def is_odd(k: Any) -> Any:
        return T.truncmod(k, T.int64(per_step)) != 0

    def inside(last: Any) -> Any:
        return T.ramp(0, 1, lanes) < T.broadcast(last, lanes)

    def hold(B: Any, held: Any, k: Any, last: Any) -> None:
        for run in parts:
            with T.If(there(run, k)), T.Then():
                for x in range(run.steps):
                    line = T.address_of(B[start(run, k) + x, 0])
                    T.buffer_store(held, masked_load(line, inside(last), lanes), at(run.first + x))
        if words:
            with T.If(words_of(k + (per_step - 1)) > steps(k)), T.Then():
                T.buffer_store(held, masked_load(T.address_of(B[steps(k), 0]), inside(last), lanes), at(most))

    def product_of(total: Any, factor: Any, line: Any) -> Any:
        """`total` plus an element or a word of A times a vector of B."""
        if not words:
            return T.fma(T.broadcast(factor, lanes), line, total)
        return dot(words, lanes, total, T.broadcast(factor, lanes), T.reinterpret(f"int32x{lanes}", line))

    def factor_of(A: Any, row: Any, step: Any) -> Any:
        return T.reinterpret("int32", A[row, T.ramp(step * per_step, 1, per_step)]) if words else A[row, step]

    def multiply(A: Any, held: Any, acc: Any, first: Any, count: int, k: Any) -> None:
        """All there is of k, for `count` rows from `first`."""
        for run in parts:
            with T.If(there(run, k)), T.Then():
                for x, i in product(range(run.steps), range(count)):
                    factor = factor_of(A, first + i, start(run, k) + x)
                    T.buffer_store(acc, product_of(acc[at(i)[0]], factor, held[at(run.first + x)[0]]), at(i))
        if words:
            with T.If(words_of(k) > most), T.Then():
                for i in range(count):
                    word = factor_of(A, first + i, T.int64(most))
                    T.buffer_store(acc, product_of(acc[at(i)[0]], word, held[at(most)[0]]), at(i))
            with T.If(is_odd(k)), T.Then():
                for i in range(count):  # the other half of the word is the next row's: it may be no number
                    half = T.Cast("int32", A[first + i, k - 1])
                    T.buffer_store(acc, product_of(acc[at(i)[0]], half, held[at(most)[0]]), at(i))

    @T.inline
    def begin(C: Any, acc: Any, first: Any, count: int, last: Any, accumulate: Any) -> None:
        if accumulate != 0:
            for i in T.unroll(count):
                acc[T.ramp(i * lanes, 1, lanes)] = masked_load(T.address_of(C[first + i, 0]), inside(last), lanes)
        else:
            for i in T.unroll(count):
                acc[T.ramp(i * lanes, 1, lanes)] = T.broadcast(T.float32(0), lanes)

    return hold, begin, multiply, inside


def held_kernel(rows: int, depth: int, lanes: int, words: WordFormat | None = None) -> tirx.PrimFunc:
    """C[0:count, columns] (+)= A[0:count, 0:k] B[0:k, columns], k of at most `depth` steps; `rows` rows of A at a time.

    `symbol_<lanes>(a, b, c, count, k, lda, ldb, ldc, last, how)`: one vector of `last` columns; k and strides in
    elements, that of a B of words in words; sums are added to C, or written past the caches, as `how` says: the latter
    by the kernel of whole lines alone. A branch for each run of steps, which always goes the same way in a call, costs
    less than a kernel for every k.
    """
    hold, begin, multiply, inside = _statements(depth, lanes, words)
    element, item = _element(words)

    def store(C: Any, acc: Any, first: Any, count: int, last: Any, how: Any) -> None:
        def each(put: Callable[[Any, Any], Any]) -> None:
            for i in range(count):
                T.evaluate(put(acc[T.ramp(i * lanes, 1, lanes)], T.address_of(C[first + i, 0])))

        def under_mask() -> None:
            own(lambda i, on: T.address_of(C[first + i, on]), C.strides[0], count, lanes, 4, how)
            each(lambda vector, place: masked_store(vector, place, inside(last)))

        if lanes != LINE or words:
            under_mask()
            return
        with T.If(T.bitwise_and(how, STREAMS) != 0):
            with T.Then():
                each(lambda vector, place: stream(place, vector))
            with T.Else():
                under_mask()

    @T.inline
    def some(A: Any, C: Any, held: Any, acc: Any, first: Any, count: int, k: Any, last: Any, how: Any) -> None:
        """C of `count` rows from `first`."""
        begin(C, acc, first, count, last, T.bitwise_and(how, ADDS))
        multiply(A, held, acc, first, count, k)
        store(C, acc, first, count, last, how)

    @T.prim_func(s_tir=True)
    def kernel(
        a: T.handle,
        b: T.handle,
        c: T.handle,
        count: T.int64,
        k: T.int64,
        lda: T.int64,
        ldb: T.int64,
        ldc: T.int64,
        last: T.int32,
        how: T.int32,
    ):
        T.func_attr({"global_symbol": f"{HELD_SYMBOL}_{lanes}", "tirx.noalias": True})
        A = T.match_buffer(a, (count, k), element, align=item, strides=[lda, T.int64(1)])
        B = T.match_buffer(b, (k, lanes), "float32", align=4, strides=[ldb, T.int64(1)])
        C = T.match_buffer(c, (count, lanes), "float32", align=4, strides=[ldc, T.int64(1)])
        with T.sblock("root"):
            held = T.sblock_alloc_buffer((depth * lanes,), "float32", scope="local")
            acc = T.sblock_alloc_buffer((rows * lanes,), "float32", scope="local")
            hold(B, held, k, last)
            for block in T.serial(T.truncdiv(count, rows)):
                some(A, C, held, acc, block * rows, rows, k, last, how)
            for row in T.serial(T.truncmod(count, rows)):
                some(A, C, held, acc, T.truncdiv(count, rows) * rows + row, 1, k, last, how)

    return kernel


def finishing_held_kernel(
    rows: int, depth: int, lanes: int, store: Store, words: WordFormat | None = None
) -> tirx.PrimFunc:
    """The same with sums that go through the store stage in registers

    `symbol_<lanes>(a, b, c, out, count, k, lda, ldb, ldc, ldo, last, how, x0, stride0, ..., x3, stride3)`: `out`
    and the tensors of the chain from the first row and column on, as `cpu_store.store_stage` reads them; C is not
    written.
    """
    hold, begin, multiply, inside = _statements(depth, lanes, words)
    element, item = _element(words)
    finish = Finish(store, lanes, rounds_bare_sums(store, words))
    stored = STORED_BYTES[store.out]

    @T.inline
    def some(A: Any, C: Any, held: Any, acc: Any, first: Any, count: int, k: Any, last: Any, how: Any) -> None:
        """`count` rows of the output from `first`."""
        begin(C, acc, first, count, last, T.bitwise_and(how, ADDS))
        multiply(A, held, acc, first, count, k)
        own(lambda i, on: finish.address(first + i, on), finish.target.stride, count, lanes, stored, how)
        for i in T.unroll(count):
            finish.row(first + i, T.int64(0), inside(last), acc[T.ramp(i * lanes, 1, lanes)])

    @T.prim_func(s_tir=True)
    def kernel(
        a: T.handle,
        b: T.handle,
        c: T.handle,
        out: T.handle,
        count: T.int64,
        k: T.int64,
        lda: T.int64,
        ldb: T.int64,
        ldc: T.int64,
        ldo: T.int64,
        last: T.int32,
        how: T.int32,
        x0: T.handle,
        stride0: T.int64,
        x1: T.handle,
        stride1: T.int64,
        x2: T.handle,
        stride2: T.int64,
        x3: T.handle,
        stride3: T.int64,
    ):
        T.func_attr({"global_symbol": f"{HELD_FINISH_SYMBOL}_{lanes}", "tirx.noalias": True})
        A = T.match_buffer(a, (count, k), element, align=item, strides=[lda, T.int64(1)])
        B = T.match_buffer(b, (k, lanes), "float32", align=4, strides=[ldb, T.int64(1)])
        C = T.match_buffer(c, (count, lanes), "float32", align=4, strides=[ldc, T.int64(1)])
        finish.match(count, out, ldo, (x0, x1, x2, x3), (stride0, stride1, stride2, stride3))
        with T.sblock("root"):
            held = T.sblock_alloc_buffer((depth * lanes,), "float32", scope="local")
            acc = T.sblock_alloc_buffer((rows * lanes,), "float32", scope="local")
            finish.allocate()
            hold(B, held, k, last)
            finish.columns(T.int64(0), inside(last))
            for block in T.serial(T.truncdiv(count, rows)):
                some(A, C, held, acc, block * rows, rows, k, last, how)
            for row in T.serial(T.truncmod(count, rows)):
                some(A, C, held, acc, T.truncdiv(count, rows) * rows + row, 1, k, last, how)

    return kernel
