"""The sweep over cuBLASLt's algorithms against a double of the library that computes what it is asked for."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from eval.gpu import cublaslt
from eval.gpu.cublaslt import Algorithm, CublasLt, fastest, open_library


class Matrix:
    """What the sweep asks of a torch tensor."""

    def __init__(self, array: Any) -> None:
        self.array, self.shape = array, array.shape

    def stride(self, axis: int) -> int:
        return self.array.strides[axis] // self.array.itemsize

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def numel(self) -> int:
        return self.array.size

    def element_size(self) -> int:
        return self.array.itemsize


class Double:
    """cublasLt in float32 on the host: column-major, three algorithms of which the second does not run."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.workspace = 0

    def _new(self, to: Any, thing: Any) -> int:
        self.made.append(thing)
        to._obj.value = len(self.made)
        return 0

    def _of(self, handle: Any) -> Any:
        return self.made[handle.value - 1]

    def cublasLtCreate(self, to: Any) -> int:
        return self._new(to, "handle")

    def cublasLtMatmulDescCreate(self, to: Any, compute: int, scale: int) -> int:
        return self._new(to, {"compute": compute, "scale": scale})

    def cublasLtMatmulDescSetAttribute(self, product: Any, attribute: int, value: Any, size: Any) -> int:
        assert size.value == 4
        self._of(product)[attribute] = value._obj.value
        return 0

    def cublasLtMatrixLayoutCreate(self, to: Any, dtype: int, rows: Any, columns: Any, leading: Any) -> int:
        assert dtype == cublaslt.REAL_32 and leading.value >= rows.value
        return self._new(to, (rows.value, columns.value, leading.value))

    def cublasLtMatmulPreferenceCreate(self, to: Any) -> int:
        return self._new(to, {})

    def cublasLtMatmulPreferenceSetAttribute(self, preference: Any, attribute: int, value: Any, size: Any) -> int:
        assert attribute == cublaslt.MAX_WORKSPACE_BYTES and size.value == ctypes.sizeof(ctypes.c_size_t)
        self.workspace = value._obj.value
        return 0

    def cublasLtMatmulAlgoGetHeuristic(self, *arguments: Any) -> int:
        most, found, count = arguments[-3:]
        for place in range(4):
            found[place].algorithm[0], found[place].state = place, int(place == 3)
        count._obj.value = min(4, most)
        return 0

    def cublasLtMatmul(self, handle: Any, product: Any, *rest: Any) -> int:
        one, a, left, b, right, none, c, result, d, _, algorithm, _, room, stream = rest
        assert (one._obj.value, none._obj.value, c.value, room.value, stream.value) == (1, 0, d.value, 64, 5)
        if algorithm._obj[0] == 1:
            return 15

        def columns(address: Any, layout: Any) -> Any:
            rows, count, leading = self._of(layout)
            flat = np.frombuffer((ctypes.c_float * (leading * count)).from_address(address.value), np.float32)
            return flat.reshape(count, leading)[:, :rows].T

        asked = self._of(product)
        x, y = columns(a, left), columns(b, right)
        x = x.T if asked[cublaslt.TRANSPOSE_A] else x
        y = y.T if asked[cublaslt.TRANSPOSE_B] else y
        columns(d, result)[...] = x @ y
        return 0


@pytest.mark.parametrize("turned_a", [False, True])
@pytest.mark.parametrize("turned_b", [False, True])
def test_every_algorithm_is_asked_for_the_product(turned_a: bool, turned_b: bool) -> None:
    draw = np.random.default_rng(0)
    a, b = (draw.integers(-3, 4, shape).astype(np.float32) for shape in ((5, 7), (7, 6)))
    given_a = np.ascontiguousarray(a.T).T if turned_a else a
    given_b = np.ascontiguousarray(b.T).T if turned_b else b
    out = np.zeros((5, 6), np.float32)
    library = CublasLt(double := Double())
    workspace = Matrix(np.zeros(64, np.uint8))
    calls = library.algorithms(Matrix(given_a), Matrix(given_b), Matrix(out), "float32", workspace, lambda: 5)
    assert len(calls) == 3 and double.workspace == 64, "the one that the heuristics take back is left out"
    for place, call in enumerate(calls):
        out[:] = 0
        if place == 1:
            with pytest.raises(RuntimeError, match="cublasLtMatmul answers 15"):
                call()
        else:
            call()
            assert (out == a @ b).all()


def test_the_fastest_that_runs_is_taken() -> None:
    def refused() -> None:
        raise RuntimeError("no")

    calls = [lambda: None, refused, lambda: None]
    times = {id(calls[0]): 2.0, id(calls[2]): 1.0}
    assert fastest(calls, lambda call: times[id(call)]) is calls[2]
    with pytest.raises(RuntimeError, match="none of 1 algorithms"):
        fastest([refused], lambda call: 0.0)


def test_a_result_is_as_large_as_the_header_has_it() -> None:
    assert ctypes.sizeof(Algorithm) == 96


def test_no_library() -> None:
    with pytest.raises(OSError, match="nothing"):
        open_library(["libnothing.so.1"])
