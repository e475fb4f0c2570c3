"""What an operator makes of a GEMM kernel's text: a prologue or a filter in its load stage, an epilogue, products."""

from __future__ import annotations

from dataclasses import dataclass

from vortex.axes import Role
from vortex.codegen import cuda_batch, cuda_begin, cuda_finish, cuda_groups, cuda_window
from vortex.codegen.cuda_lower import KernelSource
from vortex.codegen.cuda_prelude import PRELUDE
from vortex.epilogue import NOTHING, Epilogue, Store
from vortex.operators import Conv2d, GroupedGemm, Operator, finishing, prologue_of


@dataclass(frozen=True)
class Form:
    """The same for every kernel of a library."""

    store: Store | None = None
    """The store stage, where it does more than round sums to the operands' type."""
    is_batched: bool = False
    prologue: Epilogue = NOTHING
    """What is done to elements of A as they arrive in registers."""
    is_grouped: bool = False
    """Whether blocks find the group of rows that they belong to."""
    is_windowed: bool = False
    """Whether A is what a filter sees of an image."""

    @property
    def splits(self) -> bool:
        """Whether a reduction may be cut into parts that the workspace holds: that of one group of rows is not."""
        return not self.is_grouped

    @property
    def adds_up(self) -> bool:
        """Whether the kernel that adds partial sums up comes along; sums of nothing are finished by it, too."""
        return self.splits or self.store is not None

    @property
    def prelude(self) -> str:
        """What stands before the kernels of a translation unit."""
        of_many = self.is_batched or self.is_grouped
        finish = cuda_finish.functions(self.store, of_many) if self.store is not None else ""
        begin = cuda_begin.functions(self.prologue) if self.prologue else ""
        text = PRELUDE + begin + finish
        if self.is_batched:
            text += cuda_batch.STRUCT + (cuda_batch.FINISHED if finish else "")
        if self.is_windowed:
            text += cuda_window.FUNCTIONS
        if self.is_grouped:
            text += cuda_groups.STRUCT + (cuda_groups.FINISHED if finish else "")
        return text

    def of(self, kernel: KernelSource) -> KernelSource:
        """A kernel in this form; one that adds partial sums up has no A."""
        is_product = "*A" in kernel.args
        if is_product:
            kernel = cuda_begin.begun(kernel) if self.prologue else kernel
            kernel = cuda_window.windowed(kernel) if self.is_windowed else kernel
        if self.store is not None:
            kernel = cuda_finish.finished(kernel)
        if self.is_grouped and is_product:
            kernel = cuda_groups.grouped(kernel)
        return cuda_batch.batched(kernel) if self.is_batched else kernel


PLAIN = Form()


def form_of(operator: Operator) -> Form:
    """How the kernels of an operator differ from those of a plain GEMM."""
    is_grouped, is_windowed = isinstance(operator, GroupedGemm), isinstance(operator, Conv2d)
    is_batched = is_windowed or any(
        axis.role is Role.BATCH for axis in operator.axes
    )  # groups of channels, of a filter
    return Form(finishing(operator), is_batched and not is_grouped, prologue_of(operator), is_grouped, is_windowed)
