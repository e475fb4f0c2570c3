"""The ring must be able to fail: every piece of synchronization and every predicate, once spoiled, shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from emulator import EmulationError
from needs import an_emulator
from products import Case, cases, check, renamed, unit
from test_emulation import across_k, along_k, arch_of, bytes_core, cuda_core, hopper, tensor_core, turing

from vortex.codegen.cuda_form import form_of
from vortex.codegen.cuda_lower import KernelSource
from vortex.codegen.cuda_prelude import PRELUDE
from vortex.gpu_candidates import Variant
from vortex.operators import Gemm

pytestmark = an_emulator

BARRIER = r"__syncthreads\(\);"
WAIT = r"cp_async_wait<(\d+)>\(\);"


@dataclass(frozen=True)
class Mutant:
    what: str
    kernel: KernelSource


def spoiled(kernel: KernelSource, what: str, pattern: str, replacement: str, which: int = 0) -> Mutant:
    """The kernel with one occurrence of a pattern replaced."""
    begin = kernel.source.index(f" {kernel.symbol}(")
    found = list(re.finditer(pattern, kernel.source[begin:]))
    assert found, f"{kernel.symbol} has no {pattern}"
    at = found[which]
    text = kernel.source[: begin + at.start()] + at.expand(replacement) + kernel.source[begin + at.end() :]
    return Mutant(what, renamed(kernel, text, f"{kernel.symbol}_{re.sub(r'[^a-z0-9]', '_', what)}"))


def pipeline(kernel: KernelSource) -> Iterator[Mutant]:
    yield spoiled(kernel, "no barrier before the first stage is read", BARRIER, "", 0)
    yield spoiled(kernel, "no barrier between stages", BARRIER, "", 1)
    yield spoiled(kernel, "no wait for the first stage", WAIT, "", 0)
    yield spoiled(kernel, "one stage too few waited for", WAIT, r"cp_async_wait<\1 + 1>();", 1)
    yield from predicates(kernel)


def held(kernel: KernelSource) -> Iterator[Mutant]:
    yield spoiled(kernel, "no barrier before the first stage is read", BARRIER, "", 0)
    yield spoiled(kernel, "no barrier between stages", BARRIER, "", 1)
    yield spoiled(kernel, "a piece held past its place", r"move_16\(\(&\(A_shared_ptr.*\);", "", -1)
    yield from predicates(kernel)


def predicates(kernel: KernelSource) -> Iterator[Mutant]:
    for what, bound in (("a row", "M"), ("a column", "N"), ("k", "K")):
        reads = rf"((?:cp_async|copy)_\d+\(.*)< {bound}\)"  # the last: tiles of the prologue are whole
        yield spoiled(kernel, f"{what} too far is read", reads, rf"\1<= {bound})", -1)
    for what, bound in (("row", "M"), ("column", "N")):
        yield spoiled(kernel, f"a {what} too far is written", rf"< {bound}\)(?=.*\) \{{)", f"<= {bound})", -1)


def asynchronous(kernel: KernelSource) -> Iterator[Mutant]:
    yield spoiled(kernel, "a stage filled before it is empty", r"mbarrier_wait\(.*\);", "")
    yield spoiled(kernel, "the first tile not waited for", r"mbarrier_wait\(.*\);", "", 1)
    yield spoiled(kernel, "a tile not waited for", r"mbarrier_wait\(.*\);", "", -1)
    yield spoiled(kernel, "a product not waited for", r"wgmma_wait<1>\(\);", "wgmma_wait<2>();")
    yield spoiled(kernel, "the last product not waited for", r"wgmma_wait<0>\(\);", "")
    yield spoiled(kernel, "too few bytes expected", r"(mbarrier_expect\(.*)\);", r"\1 - 16);")
    yield spoiled(kernel, "a stage never given back", r"mbarrier_arrive\(.*\);", "")
    yield spoiled(kernel, "the last stage of a tile never given back", r"mbarrier_arrive\(.*\);", "", -1)
    yield spoiled(kernel, "no barrier before rows of C are read back", r"__syncwarp\(\);", "")
    for what, bound in (("row", "M"), ("column", "N")):
        yield spoiled(kernel, f"a {what} too far is written", rf"< {bound}\)", f"<= {bound})", 0)


def clustered(kernel: KernelSource) -> Iterator[Mutant]:
    yield spoiled(kernel, "a stage filled before both blocks are done", r"mbarrier_wait\(.*\);", "")
    yield spoiled(kernel, "a block that ends before the other is done with it", r"mbarrier_wait\(.*\);", "", 1)
    yield spoiled(kernel, "a tile not waited for", r"mbarrier_wait\(.*\);", "", -1)
    yield spoiled(kernel, "a stage given back to one block alone", "mbarrier_arrive_in_all<2>", "mbarrier_arrive")
    yield spoiled(
        kernel, "one arrival too few counted", r"mbarrier_init\((.*), (\d+)\);", r"mbarrier_init(\1, \2 - 1);", 1
    )
    yield spoiled(
        kernel, "a share of B for one block alone", r"tensor_copy_to_all\((.*), 3\);", r"tensor_copy_to_all(\1, 1);"
    )
    yield spoiled(
        kernel, "barriers that the other block may not have yet", "mbarriers_ready_in_cluster", "mbarriers_ready"
    )
    for what, bound in (("row", "M"), ("column", "N")):
        yield spoiled(kernel, f"a {what} too far is written", rf"< {bound}\)", f"<= {bound})", 0)


MUTATED = {
    "tensor core": (Variant(tensor_core("float16", "shared"), False, False, 16), pipeline),
    "tensor core, narrow": (Variant(tensor_core("float16"), True, True, 4), pipeline),
    "bytes": (Variant(bytes_core("shared"), True, False, 16), pipeline),
    "turing": (Variant(turing(), False, True, 16), held),
    "cuda core": (Variant(cuda_core("float32"), False, True, 16), pipeline),
    "skinny along k": (Variant(along_k("float16"), False, True, 16), predicates),
    "skinny across k": (Variant(across_k("float32"), True, False, 16), predicates),
    "hopper": (Variant(hopper("float16"), False, False, 16), asynchronous),
    "hopper, clusters": (Variant(hopper("float16", 64, cluster=2), False, True, 16), clustered),
}


@pytest.mark.parametrize("name", MUTATED)
def test_every_mutant_dies(name: str):
    variant, mutate = MUTATED[name]
    (_, kernel), *_ = unit([variant], arch_of(variant)).kernels
    mutants = list(mutate(kernel))
    prelude = form_of(Gemm(dtype=variant.strategy.dtype)).prelude
    text = "\n".join([prelude, kernel.source, *(mutant.kernel.source for mutant in mutants)])
    shapes = [case for case in cases(variant, 12) if case.splits == 1]
    for case in shapes:
        check(variant, kernel, text, case)
    alive = [mutant.what for mutant in mutants if survives(variant, mutant.kernel, text, shapes)]
    assert not alive


def test_lost_barriers_are_races_whatever_runs_first():
    variant = Variant(tensor_core("float16"), False, True, 16)
    (_, kernel), *_ = unit([variant], "sm_80").kernels
    mutants = list(pipeline(kernel))[:4]
    text = "\n".join([PRELUDE, kernel.source, *(mutant.kernel.source for mutant in mutants)])
    case = next(case for case in cases(variant, 1) if case.timing == "eager")
    check(variant, kernel, text, case, traced=True)
    for mutant in mutants:
        with pytest.raises(EmulationError, match="a race in shared memory"):
            check(variant, mutant.kernel, text, case, traced=True)


def survives(variant: Variant, kernel: KernelSource, text: str, shapes: list[Case]) -> bool:
    try:
        for case in shapes:
            check(variant, kernel, text, case)
    except EmulationError:
        return False
    return True
