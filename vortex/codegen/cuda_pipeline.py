"""The loop over stages as the pipeline of a kernel written by hand: copies run ahead, one barrier a stage.

TVM's InjectSoftwarePipeline unrolls prologue and epilogue (three times the code), needs two barriers a stage, asks for
symbolic operands of cp.async.wait_group, and makes wrong code of nested loops with two stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import ir, tirx

from vortex.codegen.cuda_passes import (
    REGISTERS,
    SHARED,
    call,
    extents,
    hoist,
    innermost,
    reshaped,
    rewritten,
    sequence,
    statements,
    wrapped,
)
from vortex.codegen.cuda_ports import PORTS, serpentine, untied
from vortex.codegen.trees import found, mapped, substitute
from vortex.errors import CodegenError

STAGE, STEP = "vortex.stages", "vortex.registers"
"""Loop annotations: how many stages shared memory has; and of the steps of a stage, 2 for fragments kept twice,
1 for fragments that are read as they are needed, 0 for the same without unrolling."""
MOST_HELD = 2
"""Stages where the way to shared memory is by registers: one that is read, one that they hold meanwhile."""


class Held:
    """A copy into shared memory in two halves, by way of registers: what `fetch` loads, `put` stores."""

    def __init__(self, copy: Any) -> None:
        loops, store = [], copy
        while isinstance(store, tirx.For):
            loops.append(store)
            store = store.body
        if not isinstance(store, tirx.BufferStore):
            raise CodegenError("a copy must be loops around one store")
        at = [loop.loop_var for loop in loops]
        shape = [int(loop.extent) for loop in loops] or [1]
        name = store.buffer.name.replace("_shared", "_held").replace(".dyn", "")
        self.registers = tirx.decl_buffer(shape, str(store.buffer.dtype), name, scope="local")
        self.fetch: Any = tirx.BufferStore(self.registers, store.value, at or [0])
        self.put: Any = tirx.BufferStore(store.buffer, tirx.BufferLoad(self.registers, at or [0]), list(store.indices))
        for loop in reversed(loops):
            again = tirx.Var(str(loop.loop_var.name), "int32")
            self.fetch = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, self.fetch)
            self.put = tirx.For(again, loop.min, loop.extent, loop.kind, substitute(self.put, {loop.loop_var: again}))


class Pipeline:
    """The loop over stages of shared memory, taken apart: copies into a stage, then steps that read it."""

    def __init__(self, loop: Any, shared: list[Any], fragments: list[Any], is_async: bool) -> None:
        self.loop, self.stages = loop, int(loop.annotations[STAGE])
        *self.copies, self.steps = statements(loop.body)
        if not is_async and self.stages > MOST_HELD:
            raise CodegenError(f"{self.stages} stages without cp.async: registers hold one beside the one that is read")
        self.held = [Held(copy) for copy in self.copies] if not is_async and self.stages > 1 else []
        if not (isinstance(self.steps, tirx.For) and STEP in self.steps.annotations):
            raise CodegenError("the last statement of a stage must be the loop over its steps")
        *self.loads, self.product = statements(self.steps.body)
        self.settle: Any = []
        if PORTS in self.steps.annotations:
            self.settle = [untied(self.product, self.loop.extent)]
            self.product = serpentine(self.product)
        self.count = int(self.steps.extent)
        # A fragment read in the last step of one stage makes way for the first of the next: versions must come round.
        self.versions = 2 if int(self.steps.annotations[STEP]) == 2 and self.count % 2 == 0 else 1
        self.shared = {buffer: reshaped(buffer, [self.stages, *extents(buffer)], SHARED) for buffer in shared}
        self.fragments = {
            buffer: reshaped(buffer, [self.versions, *extents(buffer)], str(buffer.scope()))
            for buffer in fragments
            if found(self.loads, tirx.Var, lambda x, b=buffer: x.same_as(b))  # type: ignore[misc]
        }

    def _placed(self, parts: Any, stage: Any, step: Any, version: Any) -> Any:
        rules: dict[Any, Callable[[list[Any]], tuple[Any, list[Any]]]] = {}
        for old, new in self.shared.items():
            rules[old] = lambda indices, b=new: (b, [stage % self.stages, *indices])  # type: ignore[misc]
        for old, new in self.fragments.items():
            rules[old] = lambda indices, b=new: (b, [version, *indices])  # type: ignore[misc]
        values = {self.loop.loop_var: stage, self.steps.loop_var: step}
        return rewritten(substitute(sequence(parts), values), rules)

    def _early(self, parts: list[Any], stage: Any) -> Any:
        return tirx.IfThenElse(stage < self.loop.extent, self._placed(parts, stage, 0, 0), None)

    def run(self) -> Any:
        """All stages, and what is left to do for the sums."""
        return sequence([self._stages(), *self.settle])

    def _stages(self) -> Any:
        """Copies run `stages` - 1 ahead. Every thread commits a group a stage, empty or not, so that waiting counts.

        Without cp.async the next stage waits in registers until its place in shared memory is free.
        """
        ahead, stage, step = self.stages - 1, self.loop.loop_var, self.steps.loop_var
        if ahead == 0:
            return self._single()
        if self.held:
            fetch, put = [x.fetch for x in self.held], [x.put for x in self.held]
            prologue = self._placed([*fetch, *put], tirx.IntImm("int32", 0), 0, 0)
            begin, refill, end = call("__syncthreads"), self._early(fetch, stage + 1), [self._early(put, stage + 1)]
        else:
            before = tirx.Var("early", "int32")
            fill = sequence([self._early(self.copies, before), call("cp_async_commit")])
            prologue = tirx.For(before, 0, ahead, tirx.ForKind.UNROLLED, fill)
            begin = sequence([call(f"cp_async_wait<{ahead - 1}>"), call("__syncthreads")])
            refill, end = sequence([self._early(self.copies, stage + ahead), call("cp_async_commit")]), []
        if self.versions == 1:
            work = sequence([self._placed(self.loads, stage, step, 0), self._placed([self.product], stage, step, 0)])
            return sequence([prologue, self._loop([begin, refill, self._unrolled(work), *end])])
        # The fragments of the next step are read while this one multiplies; those of the next stage need it complete.
        following = tirx.floormod(step + 1, self.count)
        work = sequence(
            [
                tirx.IfThenElse(tirx.EQ(step, self.count - 1), sequence([*end, begin]), None),
                self._placed(
                    self.loads, stage + tirx.floordiv(step + 1, self.count), following, tirx.floormod(step + 1, 2)
                ),
                tirx.IfThenElse(tirx.EQ(step, 0), refill, None),
                self._placed([self.product], stage, step, tirx.floormod(step, 2)),
            ]
        )
        first = self._placed(self.loads, tirx.IntImm("int32", 0), tirx.IntImm("int32", 0), tirx.IntImm("int32", 0))
        return sequence([prologue, begin, first, self._loop([self._unrolled(work)])])

    def _single(self) -> Any:
        stage, step = self.loop.loop_var, self.steps.loop_var
        work = sequence([self._placed(self.loads, stage, step, 0), self._placed([self.product], stage, step, 0)])
        barrier = call("__syncthreads")
        return self._loop([barrier, self._placed(self.copies, stage, 0, 0), barrier, self._unrolled(work)])

    def _unrolled(self, work: Any) -> Any:
        kind = tirx.ForKind.UNROLLED if int(self.steps.annotations[STEP]) else tirx.ForKind.SERIAL
        return tirx.For(self.steps.loop_var, 0, self.count, kind, work)

    def _loop(self, inside: list[Any]) -> Any:
        return tirx.For(self.loop.loop_var, 0, self.loop.extent, tirx.ForKind.SERIAL, sequence(inside))


def multistage(body: Any, is_async: bool) -> Any:
    """Declarations at the top, and every loop annotated with stages as a pipeline; `is_async` where cp.async exists."""
    threads, inside = innermost(body)
    buffers, inside = hoist(inside, (SHARED, *REGISTERS))
    shared = [buffer for buffer in buffers if str(buffer.scope()) == SHARED]
    rest = list(buffers)
    result = {old: reshaped(old, extents(old), SHARED) for old in shared if old.name.startswith("product")}
    if result:
        inside = staged_result(inside, result, is_async)

    def expand(loop: Any) -> Any:
        if STAGE not in loop.annotations:
            return loop
        staged = [b for b in shared if found(loop, tirx.Var, lambda x: x.same_as(b))]  # noqa: B023
        pipeline = Pipeline(loop, staged, [b for b in buffers if b not in shared], is_async)
        rest.extend(held.registers for held in pipeline.held)
        for old, new in (*pipeline.shared.items(), *pipeline.fragments.items()):
            rest[rest.index(old)] = new
        return pipeline.run()

    inside = mapped(inside, (tirx.For, expand))
    for old, new in result.items():
        rest[rest.index(old)] = new
    return wrapped(threads, sequence([*(tirx.AllocBuffer(buffer) for buffer in rest), inside]))


def staged_result(body: Any, buffers: Mapping[Any, Any], is_async: bool) -> Any:
    """C on its way through shared memory, over the operands: not before all warps have read them, and then only the
    warp that wrote a part reads it."""
    parts: list[Any] = []
    settled = [call("cp_async_wait<0>"), call("__syncthreads")] if is_async else [call("__syncthreads")]
    for part in statements(body):
        written = found(part, tirx.BufferStore, lambda x: x.buffer in buffers)
        read = found(part, ir.expr.TensorLoad, lambda x: x.source in buffers)
        parts += settled if written else [call("__syncwarp")] if read else []
        parts.append(part)
    rules = {old: (lambda indices, new=new: (new, indices)) for old, new in buffers.items()}
    return rewritten(sequence(parts), rules)
