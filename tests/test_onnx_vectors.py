"""The test vectors of ONNX's node backend: what its Gemm, MatMul, MatMulInteger, Conv and reductions must give."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import needs
import numpy as np
import pytest
from test_words import library as words_library

import vortex
from vortex.batch_launcher import BatchGemmKernel
from vortex.conv_launcher import ConvKernel
from vortex.convolution import Conv2d
from vortex.errors import ShapeError
from vortex.launcher import GemmKernel
from vortex.library import Library, read
from vortex.operators import BatchGemm, settings
from vortex.reduction import Reduce

pytest.importorskip("onnx")
pytestmark = needs.a_compiler
Vector = tuple[str, dict[str, Any], list[np.ndarray], np.ndarray]


@pytest.fixture(scope="module")
def vectors() -> Callable[..., list[Vector]]:
    """(name, attributes, inputs, output) of every vector of one node of a kind, float32 unless told."""
    from onnx import helper
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the vectors of other operators are computed on the way
        cases = [case for case in collect_testcases() if case.model is not None and len(case.model.graph.node) == 1]

    def of(kind: str, *dtypes: type) -> list[Vector]:
        found = []
        for case in cases:
            node = case.model.graph.node[0]
            if node.op_type == kind:
                attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
                inputs, outputs = case.data_sets[0]
                if inputs[0].dtype in (dtypes or (np.float32,)):
                    found.append((case.name, attributes, list(inputs), outputs[0]))
        assert found, f"this release of onnx has no vectors of {kind}"
        return found

    return of


def test_gemm(gemm: GemmKernel, vectors: Callable[[str], list[Vector]]):
    for name, given, (a, b, *c), expected in vectors("Gemm"):
        product = gemm(a, b, transpose_a=bool(given.get("transA")), transpose_b=bool(given.get("transB")))
        found = given.get("alpha", 1.0) * product + (given.get("beta", 1.0) * c[0] if c else 0)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_matmul(library_path: Path, vectors: Callable[[str], list[Vector]]):
    library = read(library_path)
    manifest = replace(library.manifest, operator="batch_gemm", settings=settings(BatchGemm()))
    product = BatchGemmKernel(replace(library, manifest=manifest))
    for name, _, (a, b), expected in vectors("MatMul"):
        found = product(a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b)
        np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_matmul_integer(vectors: Callable[..., list[Vector]]):
    """A comes as it is, unsigned too, with its zero point; those of rows are taken off by the column sums of B."""
    product, checked = words_library("int8"), 0
    for name, _, (a, b, *zeros), expected in vectors("MatMulInteger", np.uint8, np.int8):
        zero_a, zero_b = [*(np.asarray(zero, np.int32) for zero in zeros), *[np.int32(0)] * 2][:2]
        signed = b.astype(np.int32) - zero_b
        if a.ndim != 2 or signed.min() < -128 or signed.max() > 127:
            continue
        if zero_a.size == 1:
            found = product(a, signed.astype(np.int8), zero_a=zero_a.item())
        else:
            found = product(a, signed.astype(np.int8)) - zero_a.reshape(-1, 1) * signed.sum(axis=0)
        np.testing.assert_array_equal(found, expected, err_msg=name)
        checked += 1
    assert checked


def same_padding(extents: tuple[int, ...], given: dict[str, Any], kernel: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Top, bottom, left, right for ceil(extent / stride) pixels; the odd one goes where the name says."""
    found = []
    for extent, step, taps in zip(extents, given.get("strides", (1, 1)), kernel, strict=True):
        total = max(0, (-(-extent // step) - 1) * step + taps - extent)
        less, more = total // 2, total - total // 2
        found += [more, less] if given["auto_pad"] == b"SAME_LOWER" else [less, more]
    return found[0], found[1], found[2], found[3]


def test_conv(conv_library: Library, vectors: Callable[[str], list[Vector]]):
    turned = replace(conv_library.manifest, settings=settings(Conv2d(layout="nchw")))
    conv = ConvKernel(replace(conv_library, manifest=turned))
    for name, given, (x, w), expected in vectors("Conv"):
        if given.get("auto_pad", b"NOTSET") == b"NOTSET":
            top, left, bottom, right = given.get("pads", (0, 0, 0, 0))
            padding = top, bottom, left, right
        else:
            padding = same_padding(x.shape[2:], given, w.shape[2:])
        more = {"dilation": given.get("dilations", 1), "groups": given.get("group", 1)}
        found = conv(x, w, stride=tuple(given.get("strides", (1, 1))), padding=padding, **more)
        assert found.shape == expected.shape, name
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(("kind", "node"), [("sum", "ReduceSum"), ("max", "ReduceMax"), ("mean", "ReduceMean")])
def test_reductions(vectors: Callable[[str], list[Vector]], kind: str, node: str):
    reduce = vortex.compile(Reduce(kind), hw="native")  # type: ignore[arg-type]
    for name, given, (x, *axes), expected in vectors(node):
        named = tuple(int(axis) for axis in axes[0]) if axes and axes[0].size else None
        if named is None and given.get("noop_with_empty_axes"):
            named = ()
        keepdims = bool(given.get("keepdims", 1))
        if kind == "max" and x.size == 0:  # the standard's maximum of nothing is -inf; NumPy's and ours is refused
            with pytest.raises(ShapeError, match="maximum"):
                reduce(x, named, keepdims=keepdims)
            continue
        found = reduce(x, named, keepdims=keepdims)
        assert found.shape == expected.shape, name
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=name)
