"""Vortex in PyTorch: `torch.compile(model, backend="vortex", dynamic=True)`, or `optimize(model)` without a compiler.

Importing this imports torch; `import vortex` does not.
"""

from vortex.torch.dynamo import backend
from vortex.torch.extents import any_extents
from vortex.torch.swap import optimize

__all__ = ["any_extents", "backend", "optimize"]
