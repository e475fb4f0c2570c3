"""Object files of earlier compilations: operators differ in a few of those that their libraries are made of."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vortex.cache import Cache, digest

HASH_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True)
class ObjectCache:
    """Objects by what they were emitted from, each behind a hash of it: what was altered or cut short is made again."""

    files: Cache
    made_by: str
    """The sources and releases that emit them."""

    def key(self, emit: Callable[..., None], *given: object) -> str:
        """Of what `emit` makes of these arguments, plain values all that say in their `repr` what they are."""
        if isinstance(emit, partial):
            return self.key(emit.func, *emit.args, emit.keywords, *given)
        return digest([self.made_by, emit.__module__, emit.__qualname__, repr(given)])

    def take(self, key: str, path: Path) -> bool:
        """Write the object to `path`; False where there is none."""
        kept = self.files.get(key)
        try:
            found = kept.read_bytes() if kept else b""
        except OSError:  # dropped by another process meanwhile, or not ours to read
            return False
        told, content = found[:HASH_BYTES], found[HASH_BYTES:]
        if not content or told != hashlib.sha256(content).digest():
            return False
        path.write_bytes(content)
        return True

    def keep(self, key: str, path: Path) -> None:
        """Take a copy of the object at `path`."""
        content = path.read_bytes()
        with tempfile.NamedTemporaryFile(dir=path.parent) as sealed:
            sealed.write(hashlib.sha256(content).digest() + content)
            sealed.flush()
            self.files.put(key, Path(sealed.name))
