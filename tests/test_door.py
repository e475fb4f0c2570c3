"""Bad input: each is refused with one of the project's exceptions, which is also the built-in kind, in words."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from doors import refusals
from tensors import OnGpu, Parameter

import vortex
from vortex import (
    DeviceError,
    DtypeError,
    LibraryError,
    OperandError,
    ShapeError,
    SpecError,
    UnknownNameError,
    VortexError,
)
from vortex.launcher import GemmKernel
from vortex.operands import REASONS


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
    ("far apart in out", lambda g: g(floats(1, 4), SQUARE, out=floats(1, 16)[:, ::4]), ShapeError, ValueError, "out"),
    ("alignment", lambda g: g(unaligned(4, 4), SQUARE), OperandError, ValueError, "a .*aligned"),
    ("out is a", lambda g: g(SQUARE, floats(4, 4), out=SQUARE), OperandError, ValueError, "a .*overlaps out"),
    ("out is b", lambda g: g(floats(4, 4), SQUARE, out=SQUARE), OperandError, ValueError, "b .*overlaps out"),
    ("accumulate into nothing", lambda g: g(SQUARE, SQUARE, accumulate=True), OperandError, ValueError, "pass out="),
    ("packed with another k", lambda g: g(floats(4, 5), g.pack(SQUARE)), ShapeError, ValueError, "inner extent"),
    (
        "packed transposed",
        lambda g: g(SQUARE, g.pack(SQUARE), transpose_b=True),
        OperandError,
        ValueError,
        "drop the flag",
    ),
    ("rank to pack", lambda g: g.pack(floats(3)), ShapeError, ValueError, "two dimensions"),
    ("negative extents", lambda g: g.predict(-1, 2, 3), ShapeError, ValueError, "at least 0"),
    ("threads", lambda g: vortex.set_num_threads(0), OperandError, ValueError, "at least 1"),
    ("operator", lambda g: vortex.compile("conv"), UnknownNameError, LookupError, "gemm"),
    ("hardware", lambda g: vortex.compile("gemm", hw="z80"), UnknownNameError, LookupError, "epyc-zen4"),
    ("operator dtype", lambda g: vortex.operators.Gemm(dtype="float8"), DtypeError, TypeError, "float32"),
    ("missing file", lambda g: vortex.load("/nowhere/x.vortex"), LibraryError, RuntimeError, "no such file"),
    ("a folder", lambda g: vortex.load("/"), LibraryError, RuntimeError, "is a folder"),
    ("no path", lambda g: vortex.load(5), LibraryError, RuntimeError, "expected the path"),
    ("save over a folder", lambda g: g.save("/"), LibraryError, RuntimeError, "cannot be written"),
    ("no operator", lambda g: vortex.compile(5), UnknownNameError, LookupError, "gemm"),
    ("no hardware", lambda g: vortex.compile("gemm", hw=None), SpecError, ValueError, "expected a name, a path"),
    ("gpu", lambda g: g(OnGpu(4, 4), SQUARE), DeviceError, RuntimeError, "a .*not in host memory.*copy"),
    ("gpu as b", lambda g: g(SQUARE, OnGpu(4, 4)), DeviceError, RuntimeError, "b .*not in host memory"),
    ("gpu as out", lambda g: g(SQUARE, SQUARE, out=OnGpu(4, 4)), DeviceError, RuntimeError, "out .*not in host"),
    ("gpu to pack", lambda g: g.pack(OnGpu(4, 99)), DeviceError, RuntimeError, "b .*not in host memory"),
    ("gpu to pack, few columns", lambda g: g.pack(OnGpu(4, 4)), DeviceError, RuntimeError, "b .*not in host memory"),
    ("gradient", lambda g: g(Parameter(SQUARE), SQUARE), OperandError, ValueError, r"a requires grad.*a\.detach"),
    ("gradient of b", lambda g: g(SQUARE, Parameter(SQUARE)), OperandError, ValueError, r"b requires grad"),
    ("gradient to pack", lambda g: g.pack(Parameter(SQUARE)), OperandError, ValueError, r"b requires grad"),
    ("fractions", lambda g: g.plan(1.5, 2, 3), ShapeError, ValueError, "whole numbers"),
    ("words", lambda g: g.explain("1", 2, 3), ShapeError, ValueError, "whole numbers"),
    ("past every shape", lambda g: g.predict(2**70, 2, 3), ShapeError, ValueError, "below"),
    ("shapes", lambda g: g.predict(np.ones(2, int), np.ones(3, int), 3), ShapeError, ValueError, "broadcast"),
    ("threads of a plan", lambda g: g.plan(1, 2, 3, threads=0), OperandError, ValueError, "at least 1"),
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


NO_MATRICES = {
    "None": None,
    "a list": [[1.0] * 4] * 4,
    "a number": 3.0,
    "a word": "abc",
    "no axis": np.float32(1),
    "one axis": floats(4),
    "three axes": floats(1, 4, 4),
    "float64": np.ones((4, 4)),
    "float16": np.ones((4, 4), np.float16),
    "int32": np.ones((4, 4), np.int32),
    "bool": np.ones((4, 4), bool),
    "complex": np.ones((4, 4), np.complex64),
    "objects": np.ones((4, 4), object),
    "words": np.full((4, 4), "a"),
    "records": np.zeros((4, 4), [("x", "f4")]),
    "dates": np.zeros((4, 4), "M8[s]"),
    "other byte order": np.ones((4, 4), ">f4"),
    "rows backwards": floats(4, 4)[::-1],
    "columns backwards": floats(4, 4)[:, ::-1],
    "broadcast": np.broadcast_to(floats(1, 4), (4, 4)),
    "every other": floats(8, 8)[::2, ::2],
    "unaligned": unaligned(4, 4),
    "gpu": OnGpu(4, 4),
    "gradient": Parameter(SQUARE),
}
PLACES = {
    "a": lambda g, x: g(x, floats(4, 4)),
    "a with out": lambda g, x, out: g(x, floats(4, 4), out=out),
    "a with packed": lambda g, x, out: g(x, g.pack(floats(4, 99)), out=out),
    "a with few packed": lambda g, x, out: g(x, g.pack(floats(4, 4)), out=out),
    "b": lambda g, x: g(floats(4, 4), x),
    "b with out": lambda g, x, out: g(floats(4, 4), x, out=out),
    "out": lambda g, x: g(floats(4, 4), floats(4, 4), out=x),
    "out with packed": lambda g, x: g(floats(4, 4), g.pack(floats(4, 4)), out=x),
    "pack": lambda g, x: g.pack(x),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", NO_MATRICES)
def test_no_matrix_is_refused_everywhere(gemm: GemmKernel, what: str, place: str) -> None:
    """By an exception of the project, which says what was given; what was to be written is as it was."""
    if place.startswith("out") and what == "None":
        pytest.skip("without out one is allocated")
    call, out = PLACES[place], floats(4, 99 if place == "a with packed" else 4)
    before = out.copy()
    with pytest.raises(VortexError) as refusal:
        call(gemm, NO_MATRICES[what], out) if "out" in call.__code__.co_varnames else call(gemm, NO_MATRICES[what])
    assert re.search(r"\b(a|b|out|operand)\b", str(refusal.value)) and len(str(refusal.value)) > 30
    assert np.array_equal(out, before)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("place", PLACES)
def test_torch_tensors_that_are_no_plain_matrix(gemm: GemmKernel, place: str) -> None:
    torch = pytest.importorskip("torch")
    bad = [
        torch.ones(4, 4, dtype=torch.float64),
        torch.ones(4, 4, dtype=torch.bfloat16),
        torch.ones(4, 4, device="meta"),
        torch.ones(4, 4, dtype=torch.complex64).conj(),
        torch.eye(4).to_sparse(),
        torch.ones(4, 4, requires_grad=True),
        torch.nested.nested_tensor([torch.ones(4), torch.ones(4)]),
    ]
    call, out = PLACES[place], floats(4, 99 if place == "a with packed" else 4)
    for tensor in bad:
        with pytest.raises(VortexError):
            call(gemm, tensor, out) if "out" in call.__code__.co_varnames else call(gemm, tensor)
        assert (out == 1).all()


def test_a_library_that_cannot_be_saved_leaves_nothing(gemm: GemmKernel, tmp_path: Path) -> None:
    (tmp_path / "gemm.vortex").mkdir()
    with pytest.raises(LibraryError, match="cannot be written"):
        gemm.save(tmp_path / "gemm.vortex")
    (tmp_path / "file").write_text("")
    with pytest.raises(LibraryError, match="cannot be written"):
        gemm.save(tmp_path / "file" / "gemm.vortex")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "gemm.vortex"]


def test_others_may_read_a_saved_library(gemm: GemmKernel, tmp_path: Path) -> None:
    gemm.save(tmp_path / "gemm.vortex")
    assert (tmp_path / "gemm.vortex").stat().st_mode & 0o444 == 0o444


def test_an_empty_product_has_a_price(gemm: GemmKernel) -> None:
    """What runs nothing is predicted as next to nothing, not as no number."""
    for shape in ((0, 5, 5), (5, 0, 5), (5, 5, 0), (0, 0, 0)):
        assert 0 < gemm.predict(*shape) < 1e-5 and "nan" not in str(gemm.explain(*shape))


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


def test_a_flipped_bit_in_the_directory(library_path: Path, tmp_path: Path) -> None:
    raw = bytearray(library_path.read_bytes())
    raw[raw.rindex(b"PK\x01\x02") + 8] |= 1  # says that the part is encrypted
    damaged = tmp_path / "damaged.vortex"
    damaged.write_bytes(raw)
    with pytest.raises(LibraryError, match="not a vortex library"):
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
    monkeypatch.setattr("vortex.native.cpu_flags", lambda: frozenset({"sse2"}))
    with pytest.raises(vortex.DeviceError, match="lacks"):
        vortex.load(library_path)


def test_reasons_mirror_the_door() -> None:
    assert refusals("products.h", "BAD_EXTRAS") == len(REASONS)


def test_gradients_are_refused(gemm: GemmKernel) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(OperandError, match="detach"):
        gemm(torch.ones(4, 4, requires_grad=True), torch.ones(4, 4))


class TestMadeByNativeCode:
    """Without `out` a torch tensor's product comes in a tensor that the library allocates."""

    def test_a_tensor_of_its_own(self, gemm: GemmKernel) -> None:
        torch = pytest.importorskip("torch")
        a, b = torch.arange(15.0).reshape(3, 5), torch.arange(35.0).reshape(5, 7)
        made, again = gemm(a, b), gemm(a, b)
        assert type(made) is torch.Tensor and made.dtype == torch.float32 and made.is_contiguous()
        assert torch.equal(made, a @ b) and torch.equal(gemm(a.T, b.T, transpose_a=True, transpose_b=True), a @ b)
        assert made.data_ptr() != again.data_ptr()

    def test_parameters_give_plain_tensors(self, gemm: GemmKernel) -> None:
        torch = pytest.importorskip("torch")
        weight = torch.nn.Parameter(torch.ones(5, 7), requires_grad=False)
        assert type(gemm(torch.ones(3, 5), weight)) is torch.Tensor
        with torch.no_grad():
            assert type(gemm(weight, torch.ones(7, 2))) is torch.Tensor

    def test_refusals_name_the_operand(self, gemm: GemmKernel) -> None:
        torch = pytest.importorskip("torch")
        with pytest.raises(ShapeError, match=r"b .*inner extent"):
            gemm(torch.ones(3, 4), torch.ones(5, 7))
        with pytest.raises(DtypeError, match=r"b .*float64"):
            gemm(torch.ones(3, 5), torch.ones(5, 7, dtype=torch.float64))

    def test_operands_that_need_copies_or_cannot_make_any(self, gemm: GemmKernel) -> None:
        """A read-only array beside a tensor; tensors of tvm-ffi, of which arrays are the kind."""
        import tvm_ffi

        arrays = tvm_ffi.from_dlpack(floats(3, 5)), tvm_ffi.from_dlpack(floats(5, 7))
        assert np.array_equal(gemm(*arrays), np.full((3, 7), 5, np.float32))
        torch = pytest.importorskip("torch")
        assert torch.equal(gemm(torch.ones(3, 5), read_only(floats(5, 7))), torch.full((3, 7), 5.0))

    def test_packed_operands(self, gemm: GemmKernel) -> None:
        """In panels, as rows and along k; a column-major `a`; refusals."""
        torch = pytest.importorskip("torch")
        for n in (3, 40, 700):
            a, b = torch.arange(15.0).reshape(3, 5), torch.arange(5.0 * n).reshape(5, n)
            packed = gemm.pack(b)
            made = gemm(a, packed)
            assert type(made) is torch.Tensor and torch.equal(made, a @ b)
            assert torch.equal(gemm(a.T.contiguous(), packed, transpose_a=True), a @ b)
            assert torch.equal(gemm(a.T.contiguous().T, packed), a @ b)
            with pytest.raises(ShapeError, match=r"b .*inner extent.*a Tensor \(3, 6\)"):
                gemm(torch.ones(3, 6), packed)
        with pytest.raises(DtypeError, match=r"a .*float64"):
            gemm(a.double(), packed)

    def test_leading_axes_are_rows(self, gemm: GemmKernel) -> None:
        torch = pytest.importorskip("torch")
        b = torch.arange(200.0).reshape(5, 40)
        packed, whole = gemm.pack(b), torch.arange(8.0 * 3 * 9).reshape(2, 4, 3, 9)[..., :5]
        views = whole, whole[:, :, :1], whole[:1, :, 2:], whole[:, :0], whole[0, 0], torch.ones(5).expand(1, 1, 5)
        rows = gemm.rows_by(packed)
        for a in views:
            assert torch.equal(rows(a), a @ b), a.shape
        for a in (whole[:, :, 1:], whole.permute(1, 0, 2, 3), torch.ones(5), torch.ones(2, 6)):
            with pytest.raises(ShapeError):
                rows(a)

    def test_what_records_nothing_is_refused_nothing(self, gemm: GemmKernel) -> None:
        """Parameters under torch.no_grad(), as torch itself has it."""
        torch = pytest.importorskip("torch")
        a, weight = torch.ones(3, 5), torch.nn.Parameter(torch.ones(5, 700))
        with pytest.raises(OperandError, match=r"b requires grad.*torch\.no_grad"):
            gemm(a, weight)
        with torch.no_grad():
            for out in (None, torch.empty(3, 700)):
                for b in (weight, gemm.pack(weight)):
                    assert torch.equal(gemm(a, b, out), a @ weight)
            assert torch.equal(gemm(a, gemm.pack(weight[:, :40])), a @ weight[:, :40])

    def test_nothing_leaks(self, gemm: GemmKernel) -> None:
        torch = pytest.importorskip("torch")
        import psutil

        a, b, wrong = torch.ones(256, 8), torch.ones(8, 1024), torch.ones(9, 1024)

        def many() -> int:
            for _ in range(50):
                gemm(a, b)
                with pytest.raises(ShapeError):
                    gemm(a, wrong)
            return int(psutil.Process().memory_info().rss)

        first = many()
        assert many() - first < 20 * 2**20  # 50 outputs are 50 MiB
