"""What nests ask for before it is stored to: their loops, as they are emitted."""

from __future__ import annotations

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


def of_first(node: Any) -> bool:
    """Whether it asks which panel it is."""
    return isinstance(node.condition, tvm.tirx.EQ) and bool(owned_in(node.then_case))


@pytest.mark.parametrize("pack_b", ["none", "copy"])
@pytest.mark.parametrize(("rows_first", "lanes"), [(True, 8), (True, 4), (False, 8), (True, 16), (False, 16)])
def test_outermost_row_tiles_without_avx512_ask_for_c_panel_by_panel(rows_first: bool, lanes: int, pack_b: str) -> None:
    """All others before the first panel of a row tile, or before each tile of a first panel."""
    from vortex.codegen.cpu_nest import LoadStage, nest
    from vortex.codegen.trees import found

    function = nest(LoadStage("row", rows_first, False, pack_b), lanes, Store())
    runs = found(function.body, tvm.tirx.For, lambda loop: loop.loop_var.name == "again")
    guards = found(runs, tvm.tirx.IfThenElse, lambda node: getattr(node.condition, "name", "") == "owning")
    assert len(runs) == len(guards) > 0 and owned_in(function.body) == owned_in(guards) > 0
    first_alone = [bool(found(guard.then_case, tvm.tirx.IfThenElse, of_first)) for guard in guards]
    assert first_alone == [not (rows_first and lanes < 16)] * len(guards)
