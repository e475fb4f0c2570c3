"""What an operator makes of the text of a GEMM kernel: a prologue in its load stage, an epilogue, a batch around it."""

from __future__ import annotations

from dataclasses import dataclass

from vortex.axes import Role
from vortex.codegen import cuda_batch, cuda_begin, cuda_finish
from vortex.codegen.cuda_lower import KernelSource
from vortex.codegen.cuda_prelude import PRELUDE
from vortex.epilogue import NOTHING, Epilogue, Store
from vortex.operators import Operator, finishing, prologue_of


@dataclass(frozen=True)
class Form:
    """The same for every kernel of a library."""

    store: Store | None = None
    """The store stage, where it does more than round sums to the operands' type."""
    is_batched: bool = False
    prologue: Epilogue = NOTHING
    """What is done to elements of A as they arrive in registers."""

    @property
    def prelude(self) -> str:
        """What stands before the kernels of a translation unit."""
        finish = cuda_finish.functions(self.store) if self.store is not None else ""
        begin = cuda_begin.functions(self.prologue) if self.prologue else ""
        return PRELUDE + begin + finish + (cuda_batch.STRUCT if self.is_batched else "")

    def of(self, kernel: KernelSource) -> KernelSource:
        """A kernel in this form; one that adds partial sums up has no A."""
        if self.prologue and "*A" in kernel.args:
            kernel = cuda_begin.begun(kernel)
        if self.store is not None:
            kernel = cuda_finish.finished(kernel)
        return cuda_batch.batched(kernel) if self.is_batched else kernel


PLAIN = Form()


def form_of(operator: Operator) -> Form:
    """How the kernels of an operator differ from those of a plain GEMM."""
    return Form(finishing(operator), any(axis.role is Role.BATCH for axis in operator.axes), prologue_of(operator))
