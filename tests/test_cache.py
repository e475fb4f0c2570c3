"""The cache of libraries: entries appear whole, the least recently used go first, two processes share it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
