"""A GPU of sm_80 to sm_90a on the CPU: one grid of emitted CUDA source, thread by thread, with nothing left to luck.

The source is taken as NVRTC takes it. `translation` turns its kernels into C++ and `ptx` its inline assembly into calls
of the machine (`machine/`); g++ compiles the result, and `driver.run` runs a grid of it:

- threads are fibers; barriers, shuffles, ldmatrix, mma and wgmma are meetings of the threads that take part, and a
  meeting that somebody misses is an error;
- copies by cp.async and TMA and products by wgmma happen at once, as late as their waits allow, or at any time between,
  while warps run ahead of one another: what is not waited for is wrong in one of these timings;
- operands lie against pages that nobody may touch, on addresses as odd as the alignment class allows; memory that was
  not written is NaN; misaligned vectors trap; what lies between rows must stay as it was;
- blocks of a cluster run together, each with memory of its own; who reaches into a block that has ended is found;
- shared memory ends where the launch says, begins each block as NaN, and its bank conflicts are counted;
- a traced run sees each access to shared memory and refuses races that no order of running made visible.

Not modelled: time, caches, the order of global accesses between blocks, fences between the generic and the async
proxy (but for their absence before wgmma), races among copies by TMA, races between the blocks of a cluster.
"""

from emulator.driver import TIMINGS, EmulationError, Record, Statistics, TensorMap, Workspace, compile_sources, run

__all__ = ["TIMINGS", "EmulationError", "Record", "Statistics", "TensorMap", "Workspace", "compile_sources", "run"]
