"""A GPU of sm_80 to sm_90a on the CPU: one grid of emitted CUDA source, thread by thread, with nothing left to luck."""

from emulator.driver import TIMINGS, EmulationError, Statistics, TensorMap, compile_sources, run

__all__ = ["TIMINGS", "EmulationError", "Statistics", "TensorMap", "compile_sources", "run"]
