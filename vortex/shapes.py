"""The numbers of a call as the selector wants them: what callables are asked about, checked."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

from vortex.candidates import WHOLE
from vortex.errors import OperandError, ShapeError
from vortex.plans import OperandB, Shape
from vortex.threads import get_num_threads


def shape_of(
    m: int,
    n: int,
    k: int,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    packed: bool = False,
    lda: int = 0,
    ldb: int = 0,
) -> Shape:
    """The shape of a call as the selector sees it; leading dimensions in elements, dense if 0.

    An empty extent, for which nothing runs, is priced as one.
    """
    try:
        given = [index(extent) for extent in (m, n, k)]
    except TypeError:
        given = [-1]
    if min(given) < 0 or max(given) >= WHOLE:
        raise ShapeError(f"m={m!r}, n={n!r}, k={k!r}: expected whole numbers of at least 0 and below {WHOLE}")
    kind = OperandB.PACKED if packed else OperandB.TRANSPOSED if transpose_b else OperandB.PLAIN
    m, n, k = (max(1, extent) for extent in given)
    return Shape(m, n, k, kind, lda, transpose_a, ldb)


def thread_count(given: int | None) -> int:
    """As many threads as are asked for, or as a call would use."""
    if given is None:
        return get_num_threads()
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise OperandError(f"threads={given!r}: expected a whole number of at least 1")
    return given


def select_arguments(shape: Shape) -> Sequence[int]:
    """What the native selector is told of a shape."""
    transposed, packed = shape.b is OperandB.TRANSPOSED, shape.b is OperandB.PACKED
    return shape.m, shape.n, shape.k, shape.stride_a, shape.stride_b, int(shape.a_is_col), int(transposed), int(packed)
