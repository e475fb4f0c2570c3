"""Passes from a scheduled kernel to CUDA, where TVM's own make slow or wrong code of it.

They run on the still multi-dimensional buffers that `s_tir`'s passes leave once blocks are gone:

- `hoist`: shared memory and fragments are declared once, at the top of the kernel;
- `copies`: a vectorized load into shared memory becomes one call of at most 16 bytes under one predicate, evaluated
  at its first element: by the alignment class, the first is inside exactly when all are;
- `stores`: the same for C;
- `swizzle`: 16-byte chunks of a row of shared memory trade places, so that neither copies nor fragments meet on a bank;
- `padded`: the same for rows of k whose elements arrive one by one;
- `fragments`: a buffer of a warp [.., lane, register] becomes the registers of each thread;
- `wide`: offsets of rows are 64 bits, so that an operand may pass 2^31 elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer

from vortex.codegen.trees import found, mapped, substitute
from vortex.errors import CodegenError

SHARED, REGISTERS = "shared.dyn", ("warp", "local")
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "int32": 4}


def call(name: str, *arguments: Any) -> Any:
    return tirx.Evaluate(tirx.call_extern("int32", name, *arguments))


def address(buffer: Any, indices: Iterable[Any]) -> Any:
    return tirx.address_of(tirx.BufferLoad(buffer, list(indices)))


def statements(body: Any) -> list[Any]:
    return [part for step in body.seq for part in statements(step)] if isinstance(body, tirx.SeqStmt) else [body]


def sequence(parts: Iterable[Any]) -> Any:
    flat = [part for step in parts for part in statements(step)]
    return flat[0] if len(flat) == 1 else tirx.SeqStmt(flat)


def rewritten(node: Any, buffers: Mapping[Any, Callable[[list[Any]], tuple[Any, list[Any]]]]) -> Any:
    """Every access of the given buffers replaced by (buffer, indices) of its rule."""

    def load(access: Any) -> Any:
        rule = buffers.get(access.source)
        return access if rule is None else tirx.BufferLoad(*rule(list(access.indices)))

    def store(access: Any) -> Any:
        rule = buffers.get(access.buffer)
        if rule is None:
            return access
        buffer, indices = rule(list(access.indices))
        return tirx.BufferStore(buffer, access.value, indices)

    return mapped(node, (ir.expr.TensorLoad, load), (tirx.BufferStore, store))


def reshaped(buffer: Any, shape: list[int], scope: str) -> Any:
    name = buffer.name.replace(".dyn", "").replace("_pad", "")
    for part in ("_shared_warp", "_shared_local", "_warp", "_local"):
        name = name.replace(part, "_fragment")
    return tirx.decl_buffer(shape, str(buffer.dtype), name, scope=scope)


def extents(buffer: Any) -> list[int]:
    return [int(extent) for extent in buffer.shape]


def innermost(body: Any) -> tuple[list[Any], Any]:
    """The chain of thread extents around a kernel, and what runs in every thread."""
    threads = []
    while isinstance(body, tirx.AttrStmt) and body.attr_key == "thread_extent":
        threads.append(body)
        body = body.body
    return threads, body


def hoist(body: Any, scopes: tuple[str, ...]) -> tuple[list[Any], Any]:
    """Buffers of `scopes` wherever they are declared, and the kernel without their declarations."""
    buffers = [
        statement.buffer for statement in found(body, tirx.AllocBuffer, lambda x: str(x.buffer.scope()) in scopes)
    ]

    def drop(block: Any) -> Any:
        kept = [x for x in block.seq if not (isinstance(x, tirx.AllocBuffer) and x.buffer in buffers)]
        return sequence(kept)

    return buffers, mapped(body, (tirx.SeqStmt, drop))


def wrapped(threads: list[Any], body: Any) -> Any:
    for thread in reversed(threads):
        body = tirx.AttrStmt(thread.node, thread.attr_key, thread.value, body)
    return body


def fragments(body: Any) -> Any:
    """Each thread keeps its own registers: axes that every access indexes with one of the thread's indices go.

    A buffer of a warp must have one; buffers of a thread have one where TVM allocates for all threads.
    """
    threads, inside = innermost(body)
    buffers, inside = hoist(inside, REGISTERS)
    accesses: dict[Any, list[list[Any]]] = {buffer: [] for buffer in buffers}
    for load in found(inside, ir.expr.TensorLoad, lambda x: x.source in accesses):
        accesses[load.source].append(list(load.indices))
    for store in found(inside, tirx.BufferStore, lambda x: x.buffer in accesses):
        accesses[store.buffer].append(list(store.indices))
    several = [t for t in threads if str(t.node.thread_tag).startswith("threadIdx") and int(t.value) > 1]
    variables = [t.node.var for t in several]
    analyzer = Analyzer()
    for thread in threads:
        if isinstance(thread.value, tirx.IntImm):
            analyzer.bind(thread.node.var, ir.Range(0, thread.value))
    rules, declared = {}, []
    for buffer, uses in accesses.items():
        shape = extents(buffer)

        def owned(axis: int, uses: list[list[Any]] = uses) -> bool:
            return any(all(analyzer.can_prove(tirx.EQ(use[axis], v)) for use in uses) for v in variables)

        kept = [axis for axis, extent in enumerate(shape) if extent == 1 or not owned(axis)]
        if str(buffer.scope()) == "warp" and len(kept) != len(shape) - 1:
            raise CodegenError(f"{buffer.name}: a thread asks for registers of another lane")
        own = reshaped(buffer, [shape[axis] for axis in kept], "local")
        declared.append(own)
        rules[buffer] = lambda at, own=own, kept=kept: (own, [at[axis] for axis in kept])
    return wrapped(threads, sequence([*(tirx.AllocBuffer(b) for b in declared), rewritten(inside, rules)]))


def swizzled(indices: list[Any], row_bytes: int, item_bytes: int, words: bool, quads: bool = False) -> list[Any]:
    """Indices of an element after 16-byte chunks (or, read as single `words`, 32-byte ones) have traded places.

    Eight rows of one chunk must lie on eight different sixteenths of the 128 bytes that 32 banks span: rows that the
    banks tell apart by themselves are counted once. The eight are neighbours, or where `quads` the first two, or last
    two, of four rows that follow each other.
    """
    chunk = (32 if words else 16) // item_bytes
    chunks = 128 // (chunk * item_bytes)
    row, column = indices[-2], indices[-1]
    repeat = next((p for p in (1, 2, 4, 8) if row_bytes * p % 128 == 0), 8)
    places = chunks // repeat
    if places < 2:
        return indices
    if quads:
        row = tirx.floordiv(row, 4) * 2 + tirx.floormod(row, 2)
    moved = tirx.bitwise_xor(tirx.floordiv(column, chunk), tirx.floormod(tirx.floordiv(row, repeat), places))
    return [*indices[:-1], moved * chunk + tirx.floormod(column, chunk)]


def swizzle(body: Any, words: Mapping[str, bool], quads: Set[str] = frozenset()) -> Any:
    """Swizzle the buffers named in `words`; a True one is read by words, not by ldmatrix; `quads`: see `swizzled`."""
    rules = {}
    for allocation in found(body, tirx.AllocBuffer, lambda x: x.buffer.name in words):
        buffer = allocation.buffer

        def rule(indices: list[Any], buffer: Any = buffer) -> tuple[Any, list[Any]]:
            item = ITEM_BYTES[str(buffer.dtype)]
            row_bytes = extents(buffer)[-1] * item
            return buffer, swizzled(indices, row_bytes, item, words[buffer.name], buffer.name in quads)

        rules[buffer] = rule
    return rewritten(body, rules)


def padded(body: Any, names: Set[str], items: int) -> Any:
    """The named buffers with rows longer by `items` that are not used."""
    longer, rules = {}, {}
    for allocation in found(body, tirx.AllocBuffer, lambda x: x.buffer.name in names):
        *outer, row = extents(allocation.buffer)
        longer[allocation.buffer] = new = reshaped(allocation.buffer, [*outer, row + items], SHARED)
        rules[allocation.buffer] = lambda indices, new=new: (new, indices)

    def declared(allocation: Any) -> Any:
        new = longer.get(allocation.buffer)
        return allocation if new is None else tirx.AllocBuffer(new)

    return mapped(rewritten(body, rules), (tirx.AllocBuffer, declared))


def first_lane(node: Any, lane: Any) -> Any:
    return node if lane is None else substitute(node, {lane: tirx.IntImm("int32", 0)})


def copies(body: Any, operands: Mapping[Any, Callable[[list[Any]], Any]], item_bytes: int, is_async: bool) -> Any:
    """Loads of `operands` into shared memory, or registers on the way there, as calls that move a whole vector.

    Past the operand they write zeros.
    """

    def move(store: Any, lane: Any, width: int) -> Any:
        value = store.value
        if not (isinstance(value, ir.Call) and value.op.name == "prim.if_then_else"):
            raise CodegenError(f"a copy into {store.buffer.name} without a predicate")
        inside, load, _ = (first_lane(argument, lane) for argument in value.args)
        size = width * item_bytes
        kind = "cp_async" if is_async and size >= 4 else "copy"
        target = address(store.buffer, [first_lane(index, lane) for index in store.indices])
        return call(f"{kind}_{size}", target, operands[load.source](list(load.indices)), inside)

    def copying(node: Any) -> bool:
        return (
            isinstance(node, tirx.BufferStore)
            and str(node.buffer.scope()) in (SHARED, "local")
            and bool(found(node.value, ir.expr.TensorLoad, lambda x: x.source in operands))
        )

    def vector(loop: Any) -> Any:
        if loop.kind == tirx.ForKind.VECTORIZED and copying(loop.body):
            return move(loop.body, loop.loop_var, int(loop.extent))
        return loop

    body = mapped(body, (tirx.For, vector))
    return mapped(body, (tirx.BufferStore, lambda store: move(store, None, 1) if copying(store) else store))


def values(load: Any, lane: Any) -> Any:
    """Address of the first of the values that a vectorized access names; they lie side by side."""
    if not isinstance(load, ir.expr.TensorLoad):
        raise CodegenError(f"a vector must be moved as it is, not as {load}")
    return address(load.source, [first_lane(index, lane) for index in load.indices])


def stores(body: Any, result: Any, begin: Callable[[list[Any]], list[Any]], suffix: str) -> Any:
    """Stores of `result` as calls that convert, or leave float32 in the workspace of a split."""

    def move(store: Any, lane: Any, width: int) -> Any:
        at = begin([first_lane(index, lane) for index in store.indices])
        return call(f"store_{suffix}_{width}", *at, values(store.value, lane))

    def storing(node: Any) -> bool:
        return isinstance(node, tirx.BufferStore) and node.buffer.same_as(result)

    def vector(loop: Any) -> Any:
        if loop.kind != tirx.ForKind.VECTORIZED:
            return loop
        lane, width, inner = loop.loop_var, int(loop.extent), loop.body
        if isinstance(inner, tirx.IfThenElse) and storing(inner.then_case):
            return tirx.IfThenElse(first_lane(inner.condition, lane), move(inner.then_case, lane, width), None)
        return move(inner, lane, width) if storing(inner) else loop

    body = mapped(body, (tirx.For, vector))
    return mapped(body, (tirx.BufferStore, lambda store: move(store, None, 1) if storing(store) else store))


def loads(body: Any, operand: Any, value: Callable[[list[Any]], Any]) -> Any:
    """Loads of single elements of `operand` as calls."""
    return mapped(body, (ir.expr.TensorLoad, lambda x: value(list(x.indices)) if x.source.same_as(operand) else x))


def moves(body: Any) -> Any:
    """Vectors between shared memory and registers as one access: TVM cannot prove a swizzled index contiguous."""

    def vector(loop: Any) -> Any:
        if loop.kind != tirx.ForKind.VECTORIZED:
            return loop
        store, lane = loop.body, loop.loop_var
        size = int(loop.extent) * ITEM_BYTES[str(store.buffer.dtype)]
        target = address(store.buffer, [first_lane(index, lane) for index in store.indices])
        return call(f"move_{size}", target, values(store.value, lane))

    return mapped(body, (tirx.For, vector))


def called_by_address(body: Any) -> Any:
    """Arguments that intrinsics name as loads become addresses: from here on no pass asks what a call reads."""

    def rule(node: Any) -> Any:
        if getattr(node.op, "name", "") != "tirx.call_extern":
            return node
        if not str(node.args[0].value).startswith(BY_ADDRESS):
            return node
        arguments = [tirx.address_of(x) if isinstance(x, ir.expr.TensorLoad) else x for x in node.args[1:]]
        return tirx.call_extern("int32", node.args[0].value, *arguments)

    return mapped(body, (ir.Call, rule))


BY_ADDRESS = ("ldmatrix_", "mma_")
