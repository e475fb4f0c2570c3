"""The cost model over strategies of a spec, from the spec alone: how tests of costs and of specs build a selector."""

from collections.abc import Sequence
from functools import cache

from vortex import profiler
from vortex.candidates import Sieve, Strategy, sieve
from vortex.hardware import HardwareSpec
from vortex.operators import Gemm
from vortex.rkernel import decompose
from vortex.selector import Selector


@cache
def found(spec: HardwareSpec) -> Sieve:
    return sieve(decompose(Gemm(), spec))


def selector(spec: HardwareSpec, strategies: Sequence[Strategy], kernels: Sequence[tuple[int, int]] = ()) -> Selector:
    """`kernels` are the (rows, vectors) that L0 is computed for; by default those of the spec."""
    lanes = spec.instruction("float32").lanes
    kernels = kernels or [(tile.m, tile.n // lanes) for tile in found(spec).register_tiles]
    profile = profiler.compute(spec, kernels)
    return Selector(tuple(strategies), profiler.rates(spec, profile), profile.slopes(), lanes, 12 * lanes)
