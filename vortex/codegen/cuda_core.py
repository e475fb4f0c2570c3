from vortex.gpu_candidates import Variant
from vortex.codegen.cuda_lower import KernelSource
def source(variant: Variant, arch: str) -> KernelSource: raise NotImplementedError
