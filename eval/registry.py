"""The systems by name, and which of them compete with which."""

from eval.operator_systems import OPERATOR_PEERS, OPERATOR_SYSTEMS
from eval.systems import AbsentError, Mkl, MklCblas, OneDnn, OneDnnPacked, OnnxRuntime, OpenBlas, OpenBlasAvx512, System
from eval.tvm_systems import TvmDlight, TvmMetaSchedule
from eval.vortex_systems import Vortex, VortexPacked

EVERY: tuple[type[System], ...] = (
    Vortex,
    Mkl,
    MklCblas,
    OneDnn,
    OpenBlas,
    OpenBlasAvx512,
    VortexPacked,
    OneDnnPacked,
    OnnxRuntime,
    TvmDlight,
    TvmMetaSchedule,
    *OPERATOR_SYSTEMS,
)
SYSTEMS = {system.name: system for system in EVERY}
PLAIN_PEERS = ("mkl", "mkl_cblas", "onednn", "openblas", "openblas_avx512")
PACKED_PEERS = ("onednn_packed", "onnxruntime")
PLAIN = ("vortex", *PLAIN_PEERS)
PACKED = ("vortex_packed", *PACKED_PEERS)
# Compared case by case: plain Vortex with those that see plain operands, packed Vortex with everybody, and the plain
# product with what an epilogue or another type makes of it.
RIVALS = {
    "vortex": PLAIN_PEERS,
    "vortex_packed": (*PLAIN_PEERS, *PACKED_PEERS),
    "vortex_op": OPERATOR_PEERS,
    "vortex_op_packed": OPERATOR_PEERS,
    "vortex_strict": OPERATOR_PEERS,
    "vortex_plain": ("vortex_op",),
}


def create(name: str, threads: int) -> System:
    if name not in SYSTEMS:
        raise AbsentError(f"no system {name!r}; known: {', '.join(SYSTEMS)}")
    return SYSTEMS[name](threads)
