"""Bad input: each is refused with one of the project's exceptions, which is also the built-in kind, in words."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

import vortex
from vortex import DtypeError, LibraryError, OperandError, ShapeError, UnknownNameError, VortexError
from vortex.launcher import GemmKernel
from vortex.operands import REASONS

RUNTIME = Path(vortex.__file__).parent / "runtime"


def floats(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def read_only(matrix: np.ndarray) -> np.ndarray:
    matrix.flags.writeable = False
    return matrix


def unaligned(rows: int, columns: int) -> np.ndarray:
    raw = np.zeros(rows * columns * 4 + 2, np.uint8)
    return raw[2:].view(np.uint8)[: rows * columns * 4].view(np.float32).reshape(rows, columns)


SQUARE = floats(4, 4)
REFUSED = [
    ("rank", lambda g: g(floats(4), SQUARE), ShapeError, ValueError, "a .*rank|two dimensions"),
    ("rank of b", lambda g: g(SQUARE, floats(2, 4, 4), out=floats(4, 4)), ShapeError, ValueError, "b .*rank"),
    ("inner extents", lambda g: g(floats(4, 5), SQUARE), ShapeError, ValueError, "inner extent"),
    ("dtype", lambda g: g(SQUARE.astype(np.float64), SQUARE), DtypeError, TypeError, "a .*float64.*dtype"),
    ("dtype of out", lambda g: g(SQUARE, SQUARE, out=np.zeros((4, 4))), DtypeError, TypeError, "out .*dtype"),
    ("integers", lambda g: g(SQUARE, np.ones((4, 4), np.int32)), DtypeError, TypeError, "b .*int32"),
    ("shape of out", lambda g: g(SQUARE, SQUARE, out=floats(4, 5)), ShapeError, ValueError, "out .*m x n"),
    ("no tensor", lambda g: g([[1.0]], SQUARE), OperandError, ValueError, "a is a list"),
    ("no tensor as b", lambda g: g(SQUARE, 3.0, out=floats(4, 4)), OperandError, ValueError, "b .*is no tensor"),
    ("read-only out", lambda g: g(SQUARE, SQUARE, out=read_only(floats(4, 4))), OperandError, ValueError, "read-only"),
    ("negative strides", lambda g: g(SQUARE[::-1], SQUARE), ShapeError, ValueError, "a .*strides"),
    ("negative columns", lambda g: g(SQUARE, SQUARE[:, ::-1]), ShapeError, ValueError, "b .*strides"),
    ("broadcast", lambda g: g(np.broadcast_to(floats(1, 4), (4, 4)), SQUARE), ShapeError, ValueError, "a .*strides"),
    ("no contiguous axis", lambda g: g(floats(8, 8)[::2, ::2], SQUARE), ShapeError, ValueError, "strides"),
    ("columns of out", lambda g: g(SQUARE, SQUARE, out=np.asfortranarray(floats(4, 4))), ShapeError, ValueError, "out"),
    ("alignment", lambda g: g(unaligned(4, 4), SQUARE), OperandError, ValueError, "a .*aligned"),
    ("out is a", lambda g: g(SQUARE, floats(4, 4), out=SQUARE), OperandError, ValueError, "a .*overlaps out"),
    ("accumulate into nothing", lambda g: g(SQUARE, SQUARE, accumulate=True), OperandError, ValueError, "pass out="),
    ("packed with another k", lambda g: g(floats(4, 5), g.pack(SQUARE)), ShapeError, ValueError, "inner extent"),
    (
        "packed transposed",
        lambda g: g(SQUARE, g.pack(SQUARE), transpose_b=True),
        OperandError,
        ValueError,
        "drop the flag",
    ),
    ("rank to pack", lambda g: g.pack(floats(3)), ShapeError, ValueError, "matrix"),
    ("negative extents", lambda g: g.predict(-1, 2, 3), ShapeError, ValueError, "at least 0"),
    ("threads", lambda g: vortex.set_num_threads(0), OperandError, ValueError, "at least 1"),
    ("operator", lambda g: vortex.compile("conv"), UnknownNameError, LookupError, "gemm"),
    ("hardware", lambda g: vortex.compile("gemm", hw="z80"), UnknownNameError, LookupError, "epyc-zen4"),
    ("operator dtype", lambda g: vortex.operators.Gemm(dtype="float16"), DtypeError, TypeError, "float32"),
    ("missing file", lambda g: vortex.load("/nowhere/x.vortex"), LibraryError, RuntimeError, "no such file"),
]


@pytest.mark.parametrize(
    ("call", "kind", "builtin", "words"), [case[1:] for case in REFUSED], ids=[c[0] for c in REFUSED]
)
def test_refused(gemm: GemmKernel, call: object, kind: type, builtin: type, words: str) -> None:
    before = SQUARE.copy()
    with pytest.raises(kind, match=words) as refusal:
        call(gemm)  # type: ignore[operator]
    assert isinstance(refusal.value, VortexError) and isinstance(refusal.value, builtin)
    assert np.array_equal(SQUARE, before)


def test_overlapping_columns_of_one_matrix_are_told_apart(gemm: GemmKernel) -> None:
    room = np.ones((6, 20), np.float32)
    out = gemm(room[:, :5], floats(5, 7), out=room[:, 5:12])
    assert (out == 5).all()
    with pytest.raises(OperandError, match="overlaps"):
        gemm(room[:, :5], floats(5, 7), out=room[:, 4:11])


def test_another_librarys_packed_operand(gemm: GemmKernel) -> None:
    packed = gemm.pack(SQUARE)
    foreign = type(packed)(packed.data, packed.n, packed.k, "0" * 64)
    with pytest.raises(OperandError, match="another library"):
        gemm(SQUARE, foreign)


@pytest.mark.parametrize("kept", [0, 10, 1000, -100, -1])
def test_truncated_library(library_path: Path, tmp_path: Path, kept: int) -> None:
    damaged = tmp_path / "damaged.vortex"
    damaged.write_bytes(library_path.read_bytes()[:kept])
    with pytest.raises(LibraryError, match=r"truncated|not a vortex library"):
        vortex.load(damaged)


@pytest.mark.parametrize("name", ["manifest.json", "library.so"])
def test_altered_library(library_path: Path, tmp_path: Path, name: str) -> None:
    altered = tmp_path / "altered.vortex"
    with zipfile.ZipFile(library_path) as source, zipfile.ZipFile(altered, "w") as target:
        target.comment = source.comment
        for entry in source.namelist():
            content = source.read(entry)
            target.writestr(entry, content[:-7] + bytes([content[-7] ^ 1]) + content[-6:] if entry == name else content)
    with pytest.raises(LibraryError, match=re.escape(name)):
        vortex.load(altered)


def test_foreign_zip(tmp_path: Path) -> None:
    path = tmp_path / "foreign.vortex"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hello", "world")
    with pytest.raises(LibraryError):
        vortex.load(path)


def test_missing_instructions_are_refused(library_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vortex.launcher.cpu_flags", lambda: frozenset({"sse2"}))
    with pytest.raises(vortex.DeviceError, match="lacks"):
        vortex.load(library_path)


def test_reasons_mirror_the_door() -> None:
    source = (RUNTIME / "door.c").read_text()
    block = re.search(r"enum \{\s*NOT_A_TENSOR = 1,(.*?)\};", source, re.S)
    assert block is not None
    assert len(block[1].split(",")) + 1 == len(REASONS)


def test_gradients_are_refused(gemm: GemmKernel) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(OperandError, match="detach"):
        gemm(torch.ones(4, 4, requires_grad=True), torch.ones(4, 4))
