"""Decomposition, and what a newcomer may add without touching `vortex/`: a device, an operator."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from priced import selector

from vortex.axes import Access, Axis, Role
from vortex.candidates import WHOLE, registers_needed
from vortex.hardware import HardwareSpec, Instruction, Level, Memory
from vortex.operators import BatchGemm, Conv2d, Gemm, GroupedGemm, Reduce
from vortex.plans import Shape
from vortex.rkernel import Loop, Move, decompose, reuses
from vortex.sieve import buffer_bytes, sieve
from vortex.specs import cpus, load_spec, what_if


@pytest.mark.parametrize("name", [spec.name for spec in cpus()])
def test_every_level_of_the_hardware_has_one_of_the_rkernel(name):
    spec = load_spec(name)
    rkernel = decompose(Gemm(), spec)
    assert tuple(row.level for row in rkernel.levels) == spec.levels
    for row in rkernel.levels:
        assert [axis for axis, _ in row.loops] == ["m", "n", "k"]
        assert row.loop("k") is Loop.TEMPORAL_REDUCTION
    assert all(row.loop("m") is Loop.TEMPORAL_SPATIAL for row in rkernel.levels[:-1])
    assert rkernel.levels[-1].loop("m") is Loop.PARALLEL
    assert Move.CACHE_BUFFER in rkernel.levels[1].loads


def test_each_level_computes_with_the_one_below():
    names = [row.compute for row in decompose(Gemm(), load_spec("xeon-8255c")).levels]
    assert names[1:] == ["rKernel(L0)", "rKernel(L1)"]


def test_the_spec_says_which_levels_are_measured():
    spec = load_spec("xeon-8255c")
    assert [row.empirical for row in decompose(Gemm(), spec).levels] == [True, False, False]
    computed = what_if(spec, {"L0.analysis": "analytical"})
    assert not any(row.empirical for row in decompose(Gemm(), computed).levels)


def cache(name: str, sets: int, ways: int, **figures: int) -> Memory:
    """With lines of 32 bytes, which no shipped device has."""
    return Memory(name=name, capacity_bytes=sets * ways * 32, line_bytes=32, ways=ways, sets=sets, **figures)


GB = 1_000_000_000
MADE_UP = HardwareSpec(
    name="abacus",
    llvm_cpu="x86-64-v3",
    cores=3,
    clock_hz=GB,
    peak_flops_per_s=24 * GB,
    thread_start_ns=500,
    instructions=(
        Instruction(
            name="slide",
            dtype="float32",
            lanes=4,
            registers=16,
            issue_per_cycle=1,
            latency_cycles=6,
            features=("beads",),
        ),
    ),
    memories=(
        cache("pocket", 128, 4, bandwidth_bytes_per_s=32 * GB, total_bandwidth_bytes_per_s=96 * GB, shared_by=1),
        cache("bag", 1024, 6, bandwidth_bytes_per_s=16 * GB, total_bandwidth_bytes_per_s=30 * GB, shared_by=3),
        Memory(name="shed", bandwidth_bytes_per_s=4 * GB, total_bandwidth_bytes_per_s=6 * GB),
    ),
    levels=(
        Level(name="L0", memory="pocket", units=1, analysis="empirical", min_utilization=0.3),
        Level(name="L1", memory="bag", units=1, analysis="analytical", max_utilization=0.5),
        Level(name="L2", memory="shed", units=3, analysis="analytical"),
    ),
)


@dataclass(frozen=True)
class GramMatrix:
    """C[m, n] = A[m, k] A[n, k]: not a Gemm, but said in the same words."""

    dtype: str = "float32"
    name: str = "gram"
    axes: tuple[Axis, ...] = (Axis("m", Role.SPATIAL), Axis("n", Role.SPATIAL), Axis("k", Role.REDUCTION))
    inputs: tuple[Access, ...] = (Access("a", ("m", "k")), Access("a", ("n", "k")))
    item_bytes: int = 4

    @property
    def output(self) -> Access:
        return Access("c", ("m", "n"))

    def flops(self, tile: Mapping[str, int]) -> int:
        return 2 * tile["m"] * tile["n"] * tile["k"]


@dataclass(frozen=True)
class RowsOfABatch:
    """out[g, m] = the sum of x[g, m, k] over k: not a Reduce, but each element is used once as well."""

    dtype: str = "float32"
    name: str = "rows"
    axes: tuple[Axis, ...] = (Axis("g", Role.BATCH), Axis("k", Role.REDUCTION), Axis("m", Role.SPATIAL))
    inputs: tuple[Access, ...] = (Access("x", ("g", "k", "m")),)


def test_what_is_used_once_gets_no_buffer_whatever_its_axes_are_called():
    l0, l1, l2 = decompose(RowsOfABatch(), MADE_UP).levels  # type: ignore[arg-type]  # an operator of a user's
    assert l0.loops == (("m", Loop.TEMPORAL_SPATIAL), ("k", Loop.TEMPORAL_REDUCTION))
    assert l1.loops == (("k", Loop.TEMPORAL_REDUCTION), ("m", Loop.TEMPORAL_SPATIAL)) and l1.loads == (Move.NONE,)
    assert l2.loops == tuple((axis, Loop.PARALLEL) for axis in "gkm")
    assert [reuses(operator()) for operator in (Gemm, BatchGemm, GroupedGemm, Conv2d, Reduce)] == [True] * 4 + [False]


@pytest.mark.parametrize("operator", [Gemm(), GramMatrix()], ids=["gemm", "gram"])
def test_a_made_up_device_and_operator_go_through(operator):
    rkernel = decompose(operator, MADE_UP)
    assert rkernel.operator is operator
    found = sieve(rkernel)
    assert found.strategies
    assert all(tile.n % 4 == 0 and registers_needed(tile.m, tile.n // 4) <= 16 for tile in found.register_tiles)
    for strategy in found.strategies:
        if strategy.stage.dot:
            continue
        assert strategy.l0.m * strategy.l0.n // 4 >= 6  # issue x latency
        assert buffer_bytes(strategy.l1, strategy.stage, operator.item_bytes, strategy.l0.m) <= 98_304
        assert strategy.l1.m == WHOLE or strategy.l1.m % strategy.l0.m == 0


def test_a_made_up_device_is_priced():
    strategies = sieve(decompose(Gemm(), MADE_UP)).strategies
    priced = selector(MADE_UP, strategies)
    small, large = (priced.select(Shape(extent, extent, extent), 3) for extent in (4, 900))
    assert small.grid.m * small.grid.n == 1
    assert large.grid.m * large.grid.n == 3
    assert large.seconds > 2 * 900**3 / MADE_UP.peak_flops_per_s
