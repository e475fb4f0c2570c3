"""What entries of the caches on disk are called: a digest of all that they depend on."""

from __future__ import annotations

import hashlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from vortex import operators
from vortex.cache import digest


def cache_key(operator: operators.Operator, fingerprint: str, made_by: str, invariant: str | None = None) -> str:
    """Of all a library depends on: operator, spec, and what makes it of these."""
    return digest([repr(operator), invariant, fingerprint, made_by])


def makers(compiler: str = "") -> str:
    """A digest of what makes libraries: releases, vortex's own sources and recorded measurements."""
    releases = {}
    if compiler:
        from vortex.codegen import nvrtc

        releases[compiler] = nvrtc.release(compiler)
    for name in ("apache-tvm", "apache-tvm-ffi", "nvidia-cuda-nvrtc"):
        try:
            releases[name] = version(name)
        except PackageNotFoundError:
            releases[name] = "none"
    package = Path(__file__).resolve().parent
    sources = hashlib.sha256()
    shell = {"cli.py", "demo.py", "__main__.py", "cache.py", "torch"}
    written = (p for p in package.rglob("*") if p.suffix in (".py", ".c", ".h", ".json"))
    for path in sorted(p for p in written if shell.isdisjoint(p.relative_to(package).parts)):
        sources.update(path.read_bytes())
    return digest([releases, sources.hexdigest()])
