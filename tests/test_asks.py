"""What nests and held kernels ask for before it is stored to: their loops, as they are emitted."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import pytest

from vortex.epilogue import Store

tvm = pytest.importorskip("tvm")

WRITTEN = 1
"""What `llvm.prefetch` is told of lines that are to be stored to."""


def owned_in(body: Any) -> int:
    """Statements in it that ask for a line of C."""
    from vortex.codegen.cpu_masks import CALL
    from vortex.codegen.trees import found

    prefetch = tvm.target.codegen.llvm_lookup_intrinsic_id("llvm.prefetch")

    def owns(call: Any) -> bool:
        return call.op == CALL and int(call.args[0]) == prefetch and int(call.args[2]) == WRITTEN

    return len(found(body, tvm.ir.Call, owns))


def asks_by(guard: Any) -> str:
    """When it asks for C: by the conditions that it does so under."""
    from vortex.codegen.trees import found

    asking = found(guard.then_case, tvm.tirx.IfThenElse, lambda node: bool(owned_in(node)))
    first = any(isinstance(node.condition, tvm.tirx.EQ) for node in asking)
    crowd = any(isinstance(node.condition, tvm.tirx.And) for node in asking)
    return " or ".join([*["crowd"] * crowd, *["first panel"] * first]) or "each panel"


@pytest.mark.parametrize("pack_b", ["none", "copy"])
@pytest.mark.parametrize(
    ("rows_first", "lanes", "when"),
    [
        (True, 8, "each panel"),
        (True, 4, "each panel"),
        (False, 8, "first panel"),
        (True, 16, "crowd or first panel"),
        (False, 16, "first panel"),
    ],
)
def test_outermost_row_tiles_ask_for_c_panel_by_panel(rows_first: bool, lanes: int, when: str, pack_b: str) -> None:
    """With AVX-512 where it is a crowd of lines; all others before the tiles of a first panel."""
    from vortex.codegen.cpu_nest import LoadStage, nest
    from vortex.codegen.trees import found

    function = nest(LoadStage("row", rows_first, False, pack_b), lanes, Store())
    runs = found(function.body, tvm.tirx.For, lambda loop: loop.loop_var.name == "again")
    guards = found(runs, tvm.tirx.IfThenElse, lambda node: getattr(node.condition, "name", "") == "owning")
    assert len(runs) == len(guards) > 0 and owned_in(function.body) == owned_in(guards) > 0
    assert [asks_by(guard) for guard in guards] == [when] * len(guards)


@pytest.mark.parametrize("columns", [41, 121, 999, 1024, 3694])
def test_every_line_of_long_rows_was_asked_for_a_block_before(columns: int) -> None:
    """By a held kernel: of wide rows as the vector before passed, of others as the rows above did."""
    from vortex.candidates import HELD_ROWS
    from vortex.codegen.cpu_own import WIDE, far

    lanes, blocks = 16, 2
    ahead = int(tvm.sym.Analyzer().simplify(far(tvm.tirx.const(columns, "int64"), lanes, 4)))
    vectors = range(0, columns - lanes + 1, lanes)
    places = [
        row * columns + first
        for block in range(blocks)
        for first in vectors
        for row in range(block * HELD_ROWS, block * HELD_ROWS + HELD_ROWS)
    ]
    wide = columns * 4 >= WIDE
    asked: dict[int, int] = {}
    waited = []
    for step, place in enumerate(places):
        asked[(place + ahead) // lanes] = step
        first = step % (len(vectors) * HELD_ROWS) < HELD_ROWS if wide else step < len(vectors) * HELD_ROWS
        if not first:
            waited.append(step - asked[(place + lanes - 1) // lanes])
    most = HELD_ROWS if wide else len(vectors) * HELD_ROWS
    assert len(waited) > len(places) / 3 and 0 < min(waited) <= max(waited) <= most


def test_lines_come_into_l2_where_a_call_says_so() -> None:
    """Those of nests and of held kernels whose vectors are lines, not those of half ones."""
    from vortex.codegen.cpu_held import held_kernel
    from vortex.codegen.cpu_nest import LoadStage, nest
    from vortex.codegen.cpu_tile import INTO_L2

    told = f"how & {INTO_L2} == 0"
    assert told in nest(LoadStage("row", True, False, "none"), 16, Store()).script()
    assert told in held_kernel(4, 23, 16).script()
    assert told not in held_kernel(4, 23, 8).script()


@pytest.mark.parametrize("pack_b", ["none", "copy", "transpose"])
@pytest.mark.parametrize("rows_first", [True, False])
def test_tiles_ask_for_what_comes_next_of_a_far_c(rows_first: bool, pack_b: str) -> None:
    """Where a call says that it is: of sums, or of what they are stored to where micro-kernels finish them."""
    from vortex.codegen.cpu_ahead import ASK_STORED_SYMBOL, ASK_SYMBOL
    from vortex.codegen.cpu_nest import LoadStage, nest
    from vortex.codegen.cpu_tile import FAR_C

    lines = nest(LoadStage("row", rows_first, False, pack_b), 16, Store()).script().splitlines()
    (far,) = (line for line in lines if line.strip().startswith("far: "))
    assert f"how & {FAR_C} != 0" in far
    (at,) = (i for i, line in enumerate(lines) if line.strip() == "if in_runs == 0 and far:")
    depth = len(lines[at]) - len(lines[at].lstrip())
    body = list(takewhile(lambda line: len(line) - len(line.lstrip()) > depth, lines[at + 1 :]))
    asked = [line for line in body if "call_extern" in line]
    assert all(f'"{symbol}"' in line for line, symbol in zip(asked, (ASK_STORED_SYMBOL, ASK_SYMBOL), strict=True))
    assert "i0 + below, beside" in asked[0] and "C[(i0 + below) * ldc + beside" in asked[1]
