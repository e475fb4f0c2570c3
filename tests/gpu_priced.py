"""The cost model over a spread of GPU kernels, from the spec alone: how tests of costs build a selector."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from vortex.gpu_candidates import Backend, BlockStrategy, Variant
from vortex.gpu_hardware import GpuSpec
from vortex.gpu_profiler import block_costs, rates
from vortex.gpu_selector import ALIGNMENTS, LAYOUTS, GpuSelector
from vortex.gpu_sieve import backends, sieve
from vortex.gpu_variety import serves
from vortex.operators import Gemm
from vortex.rkernel import decompose
from vortex.specs import gpus

SPECS = {spec.name: spec for spec in gpus()}
A100 = SPECS["a100-sxm4-40gb"]


@cache
def spread(spec: GpuSpec, dtype: str, each: int = 12) -> tuple[BlockStrategy, ...]:
    """Candidates of every backend, evenly taken."""
    rkernel = decompose(Gemm(dtype=dtype), spec)
    found: list[BlockStrategy] = []
    for backend in backends(rkernel):
        strategies = sieve(rkernel, backend).strategies
        found += strategies[:: max(1, len(strategies) // each)][:each]
    return tuple(found)


def variants(strategies: Sequence[BlockStrategy]) -> tuple[Variant, ...]:
    """Each strategy for every layout that it serves; half of them for narrow rows, too."""
    rows = []
    for place, strategy in enumerate(strategies):
        narrow = place % 2 == 0 and strategy.backend is not Backend.HOPPER
        sizes = [size for size in ALIGNMENTS if size >= strategy.item_bytes] if narrow else ALIGNMENTS[:1]
        rows += [Variant(strategy, *layout, size) for layout in LAYOUTS if serves(strategy, layout) for size in sizes]
    return tuple(rows)


@cache
def selector(spec: GpuSpec, dtype: str = "float16", each: int = 12) -> GpuSelector:
    kernels = variants(spread(spec, dtype, each))
    return GpuSelector(kernels, rates(spec), block_costs(spec, kernels), "computed")


def only(chooser: GpuSelector, *kernels: Variant, spec: GpuSpec = A100) -> GpuSelector:
    """The same device with other kernels."""
    return replace(chooser, variants=kernels, costs=block_costs(spec, kernels))
