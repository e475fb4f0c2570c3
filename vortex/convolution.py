"""Convolution as an operator: its extents, its axes as an implicit GEMM, and its reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import index
from typing import Any, Literal

from vortex.axes import Access, Axis, OverAxes, Role
from vortex.epilogue import NOTHING, Epilogue, Store, check_epilogue, check_prologue
from vortex.errors import DtypeError, ShapeError, UnknownNameError

LAYOUTS = {"nhwc": (0, 1, 2, 3), "nchw": (0, 2, 3, 1)}
"""Where batch, height, width and channels are among the dimensions of an activation."""
DTYPES = ("float32", "tfloat32", "float16", "bfloat16")
"""Of x, w and y."""


@dataclass(frozen=True)
class Window:
    """How a filter walks the input: elements between outputs, zeros around, elements between taps, channel groups."""

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Top, bottom, left, right."""
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1


def whole(name: str, given: Any, least: int) -> int:
    """A whole number of at least `least`; ShapeError otherwise."""
    try:
        found = index(given)
    except TypeError:
        found = least - 1
    if found < least or isinstance(given, bool):
        raise ShapeError(f"{name}={given!r}: expected a whole number of at least {least}")
    return found


def several(name: str, given: Any, lengths: Sequence[int], least: int) -> tuple[int, ...]:
    """One whole number for all sides, or a sequence of one of `lengths`."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        return (whole(name, given, least),) * max(lengths)
    if len(given) not in lengths:
        raise ShapeError(f"{name}={given!r}: expected a number or {' or '.join(map(str, lengths))} of them")
    return tuple(whole(name, value, least) for value in given)


def window(stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: Any = 1) -> Window:
    """`stride`, `dilation`: a number or (height, width); `padding`: a number, (height, width) or (top, bottom, left,
    right), never negative. Raises ShapeError."""
    pads = several("padding", padding, (2, 4), 0)
    if len(pads) == 2:
        pads = (pads[0], pads[0], pads[1], pads[1])
    down, along = several("stride", stride, (2,), 1)
    tall, wide = several("dilation", dilation, (2,), 1)
    return Window((down, along), (pads[0], pads[1], pads[2], pads[3]), (tall, wide), whole("groups", groups, 1))


WINDOW = ("stride", "padding", "dilation", "groups")
"""What an operator may fix of a window."""


@dataclass(frozen=True)
class ConvShape:
    """Every extent of one call; `kernel_h` x `kernel_w` taps of `channels / groups` channels for each of `filters`."""

    batch: int
    height: int
    width: int
    channels: int
    filters: int
    kernel_h: int
    kernel_w: int
    window: Window = Window()

    def __post_init__(self) -> None:
        names = ("batch", "height", "width", "channels", "filters", "kernel_h", "kernel_w")
        for name in names:
            whole(name, getattr(self, name), 1 if name.startswith("kernel") else 0)
        groups = self.window.groups
        if self.channels % groups or self.filters % groups:
            raise ShapeError(
                f"groups={groups} does not divide {self.channels} channels and {self.filters} filters; "
                "pass the groups that w was made for"
            )
        if min(self.out_h, self.out_w) < 0:
            raise ShapeError(
                f"the output would be {self.out_h} x {self.out_w}: a filter of {self.kernel_h} x {self.kernel_w}, "
                f"dilation {self.window.dilation}, is larger than the padded input of {self.height} x {self.width}, "
                f"padding {self.window.padding}; pad more"
            )

    @property
    def weights(self) -> tuple[int, int, int, int]:
        """The shape of w, OIHW."""
        return self.filters, self.channels // self.window.groups, self.kernel_h, self.kernel_w

    @cached_property
    def out_h(self) -> int:
        """Output rows; -1 where not even one position of the filter fits."""
        top, bottom, _, _ = self.window.padding
        return extent(self.height + top + bottom, self.kernel_h, self.window.stride[0], self.window.dilation[0])

    @cached_property
    def out_w(self) -> int:
        """Output columns; -1 where not even one position of the filter fits."""
        _, _, left, right = self.window.padding
        return extent(self.width + left + right, self.kernel_w, self.window.stride[1], self.window.dilation[1])

    @property
    def depthwise(self) -> bool:
        """Every group has one input channel."""
        return self.window.groups > 1 and self.channels == self.window.groups

    @property
    def gemm(self) -> dict[str, int]:
        """The implicit GEMM of one group: m walks output pixels, n filters, k taps and channels."""
        groups = self.window.groups
        return {
            "m": self.batch * self.out_h * self.out_w,
            "n": self.filters // groups,
            "k": self.kernel_h * self.kernel_w * (self.channels // groups),
        }

    @property
    def flops(self) -> int:
        """Multiplications and additions, those with padding counted."""
        gemm = self.gemm
        return 2 * self.window.groups * gemm["m"] * gemm["n"] * gemm["k"]


def extent(padded: int, taps: int, stride: int, dilation: int) -> int:
    """Positions of a filter of `taps` along a padded input, -1 where it does not fit."""
    room = padded - ((taps - 1) * dilation + 1)
    return room // stride + 1 if room >= 0 else -1


@dataclass(frozen=True)
class Conv2d(OverAxes):
    """y[pixel, filter] = sum over taps and channels of x[pixel + tap, channel] w[filter, channel, tap].

    Activations are `layout`; weights are OIHW, or packed once by the library. Every extent is dynamic; stride, padding,
    dilation and groups are given at the call, or fixed here in the same forms: a call need not repeat what is fixed,
    and one that says otherwise is refused. With `accuracy="strict"` every product of the definition is formed; `"fast"`
    also admits algorithms with fewer multiplications and a documented error bound.
    """

    layout: Literal["nhwc", "nchw"] = "nhwc"
    dtype: Literal["float32", "tfloat32", "float16", "bfloat16"] = "float32"
    """Of x, w and y; sums are kept in float32. A CPU so far multiplies float32 alone."""
    epilogue: Epilogue = NOTHING
    """What is done to every output before it is stored: its tensors are [filters] per column, per element like y."""
    accuracy: Literal["fast", "strict"] = "fast"
    stride: int | Sequence[int] | None = None
    """Of every call, as `window` takes it; None: given at the call, 1 unless it says otherwise."""
    padding: int | Sequence[int] | None = None
    """The same; 0 unless the call says otherwise."""
    dilation: int | Sequence[int] | None = None
    groups: int | None = None
    prologue: Epilogue = NOTHING
    """What is done to every element of x while it is brought into the CacheBuffer, not to the zeros of the padding:
    steps without tensors, on CPUs."""

    def __post_init__(self) -> None:
        given = window(**self.fixed)
        for name in self.fixed:  # one form of each: equal windows are equal operators
            object.__setattr__(self, name, getattr(given, name))
        check_epilogue("Conv2d", self.epilogue, None)
        check_prologue("Conv2d", self.prologue)
        if self.dtype not in DTYPES:
            raise DtypeError(f"Conv2d(dtype={self.dtype!r}): expected one of {sorted(DTYPES)}; cast the operands")
        if self.epilogue.dtype not in (None, self.storage):
            raise DtypeError(f"Conv2d(epilogue={self.epilogue}): its output is {self.storage}; drop the cast")
        for operand in self.epilogue.operands:
            if operand.per == "row" or operand.dtype not in ("float32", self.storage):
                raise DtypeError(
                    f"Conv2d(epilogue={self.epilogue}): {operand.name} is {operand.dtype} per {operand.per}; "
                    f"expected {' or '.join(sorted({'float32', self.storage}))} per column (filter) or per element"
                )
        if self.layout not in LAYOUTS:
            raise UnknownNameError(f"Conv2d(layout={self.layout!r}): expected one of {sorted(LAYOUTS)}")
        if self.accuracy not in ("fast", "strict"):
            raise UnknownNameError(f"Conv2d(accuracy={self.accuracy!r}): expected 'fast' or 'strict'")

    @property
    def name(self) -> str:
        return "conv2d"

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Of the implicit GEMM: m walks output pixels, n filters, k taps and channels."""
        return Axis("m", Role.SPATIAL), Axis("n", Role.SPATIAL), Axis("k", Role.REDUCTION)

    @property
    def inputs(self) -> tuple[Access, ...]:
        return Access("x", ("m", "k")), Access("w", ("k", "n"))

    @property
    def output(self) -> Access:
        return Access("y", ("m", "n"))

    @property
    def store(self) -> Store:
        return Store(self.epilogue, "float32", self.storage)

    @property
    def fixed(self) -> dict[str, Any]:
        """What every call has of stride, padding, dilation and groups."""
        return {name: value for name in WINDOW if (value := getattr(self, name)) is not None}

    @property
    def open(self) -> Conv2d:
        """The same with nothing fixed: its machine code serves every window."""
        return replace(self, stride=None, padding=None, dilation=None, groups=None)

    def window(self, stride: Any = None, padding: Any = None, dilation: Any = None, groups: Any = None) -> Window:
        """The window of a call: what it gives, else what is fixed, else that of the function `window`. Raises
        ShapeError where it contradicts what is fixed."""
        named = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        given = {name: value for name, value in named.items() if value is not None}
        fixed = self.fixed
        where = window(**{**fixed, **given})
        for name, value in given.items():
            if name in fixed and getattr(where, name) != fixed[name]:
                raise ShapeError(
                    f"{name}={value!r}: this library is for {name}={fixed[name]} alone; "
                    f"leave {name} out, or compile the operator without it"
                )
        return where

    def shape(self, x: Sequence[int], w: Sequence[int], where: Window) -> ConvShape:
        """The extents of a call from the shapes of x (in `layout`) and w (OIHW). Raises ShapeError."""
        for name, given in (("x", x), ("w", w)):
            if len(given) != 4:
                raise ShapeError(f"{name} has shape {tuple(given)}; expected four dimensions; reshape it")
        batch, height, width, channels = (x[place] for place in LAYOUTS[self.layout])
        filters, depth, kernel_h, kernel_w = w
        if depth * where.groups != channels:
            raise ShapeError(
                f"x has {channels} channels and w {depth} for each of groups={where.groups}; "
                f"expected x with {depth * where.groups}; check w and groups"
            )
        return ConvShape(batch, height, width, channels, filters, kernel_h, kernel_w, where)

    def reference(
        self,
        x: Any,
        w: Any,
        *,
        stride: Any = None,
        padding: Any = None,
        dilation: Any = None,
        groups: Any = None,
        **operands: Any,
    ) -> Any:
        """The operator in NumPy, in float64; same arguments as a call, `operands` those of the epilogue."""
        import numpy as np

        x, w = self.prologue.reference(x), np.asarray(w, np.float64)
        where = self.window(stride, padding, dilation, groups)
        shape = self.shape(x.shape, w.shape, where)
        top, bottom, left, right = where.padding
        places = LAYOUTS[self.layout]
        padded = np.pad(x.transpose(places), ((0, 0), (top, bottom), (left, right), (0, 0)))
        depth, share = shape.channels // where.groups, shape.filters // where.groups
        y = np.zeros((shape.batch, shape.out_h, shape.out_w, shape.filters))
        for row in range(shape.kernel_h):
            for column in range(shape.kernel_w):
                down, along = row * where.dilation[0], column * where.dilation[1]
                seen = padded[:, down :: where.stride[0], along :: where.stride[1]][:, : shape.out_h, : shape.out_w]
                for group in range(where.groups):
                    channels, filters = (slice(group * each, (group + 1) * each) for each in (depth, share))
                    y[..., filters] += seen[..., channels] @ w[filters, :, row, column].T
        last = {name: np.transpose(given, places) if np.ndim(given) == 4 else given for name, given in operands.items()}
        return np.ascontiguousarray(self.epilogue.reference(y, **last).transpose(np.argsort(places)))
