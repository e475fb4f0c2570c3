"""TVM's own schedules for a static shape: dlight (rules, no search) and MetaSchedule (search). Only for a few cases."""

import logging
import os
import tempfile
import time
from functools import partial
from typing import Any

from eval.operands import Operands
from eval.systems import AbsentError, Prepared, System, into, package_version

# Searching takes minutes a shape: by default only cases up to a gigaflop, with this many trials.
MAX_FLOPS = 1_000_000_000
TRIALS = int(os.environ.get("EVAL_TVM_TRIALS", "64"))
BUILD_SECONDS = 180.0
"""For one trial: a build takes some ten seconds, of which TVM by itself grants thirty, on a busy machine too few."""


class TvmDlight(System):
    """The matmul scheduled by dlight's CPU rules: only for a matrix times a vector, k contiguous."""

    name = "tvm_dlight"

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        # TVM reads both when its pool first starts; pinning would chain the process to one core.
        os.environ["TVM_NUM_THREADS"] = str(threads)
        os.environ["TVM_BIND_THREADS"] = "0"
        try:
            import tvm
        except ImportError as error:
            raise AbsentError("apache-tvm is not installed") from error
        self.tvm = tvm
        self.target = tvm.target.Target({"kind": "llvm", "mcpu": _llvm_cpu(), "num-cores": threads})

    def _matmul(self, operands: Operands) -> Any:
        from tvm import te

        case = operands.case
        a = te.placeholder(operands.a.shape, "float32", name="a")
        b = te.placeholder(operands.b.shape, "float32", name="b")
        axis = te.reduce_axis((0, case.k), name="r")

        def term(i: Any, j: Any) -> Any:
            left = a[axis, i] if case.trans_a else a[i, axis]
            right = b[j, axis] if case.trans_b else b[axis, j]
            return te.sum(left * right, axis=axis)

        function = te.create_prim_func([a, b, te.compute((case.m, case.n), term, name="c")])
        return self.tvm.IRModule({"main": function.with_attr("tirx.noalias", True)})

    def _schedule(self, operands: Operands) -> tuple[Any, str]:
        from tvm.s_tir import dlight

        with self.target:
            module = dlight.ApplyDefaultSchedule(dlight.cpu.GEMV(), dlight.cpu.Reduction())(self._matmul(operands))
        if not module["main"].attrs.get("tirx.is_scheduled", False):
            raise AbsentError("dlight has no CPU rule for this matmul (plain loops would be no comparison)")
        return module, "dlight"

    def prepare(self, operands: Operands) -> Prepared:
        if operands.case.flops > MAX_FLOPS:
            raise AbsentError(f"TVM is compared on static shapes up to {MAX_FLOPS:.0e} FLOP only")
        module, detail = self._schedule(operands)
        function = self.tvm.compile(module, target=self.target)["main"]
        buffers = [self.tvm.runtime.from_dlpack(array) for array in (operands.a, operands.b, operands.out)]
        return into(operands, partial(function, *buffers), detail)

    def versions(self) -> dict[str, str]:
        return {name: package_version(name) for name in ("apache-tvm", "apache-tvm-ffi")}


class TvmMetaSchedule(TvmDlight):
    """The matmul searched by MetaSchedule for exactly this shape."""

    name = "tvm_metaschedule"

    def _schedule(self, operands: Operands) -> tuple[Any, str]:
        from tvm.s_tir import meta_schedule

        logging.disable(logging.INFO)  # a table for every batch of trials
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            database = meta_schedule.tir_integration.tune_tir(
                mod=self._matmul(operands),
                target=self.target,
                work_dir=folder,
                max_trials_global=TRIALS,
                num_trials_per_iter=16,
                cost_model="random",
                builder=meta_schedule.builder.LocalBuilder(max_workers=self.threads, timeout_sec=BUILD_SECONDS),
                num_tuning_cores=self.threads,
            )
            schedule = meta_schedule.tir_integration.compile_tir(database, self._matmul(operands), self.target)
        if schedule is None:
            raise AbsentError("MetaSchedule found no schedule")
        return schedule.mod, f"{TRIALS} trials in {time.perf_counter() - start:.0f} s"


def _llvm_cpu() -> str:
    from tvm.target.codegen import llvm_get_system_cpu

    return str(llvm_get_system_cpu())
