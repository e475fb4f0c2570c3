"""The cache of object files: what one compilation emitted, the next one takes, if it is still what it was."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import needs
import numpy as np
import pytest

import vortex
from vortex.cache import Cache, object_files
from vortex.codegen import link
from vortex.codegen.emission import Emission
from vortex.codegen.object_cache import ObjectCache
from vortex.operators import Gemm, relu


def write(what: object, lanes: int, llvm_cpu: str, path: Path) -> None:
    path.write_text(f"{what} {lanes} {llvm_cpu}")
    with path.with_name("log").open("a") as log:
        log.write(f"{what}\n")


def other(what: object, lanes: int, llvm_cpu: str, path: Path) -> None:
    write("other", lanes, llvm_cpu, path)


def bound(first: object, what: object, lanes: int, llvm_cpu: str, path: Path) -> None:
    write((first, what), lanes, llvm_cpu, path)


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(Cache(tmp_path / "kept", 10_000, ".o"), "sources")


def emitted(cache: ObjectCache | None, folder: Path, *what: object) -> list[str]:
    """What the objects hold that an emission of these tasks leaves."""
    folder.mkdir(exist_ok=True)
    with Emission(16, "any", folder, 2, cache) as emission:
        paths = emission.start([(write, [one]) for one in what]).wait("", lambda what, share: None)
    return [path.read_text() for path in paths]


class TestObjects:
    def test_what_was_emitted_is_taken(self, cache: ObjectCache, tmp_path: Path):
        first = emitted(cache, tmp_path / "first", "a", "b")
        assert first == ["['a'] 16 any", "['b'] 16 any"]
        assert emitted(cache, tmp_path / "second", "b", "c", "a") == [first[1], "['c'] 16 any", first[0]]
        assert (tmp_path / "second" / "log").read_text() == "['c']\n"

    def test_without_a_cache_all_is_emitted(self, cache: ObjectCache, tmp_path: Path):
        emitted(cache, tmp_path / "first", "a")
        assert emitted(None, tmp_path / "second", "a") == ["['a'] 16 any"]
        assert (tmp_path / "second" / "log").read_text() == "['a']\n"

    @pytest.mark.parametrize(
        "harm",
        [lambda whole: whole[:-1], lambda whole: whole[:32], lambda whole: b"", lambda whole: whole[:-1] + b"?"],
        ids=["cut", "only a hash", "empty", "altered"],
    )
    def test_what_was_harmed_is_emitted_again(self, cache: ObjectCache, tmp_path: Path, harm: Callable[[bytes], bytes]):
        whole = emitted(cache, tmp_path / "first", "a")
        (entry,) = cache.files.entries()
        path = cache.files.path(entry.key)
        path.write_bytes(harm(path.read_bytes()))
        assert emitted(cache, tmp_path / "second", "a") == whole
        assert (tmp_path / "second" / "log").exists()
        assert emitted(cache, tmp_path / "third", "a") == whole
        assert not (tmp_path / "third" / "log").exists()

    def test_an_error_keeps_nothing(self, cache: ObjectCache, tmp_path: Path):
        with Emission(16, "any", tmp_path, 1, cache) as emission, pytest.raises(ZeroDivisionError):
            emission.start([(divide, [1])]).wait("", lambda what, share: None)
        assert cache.files.entries() == []

    def test_all_that_makes_an_object_is_in_its_key(self, cache: ObjectCache):
        about = ([1], 16, "any")
        keys = {
            cache.key(write, *about),
            cache.key(write, [2], *about[1:]),
            cache.key(write, [1], 8, "any"),
            cache.key(write, [1], 16, "another"),
            cache.key(other, *about),
            cache.key(partial(bound, 1), *about),
            cache.key(partial(bound, 2), *about),
            ObjectCache(cache.files, "other sources").key(write, *about),
        }
        assert len(keys) == 8 and cache.key(partial(bound, 1), *about) in keys


@needs.a_compiler
def test_the_runtime_is_compiled_once_for_each_way(cache: ObjectCache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """What a library alone has is compiled with it."""
    own, compiled, run = tmp_path / "own.c", [], link._run
    own.write_text("int own;")

    def seen(command: list[str]) -> None:
        compiled.extend(Path(each).name for each in command[-1:] if "-c" in command)
        run(command)

    monkeypatch.setattr(link, "_run", seen)
    for defines in ((), (), ("VX_TOLD=1",)):
        link.link(tmp_path / "library.so", [], [own, link.RUNTIME / "threads.c"], defines=defines, cache=cache)
        assert b"vx_parallel" in (tmp_path / "library.so").read_bytes()
    assert sorted(compiled) == ["own.c"] * 3 + ["threads.c"] * 2
    link.link(tmp_path / "library.so", [], [link.RUNTIME / "threads.c"])
    assert compiled[-1] == "threads.c", "without a cache"


def divide(what: object, lanes: int, llvm_cpu: str, path: Path) -> None:
    raise ZeroDivisionError


@needs.a_compiler
class TestLibraries:
    def test_a_second_operator_emits_its_own_stages_alone(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        monkeypatch.setenv("VORTEX_CACHE_DIR", str(tmp_path))
        hardware = needs.few_register_tiles()
        a, b = np.ones((9, 5), np.float32), np.full((5, 40), -1, np.float32)
        product = vortex.compile(Gemm(), hardware)
        assert (product(a, b) == -5).all() and product.manifest.reused == 0
        plain = {entry.key for entry in object_files().entries()}
        finished = vortex.compile(Gemm(epilogue=relu()), hardware)
        assert (finished(a, b) == 0).all() and (finished(a, -b) == 5).all()
        both = {entry.key for entry in object_files().entries()}
        assert plain < both and len(both - plain) < finished.manifest.reused <= len(plain)

    def test_without_the_cache_nothing_is_kept(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        monkeypatch.setenv("VORTEX_CACHE_DIR", str(tmp_path))
        vortex.compile(Gemm(m=64, n=64, k=64), needs.few_register_tiles(), cache=False)
        assert not list(tmp_path.rglob("*.o"))
