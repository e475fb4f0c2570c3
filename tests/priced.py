"""The cost model over strategies of a spec, from the spec alone: how tests of costs and of specs build a selector."""

from collections.abc import Sequence
from functools import cache

from vortex import profiler, rating
from vortex.candidates import Strategy
from vortex.hardware import HardwareSpec
from vortex.operators import Gemm
from vortex.rkernel import decompose
from vortex.selector import Selector
from vortex.sieve import Sieve, sieve


@cache
def found(spec: HardwareSpec, dtype: str = "float32") -> Sieve:
    return sieve(decompose(Gemm(dtype=dtype), spec))


def selector(
    spec: HardwareSpec,
    strategies: Sequence[Strategy],
    kernels: Sequence[tuple[int, int]] = (),
    dtype: str = "float32",
) -> Selector:
    """`kernels` are the (rows, vectors) that L0 is computed for; by default those of the spec."""
    lanes, words = spec.multiplier(dtype).lanes, spec.words(dtype)
    kernels = kernels or [(tile.m, tile.n // lanes) for tile in found(spec, dtype).register_tiles]
    profile = profiler.compute(spec, kernels, dtype, words)
    rates = rating.rates(spec, profile, dtype, words)
    return Selector(tuple(strategies), rates, profile.slopes(), lanes, 12 * lanes, words)


def computed(spec: HardwareSpec, dtype: str = "float32") -> Selector:
    """Over all strategies, by costs that no measurement disturbs: what is chosen by them, is chosen by every run."""
    return selector(spec, found(spec, dtype).strategies, dtype=dtype)
