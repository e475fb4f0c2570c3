"""From a call to the elements of C with no GPU: real selector, real door, a fake driver, and emitted kernels emulated.

What the door passes is what the kernels compute from: grid, block, shared memory, pointers, extents, strides, cuts of
the reduction, descriptors.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import emulator
import gpu_doubles
import numpy as np
import pytest
from gpu_doubles import ExchangeTensor, Launch, Map, StubDriver, aligned
from needs import an_emulator
from products import ELEMENTS, Unit, unit
from test_emulation import along_k, bytes_core, cuda_core, hopper, tensor_core

from vortex.codegen import cuda_reduce
from vortex.codegen.cuda import Emitted, reduction, split_args
from vortex.codegen.cuda_form import PLAIN, Form, form_of
from vortex.codegen.gpu_link import emit_door
from vortex.errors import DtypeError
from vortex.gpu_candidates import Variant
from vortex.gpu_compiler import laid_out
from vortex.gpu_fused import FusedGpuGemm
from vortex.gpu_launcher import GpuGemm
from vortex.gpu_library import DOOR, GpuLibrary, GpuManifest, verify
from vortex.gpu_polymerize import GpuRegion
from vortex.gpu_profiler import block_costs, rates
from vortex.gpu_selector import Extents, GpuSelector
from vortex.operators import Gemm, Operator, finishing, rebuilt, settings, store_of
from vortex.specs import load_spec

pytestmark = an_emulator

HALVES = Gemm("float16")
HALF = np.dtype(np.float16)
AMPERE = (
    Variant(tensor_core("float16"), False, False, 16),
    Variant(tensor_core("float16"), False, True, 16),
    Variant(tensor_core("float16", "shared", 2), False, False, 2),
    Variant(cuda_core("float16"), True, False, 16),
    Variant(along_k("float16"), False, True, 16),
    Variant(along_k("float16"), False, True, 2),
)
HOPPER = tuple(Variant(hopper("float16"), a, b, 16) for a, b in ((False, False), (False, True), (True, False)))
CLUSTERS = tuple(Variant(hopper("float16", 64, cluster=2), False, b, 16) for b in (False, True))


def emitted(whole: Unit, form: Form = PLAIN, dtype: str = "float16") -> list[Emitted]:
    """As `cuda.emit` tells it, had ptxas run."""
    rows = []
    for variant, kernel in whole.kernels:
        place = (kernel.symbol, "all.cubin")
        rows.append(Emitted(variant, *place, kernel.args, kernel.block, kernel.shared_bytes, 128, 0, 0, split=False))
        if form.splits:
            rows.append(replace(rows[-1], args=split_args(kernel.args), split=True))
    if not form.adds_up:
        return rows
    reduce = reduction(dtype, "sm_80", form)
    place = (reduce.symbol, "all.cubin")
    rows.append(Emitted(None, *place, reduce.args, reduce.block, reduce.shared_bytes, 20, 0, 0, split=False))
    return rows


def assembled(folder: Path, hw: str, whole: Unit, operator: Operator = HALVES, form: Form | None = None) -> GpuLibrary:
    """A library of a few kernels whose machine code is a name only."""
    spec, variants = load_spec(hw), tuple(variant for variant, _ in whole.kernels)
    selector = GpuSelector(variants, rates(spec), block_costs(spec, variants), "computed")
    dtype = str(operator.dtype)
    rows = emitted(whole, form_of(operator), dtype)
    kernels, entries = laid_out(variants, rows)
    image = gpu_doubles.cubin([entry.symbol for entry in entries], int(spec.arch[3:5]))
    manifest = GpuManifest(
        operator=operator.name,
        settings=settings(operator),
        dtype=dtype,
        hardware=spec.model_dump(mode="json"),
        arch=spec.arch,
        ptx="",
        basis="computed",
        admitted=(),
        kernels=kernels,
        entries=entries,
        reduce=len(entries) - 1 if form_of(operator).adds_up else -1,
        reduce_columns=cuda_reduce.COLUMNS,
        is_wide=True,
        workspace_bytes=1 << 20,
        selector=selector.to_json(),
        versions={},
        offline_seconds={},
    )
    library = GpuLibrary(manifest, {DOOR: emit_door(selector, folder).read_bytes(), "all.cubin": image})
    verify(library, "assembled")
    return library


class Finished(ctypes.Structure):
    """What a kernel with an epilogue takes in the place of C (see runtime/gpu_door.h)."""

    _fields_ = (
        ("c", ctypes.c_void_p),
        ("operand", ctypes.c_void_p * 4),
        ("row", ctypes.c_int64 * 4),
        ("column", ctypes.c_int64 * 4),
        ("apart", ctypes.c_int64 * 8),
        ("at", ctypes.c_int64 * 2),
    )


class Batches(ctypes.Structure):
    """How the products of a batch lie (see runtime/gpu_door.h)."""

    _fields_ = (
        ("inner", ctypes.c_int64),
        ("first", ctypes.c_int64),
        *((name, ctypes.c_int64 * 2) for name in "abcw"),
    )


class Groups(ctypes.Structure):
    """How groups of rows lie (see runtime/gpu_door.h)."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in "abc"),
        *((name, ctypes.c_int32) for name in ("count", "first")),
        *((name, ctypes.c_int32 * 257) for name in ("rows", "tiles")),
    )


class Window(ctypes.Structure):
    """How a filter walks its input (see runtime/gpu_door.h)."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("image", "row", "column")),
        *((name, ctypes.c_int32) for name in ("height", "width")),
        *((name, ctypes.c_int32 * 2) for name in ("stride", "before", "dilation")),
        *((name, ctypes.c_int32 * 3) for name in ("pixels", "columns", "channels", "taps")),
    )


RECORDS = {"&batch": Batches, "&parts": Batches, "&groups": Groups, "&window": Window}


def tensor(record: Finished, which: int, dtype: str, m: int, n: int) -> emulator.Workspace:
    """A tensor of an epilogue as the door describes it."""
    element, axes = ELEMENTS[dtype], ((m, record.row[which]), (n, record.column[which]))
    shape, steps = zip(*([axis for axis in axes if axis[1]] or [(1, 1)]), strict=True)
    size = (sum((e - 1) * s for e, s in zip(shape, steps, strict=True)) + 1) * element.itemsize
    flat = np.frombuffer((ctypes.c_char * size).from_address(record.operand[which]), element)
    strides = tuple(step * element.itemsize for step in steps)
    view = np.lib.stride_tricks.as_strided(flat, shape, strides, writeable=False)
    return emulator.Workspace(view, element.itemsize)


def matrix(address: int, rows: int, columns: int, stride: int, dtype: Any = HALF, *, written: bool = False) -> Any:
    size = ((rows - 1) * stride + columns) * dtype.itemsize
    flat = np.frombuffer((ctypes.c_char * size).from_address(address), dtype)
    shape, steps = (rows, columns), (stride * dtype.itemsize, dtype.itemsize)
    return np.lib.stride_tricks.as_strided(flat, shape, steps, writeable=written)


def images(address: int, window: Window, m: int, dtype: Any) -> Any:
    """The input of a convolution, of one group of channels."""
    shape = (m // window.pixels[1], window.height, window.width, window.channels[1])
    steps = (window.image, window.row, window.column, 1)
    one = matrix(address, 1, 1, 1, dtype)
    strides = tuple(step * dtype.itemsize for step in steps)
    return np.lib.stride_tricks.as_strided(one, shape, strides, writeable=False)


def of_groups(one: Any, count: int, apart: int) -> Any:
    """What so many groups read, from what the first one does; all of them that if they are not apart."""
    if apart == 0:
        return one
    return np.lib.stride_tricks.as_strided(one, (count, *one.shape), (apart, *one.strides), writeable=False)


def layers(one: Any, batch: Batches, steps: list[int], launch: Launch) -> Any:
    """Every product's operand, from that of the first one."""
    count = batch.first + launch.grid[1]
    shape = (-(-count // batch.inner), min(batch.inner, count), *one.shape)
    return np.lib.stride_tricks.as_strided(one, shape, (*steps, *one.strides), writeable=one.flags.writeable)


def emulating(library: GpuLibrary, whole: Unit) -> Any:
    """A callback that runs every launch in the emulator with exactly what the driver was given."""
    entries, kernels = library.manifest.entries, library.manifest.kernels
    store = store_of(rebuilt(library.manifest.operator, library.manifest.settings))
    element, sums = ELEMENTS[library.manifest.dtype], ELEMENTS[store.sums]

    def run(launch: Launch) -> None:
        symbol, is_split = launch.name.decode(), launch.grid[2] > 1
        alike = [i for i, entry in enumerate(entries) if entry.symbol == symbol]
        index = next(i for i in alike if len(alike) == 1 or bool({"*W", "&W"} & set(entries[i].args)) == is_split)
        names = entries[index].args
        raw: dict[str, Any] = {}
        for name, address in zip(names, launch.parameters, strict=False):
            kind = {"*": ctypes.c_void_p, "@": Map, "&": Finished}.get(name[0], ctypes.c_int32)
            kind = RECORDS.get(name, kind)
            found = kind.from_address(address)
            raw[name] = found if name[0] in "@&" else found.value
        values: list[Any] = []
        for name in names:
            values.append(operand(name, raw, index, launch))
        extents = tuple(launch.grid), tuple(launch.block), launch.shared
        emulator.run(whole.text, symbol, *extents, values, seed=1)

    def operand(name: str, raw: dict[str, Any], index: int, launch: Launch) -> Any:
        if name in RECORDS:
            return emulator.Record(tuple(np.frombuffer(raw[name], np.int64).tolist()))
        one = operand_of_one(name, raw, index, launch)
        batch = raw.get("&batch", raw.get("&parts"))
        if batch is None or name[0] != "*":
            return one
        return layers(one, batch, list(getattr(batch, name[1].lower())), launch)

    def operand_of_one(name: str, raw: dict[str, Any], index: int, launch: Launch) -> Any:
        m, n = raw["M"], raw["N"]
        if name[0] == "&":
            record = raw[name]
            if name == "&W":
                place = matrix(record.c, launch.grid[2] * m, n, n, sums, written=True)
            else:
                place = matrix(record.c, m, n, raw["ldc"], ELEMENTS[store.out], written=True)
            rows, group = record.at  # of groups whose sums are of nothing: each is a launch of its own
            tensors = [tensor(record, which, x.dtype, rows + m, n) for which, x in enumerate(store.chain.operands)]
            if batch := raw.get("&batch", raw.get("&parts")):
                place = layers(place, batch, list(batch.c), launch)
                apart = [list(record.apart[2 * which : 2 * which + 2]) for which in range(len(tensors))]
                views = [layers(x.memory, batch, steps, launch) for x, steps in zip(tensors, apart, strict=True)]
                tensors = [replace(x, memory=view) for x, view in zip(tensors, views, strict=True)]
            if group or (table := raw.get("&groups")):
                count = group + 1 if group else table.first + table.count
                views = [of_groups(x.memory, count, record.apart[2 * i + 1]) for i, x in enumerate(tensors)]
                tensors = [replace(x, memory=view) for x, view in zip(tensors, views, strict=True)]
            missing = [0] * (4 - len(tensors))
            return emulator.Record(
                (
                    emulator.Workspace(place),
                    *tensors,
                    *missing,
                    *list(record.row),
                    *list(record.column),
                    *list(record.apart),
                    *list(record.at),
                )
            )
        if name == "*W":
            parts = raw.get("splits", launch.grid[2])
            if parts == 0:  # a sum of no products: the kernel must not look
                return np.zeros((1, 1), sums)
            return matrix(raw[name], parts * m, n, n, sums, written=True).reshape(parts, m, n)
        if name == "*C":
            return matrix(raw[name], m, n, raw["ldc"], element, written=True)
        if name[0] == "@":
            described = raw[name]
            view = matrix(
                described.address,
                described.extents[1],
                described.extents[0],
                described.stride // element.itemsize,
                element,
            )
            return emulator.TensorMap(view, tuple(described.box))
        if name in ("*A", "*B"):
            variant = next(kernel.variant for kernel in kernels if index in (kernel.direct, kernel.split))
            turned = variant.transpose_a if name == "*A" else variant.transpose_b
            if name == "*A" and "&window" in raw:
                return images(raw[name], raw["&window"], m, element)
            shape = (m, raw["K"]) if name == "*A" else (raw["K"], n)
            one = matrix(raw[name], *(shape[::-1] if turned else shape), raw["lda" if name == "*A" else "ldb"], element)
            if name == "*B" and (table := raw.get("&groups")):
                return of_groups(one, table.first + table.count, table.b)
            return one
        return raw[name]

    return run


@pytest.fixture(scope="module")
def driver(stub_driver: StubDriver) -> Iterator[StubDriver]:
    yield stub_driver
    stub_driver.reset()


def opened(driver: StubDriver, folder: Path, hw: str, variants: Sequence[Variant], operator: Gemm = HALVES) -> GpuGemm:
    driver.reset()
    spec = load_spec(hw)
    driver.describe(major=int(spec.arch[3]), minor=int(spec.arch[4]), shared_per_block=spec.shared_per_block_bytes)
    whole = unit(variants, spec.arch, form_of(operator))
    library = assembled(folder, hw, whole, operator)
    gemm = (FusedGpuGemm if finishing(operator) else GpuGemm)(library, 0)
    driver.on_launch(emulating(gemm.library, whole))
    return gemm


def exact(m: int, n: int, k: int, seed: int) -> tuple[Any, Any]:
    draw = np.random.default_rng(seed)
    return tuple(draw.integers(-2, 3, shape).astype(np.float16) for shape in ((m, k), (k, n)))  # type: ignore[return-value]  # two


@pytest.fixture(scope="module")
def ampere(driver: StubDriver, tmp_path_factory: pytest.TempPathFactory) -> GpuGemm:
    return opened(driver, tmp_path_factory.mktemp("ampere"), "a100", AMPERE)


class TestAmpere:
    @pytest.mark.parametrize(
        ("m", "n", "k", "turned_a", "turned_b"),
        [
            (72, 40, 136, False, False),
            (70, 37, 99, False, False),
            (72, 40, 136, False, True),
            (3, 40, 520, False, True),
            (5, 33, 77, False, True),
            (72, 40, 136, True, False),
            (1, 1, 1, False, False),
        ],
    )
    def test_calls_compute_the_product(
        self, driver: StubDriver, ampere: GpuGemm, m: int, n: int, k: int, turned_a: bool, turned_b: bool
    ):
        a, b = exact(m, n, k, m)
        given_a = ExchangeTensor(aligned(a.T if turned_a else a))
        given_b = ExchangeTensor(aligned(b.T if turned_b else b))
        out = ampere(given_a, given_b, transpose_a=turned_a, transpose_b=turned_b)
        assert (out.array == a.astype(np.float32) @ b).all()

    @pytest.mark.parametrize("index", range(len(AMPERE)))
    @pytest.mark.parametrize("splits", [1, 3])
    def test_every_kernel_by_plan(self, driver: StubDriver, ampere: GpuGemm, index: int, splits: int):
        v = AMPERE[index]
        depth = v.strategy.l1.k
        m, n, k = 24, 40, 2 * depth + (8 if v.vector_bytes == 16 else 3)
        a, b = exact(m, n, k, index)
        given_a = ExchangeTensor(aligned(a.T if v.transpose_a else a))
        given_b = ExchangeTensor(aligned(b.T if v.transpose_b else b))
        whole = aligned(np.full((m, 64), 9, np.float16))
        plan = replace(ampere.plan(64, 64, 64), index=index, splits=splits, chunk=k if splits == 1 else depth, raster=2)
        flags = {"transpose_a": v.transpose_a, "transpose_b": v.transpose_b}
        ampere.run_planned(plan, given_a, given_b, ExchangeTensor(whole[:, :n]), **flags)
        assert (whole[:, :n] == a.astype(np.float32) @ b).all() and (whole[:, n:] == 9).all()

    def test_native_and_mirrored_choice_agree(self, ampere: GpuGemm):
        for m, n, k in ((72, 40, 136), (1, 4096, 4096), (16, 16, 8192), (5000, 3000, 200), (33, 7, 13)):
            plan, told = ampere.plan(m, n, k), ampere.explain(m, n, k)
            assert (plan.index, plan.splits, plan.chunk) == (told.plan.index, told.plan.splits, told.plan.chunk)
            assert f"{m}x{n}x{k}" in str(told)


@pytest.fixture(scope="module")
def bytes_gemm(driver: StubDriver, tmp_path_factory: pytest.TempPathFactory) -> GpuGemm:
    variants = (
        *(Variant(bytes_core(), a, b, 16) for a in (False, True) for b in (False, True)),
        Variant(bytes_core(rows=32), False, True, 1),
        Variant(along_k("int8"), False, True, 1),
    )
    return opened(driver, tmp_path_factory.mktemp("bytes"), "a100", variants, Gemm("int8"))


class TestBytes:
    """int8 with int32 sums; the output has four times the bytes of the operands, and an alignment of its own."""

    @pytest.mark.parametrize(
        ("m", "n", "k", "turned_a", "turned_b"),
        [
            (80, 48, 144, False, True),
            (80, 48, 144, False, False),
            (80, 48, 144, True, False),
            (80, 48, 144, True, True),
            (70, 37, 99, False, True),
            (3, 40, 1040, False, True),
        ],
    )
    def test_calls_compute_the_product(
        self, driver: StubDriver, bytes_gemm: GpuGemm, m: int, n: int, k: int, turned_a: bool, turned_b: bool
    ):
        draw = np.random.default_rng(m)
        a, b = (draw.integers(-128, 128, shape).astype(np.int8) for shape in ((m, k), (k, n)))
        given_a = ExchangeTensor(aligned(a.T if turned_a else a))
        given_b = ExchangeTensor(aligned(b.T if turned_b else b))
        out, before = ExchangeTensor(aligned(np.zeros((m, n), np.int32))), len(driver.launches)
        bytes_gemm(given_a, given_b, out, transpose_a=turned_a, transpose_b=turned_b)
        assert (out.array == a.astype(np.int32) @ b.astype(np.int32)).all()
        plan = bytes_gemm.plan(m, n, k, transpose_a=turned_a, transpose_b=turned_b)
        assert driver.launches[before].name.decode() == plan.variant.name

    def test_the_output_is_int32(self, bytes_gemm: GpuGemm):
        a, b = (ExchangeTensor(aligned(np.ones((16, 16), np.int8))) for _ in "ab")
        with pytest.raises(DtypeError, match=r"out .*computes in int32"):
            bytes_gemm(a, b, ExchangeTensor(aligned(np.zeros((16, 16), np.int8))))


@pytest.fixture(scope="module")
def fallback(driver: StubDriver, tmp_path_factory: pytest.TempPathFactory) -> GpuGemm:
    """One kernel with TMA, and one for any alignment."""
    variants = HOPPER[0], Variant(tensor_core("float16", "shared", 2), False, False, 2)
    return opened(driver, tmp_path_factory.mktemp("fallback"), "h200", variants)


class TestHopper:
    @pytest.mark.parametrize(
        ("m", "n", "k", "turned_a", "turned_b", "cluster"),
        [
            (136, 72, 200, False, False, 1),
            (100, 80, 264, False, True, 1),
            (72, 136, 100, True, False, 1),
            (136, 72, 200, False, False, 2),  # three blocks of rows: the fourth has none
            (100, 80, 264, False, True, 2),
        ],
    )
    def test_descriptors_and_splits(
        self, driver: StubDriver, tmp_path: Path, m: int, n: int, k: int, turned_a: bool, turned_b: bool, cluster: int
    ):
        gemm = opened(driver, tmp_path, "h200", CLUSTERS if cluster == 2 else HOPPER)
        a, b = exact(m, n, k, n)
        given_a = ExchangeTensor(aligned(a.T if turned_a else a))
        given_b = ExchangeTensor(aligned(b.T if turned_b else b))
        flags = {"transpose_a": turned_a, "transpose_b": turned_b}
        out = gemm(given_a, given_b, **flags)
        assert (out.array == a.astype(np.float32) @ b).all()
        plan = gemm.plan(m, n, k, **flags)
        depth = plan.variant.strategy.l1.k
        again = ExchangeTensor(aligned(np.zeros((m, n), np.float16)))
        gemm.run_planned(replace(plan, splits=-(-k // depth), chunk=depth), given_a, given_b, again, **flags)
        assert (again.array == out.array).all()
        cut = plan, replace(plan, splits=-(-k // depth), chunk=depth)
        whole, third = Extents(m, n, k), ExchangeTensor(aligned(np.zeros((m, n), np.float16)))
        for start in ((16, 0), (0, 64)):
            both = [GpuRegion(*place, whole, one) for place, one in zip(((0, 0), start), cut, strict=True)]
            third.array[:] = 0
            gemm.run_planned(both, given_a, given_b, third, **flags)
            assert (third.array == out.array).all()

    @pytest.mark.parametrize("cluster", [1, 2])
    def test_a_grid_has_as_many_blocks_as_run_at_a_time(self, driver: StubDriver, tmp_path: Path, cluster: int):
        gemm = opened(driver, tmp_path, "h200", CLUSTERS if cluster == 2 else HOPPER)
        driver.on_launch(lambda launch: None)
        table = gemm.manifest.selector
        (slots,) = {int(row[table["fields"].index("slots")]) for row in table["costs"]}
        tile = gemm.kernels[0].variant.strategy.l1
        for tiles, blocks in ((2, 2), (slots, slots), (slots + 2, slots), (3 * slots + 4, slots)):
            a = ExchangeTensor(aligned(np.zeros((tiles * tile.m, 8), np.float16)))
            b, out = (ExchangeTensor(aligned(np.zeros((rows, 8), np.float16))) for rows in (8, tiles * tile.m))
            gemm.run_planned(replace(gemm.plan(tiles * tile.m, 8, 8), index=0, splits=1, chunk=8), a, b, out)
            assert driver.launches[-1].grid[0] == blocks

    @pytest.mark.parametrize(
        ("misaligned", "n", "narrow"),
        [("", 72, False), ("a", 72, True), ("b", 72, True), ("out", 72, True), ("", 71, True)],
    )
    def test_operands_that_no_descriptor_can_describe(
        self, driver: StubDriver, fallback: GpuGemm, misaligned: str, n: int, narrow: bool
    ):
        """TMA wants addresses and rows of whole 16 bytes: a kernel without it serves the others."""
        m, k = 136, 200
        a, b = exact(m, n, k, n)
        given = {"a": a, "b": b, "out": np.zeros((m, n), np.float16)}
        held = {name: ExchangeTensor(aligned(x, 2 if name == misaligned else 0)) for name, x in given.items()}
        before = len(driver.launches)
        fallback(held["a"], held["b"], held["out"])
        assert (held["out"].array == a.astype(np.float32) @ b).all()
        assert driver.launches[before].name.decode() == fallback.kernels[narrow].variant.name
