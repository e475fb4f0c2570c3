"""The callable of a convolution: hands operands to the native door and puts a refusal into words. No TVM, no search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from vortex.conv_operands import allocated, refusal
from vortex.conv_planner import ConvPlanner, numbers, numbers_of
from vortex.conv_selector import DIRECT, ConvPlan, in_vectors
from vortex.convolution import Conv2d, ConvShape, Window
from vortex.errors import OperandError, ShapeError, UnknownNameError
from vortex.library import Library, write
from vortex.operands import REASONS, UNREADABLE, exportable, refuse_gradients, unreadable, viewed, zeros_for_constants
from vortex.threads import Listener, get_num_threads
from vortex.winograd import ALGORITHMS
from vortex.winograd_cost import BLOCKINGS
from vortex.winograd_selector import TILES, VECTORS


@dataclass(frozen=True, eq=False)
class PackedFilters:
    """Constant weights, laid out once for one library."""

    data: np.ndarray[Any, np.dtype[np.float32]]
    shape: tuple[int, int, int, int]
    """OIHW, as they were given."""
    groups: int
    identity: str
    forms: int
    """What `data` holds, one after the other: DIRECT, and above it a bit for each Winograd tile."""

    @cached_property
    def memory(self) -> Any:
        """`data` as the native door takes it at once."""
        return viewed(self.data)

    def __repr__(self) -> str:
        return f"PackedFilters(shape={self.shape}, groups={self.groups}, library={self.identity[:12]})"


def _described(operator: Conv2d, x: Any, w: Any, stride: Any, padding: Any, dilation: Any, groups: Any) -> Described:
    shape = operator.shape(tuple(x), w, operator.window(stride, padding, dilation, groups))
    return shape, numbers(shape)


def _extents(operator: Conv2d, w: Any, groups: Any) -> tuple[tuple[int, int, int, int], int]:
    """Of weights of this shape, and the groups."""
    if len(w) != 4:
        raise ShapeError(f"w has shape {tuple(w)}; expected [filters, channels, height, width]; reshape it")
    filters, depth, kernel_h, kernel_w = (int(extent) for extent in w)
    count = operator.window(groups=groups).groups
    if filters % count or not kernel_h or not kernel_w:
        raise ShapeError(f"groups={count} does not divide w of shape {tuple(w)}, or it has no taps; check w and groups")
    return (filters, depth, kernel_h, kernel_w), count


Described = tuple[ConvShape, tuple[int, ...]]
"""A call's extents, and what the door is told of them."""


class ConvKernel(ConvPlanner):
    """A convolution of any extents: see `__call__`. Safe to call from several threads at once."""

    def __init__(self, library: Library) -> None:
        super().__init__(library)
        self._groups = self.operator.window().groups
        self._turned = int(self.operator.layout == "nchw")
        # By type as well: 1 is a stride, True is none.
        self._described = lru_cache(maxsize=4096, typed=True)(partial(_described, self.operator))
        self._extents = lru_cache(maxsize=4096, typed=True)(partial(_extents, self.operator))
        self._identity = library.identity
        self._names = tuple(operand.name for operand in self.operator.epilogue.operands)
        doors = ("conv", "conv_planned", "pack_conv", "pack_winograd")
        self._conv, self._planned, self._pack, self._transform = map(self.module.get_function, doors)
        self._threads = Listener(*map(self.module.get_function, ("set_threads", "borrow_threads")))

    def __call__(
        self,
        x: Any,
        w: Any,
        out: Any = None,
        *,
        stride: Any = None,
        padding: Any = None,
        dilation: Any = None,
        groups: Any = None,
        **operands: Any,
    ) -> Any:
        """out = epilogue(convolution of prologue(x) with w), float32.

        `x` is [batch, height, width, channels], or [batch, channels, height, width] for layout "nchw"; channels or
        columns must be contiguous in memory, whatever the layout. `w` is [filters, channels / groups, height, width] or
        the result of `pack`. `stride`, `dilation`: a number or (height, width); `padding`: a number, (height, width) or
        (top, bottom, left, right); without them what the operator fixes, else 1, no padding, 1 group. `out` has the
        layout of x; without it one is allocated of the kind of x. `operands` are the tensors that the epilogue names:
        [filters] per column, per element with the shape and the strides of `out`. Errors are VortexError and the
        built-in kind: ShapeError, DtypeError, OperandError, ...
        """
        extras = self._in_order(operands) if operands or self._names else ()
        filters = w if isinstance(w, PackedFilters) else self._packed_for(x, w, stride, padding, dilation, groups)
        shape, numbers = self._checked(x, filters, stride, padding, dilation, groups)
        if out is None:
            out = allocated(x, shape, self.operator.layout)
        self._run(self._conv, x, filters, out, w, (*numbers, filters.forms), extras)
        return out

    def images_by(
        self, w: PackedFilters, window: Window, empty: Callable[[ConvShape], Any], *constants: Any
    ) -> Callable[..., Any]:
        """x, and the epilogue's further operands -> the result, in what `empty` makes for the extents of the call.

        For layers of networks: no gradients are looked for. `constants` are the first operands of the epilogue.
        """
        if w.identity != self._identity or w.groups != window.groups:
            raise self._packed_otherwise(w, window.groups)
        where = window.stride, window.padding, window.dilation, window.groups
        convolve, described = self._conv, self._described

        def images(x: Any, *operands: Any) -> Any:
            shape, told = described(x.shape, w.shape, *where)
            out = empty(shape)
            extras = *constants, *operands
            status = convolve(x, w.memory, out, self._turned, *told, w.forms, *extras)
            if status:
                raise refusal(status, (x, w, out, *extras), self._names)
            return out

        return images

    def door_for(self, w: PackedFilters, window: Window) -> tuple[Any, tuple[int, ...]]:
        """The native function (x, w.memory, out, whether channels come second, <numbers>, forms, operands of the
        epilogue...) -> status; its numbers but for the extents of the output, its forms, and the padding at the end."""
        if w.identity != self._identity or w.groups != window.groups:
            raise self._packed_otherwise(w, window.groups)
        _, bottom, _, right = window.padding
        return self._conv, (*numbers_of(w.shape, (0, 0), window), w.forms, bottom, right)

    def run(
        self, plan: ConvPlan, x: Any, w: Any, out: Any, *, stride: Any = None, padding: Any = None,
        dilation: Any = None, groups: Any = None, **operands: Any,
    ) -> Any:  # fmt: skip
        """Run with the walk and the grid of a given plan instead of the selected ones; same operands as a call."""
        extras = self._in_order(operands)
        filters = w if isinstance(w, PackedFilters) else self.pack(w, groups=groups)
        _, numbers = self._checked(x, filters, stride, padding, dilation, groups)
        strategy = BLOCKINGS.index(plan.blocking) if plan.blocking else -1
        how = filters.forms, strategy, int(plan.walk_batch), plan.grid.m, plan.grid.n
        self._run(self._planned, x, filters, out, w, (*numbers, *how), extras)
        return out

    def pack(self, w: Any, *, groups: int | None = None) -> PackedFilters:
        """Lay constant weights [filters, channels / groups, height, width] out for this library.

        Those of 3x3 filters are kept in every form that a call may choose, 61/9 of their size; 1 with "strict".
        """
        shape, count = self._weights(w, groups)
        return self._packed(w, shape, count, self.forms(shape, count))

    def _weights(self, w: Any, groups: int | None) -> tuple[tuple[int, int, int, int], int]:
        """Their shape, and the groups."""
        refuse_gradients(w, names=("w",))
        given = getattr(w, "shape", None)
        if given is None:
            raise OperandError(f"w is a {type(w).__name__}; expected a tensor; {REASONS[0][2]}")
        try:
            return self._extents(given, groups)
        except TypeError:  # of a list, which is no key
            return _extents(self.operator, given, groups)

    def _packed_for(self, x: Any, w: Any, stride: Any, padding: Any, dilation: Any, groups: Any) -> PackedFilters:
        """Weights in the one form that a call uses, which is chosen with the cost of bringing them there."""
        shape, count = self._weights(w, groups)
        forms, given = self.forms(shape, count), getattr(x, "shape", ())
        if forms != DIRECT and len(given) == 4:
            call = self.operator.shape(tuple(given), shape, self.operator.window(stride, padding, dilation, count))
            blocking = self.native_choice(call, get_num_threads(), forms, packed=False)[3]
            forms = 2 * DIRECT << TILES.index(blocking.tile) if blocking else DIRECT
        return self._packed(w, shape, count, forms)

    def _packed(self, w: Any, shape: tuple[int, int, int, int], groups: int, forms: int) -> PackedFilters:
        filters, depth, kernel_h, kernel_w = shape
        panel = self.manifest.panel
        if groups > 1 and filters == groups * depth and (depth == 1 or in_vectors(groups, filters, filters)):
            first = kernel_h * kernel_w * depth * filters
        else:
            first = groups * -(-(filters // groups) // panel) * panel * kernel_h * kernel_w * depth
        width = VECTORS * self.manifest.lanes
        padded = -(-filters // width) * width * depth
        sizes = [first, *(ALGORITHMS[tile].points * padded for tile in TILES)]
        sizes = [size if forms >> bit & 1 else 0 for bit, size in enumerate(sizes)]
        data = zeros_for_constants(sum(sizes))
        pieces = [data[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]
        try:
            matrix = exportable(w)
            status = self._pack(matrix, pieces[0], groups) if forms & DIRECT else 0
            for algorithm, piece in enumerate(pieces[1:]):
                if piece.size and not status:
                    matrix = np.ascontiguousarray(matrix if isinstance(matrix, np.ndarray) else np.from_dlpack(matrix))
                    status = self._transform(matrix, piece, algorithm)
        except UNREADABLE as error:
            raise unreadable(error, w=w) from error
        if status:
            raise refusal(status, (None, w, None))
        return PackedFilters(data, shape, groups, self._identity, forms)

    def save(self, path: str | Path) -> None:
        """Write the library, for `vortex.load`."""
        write(self.library, Path(path))

    def _in_order(self, operands: dict[str, Any]) -> tuple[Any, ...]:
        """The operands of the epilogue in the order of its steps; refuses missing and unknown ones."""
        if operands.keys() != set(self._names):
            raise UnknownNameError(
                f"operands {sorted(operands)}; the epilogue ({self.operator.epilogue}) expects {sorted(self._names)}; "
                "pass just these"
            )
        return tuple(operands[name] for name in self._names)

    def _packed_otherwise(self, w: PackedFilters, groups: Any) -> OperandError | ShapeError:
        if w.identity != self._identity:
            return OperandError(f"w {w!r} was packed by another library; pack it again with this library's pack()")
        told = self.operator.window(groups=groups).groups
        return ShapeError(f"groups={told}, but w was packed for groups={w.groups}; pack it again or pass those")

    def _checked(self, x: Any, w: PackedFilters, stride: Any, padding: Any, dilation: Any, groups: Any) -> Described:
        if w.identity != self._identity or w.groups != (self._groups if groups is None else groups):
            raise self._packed_otherwise(w, groups)
        given = getattr(x, "shape", None)
        if given is None:
            raise OperandError(f"x is a {type(x).__name__}; expected a tensor; {REASONS[0][2]}")
        try:
            return self._described(given, w.shape, stride, padding, dilation, groups)
        except TypeError:  # of a list, which is no key
            return _described(self.operator, given, w.shape, stride, padding, dilation, groups)

    def _run(
        self, door: Any, x: Any, filters: PackedFilters, out: Any, w: Any, numbers: tuple[int, ...],
        extras: tuple[Any, ...],
    ) -> None:  # fmt: skip
        if any(type(operand) is not np.ndarray for operand in (x, out, *extras)):
            refuse_gradients(x, out, *extras, names=("x", "out", *self._names))
        try:
            status = door(x, filters.memory, out, self._turned, *numbers, *extras)
        except UNREADABLE:
            if isinstance(out, np.ndarray) and not out.flags.writeable:
                raise OperandError("out is read-only; expected a writable array; pass a copy") from None
            try:
                status = door(
                    exportable(x), filters.memory, out, self._turned, *numbers, *(exportable(extra) for extra in extras)
                )
            except UNREADABLE as error:
                raise unreadable(error, x=x, out=out, **dict(zip(self._names, extras, strict=True))) from error
        if status:
            raise refusal(status, (x, w, out, *extras), self._names)
