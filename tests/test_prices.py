"""The compiled cost, as the analyzer calls it: the seconds of its mirror in NumPy, bit for bit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from priced import found, selector

from vortex.analyzer import analyze
from vortex.plans import Grid, OperandB, Shape
from vortex.selector import Selector, problem
from vortex.specs import load_spec

pytest.importorskip("tvm")


def native(one: Selector, llvm_cpu: str, path: Path):
    from vortex.codegen.prices import Prices

    return Prices(one.rates, one.table, one.lanes, llvm_cpu, measurable=False, path=path)


@pytest.mark.parametrize("name", ["epyc-zen4", "xeon-e5-2680v3"])
def test_the_seconds_are_those_of_the_mirror(name: str, tmp_path: Path) -> None:
    """Of any number of strategies, with vectors of either width, for a processor that need not be this one."""
    spec = load_spec(name)
    wide = selector(spec, found(spec).strategies[::97])
    price = native(wide, spec.llvm_cpu, tmp_path / "costs.o")
    rng = np.random.default_rng(2)
    extents = np.exp(rng.uniform(0, np.log(9000), (300, 3))).astype(int).tolist()
    kinds = rng.choice(list(OperandB), 300)
    some = Selector(wide.strategies[: wide.lanes + 3], wide.rates, wide.table, wide.lanes, wide.panel)
    for one in (wide, some, wide):
        for grid, threads in ((Grid(1, 1), 1), (Grid(2, 3), 6)):
            shapes = (Shape(*at, OperandB(kind)) for at, kind in zip(extents, kinds, strict=True))
            asked = [problem(shape, grid, threads, one.rates) for shape in shapes]
            seconds = price(one, asked)
            assert seconds.shape == (300, len(one.strategies)) and np.array_equal(seconds, one.totals(asked))


def test_the_same_strategies_are_chosen(tmp_path: Path) -> None:
    spec = load_spec("epyc-zen4")
    one = selector(spec, found(spec).strategies[::41])
    about = one.strategies, one.rates, one.table, one.lanes, 2, 16, {}
    chosen = analyze(*about, price=native(one, spec.llvm_cpu, tmp_path / "costs.o"))
    assert chosen == analyze(*about) and len(chosen[0]) > 5


def test_other_rates_are_not_priced(tmp_path: Path) -> None:
    spec = load_spec("epyc-zen4")
    one = selector(spec, found(spec).strategies[::997])
    price = native(one, spec.llvm_cpu, tmp_path / "costs.o")
    other = replace(one, rates=replace(one.rates, dram_byte=2 * one.rates.dram_byte))
    with pytest.raises(AssertionError):
        price(other, [problem(Shape(5, 6, 7), Grid(1, 1), 1, other.rates)])
