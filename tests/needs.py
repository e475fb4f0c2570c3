"""What a test needs of the machine it runs on."""

import shutil

import pytest

from vortex.affinity import cpu_flags

a_compiler = pytest.mark.skipif(
    not {"avx2", "fma"} <= cpu_flags() or not shutil.which("cc"),
    reason="compiles for this machine: needs Linux on x86-64 with AVX2 and FMA, and a C compiler",
)

an_emulator = pytest.mark.skipif(
    not {"avx2", "fma", "f16c"} <= cpu_flags() or not shutil.which("g++"),
    reason="emulates a GPU: needs Linux on x86-64 with AVX2, FMA and F16C, and g++",
)
