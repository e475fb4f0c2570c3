"""Compiled libraries on disk, by content: written once, found again, bounded in size, safe between processes.

A key names everything a library was made from, so an entry is never changed, only replaced by its equal. A file appears
under its name complete (rename), and only the name can vanish from under a reader: an open or mapped file stays whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vortex.errors import DeviceError, ToolchainError

LIMIT_BYTES = 512 * 1024**2
OBJECTS_SHARE = 4
"""Objects may take one part in so many of what libraries may: one of these holds all objects that it was made of."""
ABANDONED_S = 3600.0
"""A half-written file this old belongs to a process that died."""


def digest(data: Any) -> str:
    """A hash of plain data, whatever the order of its fields."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def cache_directory() -> Path:
    """Where vortex keeps what it can make again: `VORTEX_CACHE_DIR`, or the user's cache folder."""
    if given := os.environ.get("VORTEX_CACHE_DIR"):
        return Path(given)
    # Here and below: what only compiling needs is imported where it is used, so that this module costs nothing.
    try:
        import platformdirs
    except ImportError as error:
        raise ToolchainError(
            "platformdirs is missing; install vortex with its `compile` extra, or set VORTEX_CACHE_DIR"
        ) from error
    return Path(platformdirs.user_cache_dir("vortex"))


def limit_bytes() -> int:
    """`VORTEX_CACHE_BYTES`, or the default."""
    given = os.environ.get("VORTEX_CACHE_BYTES", "")
    if given and not given.isdigit():
        raise DeviceError(f"VORTEX_CACHE_BYTES is {given!r}; expected a whole number of bytes, such as {LIMIT_BYTES}")
    return int(given) if given else LIMIT_BYTES


@dataclass(frozen=True)
class Entry:
    """One file in the cache; `used` in seconds since the epoch."""

    key: str
    bytes: int
    used: float


@dataclass(frozen=True)
class Cache:
    """A folder of files, libraries if not said otherwise, that keeps the most recently used within `limit_bytes`."""

    folder: Path
    limit_bytes: int = LIMIT_BYTES
    suffix: str = ".vortex"

    def path(self, key: str) -> Path:
        """Where the entry is, or would be."""
        return self.folder / f"{key}{self.suffix}"

    def get(self, key: str) -> Path | None:
        """The file of the entry, which now counts as just used; None where there is none."""
        path = self.path(key)
        if not path.is_file():
            return None
        with contextlib.suppress(OSError):  # a cache that others may only read still serves
            os.utime(path)
        return path

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Held by one process at a time, so that two that want a library make it once; gone when its holder dies.

        Keys share 256 lock files: only a file that is never deleted is safe to lock, and such files must not pile up.
        """
        try:
            import filelock
        except ImportError as error:
            raise ToolchainError("filelock is missing; install vortex with its `compile` extra") from error
        self._make_folder()
        with filelock.FileLock(self.folder / f".lock-{hashlib.sha256(key.encode()).hexdigest()[:2]}"):
            yield

    def put(self, key: str, file: Path) -> Path:
        """Take a copy of `file` as the entry; above the limit the least recently used others are dropped."""
        self._make_folder()
        try:
            handle, name = tempfile.mkstemp(prefix=".making-", dir=self.folder)
            os.close(handle)
            made = Path(name)
            try:
                shutil.copyfile(file, made)
                made.chmod(0o644)
                made.replace(self.path(key))
            finally:
                made.unlink(missing_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error
        self._evict(key)
        return self.path(key)

    def entries(self) -> list[Entry]:
        """All entries, the most recently used first."""
        found = []
        for path in self.folder.glob(f"*{self.suffix}"):
            with contextlib.suppress(FileNotFoundError):  # dropped by another process meanwhile
                status = path.stat()
                found.append(Entry(path.name.removesuffix(self.suffix), status.st_size, status.st_mtime))
        return sorted(found, key=lambda entry: (-entry.used, entry.key))

    def clear(self) -> int:
        """Remove all entries; how many there were."""
        entries = self.entries()
        for entry in entries:
            self.path(entry.key).unlink(missing_ok=True)
        return len(entries)

    def _evict(self, kept: str) -> None:
        total = 0
        for entry in self.entries():
            total += entry.bytes
            if total > self.limit_bytes and entry.key != kept:
                self.path(entry.key).unlink(missing_ok=True)
        for path in self.folder.glob(".making-*"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > ABANDONED_S:
                    path.unlink()

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> DeviceError:
        told = f"the cache folder {self.folder} cannot be written ({error.strerror})"
        return DeviceError(f"{told}; set VORTEX_CACHE_DIR to one that can")


def library_cache() -> Cache:
    """The user's cache of compiled libraries."""
    return Cache(cache_directory() / "libraries", limit_bytes())


def object_files() -> Cache:
    """The user's cache of the object files that libraries are made of."""
    return Cache(cache_directory() / "objects", limit_bytes() // OBJECTS_SHARE, ".o")
