"""Load stages of L1 alone: what a panel of the CacheBuffer holds, and what around it stays as it was."""

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

from vortex.affinity import cpu_flags

Transpose = tuple[int, Callable[..., None]]


@pytest.fixture(scope="module", params=[(8, "x86-64-v3"), (16, "x86-64-v4")], ids=["avx2", "avx512"])
def transpose(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Transpose:
    """Its lanes, and the native function."""
    pytest.importorskip("tvm")
    from vortex.codegen.cpu_load import PAST_IR, TRANSPOSE_SYMBOL, transpose_kernel
    from vortex.codegen.link import link
    from vortex.codegen.lower import compile_object, cpu_target

    lanes, cpu = request.param
    if lanes == 16 and "avx512f" not in cpu_flags():
        pytest.skip("needs AVX-512")
    folder = tmp_path_factory.mktemp("load")
    compile_object([transpose_kernel(lanes)], cpu_target(cpu), folder / "load.o", llvm_ir=PAST_IR)
    link(folder / "load.so", [folder / "load.o"], [])
    function = getattr(ctypes.CDLL(str(folder / "load.so")), TRANSPOSE_SYMBOL)
    function.restype, function.argtypes = None, [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 4
    return lanes, function


@pytest.mark.parametrize("further", [0, 5])
def test_a_transposition_writes_every_element_and_no_other(transpose: Transpose, further: int) -> None:
    """Squares that are whole, cut short at either edge, and none; rows that follow each other, and rows apart."""
    lanes, run = transpose
    for rows in (1, 2, 3, lanes // 2, lanes // 2 + 1, lanes, lanes + 1, 3 * lanes):
        for columns in (0, 1, lanes // 2 - 1, lanes // 2, lanes, 2 * lanes + 3, 5 * lanes):
            strides = rows + further, columns + further
            source = np.arange(columns * strides[0], dtype=np.float32).reshape(columns, strides[0])
            target = np.full((rows + 1, strides[1]), -1, np.float32)
            run(source.ctypes.data, target.ctypes.data, rows, columns, *strides)
            assert (target[:rows, :columns] == source[:, :rows].T).all()
            assert (target[rows:] == -1).all() and (target[:, columns:] == -1).all()


@pytest.mark.parametrize("past", [0, 1, 4, 7])
def test_long_rows_may_begin_anywhere_in_a_vector(transpose: Transpose, past: int) -> None:
    lanes, run = transpose
    for rows in (4 * lanes, 4 * lanes + 1, 5 * lanes - past):
        columns, strides = 2 * lanes + 3, (6 * lanes, 2 * lanes + 5)
        room = np.zeros(columns * strides[0] + 2 * lanes, np.float32)
        first = -room.ctypes.data // room.itemsize % lanes + past
        source = room[first : first + columns * strides[0]].reshape(columns, strides[0])
        source[:] = np.arange(source.size).reshape(source.shape)
        target = np.full((rows + 1, strides[1]), -1, np.float32)
        run(source.ctypes.data, target.ctypes.data, rows, columns, *strides)
        assert (target[:rows, :columns] == source[:, :rows].T).all()
        assert (target[rows:] == -1).all() and (target[:, columns:] == -1).all()


@pytest.mark.parametrize("lanes", [2, 4, 8, 16, 32])
def test_rounds_of_exchanges_transpose_a_square_of_any_vectors(lanes: int) -> None:
    pytest.importorskip("tvm")
    from vortex.codegen.cpu_load import exchanges

    square = [[(row, column) for column in range(lanes)] for row in range(lanes)]
    for pairs in exchanges(lanes):
        both = {e.targets: square[e.sources[0]] + square[e.sources[1]] for e in pairs}
        assert sorted(row for e in pairs for row in e.sources) == list(range(lanes))
        made = {row: [both[e.targets][x] for x in o] for e in pairs for row, o in zip(e.targets, e.orders, strict=True)}
        square = [made[row] for row in range(lanes)]
    assert square == [[(row, column) for row in range(lanes)] for column in range(lanes)]
