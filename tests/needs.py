"""What a test needs of the machine it runs on."""

import shutil

import pytest

from vortex.affinity import cpu_flags

a_compiler = pytest.mark.skipif(
    not {"avx2", "fma"} <= cpu_flags() or not shutil.which("cc"),
    reason="compiles for this machine: needs Linux on x86-64 with AVX2 and FMA, and a C compiler",
)
