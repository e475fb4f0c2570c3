"""What the evaluation times of selection: shapes of every operator, regions told apart."""

import itertools
import re
from unittest.mock import create_autospec

import needs
import pytest

import vortex
from eval import selection_times
from eval.operator_libraries import NAMES
from vortex.batch_launcher import BatchGemmKernel
from vortex.conv_launcher import ConvKernel
from vortex.fused import FusedGemm
from vortex.grouped_launcher import GroupedGemmKernel
from vortex.launcher import GemmKernel
from vortex.reduction_launcher import ReduceKernel
from vortex.shapes import shape_of

KERNELS = {"batch": BatchGemmKernel, "grouped": GroupedGemmKernel, "conv2d": ConvKernel, "reduce": ReduceKernel}


@pytest.mark.parametrize("name", NAMES)
def test_every_operator_is_asked_as_its_callable_wants_it(name: str):
    run = create_autospec(KERNELS.get(name, FusedGemm), instance=True)
    times = itertools.count(1)
    run.time_selection.side_effect = lambda *given, **named: next(times) * 1e-6
    asked = selection_times.sampled(run, name, 4, seed=5)
    assert [selection.shape for selection in asked] == [
        selection.shape for selection in selection_times.sampled(run, name, 4, seed=5)
    ]
    assert len({selection.shape for selection in asked}) == len(asked) >= 3
    found = list(selection_times.summary(name, asked[:3]))
    assert [line["value"] for line in found] == pytest.approx([4, 7])  # each the least of three
    assert found[1] == {"name": f"{name}, worst", "value": pytest.approx(7), "note": asked[2].shape}


@needs.a_compiler
def test_pricings_are_counted_where_regions_are_sought(gemm: GemmKernel):
    vortex.set_num_threads(2)
    assert selection_times.pricings(gemm, shape_of(4, 4, 4), 2) == 0
    found = selection_times.priced(gemm, 2, seed=1, count=3)
    assert len(found) == 3
    for selection in found:
        assert re.search(r", [1-9]\d* pricings$", selection.shape)
        assert 0 < selection.timed(200) < 50e-6
