"""Worker processes as the bench sees them: one a system, all stopped except the one that is at work.

A library's idle threads keep spinning for a while after a call (200 ms for Intel's OpenMP) and would take a core from
whoever is measured next. Telling them not to spin would slow them at two threads, so a worker that is not at work is
stopped with SIGSTOP, threads and all, and continued for its next request, whose first call is not timed on its own.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from eval.registry import SYSTEMS

ROOT = Path(__file__).resolve().parent.parent
# Freed memory stays with the process: a system that allocates its output then pays for fresh pages once, not per call.
ALLOCATOR = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1099511627776:glibc.malloc.hugetlb=1"


class WorkerError(RuntimeError):
    """A worker failed; `kind` is the class name of its error, or `Crash` or `Timeout`."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


def worker_environment(system: str, threads: int, root: Path = ROOT) -> dict[str, str]:
    """Thread counts for every library; waiting policies are left to each library's own default.

    What is imported is of the checkout `root`.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_PROC_BIND", "KMP_AFFINITY")
    }
    counts = ("OMP", "MKL", "OPENBLAS", "VORTEX", "TVM")
    environment |= {f"{name}_NUM_THREADS": str(threads) for name in counts}
    environment |= {"MKL_DYNAMIC": "FALSE", "OMP_DYNAMIC": "FALSE", "GLIBC_TUNABLES": ALLOCATOR}
    if system in SYSTEMS:
        environment |= SYSTEMS[system].environment
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), environment.get("PYTHONPATH", ""))))
    return environment


class WorkerProcess:
    """A system in its own process, stopped between requests; started again after a crash or a timeout."""

    def __init__(
        self,
        system: str,
        threads: int,
        start_timeout: float = 600.0,
        module: str = "eval.worker",
        root: Path = ROOT,
    ) -> None:
        self.system, self.threads, self.start_timeout, self.module = system, threads, start_timeout, module
        self.root = root
        """The checkout whose sources it runs."""
        self.process: subprocess.Popen[str] | None = None
        self.versions: dict[str, str] = {}

    def start(self) -> None:
        self.process = subprocess.Popen(
            # -P: what is imported is of `root` and not of the folder that this one was started in.
            [sys.executable, "-P", "-m", self.module, "--system", self.system, "--threads", str(self.threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=worker_environment(self.system, self.threads, self.root),
            text=True,
        )
        self._answer(self.start_timeout)
        self._pause()
        self.versions = self.ask({"do": "info"})["versions"]

    def ask(self, request: dict[str, Any], timeout: float = 600.0) -> dict[str, Any]:
        """The worker's answer, or WorkerError; every other worker must be stopped meanwhile."""
        if self.process is None or self.process.poll() is not None:
            self.start()
        assert self.process is not None and self.process.stdin is not None
        self.process.send_signal(signal.SIGCONT)
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            return self._answer(timeout)
        except BrokenPipeError as error:
            raise WorkerError("Crash", f"exit code {self.process.wait()}") from error
        finally:
            self._pause()

    def _pause(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)

    def _answer(self, timeout: float) -> dict[str, Any]:
        assert self.process is not None and self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout):
                self.close()
                raise WorkerError("Timeout", f"no answer in {timeout:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self.process = None
            raise WorkerError("Crash", f"the worker ended with exit code {code}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["kind"], answer["error"])
        return answer

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout):
                if stream is not None:
                    stream.close()
            self.process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
