"""Networks of PyTorch: which nodes a library serves, the results, what is refused, and that nothing compiles again."""

from __future__ import annotations

import copy
import ctypes
import gc
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from needs import a_compiler, few_register_tiles

from vortex.conv_planner import numbers_of
from vortex.errors import DeviceError, DtypeError, OperandError, ShapeError, UnknownNameError
from vortex.operands import viewed

torch = pytest.importorskip("torch", reason="serves networks of PyTorch, which is not installed")
from torch.fx.experimental import _config  # noqa: E402

from vortex.torch import any_extents, backend, layers, optimize  # noqa: E402
from vortex.torch.dynamo import OPENING  # noqa: E402
from vortex.torch.graph import rewrite  # noqa: E402
from vortex.torch.libraries import Libraries  # noqa: E402

nn, functional = torch.nn, torch.nn.functional


@pytest.fixture(scope="module")
def libraries() -> Libraries:
    """Kernels of few register tiles: all that is wanted is their results."""
    return Libraries(few_register_tiles())


class Reference:
    """What a library computes, by the reference of its operator."""

    def __init__(self, operator: Any) -> None:
        self.operator, self.library = operator, SimpleNamespace(identity=str(operator))
        self.names = [operand.name for operand in operator.epilogue.operands]

    def pack(self, weight: Any, *, transpose: bool = False, groups: int = 1) -> Any:
        matrix = (weight.T if transpose else weight).numpy()
        return Packed(matrix, matrix.shape[1], matrix.shape)

    def door_for(self, b: Any, window: Any = None) -> tuple[Any, tuple[int, ...]]:
        """As native code calls it, with tensors of tvm-ffi."""
        if window is not None:
            where = dict(zip(("stride", "padding", "dilation", "groups"), vars(window).values(), strict=True))
            _, bottom, _, right = window.padding
            numbers = *numbers_of(b.shape, (0, 0), window), 1, bottom, right
        else:
            where, numbers = {}, (0, b.n, b.shape[0])

        def door(a: Any, _: Any, out: Any, *given: Any) -> int:
            a, out, *extras = map(borrowed, (a, out, *given[len(given) - len(self.names) :]))
            self(a, b, out, **where, **dict(zip(self.names, extras, strict=True)))
            return 0

        return tvm_ffi.convert(door), numbers

    def rows_by(self, b: Any, *extras: Any) -> Callable[[Any], Any]:
        given = dict(zip(self.names, (torch.from_numpy(np.from_dlpack(each)) for each in extras), strict=True))
        return lambda a: self(a.reshape(-1, a.shape[-1]), b, **given).view(*a.shape[:-1], -1)

    def images_by(self, w: Any, window: Any, empty: Callable[[Any], Any], *constants: Any) -> Callable[..., Any]:
        where = dict(zip(("stride", "padding", "dilation", "groups"), vars(window).values(), strict=True))

        def images(x: Any, *operands: Any) -> Any:
            out = empty(self.operator.shape(tuple(x.shape), w.shape, window))
            return self(x, w, out, **where, **dict(zip(self.names, (*constants, *operands), strict=True)))

        return images

    def __call__(self, a: Any, b: Any, out: Any = None, **operands: Any) -> Any:
        operands = {name: given.numpy() if torch.is_tensor(given) else given for name, given in operands.items()}
        found = self.operator.reference(a.numpy(), b.matrix if isinstance(b, Packed) else b.numpy(), **operands)
        found = torch.from_numpy(np.asarray(found, np.float32))
        return found if out is None else out.copy_(found)


def borrowed(given: Any) -> Any:
    """The memory of a tensor that a door was lent, which it may not export."""
    steps = sum((extent - 1) * stride for extent, stride in zip(given.shape, given.strides, strict=True))
    line = np.ctypeslib.as_array((ctypes.c_float * (steps + 1)).from_address(given.data_ptr()))
    return torch.from_numpy(line).as_strided(tuple(given.shape), tuple(given.strides))


@dataclass(eq=False)
class Packed:
    matrix: Any
    n: int
    shape: tuple[int, ...]

    @property
    def memory(self) -> Any:
        return viewed(np.ascontiguousarray(self.matrix))


@pytest.fixture
def doubles(monkeypatch: pytest.MonkeyPatch) -> Libraries:
    """Kernels that nobody compiled: for what is found in graphs."""
    made = Libraries()
    monkeypatch.setattr(made, "_kernel", Reference)
    return made


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    torch.manual_seed(0)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch.no_grad():
        yield


def rewritten(function: Callable[..., Any], libraries: Libraries, *arguments: Any) -> tuple[Any, dict[str, int]]:
    """The result by the rewritten graph, run node by node, and what was served in it."""
    counts: dict[str, int] = {}

    def keep(module: Any, example_inputs: Any) -> Any:
        served = rewrite(module, libraries)
        counts.update(served.counts)
        program = served.program(lambda module, places: module)

        def run(*inputs: Any) -> Any:
            assert served.layers or "matmul" in counts
            return program(*inputs)

        return run

    return torch.compile(function, backend=keep, dynamic=True)(*arguments), counts


class Written(nn.Module):
    """GELU's approximation as it is written in networks, and a factor in the [k, n] that GPT-2 keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(24, 40)), nn.Parameter(torch.randn(40))

    def forward(self, x: Any) -> Any:
        y = torch.addmm(self.bias, x.view(-1, 24), self.weight).view(*x.shape[:-1], 40)
        return 0.5 * y * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (y + 0.044715 * torch.pow(y, 3.0))))


class Encoder(nn.Module):
    """Attention and a feed-forward network, with the products of attention written out."""

    def __init__(self, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        query, key, value = (
            layer(x).view(*x.shape[:2], self.heads, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        weights = torch.softmax(query @ key.transpose(-1, -2) / 4, -1)
        mixed = torch.matmul(weights, value).transpose(1, 2).reshape(x.shape)
        x = self.norm(x + functional.dropout(self.out(mixed), 0.1, self.training))
        return x + self.down(functional.tanh(self.up(x)))


class Block(nn.Module):
    """Convolutions with and without batch normalization, and a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.first, self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 3, padding=1)
        self.wide, self.apart = nn.Conv2d(8, 6, (1, 3), dilation=2), nn.Conv2d(8, 6, 1, groups=2)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))
        for norm in self.norms:
            for each in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
                each.data.uniform_(0.5, 1.5)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.stem(x))
        y = functional.relu(self.norms[0](self.first(x)), inplace=True)
        y = self.norms[1](self.second(y))
        y += x
        y = functional.relu(y)
        return self.wide(y).sum((2, 3)) + functional.adaptive_avg_pool2d(self.apart(y), (2, 1)).flatten(1)[:, :6]


class Projected(nn.Module):
    """A shortcut that is a convolution too: either could add the other's result on store."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 6, 3, 2, 1, bias=False), nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(8, 6, 1, 2, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(6) for _ in range(3))

    def forward(self, x: Any) -> Any:
        y = self.norms[1](self.second(torch.relu(self.norms[0](self.first(x)))))
        return torch.relu(y + self.norms[2](self.shortcut(x)))


class Branches(nn.Module):
    """Convolutions of the same image, of which the first three may be one; their results side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide, self.middle = (nn.Conv2d(8, filters, 1, bias=False) for filters in (4, 24, 6))
        self.norms = nn.ModuleList(nn.BatchNorm2d(filters) for filters in (4, 24, 6))
        for norm in self.norms:
            for each in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
                each.data.uniform_(0.5, 1.5)
        self.plain, self.biased, self.large = nn.Conv2d(8, 4, 1, bias=False), nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 3)
        self.after = nn.Conv2d(24, 5, 3, padding=1)

    def forward(self, x: Any) -> Any:
        narrow, wide, middle = (
            torch.relu(norm(layer(x)))
            for norm, layer in zip(self.norms, (self.narrow, self.wide, self.middle), strict=True)
        )
        beside = narrow, self.after(wide), middle, self.plain(x), self.biased(x)
        return torch.cat(beside, 1), self.large(x)


class Pooled(nn.Module):
    """A convolution, and the ways in which networks get rid of what is left of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.average = nn.Conv2d(3, 8, 3, padding=1), nn.AdaptiveAvgPool2d((3, 2))
        self.classes = nn.Linear(8 * 6, 10)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.convolution(x))
        return self.classes(torch.flatten(self.average(y), 1)) + y.mean((2, 3)).sum(1, keepdim=True)


class TestGraph:
    @pytest.mark.parametrize(
        ("activation", "word"),
        [
            (nn.ReLU(inplace=True), "relu"),
            (nn.SiLU(), "silu"),
            (nn.GELU(), "gelu"),
            (nn.GELU(approximate="tanh"), "gelu_tanh"),
        ],
    )
    def test_activations_are_done_on_store(self, doubles: Libraries, activation: Any, word: str):
        layer, x = nn.Linear(24, 40), torch.randn(3, 5, 24)
        found, counts = rewritten(lambda x: activation(layer(x)), doubles, x)
        assert counts == {f"dense bias {word}": 1}
        torch.testing.assert_close(found, activation(layer(x)), rtol=1e-5, atol=1e-5)

    def test_gelu_is_recognised_where_it_is_written_out(self, doubles: Libraries):
        module, x = Written().eval(), torch.randn(2, 7, 24)
        found, counts = rewritten(module, doubles, x)
        assert counts == {"dense bias gelu_tanh": 1}
        torch.testing.assert_close(found, module(x), rtol=1e-5, atol=1e-5)

    def test_what_only_looks_like_gelu_is_not(self, doubles: Libraries):
        layer, x = nn.Linear(24, 40), torch.randn(3, 24)

        def other(x: Any) -> Any:
            y = layer(x)
            return 0.5 * y * (1.0 + torch.tanh(0.79 * (y + 0.044715 * torch.pow(y, 3.0))))

        found, counts = rewritten(other, doubles, x)
        assert counts == {"dense bias": 1}
        torch.testing.assert_close(found, other(x), rtol=1e-5, atol=1e-5)

    def test_a_result_that_is_read_twice_is_kept(self, doubles: Libraries):
        layer, x = nn.Linear(24, 40), torch.randn(3, 24)

        def twice(x: Any) -> Any:
            y = layer(x)
            return torch.relu(y) + y

        found, counts = rewritten(twice, doubles, x)
        assert counts == {"dense bias": 1}
        torch.testing.assert_close(found, twice(x), rtol=1e-5, atol=1e-5)

    def test_products_of_activations(self, doubles: Libraries):
        module, x = Encoder().eval(), torch.randn(2, 9, 32)
        found, counts = rewritten(module, doubles, x)
        assert counts == {"dense bias of 3": 1, "dense bias": 2, "dense": 1, "matmul": 2}
        torch.testing.assert_close(found, module(x), rtol=1e-5, atol=1e-5)

    def test_products_of_the_same_rows_stay_apart_where_a_result_is_not_split(self, doubles: Libraries):
        one, two, x = nn.Linear(32, 32), nn.Linear(32, 48), torch.randn(2, 9, 32)

        def apart(x: Any) -> Any:
            return one(x).view(2, -1), two(x).view(*x.shape[:2], 2, -1)

        found, counts = rewritten(apart, doubles, x)
        assert counts == {"dense bias": 2}
        torch.testing.assert_close(found, apart(x), rtol=1e-5, atol=1e-5)

    def test_sums_over_what_varies_are_told_from_sums_over_what_does_not(self, doubles: Libraries):
        layer, x = nn.Linear(24, 40), torch.randn(3, 5, 7, 24)

        def pooled(x: Any) -> Any:
            kept = x.mean(dim=-2, keepdim=True)
            return layer(x.sum((1, 2))), kept, x.mean(-1), x.mean(2, dtype=torch.float64)

        found, counts = rewritten(pooled, doubles, x)
        assert counts == {"dense bias": 1, "mean": 1, "sum": 1}
        torch.testing.assert_close(found, pooled(x), rtol=1e-5, atol=1e-5)

    def test_convolutions_with_what_follows_them(self, doubles: Libraries):
        module, x = Block().eval(), torch.randn(2, 3, 9, 14)
        found, counts = rewritten(module, doubles, x)
        assert counts == {
            "convolution bias relu": 2,
            "convolution bias residual relu": 1,
            "convolution bias": 2,
            "average": 1,
            "sum": 1,
        }
        torch.testing.assert_close(found, module(x), rtol=1e-4, atol=1e-4)

    def test_one_of_two_convolutions_adds_the_other(self, doubles: Libraries):
        module, x = Projected().eval(), torch.randn(2, 8, 9, 14)
        found, counts = rewritten(module, doubles, x)
        assert counts == {"convolution bias relu": 1, "convolution bias residual relu": 1, "convolution bias": 1}
        torch.testing.assert_close(found, module(x), rtol=1e-4, atol=1e-4)

    def test_convolutions_of_one_image_are_one(self, doubles: Libraries):
        """Where kernel, window, and what is done on store are the same."""
        module, x = Branches().eval(), torch.randn(2, 8, 9, 14)
        found, counts = rewritten(module, doubles, x)
        served = {"convolution bias relu of 3": 1, "convolution bias": 3, "convolution": 1, "side by side 3 of 5": 1}
        assert counts == served
        torch.testing.assert_close(found, module(x), rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize(
        "change", [lambda x: x.add_(1.0), lambda x: functional.relu(x, True), lambda x: x.__setitem__(0, 0.5)]
    )
    def test_a_convolution_does_not_wait_while_its_image_is_changed(self, doubles: Libraries, change: Any):
        first, last = nn.Conv2d(8, 4, 3, padding=1), nn.Conv2d(8, 4, 1)

        def changed(x: Any) -> Any:
            x = x * 2.0
            before = first(x)
            change(x)
            return torch.cat((before, last(x)), 1)

        x = torch.randn(2, 8, 9, 14)
        found, counts = rewritten(changed, doubles, x)
        assert counts == {"convolution bias": 2, "side by side 1 of 2": 1}
        torch.testing.assert_close(found, changed(x), rtol=1e-4, atol=1e-4)

    def test_what_else_is_put_side_by_side_stays(self, doubles: Libraries):
        """Rows, results that are read again, and other numbers than float32."""
        layer, linear = nn.Conv2d(8, 4, 1), nn.Linear(14, 14)

        def beside(x: Any) -> Any:
            once, twice, rows = layer(x), layer(x + 1.0), linear(x)
            kept = torch.cat((twice, twice[:, :1]), 1)
            return torch.cat((once, once), 2), kept, torch.cat((rows, rows), 1), torch.cat((rows > 0, x > 0), 1)

        x = torch.randn(2, 8, 9, 14)
        found, counts = rewritten(beside, doubles, x)
        assert counts == {"convolution bias": 2, "dense bias": 1}
        torch.testing.assert_close(found, beside(x), rtol=1e-4, atol=1e-4)

    def test_windows_that_are_not_looked_at_whole_stay(self, doubles: Libraries):
        layer = nn.Linear(14, 14)

        def pooled(x: Any) -> Any:
            rows = layer(x)
            plain = functional.max_pool2d(rows, 3, padding=1), torch.max_pool2d(rows, (2, 3), [1, 2])
            others = functional.max_pool2d(rows, 2, ceil_mode=True), functional.max_pool2d(rows, 2, dilation=2)
            return (
                *plain,
                *others,
                functional.max_pool2d(rows[0], 2),
                functional.max_pool2d(rows, 2, return_indices=True),
            )

        x = torch.randn(2, 8, 9, 14)
        found, counts = rewritten(pooled, doubles, x)
        assert counts["pool"] == 2
        torch.testing.assert_close(found, pooled(x), rtol=1e-4, atol=1e-4)

    def test_normalization_by_the_batch_is_not_folded(self, doubles: Libraries):
        module, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).train(), torch.randn(2, 3, 9, 14)
        found, counts = rewritten(module, doubles, x)
        assert counts == {"convolution bias": 1}
        torch.testing.assert_close(found, module(x), rtol=1e-4, atol=1e-4)

    def test_another_type_of_elements_is_refused(self, doubles: Libraries):
        layer = nn.Linear(24, 40).double()
        with pytest.raises(Exception, match=r"DtypeError: .*is torch\.float64; expected float32.*\.float\(\)"):
            rewritten(lambda x: layer(x), doubles, torch.randn(3, 24).double())


@a_compiler
class TestBackend:
    def test_no_length_and_no_batch_compiles_again(self, libraries: Libraries):
        """Through Inductor. Weights that were changed in place are seen, and gradients asked for later refused."""
        module, calls = Encoder().eval(), []

        def counted(graph: Any, example_inputs: Any) -> Any:
            calls.append(len(graph.graph.nodes))
            return backend(graph, example_inputs, options={"libraries": libraries})

        compiled = torch.compile(module, backend=counted, dynamic=True)
        for batch, length in ((2, 9), (3, 17), (5, 2), (2, 64)):
            x = torch.randn(batch, length, 32)
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)
            if length == 9:
                first = len(calls)
        assert len(calls) == first
        for parameter in module.parameters():
            parameter.mul_(0.5)
        torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)
        module.load_state_dict(Encoder().state_dict(), assign=True)
        torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)
        assert len(calls) == first

    def test_blocks_that_run_one_program_keep_their_weights(self, doubles: Libraries, monkeypatch: pytest.MonkeyPatch):
        """Each is laid out once, again when it was changed, and let go with its block."""
        laid_out, pack = [], Reference.pack
        monkeypatch.setattr(Reference, "pack", lambda self, w, **how: laid_out.append(w.shape) or pack(self, w, **how))
        monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda module, example_inputs, **how: module)
        blocks, x = [nn.Linear(8, 8) for _ in range(3)], torch.randn(3, 8)
        compiled = torch.compile(
            lambda block, x: block(x), backend="vortex", dynamic=True, options={"libraries": doubles}
        )
        expected = [block(x) for block in blocks]
        for _ in range(3):
            for block, y in zip(blocks, expected, strict=True):
                torch.testing.assert_close(compiled(block, x), y)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
        assert len(laid_out) == 3
        blocks[1].weight.mul_(2)
        torch.testing.assert_close(compiled(blocks[1], x), blocks[1](x))
        torch.testing.assert_close(compiled(blocks[0], x), expected[0])
        assert len(laid_out) == 4
        kept = len(layers._constants)
        blocks.pop()
        del block
        gc.collect()
        assert len(layers._constants) == kept - 1

    def test_threads_of_one_program_have_their_own_weights(self, doubles: Libraries, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda module, example_inputs, **how: module)
        blocks = [nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(2)]
        x, meet = torch.randn(3, 8), Barrier(2)
        compiled = torch.compile(
            lambda block, x: block(x), backend="vortex", dynamic=True, options={"libraries": doubles}
        )
        expected = [block(x) for block in blocks]
        for block in blocks:
            compiled(block, x)
        original = Reference.__call__

        def waiting(self: Any, *given: Any, **named: Any) -> Any:
            meet.wait(30)
            return original(self, *given, **named)

        monkeypatch.setattr(Reference, "__call__", waiting)

        def run(block: Any) -> Any:
            with torch.no_grad():
                return compiled(block, x)

        with ThreadPoolExecutor(2) as pool:
            for found, y in zip(pool.map(run, blocks), expected, strict=True):
                torch.testing.assert_close(found, y)

    def test_operands_of_any_strides(self, libraries: Libraries):
        """Through Inductor: rows any distance apart, columns first, an image and a residual that lie otherwise."""
        layer, first, second = nn.Linear(16, 8), nn.Conv2d(4, 6, 3, padding=1), nn.Conv2d(4, 6, 1)

        def served(x: Any, image: Any, more: Any) -> Any:
            return layer(x), torch.relu(first(image) + more), second(image)

        x, image, more = torch.randn(3, 5, 32), torch.randn(2, 9, 7, 8), torch.randn(2, 6, 9, 7)
        rows = x[..., 16:], x[:, ::2, :16], x.transpose(0, 1)[..., ::2], x[0, :, :16], torch.randn(16, 5).t()
        images = image[..., :4].permute(0, 3, 1, 2), image[..., ::2].permute(0, 3, 1, 2), torch.randn(2, 4, 9, 7)
        for place, each in enumerate(rows):
            here, added = images[place % 3], more if place % 2 else more.contiguous(memory_format=torch.channels_last)
            torch._dynamo.reset()
            compiled = torch.compile(served, backend="vortex", dynamic=True, options={"libraries": libraries})
            for found, expected in zip(compiled(each, here, added), served(each, here, added), strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)

    def test_results_side_by_side(self, doubles: Libraries):
        """Through Inductor: of convolutions where they belong, of others copied, whichever axis lies innermost."""

        class Beside(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = nn.ModuleList(nn.Conv2d(8, filters, 3, padding=1) for filters in (3, 16, 1))

            def forward(self, x: Any, other: Any) -> Any:
                first, second, third = (layer(each) for layer, each in zip(self.layers, (x, x + 1, other), strict=True))
                return torch.cat((other, first, torch.tanh(second), x, third, second[:, 5:7]), 1)

        module = Beside().eval()
        compiled = torch.compile(module, backend="vortex", dynamic=True, options={"libraries": doubles})
        for batch, height, width in ((2, 9, 14), (1, 1, 5), (3, 40, 33)):
            x, other = torch.randn(batch, 8, height, width), torch.randn(batch, height, width, 8).permute(0, 3, 1, 2)
            torch.testing.assert_close(compiled(x, other), module(x, other), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(compiled(other, x), module(other, x), rtol=1e-4, atol=1e-4)

    def test_the_largest_of_windows(self, doubles: Libraries):
        """Through Inductor, to the bit, by one thread and by all: vectors of channels and what is left of them, windows
        that reach out of the image, rows and columns that none sees, infinities, and what is no number."""
        windows = ((3, 1, 1), (3, 2, 1), (2, 2, 0), ((1, 3), (2, 1), (0, 1)), ((3, 2), (3, 4), (1, 0)))

        def pooled(x: Any) -> Any:
            return [functional.max_pool2d(x, *window) for window in windows]

        compiled = torch.compile(pooled, backend="vortex", dynamic=True, options={"libraries": doubles})
        for batch, channels, height, width in ((2, 83, 9, 14), (1, 16, 3, 3), (3, 5, 31, 2), (1, 64, 40, 33)):
            x = torch.randn(batch, channels, height, width)
            x.view(-1)[::7], x.view(-1)[::11], x.view(-1)[3::29] = -math.inf, math.inf, math.nan
            for given in (x, x.contiguous(memory_format=torch.channels_last)):
                for found, expected in zip(compiled(given), pooled(x), strict=True):
                    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)

    @pytest.mark.parametrize(
        ("status", "error", "words"),
        [
            (10 | 2 << 8, OperandError, "serves needs scratch memory.*free memory"),
            (7, ShapeError, "has another inner extent"),
            (200, OperandError, "cannot read its input"),
        ],
    )
    def test_a_refusal_is_put_into_words(
        self, doubles: Libraries, monkeypatch: pytest.MonkeyPatch, status: int, error: type[Exception], words: str
    ):
        layer, x = nn.Linear(8, 8), torch.randn(3, 8)
        compiled = torch.compile(layer, backend="vortex", dynamic=True, options={"libraries": doubles})
        told = [0, status, 0]
        door = tvm_ffi.convert(lambda *_: told.pop(0))
        monkeypatch.setattr(Reference, "door_for", lambda self, b: (door, (0, 8, 8)))
        compiled(x)
        with pytest.raises(error, match=words):
            compiled(x)
        assert compiled(x).shape == (3, 8)
        with pytest.raises(RuntimeError, match="has no result"):
            torch.ops.vortex.dense(x, 0)

    def test_one_program_is_for_all_batches_and_image_sizes(self, doubles: Libraries):
        """From the input whose extents PyTorch would take for special, a single square image: batches past what its own
        convolutions are chosen by, and more elements in a sum than what Inductor sums up in one way."""
        module = Pooled().eval()
        OPENING.listen()
        compiled = torch.compile(module, backend="vortex", dynamic=True, options={"libraries": doubles})
        for batch, height, width in ((1, 32, 32), (4, 32, 32), (17, 24, 41), (1, 160, 64), (2, 12, 12)):
            x = torch.randn(batch, 3, height, width)
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)
            assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1

    def test_a_model_that_asks_for_a_length_of_one_has_a_program_for_each_answer(
        self, doubles: Libraries, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda module, example_inputs, **how: module)
        layer = nn.Linear(8, 8)

        def asks(x: Any, causal: bool) -> Any:
            y = layer(x)[:, None]
            return functional.scaled_dot_product_attention(y, y, y, is_causal=x.shape[1] > 1 and causal)

        OPENING.listen()
        compiled = torch.compile(asks, backend="vortex", dynamic=True, options={"libraries": doubles})
        for batch, length, programs in ((1, 5, 1), (1, 1, 2), (3, 7, 2), (4, 2, 2), (1, 1, 2)):
            x = torch.randn(batch, length, 8)
            torch.testing.assert_close(compiled(x, True), asks(x, True), rtol=1e-5, atol=1e-5)
            assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == programs
        assert not torch._dynamo.utils.counters["graph_break"]

    def test_what_other_backends_compile_is_left_as_it_is(self):
        asked = []

        def other(graph: Any, example_inputs: Any) -> Any:
            asked.append((_config.backed_size_oblivious, _config.use_duck_shape, torch.backends.mkldnn.enabled))
            return graph

        OPENING.listen()
        torch.compile(torch.tanh, backend=other, dynamic=True)(torch.ones(3))
        with any_extents():
            torch.compile(torch.sin, backend=other, dynamic=True)(torch.ones(3))
        assert asked == [(False, True, torch.backends.mkldnn.is_available()), (True, False, False)]

    def test_gradients_are_refused(self, libraries: Libraries):
        with torch.enable_grad(), pytest.raises(Exception, match=r"OperandError: .*needs gradients.*torch\.no_grad"):
            torch.compile(nn.Linear(8, 8), backend=backend, dynamic=True)(torch.randn(3, 8))

    def test_another_device_is_refused(self):
        with pytest.raises(DeviceError, match=r"on meta; expected the CPU.*\.cpu\(\)"):
            backend(torch.fx.GraphModule({}, torch.fx.Graph()), [torch.empty(2, device="meta")])

    @pytest.mark.parametrize(
        ("options", "error"), [({"tiles": 3}, UnknownNameError), ({"libraries": "native"}, OperandError)]
    )
    def test_unknown_options_are_refused(self, options: dict[str, Any], error: type[Exception]):
        with pytest.raises(error, match=next(iter(options))):
            backend(torch.fx.GraphModule({}, torch.fx.Graph()), [], options=options)


@a_compiler
class TestSwapping:
    def test_layers_are_exchanged_in_place(self, libraries: Libraries):
        module, x = Encoder().eval(), torch.randn(2, 9, 32)
        expected, names = module(x), list(module.state_dict())
        served = optimize(copy.deepcopy(module), libraries)
        torch.testing.assert_close(served(x), expected, rtol=1e-5, atol=1e-5)
        assert list(served.state_dict()) == names
        assert [type(each).__name__ for each in served.children()].count("ServedLinear") == 6
        with torch.enable_grad(), pytest.raises(OperandError, match=r"no gradients.*torch\.no_grad"):
            served(x)

    def test_images_of_any_strides(self, libraries: Libraries):
        module = nn.Sequential(nn.Conv2d(8, 6, 3), nn.Conv2d(6, 5, 1)).eval()
        served = optimize(copy.deepcopy(module), libraries)
        apart = torch.randn(2, 9, 7, 16)[..., ::2].permute(0, 3, 1, 2)
        for x in (apart, apart.contiguous(), apart[:, :, ::2], apart[:, :, :, :3], apart.contiguous()[..., ::2]):
            torch.testing.assert_close(served(x), module(x), rtol=1e-5, atol=1e-5)
        with pytest.raises(ShapeError, match="channels"):
            served(torch.randn(2, 7, 9, 7))

    def test_convolutions_take_what_follows_them(self, doubles: Libraries):
        """Normalization and ReLU of a sequence; what was changed in place since is seen, and no name is lost."""
        relu = nn.ReLU()
        module = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), relu, nn.Conv2d(8, 8, 3, padding=1), relu),
            *(nn.BatchNorm2d(8), nn.Conv2d(8, 6, 1, groups=2), nn.BatchNorm2d(6), nn.Tanh()),
            *(nn.Conv2d(6, 4, 3, padding="same"), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, affine=False), nn.Flatten()),
        ).eval()
        for buffer in module.buffers():
            if buffer.is_floating_point():
                buffer.uniform_(0.5, 1.5)
        x, names = torch.randn(2, 3, 9, 14), list(module.state_dict())
        served = optimize(copy.deepcopy(module), doubles)
        torch.testing.assert_close(served(x), module(x), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(served[0](x[0]), torch.relu(module[1](module[0](x)))[0], rtol=1e-4, atol=1e-4)
        assert list(served.state_dict()) == names
        kinds = [type(each).__name__ for each in served]
        assert kinds[:5] == ["ServedConvolution", "Folded", "Identity", "ServedConvolution", "Identity"]
        assert kinds[5:9] == ["BatchNorm2d", "ServedConvolution", "Folded", "Tanh"]
        assert kinds[9:] == ["Conv2d", "ServedConvolution", "BatchNorm2d", "Flatten"]
        for each in (module, served):
            each[1].running_var.mul_(2)
            each[7].load_state_dict({**each[7].state_dict(), "weight": torch.full((6,), 0.5)}, assign=True)
        torch.testing.assert_close(served(x), module(x), rtol=1e-4, atol=1e-4)
        with torch.enable_grad(), pytest.raises(OperandError, match=r"no gradients.*torch\.no_grad"):
            served(x)

    @pytest.mark.parametrize(
        ("module", "error", "words"),
        [
            (nn.Linear(4, 4).train(), OperandError, r"training mode.*\.eval\(\)"),
            (nn.Linear(4, 4).half().eval(), DtypeError, r"weight is torch\.float16.*\.float\(\)"),
            (nn.Linear(4, 4, device="meta").eval(), DeviceError, r"weight is on meta.*\.cpu\(\)"),
        ],
    )
    def test_what_is_refused(self, libraries: Libraries, module: Any, error: type[Exception], words: str):
        with pytest.raises(error, match=words):
            optimize(module, libraries)
