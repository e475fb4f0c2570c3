"""Which cores a process may use: affinity masks and cgroup quotas, recorded and real."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from recorded import machine, tree, write

from vortex import affinity


class TestQuota:
    def test_none(self, tmp_path):
        assert affinity.cpu_quota(str(tmp_path)) is None
        assert affinity.available_cores(str(tree(tmp_path)), range(8)) == 4

    @pytest.mark.parametrize(
        ("text", "quota", "cores"),
        [("max 100000", None, 4), ("250000 100000", 2.5, 2), ("50000 100000", 0.5, 1), ("9900000 100000", 99.0, 4)],
    )
    def test_version_2(self, tmp_path, text, quota, cores):
        root = tree(tmp_path)
        write(root / "proc/self/cgroup", "0::/user/job")
        write(root / "sys/fs/cgroup/user/cpu.max", text)  # of an ancestor
        write(root / "sys/fs/cgroup/user/job/cpu.max", "max 100000")
        assert affinity.cpu_quota(str(root)) == quota
        assert affinity.available_cores(str(root), range(8)) == cores
        assert machine(tmp_path).cores == cores

    @pytest.mark.parametrize(("quota", "cores"), [("-1", 4), ("150000", 1), ("300000", 3)])
    @pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
    def test_version_1_inside_a_container(self, tmp_path, mount, quota, cores):
        root = tree(tmp_path)
        write(root / "proc/self/cgroup", "4:memory:/host/path\n1:cpu,cpuacct:/host/path\n0::/")
        write(root / f"sys/fs/cgroup/{mount}/cpu.cfs_quota_us", quota)
        write(root / f"sys/fs/cgroup/{mount}/cpu.cfs_period_us", "100000")
        assert affinity.available_cores(str(root), range(8)) == cores

    def test_here(self):
        assert 1 <= affinity.available_cores() <= (os.cpu_count() or 1)
        assert set(affinity.available_cpus()) <= set(os.sched_getaffinity(0))

    def test_it_is_light(self):
        code = (
            "import sys; import vortex.affinity; sys.exit(any(m in sys.modules for m in ('pydantic', 'tvm', 'numpy')))"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


POOL = """
import multiprocessing, os, time
from concurrent.futures import ProcessPoolExecutor
from vortex.affinity import end_with_parent
with ProcessPoolExecutor(1, multiprocessing.get_context("fork"), end_with_parent) as pool:
    print(pool.submit(os.getpid).result(), flush=True)
    time.sleep(60)
"""


def test_workers_do_not_outlive_a_process_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", POOL], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        worker = Path("/proc", process.stdout.readline().strip(), "stat")
        assert worker.exists()
        process.kill()
    gone = time.monotonic() + 10
    while worker.exists() and worker.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < gone, "the worker still waits"
        time.sleep(0.01)
