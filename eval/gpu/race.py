"""Suites against rivals, core types against each other, the choice against every kernel, the call against torch's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from eval.gpu.budget import Budget, Journal, covered, median, spread
from eval.gpu.rivals import rival
from eval.gpu.torch_gpu import TorchGpu, product
from eval.suites import Case
from vortex.gpu_candidates import Backend
from vortex.gpu_selector import Extents, GpuPlan, GpuSelector, Layout

MEMORY_SHARE = 0.4
CORES = {
    "cuda_core": (Backend.CUDA_CORE, Backend.SKINNY),
    "tensor_core": (Backend.TENSOR_CORE, Backend.HOPPER),
}
"""Figure 16's fixed choices. The skinny family multiplies on CUDA cores."""
TOLERANCE = {"float32": 1e-5, "tfloat32": 2e-3, "float16": 2e-3, "bfloat16": 1.6e-2}
"""Of ||C - reference|| / ||reference||: a few times what rounding C costs."""


def operands(gpu: TorchGpu, case: Case, dtype: str) -> tuple[Any, Any, Any]:
    """A [m, k] and B [k, n] as views of what the case stores, and C."""
    a = gpu.operand(*((case.k, case.m) if case.trans_a else (case.m, case.k)), dtype, 1, False)
    b = gpu.operand(*((case.n, case.k) if case.trans_b else (case.k, case.n)), dtype, 2, False)
    return a.T if case.trans_a else a, b.T if case.trans_b else b, gpu.empty(case.m, case.n, dtype)


def fits(case: Case, item_bytes: int, memory_bytes: int) -> bool:
    elements = case.m * case.k + case.k * case.n + case.m * case.n
    largest = max(case.m * case.k, case.k * case.n)
    return elements * item_bytes + 4 * largest < MEMORY_SHARE * memory_bytes


def plan_of(gemm: Any, case: Case) -> GpuPlan:
    return gemm.plan(case.m, case.n, case.k, transpose_a=case.trans_a, transpose_b=case.trans_b)


def wrongness(a: Any, b: Any, out: Any) -> float:
    """||C - A B|| / ||A B|| on the first and last rows, A B in float32."""
    rows = [*range(min(64, a.shape[0])), *range(max(0, a.shape[0] - 64), a.shape[0])]
    expected = product(a[rows], b)
    return float(((out[rows].float() - expected).norm() / expected.norm().clamp_min(1e-30)).item())


def timed(
    gpu: TorchGpu,
    kind: str,
    calls: Mapping[str, Callable[[], Any]],
    about: Mapping[str, Any],
    ours: Mapping[str, Any],
    journal: Journal,
) -> None:
    """Warm and cold medians of every system on one case, in turn; what is known of our own call goes to its row."""
    for system, call in calls.items():
        try:
            warm, cold = gpu.warm(call), gpu.cold(call)
        except RuntimeError as failure:
            journal.add("failed", system=system, why=str(failure)[:300], **about)
            continue
        row = {
            "warm_s": median(warm),
            "warm_spread": spread(warm),
            "cold_s": median(cold),
            "cold_spread": spread(cold),
        }
        journal.add(kind, system=system, **about, **row, **(ours if system == "vortex" else {}))


def suites(
    gpu: TorchGpu, gemm: Any, name: str, cases: Sequence[Case], systems: Iterable[str], journal: Journal, budget: Budget
) -> None:
    """Warm and cold medians of every system on every case, in turn, as long as time is left."""
    dtype, systems = gemm.manifest.dtype, tuple(systems)
    for case in covered(journal, budget, name, f"suites over {', '.join(systems)}", cases):
        a, b, out = operands(gpu, case, dtype)
        plan = plan_of(gemm, case)
        gemm(a, b, out=out)
        error = wrongness(a, b, out)
        about = {"library": name, "dtype": dtype, **asdict(case), "flops": case.flops}
        chosen = {"plan": plan.variant.name, "splits": plan.splits, "predicted_s": plan.seconds}
        calls: dict[str, Any] = {"vortex": lambda a=a, b=b, out=out: gemm(a, b, out=out)}
        for system in systems:
            try:
                calls[system] = rival(system, dtype)(a, b, out)
            except (RuntimeError, TypeError, ValueError) as refusal:
                journal.add("absent", system=system, why=str(refusal)[:300], **about)
        timed(gpu, "suite", calls, about, {"error": error, "right": error <= TOLERANCE[dtype], **chosen}, journal)


def restricted(gemm: Any, backends: Sequence[Backend]) -> tuple[GpuSelector, list[int]] | None:
    """The selector over the kernels of some backends, and their indices in the library."""
    whole = GpuSelector.from_json([k.variant for k in gemm.kernels], gemm.manifest.selector)
    kept = [i for i, variant in enumerate(whole.variants) if variant.strategy.backend in backends]
    if not kept:
        return None
    part = GpuSelector(
        tuple(whole.variants[i] for i in kept), whole.rates, tuple(whole.costs[i] for i in kept), whole.basis
    )
    return part, kept


def class_of(case: Case, item_bytes: int) -> int:
    """The alignment class of dense operands."""
    rows = (case.m if case.trans_a else case.k, case.k if case.trans_b else case.n, case.n)
    bits = 16
    for length in rows:
        bits |= length * item_bytes
    return bits & -bits


def fixed_plan(gemm: Any, case: Case, backends: Sequence[Backend], item_bytes: int) -> GpuPlan | None:
    found = restricted(gemm, backends)
    if found is None:
        return None
    selector, kept = found
    layout = Layout(case.trans_a, case.trans_b)
    extents, room = Extents(case.m, case.n, case.k), gemm.manifest.workspace_bytes
    plan = selector.select(extents, layout, class_of(case, item_bytes), room)
    return GpuPlan(kept[plan.index], plan.variant, plan.splits, plan.chunk, plan.raster, plan.seconds)


def timed_plan(gpu: TorchGpu, gemm: Any, plan: GpuPlan, a: Any, b: Any, out: Any) -> list[float]:
    return gpu.warm(lambda: gemm.run_planned(plan, a, b, out), rounds=5)


def core_types(
    gpu: TorchGpu, gemm: Any, name: str, cases: Sequence[Case], item: int, journal: Journal, budget: Budget
) -> None:
    """Figure 16: the adaptive choice beside the best kernel of each core type, all run as given plans."""
    for case in covered(journal, budget, name, "core types", cases):
        a, b, out = operands(gpu, case, gemm.manifest.dtype)
        plans = {"adaptive": plan_of(gemm, case)}
        for core, backends in CORES.items():
            plan = fixed_plan(gemm, case, backends, item)
            if plan is not None:
                plans[core] = plan
        times = {core: timed_plan(gpu, gemm, plan, a, b, out) for core, plan in plans.items()}
        seconds = {core: median(values) for core, values in times.items()}
        chosen = {core: plan.variant.name for core, plan in plans.items()}
        spreads = {core: spread(values) for core, values in times.items()}
        journal.add(
            "core_types", library=name, m=case.m, n=case.n, k=case.k, seconds=seconds, plans=chosen, spreads=spreads
        )


def rivals_of_plan(gemm: Any, case: Case, item: int) -> list[GpuPlan]:
    """Every kernel that serves a case, with the reduction whole and with the cut that is predicted best."""
    whole = GpuSelector.from_json([k.variant for k in gemm.kernels], gemm.manifest.selector)
    extents, room = Extents(case.m, case.n, case.k), gemm.manifest.workspace_bytes
    key = whole.group(Layout(case.trans_a, case.trans_b), class_of(case, item))
    asked = whole.options(extents, key, room)
    totals = [cost.total for _, cost in asked]
    plans = []
    for row, index in enumerate(whole.groups[key]):
        best = min(range(len(totals)), key=lambda choice: float(totals[choice][row]))
        for choice in dict.fromkeys((0, best)):
            splits = int(asked[choice][0][row])
            if splits > 1 and gemm.kernels[index].split < 0:
                continue
            plans.append(whole.plan(extents, index, splits, float(totals[choice][row])))
    return sorted(plans, key=lambda plan: plan.seconds)


def oracle(
    gpu: TorchGpu, gemm: Any, name: str, cases: Sequence[Case], item: int, journal: Journal, budget: Budget
) -> None:
    """How much of the fastest kernel's speed the choice has, measured plan by plan."""
    for case in covered(journal, budget, name, "oracle", cases):
        a, b, out = operands(gpu, case, gemm.manifest.dtype)
        chosen = plan_of(gemm, case)
        ours = median(timed_plan(gpu, gemm, chosen, a, b, out))
        rows, finished = [], True
        for plan in rivals_of_plan(gemm, case, item):
            if not budget.left:
                finished = False
                break
            seconds = median(timed_plan(gpu, gemm, plan, a, b, out))
            rows.append({"kernel": plan.variant.name, "splits": plan.splits, "predicted_s": plan.seconds, "s": seconds})
        journal.add(
            "oracle", library=name, **asdict(case), chosen=chosen.variant.name, chosen_s=ours, plans=rows, all=finished
        )


def host_seconds(
    gpu: TorchGpu, calls: Mapping[str, Callable[[], Any]], name: str, shape: str, journal: Journal
) -> None:
    """What each call on operands of one shape takes of the host."""
    for what, call in calls.items():
        journal.add("overhead", library=name, what=what, shape=shape, seconds=gpu.host(call))


def overhead(gpu: TorchGpu, gemm: Any, name: str, journal: Journal) -> None:
    """Seconds of the host for a call, ours and torch's, with a given result and without; and of the selection alone."""
    dtype = gemm.manifest.dtype
    case = Case("overhead", "overhead/64", 64, 64, 64)
    a, b, out = operands(gpu, case, dtype)
    calls = {
        "vortex(out=)": lambda: gemm(a, b, out),
        "torch.mm(out=)": rival("cublas", "float32")(a, b, out),
        "vortex": lambda: gemm(a, b),
        "torch.mm": lambda: a @ b,
    }
    host_seconds(gpu, calls, name, "64x64x64", journal)
    shapes = [(m, n, k) for m in (1, 37, 4096) for n in (64, 1000) for k in (128, 5000)]
    for m, n, k in shapes:
        journal.add("selection", library=name, m=m, n=n, k=k, seconds=gemm.time_selection(m, n, k, 2000))
