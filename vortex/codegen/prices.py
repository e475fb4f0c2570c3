"""The cost as native code in this process: what the analyzer asks for all shapes of its domain."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vortex.affinity import cpu_flags
from vortex.arithmetic import Array
from vortex.codegen.link import RUNTIME, link
from vortex.codegen.lower import compile_object, cpu_target
from vortex.codegen.selector import costs, padded_columns
from vortex.problem import Problem
from vortex.rates import Rates
from vortex.selector import Selector, SlopeTable

LEVELS = (("x86-64-v4", "avx512vl"), ("x86-64-v3", "avx2"), ("x86-64", "sse2"))
"""What LLVM calls processors, and a flag of all that are no less: for the cost of another machine."""


class Prices:
    """The same seconds as `Selector.totals`, bit for bit, in a hundredth of the time."""

    def __init__(
        self, rates: Rates, table: SlopeTable, lanes: int, llvm_cpu: str, measurable: bool, path: Path
    ) -> None:
        """`vortex_costs` of these rates is compiled to the object `path`: for `llvm_cpu`, or for what this machine has
        where the device is another (`measurable` is False)."""
        self.rates, self.lanes = rates, lanes
        self._columns: tuple[Selector | None, Array] = None, np.empty(0, np.float32)
        self._slopes = np.ascontiguousarray(table.seconds, np.float32)
        here = llvm_cpu if measurable else next(level for level, flag in LEVELS if flag in cpu_flags())
        compile_object([costs(rates, table, lanes, here)], cpu_target(here), path, share=False, simplify=False)
        library = path.with_suffix(".so")
        link(library, [path], [RUNTIME / "prices.c"])
        self._prices = ctypes.CDLL(str(library)).vx_prices

    def __call__(self, selector: Selector, asked: Sequence[Problem]) -> Array:
        """Predicted seconds of every strategy for many calls at once, [call, strategy]."""
        assert selector.rates == self.rates and selector.lanes == self.lanes
        if self._columns[0] is not selector:
            self._columns = selector, padded_columns(selector.columns, self.lanes)
        columns = self._columns[1]
        calls = np.array([tuple(vars(one).values()) for one in asked], np.float32)
        totals = np.empty((len(calls), len(columns) * self.lanes), np.float32)
        sizes = (ctypes.c_int64(size) for size in (len(columns), self.lanes, len(calls)))
        self._prices(*(ctypes.c_void_p(x.ctypes.data) for x in (columns, self._slopes, calls, totals)), *sizes)
        return totals[:, : len(selector.strategies)]
