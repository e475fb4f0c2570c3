"""Operators laid on GPUs: Table 1's rows, and loop types that express task mappings (Hidet's spatial and repeat)."""

from itertools import product

import numpy as np
import pytest

from vortex.candidates import Tile
from vortex.errors import DtypeError, SpecError
from vortex.gpu_candidates import Backend, BlockStrategy
from vortex.operators import Gemm
from vortex.rkernel import Loop, Move, decompose
from vortex.sieve import sieve
from vortex.specs import gpus, load_spec

Task = tuple[int, int]


@pytest.mark.parametrize("spec", gpus(), ids=lambda spec: spec.name)
def test_table_1(spec):
    l0, l1, l2 = decompose(Gemm("float16"), spec).levels
    assert (l0.level, l1.level, l2.level) == spec.levels
    assert set(l0.loads) == {Move.GLOBAL_TO_REGISTERS, Move.SHARED_TO_REGISTERS}
    assert set(l0.stores) == {Move.REGISTERS_TO_GLOBAL, Move.REGISTERS_TO_SHARED}
    assert set(l1.loads) == {Move.GLOBAL_TO_SHARED, Move.NONE}
    assert (l1.stores, l2.loads, l2.stores) == ((Move.NONE,),) * 3
    assert (l1.compute, l2.compute) == ("rKernel(L0)", "rKernel(L1)")
    assert (l0.empirical, l1.empirical, l2.empirical) == (True, True, False)


def test_loops():
    l0, l1, l2 = decompose(Gemm(), load_spec("a100")).levels
    assert [loop for axis, loop in l0.loops if axis == "m"] == [Loop.PARALLEL, Loop.TEMPORAL_SPATIAL]
    assert [loop for axis, loop in l0.loops if axis == "k"] == [Loop.TEMPORAL_REDUCTION]
    assert [loop for axis, loop in l1.loops if axis == "k"] == [Loop.PARALLEL, Loop.TEMPORAL_REDUCTION]
    assert [loop for axis, loop in l2.loops if axis == "k"] == [Loop.PARALLEL]  # split reductions
    assert [loop for axis, loop in l2.loops if axis == "n"] == [Loop.PARALLEL]


class TestDtypes:
    def test_bytes_and_storage(self):
        assert [Gemm(d).item_bytes for d in ("float32", "tfloat32", "float16", "bfloat16")] == [4, 4, 2, 2]
        assert Gemm("tfloat32").storage == "float32"
        assert Gemm("bfloat16").storage == "bfloat16"
        assert Gemm("float16").bytes({"m": 2, "n": 3, "k": 4}) == 2 * (8 + 12 + 6)
        assert Gemm().dtype == "float32"

    def test_unknown(self):
        with pytest.raises(DtypeError, match=r"expected one of \['bfloat16', .*'int8', 'tfloat32'\]"):
            Gemm("float64")

    def test_a_cpu_refuses_what_its_spec_has_no_instruction_for(self):
        with pytest.raises(SpecError, match="epyc-zen5: no instruction for 'tfloat32'"):
            sieve(decompose(Gemm("tfloat32"), load_spec("epyc-zen5")))


# Hidet: spatial(a, b) gives a x b tasks to a x b workers, repeat(a, b) gives them to one worker in turn. A loop
# nest of parallel and temporal_spatial loops over (m, n), outermost first, is their composition.


def compose(*loops: tuple[Loop, Task]) -> list[list[Task]]:
    """The tasks of each worker, in order: parallel loops number workers, temporal ones add to a worker's list."""
    workers: list[list[Task]] = [[(0, 0)]]
    for loop, (rows, columns) in loops:
        steps = list(product(range(rows), range(columns)))

        def inside(task: Task, step: Task, rows: int = rows, columns: int = columns) -> Task:
            return task[0] * rows + step[0], task[1] * columns + step[1]

        if loop is Loop.PARALLEL:
            workers = [[inside(task, step) for task in tasks] for tasks in workers for step in steps]
        else:
            workers = [[inside(task, step) for task in tasks for step in steps] for tasks in workers]
    return workers


def spatial(rows: int, columns: int) -> tuple[Loop, Task]:
    return Loop.PARALLEL, (rows, columns)


def repeat(rows: int, columns: int) -> tuple[Loop, Task]:
    return Loop.TEMPORAL_SPATIAL, (rows, columns)


class TestTaskMappings:
    def test_order_of_composition_matters(self):
        assert compose(repeat(2, 1), spatial(2, 1)) == [[(0, 0), (2, 0)], [(1, 0), (3, 0)]]
        assert compose(spatial(2, 1), repeat(2, 1)) == [[(0, 0), (1, 0)], [(2, 0), (3, 0)]]

    def test_every_element_of_a_cuda_core_block_has_one_thread(self):
        s = BlockStrategy(Backend.CUDA_CORE, "float32", Tile(32, 64, 1), Tile(64, 128, 8), Tile(8, 8, 1), 3)
        threads = compose(
            spatial(s.l1.m // s.l0.m, s.l1.n // s.l0.n),
            spatial(s.l0.m // s.thread.m, s.l0.n // s.thread.n),
            repeat(s.thread.m, s.thread.n),
        )
        assert len(threads) == s.threads
        assert all(len(tasks) == s.accumulators for tasks in threads)
        assert sorted(task for tasks in threads for task in tasks) == list(product(range(s.l1.m), range(s.l1.n)))

    def test_a_fragment_of_mma_is_a_composition(self):
        """PTX manual, m16n8 accumulator: register i of lane l is row l / 4 + 8 (i / 2), column 2 (l % 4) + i % 2."""
        lanes = compose(repeat(2, 1), spatial(8, 4), repeat(1, 2))
        assert lanes == [[(lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2) for i in range(4)] for lane in range(32)]

    def test_a_fragment_of_wgmma_is_a_composition(self):
        """PTX manual, m64nN: warp w of four has rows 16 w up, and repeats the fragment of mma along the columns."""
        width = 64
        threads = compose(spatial(4, 1), repeat(1, width // 8), repeat(2, 1), spatial(8, 4), repeat(1, 2))
        for thread, tasks in enumerate(threads):
            warp, lane = divmod(thread, 32)
            rows = {16 * warp + lane // 4 + 8 * half for half in (0, 1)}
            columns = {8 * j + lane % 4 * 2 + i for j in range(width // 8) for i in (0, 1)}
            assert set(tasks) == set(product(rows, columns))

    def test_a_vectorized_copy_is_a_composition(self):
        """128 threads copy 64 rows of 32 halves in pieces of 8: four to a row, 32 rows at a time, twice."""
        threads = compose(repeat(2, 1), spatial(32, 4), repeat(1, 8))
        assert all(np.ptp([row for row, _ in tasks[:8]]) == 0 for tasks in threads)
        assert sorted(task for tasks in threads for task in tasks) == list(product(range(64), range(32)))
