"""The systems by name, and which of them compete with which."""

from eval.systems import AbsentError, Mkl, MklCblas, OneDnn, OneDnnPacked, OnnxRuntime, OpenBlas, OpenBlasAvx512, System
from eval.tvm_systems import TvmDlight, TvmMetaSchedule
from eval.vortex_systems import Vortex, VortexPacked

SYSTEMS: dict[str, type[System]] = {
    system.name: system
    for system in (
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
    )
}
PLAIN_PEERS = ("mkl", "mkl_cblas", "onednn", "openblas", "openblas_avx512")
PACKED_PEERS = ("onednn_packed", "onnxruntime")
PLAIN = ("vortex", *PLAIN_PEERS)
PACKED = ("vortex_packed", *PACKED_PEERS)
# Compared case by case: plain Vortex with those that see plain operands, packed Vortex with everybody.
RIVALS = {"vortex": PLAIN_PEERS, "vortex_packed": (*PLAIN_PEERS, *PACKED_PEERS)}


def create(name: str, threads: int) -> System:
    if name not in SYSTEMS:
        raise AbsentError(f"no system {name!r}; known: {', '.join(SYSTEMS)}")
    return SYSTEMS[name](threads)
