"""The cache of libraries: entries appear whole, the least recently used go first, two processes share it."""

import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import needs
import numpy as np
import pytest

import vortex
from vortex import api
from vortex.cache import ABANDONED_S, LIMIT_BYTES, Cache, cache_directory, library_cache, limit_bytes
from vortex.errors import DeviceError


def file_of(folder: Path, size: int, byte: bytes = b"x") -> Path:
    path = folder / "source"
    path.write_bytes(byte * size)
    return path


def age(cache: Cache, key: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(cache.path(key), (then, then))


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "libraries", 1000)


class TestEntries:
    def test_what_was_put_is_found(self, cache: Cache, tmp_path: Path):
        assert cache.get("a") is None
        path = cache.put("a", file_of(tmp_path, 10))
        assert cache.get("a") == path == cache.path("a")
        assert path.read_bytes() == b"x" * 10
        assert [(entry.key, entry.bytes) for entry in cache.entries()] == [("a", 10)]

    def test_put_replaces(self, cache: Cache, tmp_path: Path):
        cache.put("a", file_of(tmp_path, 10))
        cache.put("a", file_of(tmp_path, 5, b"y"))
        assert cache.path("a").read_bytes() == b"yyyyy"

    def test_an_open_entry_outlives_its_replacement(self, cache: Cache, tmp_path: Path):
        with cache.put("a", file_of(tmp_path, 10)).open("rb") as reader:
            cache.put("a", file_of(tmp_path, 5, b"y"))
            cache.clear()
            assert reader.read() == b"x" * 10

    def test_an_absent_folder_is_an_empty_cache(self, tmp_path: Path):
        cache = Cache(tmp_path / "never made")
        assert cache.entries() == [] and cache.clear() == 0 and cache.get("a") is None

    def test_clear(self, cache: Cache, tmp_path: Path):
        for key in "abc":
            cache.put(key, file_of(tmp_path, 10))
        with cache.lock("a"):
            pass
        assert cache.clear() == 3
        assert cache.entries() == []


class TestEviction:
    def test_the_least_recently_used_goes(self, cache: Cache, tmp_path: Path):
        for place, key in enumerate("abc"):
            cache.put(key, file_of(tmp_path, 300))
            age(cache, key, 100 - place)
        assert cache.get("a")  # now the most recent
        cache.put("d", file_of(tmp_path, 300))
        assert {entry.key for entry in cache.entries()} == {"a", "c", "d"}
        assert sum(entry.bytes for entry in cache.entries()) <= cache.limit_bytes

    def test_a_library_above_the_limit_still_serves(self, cache: Cache, tmp_path: Path):
        cache.put("a", file_of(tmp_path, 10))
        assert cache.put("b", file_of(tmp_path, 2000)).is_file()
        assert [entry.key for entry in cache.entries()] == ["b"]

    def test_what_a_dead_process_left_is_removed(self, cache: Cache, tmp_path: Path):
        cache.put("a", file_of(tmp_path, 10))
        young, old = cache.folder / ".making-young", cache.folder / ".making-old"
        for path in (young, old):
            path.write_text("half")
        then = time.time() - 2 * ABANDONED_S
        os.utime(old, (then, then))
        cache.put("b", file_of(tmp_path, 10))
        assert young.exists() and not old.exists()
        assert {entry.key for entry in cache.entries()} == {"a", "b"}


class TestFailure:
    def test_a_failed_put_leaves_nothing(self, cache: Cache, tmp_path: Path):
        with pytest.raises(DeviceError):
            cache.put("a", tmp_path / "absent")
        assert cache.get("a") is None and list(cache.folder.iterdir()) == []

    def test_a_folder_that_is_a_file(self, tmp_path: Path):
        cache = Cache(file_of(tmp_path, 1) / "libraries")
        with pytest.raises(DeviceError, match="VORTEX_CACHE_DIR"):
            cache.put("a", file_of(tmp_path, 1))
        with pytest.raises(DeviceError, match="VORTEX_CACHE_DIR"), cache.lock("a"):
            pass


MAKER = """
import sys, time
from pathlib import Path
from vortex.cache import Cache
cache, log, source = Cache(Path(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3])
with cache.lock("key"):
    if cache.get("key") is None:
        with log.open("a") as made:
            made.write("made\\n")
        time.sleep(0.3)
        source.write_bytes(b"z" * 100_000)
        cache.put("key", source)
print(len(cache.get("key").read_bytes()))
"""

WRITER = """
import sys
from pathlib import Path
from vortex.cache import Cache
cache, letter, source = Cache(Path(sys.argv[1]), 400_000), sys.argv[2].encode(), Path(sys.argv[3])
source.write_bytes(letter * 100_000)
for _ in range(100):
    cache.put("shared", source)
    cache.put("own-" + sys.argv[2], source)
    path = cache.get("shared")
    data = path.read_bytes()
    assert len(data) == 100_000 and len(set(data)) == 1, (len(data), set(data))
"""


class TestTwoProcesses:
    def start(self, program: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, *map(str, arguments)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def test_the_same_library_is_made_once(self, tmp_path: Path):
        log = tmp_path / "log"
        jobs = [self.start(MAKER, tmp_path / "cache", log, tmp_path / f"source{index}") for index in range(2)]
        for job in jobs:
            out, err = job.communicate(timeout=60)
            assert (job.returncode, out.strip()) == (0, "100000"), err
        assert log.read_text() == "made\n"

    def test_readers_never_see_half_a_file(self, tmp_path: Path):
        jobs = [self.start(WRITER, tmp_path / "cache", letter, tmp_path / f"source-{letter}") for letter in "pq"]
        for job in jobs:
            _, err = job.communicate(timeout=60)
            assert job.returncode == 0, err
        left = Cache(tmp_path / "cache")
        assert {entry.key for entry in left.entries()} == {"shared", "own-p", "own-q"}
        assert not list(left.folder.glob(".making-*"))


LARGEST = vortex.operators.Reduce("max")
"""What compiles quickest."""
ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)

COMPILER = """
import sys, time
from pathlib import Path
import numpy, vortex
import vortex.cache
cache, ready = vortex.cache.Cache(Path(sys.argv[1])), Path(sys.argv[2])
vortex.cache.library_cache = lambda: cache
(ready / sys.argv[3]).touch()
while len(list(ready.iterdir())) < 2:
    time.sleep(0.01)
told = []
largest = vortex.compile(vortex.operators.Reduce("max"), progress=lambda what, share: told.append(what))
found = largest(numpy.arange(12, dtype=numpy.float32).reshape(3, 4), axis=1)
assert found.tolist() == [3, 7, 11], found
print("made" if told else "found")
"""


def halved(path: Path) -> bytes:
    return path.read_bytes()[: path.stat().st_size // 2]


def without_its_end(path: Path) -> bytes:
    return path.read_bytes()[:-1]


def with_other_code(path: Path) -> bytes:
    """One byte of the machine code is another one, and the archive's own checksums agree."""
    other = path.with_suffix(".other")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(other, "w") as target:
        target.comment = source.comment
        for name in source.namelist():
            content = bytearray(source.read(name))
            content[len(content) // 2] ^= name.endswith(".so")
            target.writestr(name, bytes(content))
    content = other.read_bytes()
    other.unlink()
    return content


def empty(path: Path) -> bytes:
    return b""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[tuple[str, float]], Cache]:
    """What was compiled into an empty cache, and what was told meanwhile."""
    told: list[tuple[str, float]] = []
    cache = Cache(tmp_path_factory.mktemp("compiled"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vortex.cache.library_cache", lambda: cache)
        largest = vortex.compile(LARGEST, progress=lambda what, share: told.append((what, share)))
    return largest.library, told, cache


@needs.a_compiler
class TestCompiled:
    """Entries that `vortex.compile` makes and takes."""

    def test_progress_names_what_it_does_and_ends_at_one(self, made: tuple[Any, list[tuple[str, float]], Cache]):
        names, shares = zip(*made[1], strict=True)
        assert all(names) and len(set(names)) == len(names) > 2
        assert shares[0] >= 0 and list(shares) == sorted(shares) and shares[-1] == 1

    @pytest.mark.parametrize("damage", [halved, without_its_end, with_other_code, empty])
    def test_a_damaged_entry_is_made_anew(self, made: Any, damage: Any, monkeypatch: pytest.MonkeyPatch):
        library, _, cache = made
        builds = []

        def build(*asked: object) -> Any:
            builds.append(asked)
            return library

        monkeypatch.setattr("vortex.cache.library_cache", lambda: cache)
        monkeypatch.setattr(api, "_build", build)
        (entry,) = cache.entries()
        path = cache.path(entry.key)
        sound = path.read_bytes()
        assert vortex.compile(LARGEST).library == library and not builds, "a sound entry is taken as it is"
        path.write_bytes(damage(path))
        with pytest.raises(vortex.LibraryError):
            vortex.load(path)
        largest = vortex.compile(LARGEST)
        assert len(builds) == 1 and largest.library == library
        assert np.array_equal(largest(ROWS, axis=1), ROWS.max(axis=1))
        assert len(path.read_bytes()) == len(sound) and vortex.load(path).library == library
        assert [file.name for file in cache.folder.iterdir() if not file.name.startswith(".lock")] == [path.name]

    def test_two_processes_compile_it_once(self, tmp_path: Path):
        ready, cache = tmp_path / "ready", Cache(tmp_path / "cache")
        ready.mkdir()
        command = [sys.executable, "-c", COMPILER, str(cache.folder), str(ready)]
        jobs = [
            subprocess.Popen([*command, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for name in "ab"
        ]
        told = []
        for job in jobs:
            out, err = job.communicate(timeout=120)
            assert job.returncode == 0, err
            told.append(out.strip())
        assert sorted(told) == ["found", "made"]
        (entry,) = cache.entries()
        assert np.array_equal(vortex.load(cache.path(entry.key))(ROWS, axis=1), ROWS.max(axis=1))
        left = [file.name for file in cache.folder.iterdir() if not file.name.startswith(".lock")]
        assert left == [cache.path(entry.key).name]


class TestSettings:
    def test_directory(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        monkeypatch.setenv("VORTEX_CACHE_DIR", str(tmp_path))
        monkeypatch.setenv("VORTEX_CACHE_BYTES", "12345")
        assert cache_directory() == tmp_path
        assert library_cache() == Cache(tmp_path / "libraries", 12345)

    def test_defaults(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.delenv("VORTEX_CACHE_DIR", raising=False)
        monkeypatch.delenv("VORTEX_CACHE_BYTES", raising=False)
        assert cache_directory().name == "vortex"
        assert limit_bytes() == LIMIT_BYTES

    @pytest.mark.parametrize("given", ["512M", "-1", "1e9", " "])
    def test_a_limit_that_is_no_number(self, monkeypatch: pytest.MonkeyPatch, given: str):
        monkeypatch.setenv("VORTEX_CACHE_BYTES", given)
        with pytest.raises(DeviceError, match="VORTEX_CACHE_BYTES"):
            limit_bytes()

    def test_importing_costs_nothing(self):
        heavy = "{'filelock', 'platformdirs', 'pydantic', 'numpy', 'tvm', 'tvm_ffi'}"
        program = f"import sys, vortex.cache; assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)"
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
