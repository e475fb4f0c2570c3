"""What compiling is measured with: memory of a tree of processes, operators by their names."""

import subprocess
import sys

import pytest

from eval import memory, offline, operator_libraries
from eval.operator_cases import GEMM_VARIANTS
from vortex.errors import DtypeError

HOLDS = "import time; held = bytearray(b'x') * (60 << 20); print(flush=True); time.sleep(60)"
STARTS = (
    "import subprocess, sys\n"
    f"two = [subprocess.Popen([sys.executable, '-c', {HOLDS!r}], stdout=subprocess.PIPE) for _ in range(2)]\n"
    "[child.stdout.readline() for child in two]\n"
    "print(flush=True)\n"
    "sys.stdin.readline()\n"
    "[child.kill() for child in two]\n"
)


def test_memory_is_that_of_all_processes_together():
    with (
        subprocess.Popen([sys.executable, "-c", STARTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent,
        memory.PeakMemory(parent.pid) as peak,
    ):
        assert parent.stdin and parent.stdout
        parent.stdout.readline()
        both = memory.tree_bytes(parent.pid)
        peak.sample()
        parent.stdin.write(b"\n")
        parent.stdin.close()
        parent.wait()
    assert 120 << 20 < both < 240 << 20
    assert memory.proportional_bytes(parent.pid) == memory.tree_bytes(parent.pid) == 0
    assert peak.peak_bytes >= 120 << 20


def test_every_operator_of_the_evaluation_has_a_name():
    made = {name: operator_libraries.operator_named(name) for name in operator_libraries.NAMES}
    assert set(GEMM_VARIANTS) < set(made)
    assert made["bfloat16"].dtype == "bfloat16" and made["conv2d"].layout == "nhwc"
    assert made["weights"].weights.group == operator_libraries.GROUP and made["bias_gelu"].epilogue
    assert operator_libraries.operator_named("gemm", "tf32").dtype == "tfloat32"
    with pytest.raises(DtypeError, match="float32"):
        operator_libraries.operator_named("reduce", "int8")


def test_operators_are_those_that_the_device_has_an_instruction_for():
    names = operator_libraries.NAMES
    assert operator_libraries.names_for("epyc-zen5") == names
    assert operator_libraries.names_for("epyc-zen2") == tuple(name for name in names if name != "int8")


def test_a_row_for_each_operator_and_type():
    def line(dtype: str, name: str, value: float, unit: str):
        about = {"operator": "gemm", "dtype": dtype, "hw": "a100"}
        return about | {"name": name, "value": value, "unit": unit}

    lines = [line("float16", "peak memory", 512.0, "MB"), line("float16", "kernels", 9, "kernels")]
    lines += [line("int8", "peak memory", 1.5, "MB"), line("int8", "kernels", 7, "kernels")]
    head, _, *rows = offline.table([*lines, line("int8", "L0 FilterByISA", 3, "candidates")]).splitlines()
    assert head == "| operator | dtype | hardware | peak memory, MB | kernels |"
    assert rows == ["| gemm | float16 | a100 | 512 | 9 |", "| gemm | int8 | a100 | 1.5 | 7 |"]
