"""Shapes on the command line: which extents an operator takes, and what its callable makes of them."""

from __future__ import annotations

from typing import Any

import typer

EXTENTS = {
    "gemm": ("M,N,K", "105,1024,12544"),
    "batch_gemm": ("BATCH,M,N,K", "192,128,128,64"),
    "conv2d": ("BATCH,H,W,CHANNELS,FILTERS,KH,KW", "1,56,56,64,128,3,3"),
    "reduce": ("OUTER,DEPTH,INNER", "512,768,1"),
}
"""The extents of a call in the order of --shape, by operator, and an example."""
PRODUCTS = ("gemm", "batch_gemm")
TAKEN = {
    "transpose_a": PRODUCTS,
    "transpose_b": PRODUCTS,
    "packed": PRODUCTS,
    "stride": ("conv2d",),
    "padding": ("conv2d",),
    "dilation": ("conv2d",),
    "groups": ("conv2d",),
}
"""Options that say something about some operators alone."""


def read_extents(text: str, operator: str) -> tuple[int, ...]:
    """The numbers of --shape, between commas or crosses; typer.BadParameter where they are not those of a call."""
    parts, (names, example) = text.lower().replace("x", ",").split(","), EXTENTS[operator]
    if len(parts) != names.count(",") + 1 or not all(part.strip().isdigit() for part in parts):
        raise typer.BadParameter(f"{text!r}; expected {names}, such as {example}", param_hint="--shape")
    return tuple(int(part) for part in parts)


def read_options(operator: str, given: dict[str, Any]) -> dict[str, Any]:
    """Options that the operator takes, given or not; typer.BadParameter where another one is given."""
    for name, value in given.items():
        wanted = TAKEN[name]
        if value is not None and value is not False and operator not in wanted:
            hint = "--" + name.replace("_", "-")
            raise typer.BadParameter(f"{operator} takes none; {' and '.join(wanted)} do", param_hint=hint)
    return {name: value for name, value in given.items() if operator in TAKEN[name] and value is not None}


def call_arguments(operator: str, extents: tuple[int, ...], groups: int | None) -> tuple[Any, ...]:
    """What `explain` of a callable takes before its keywords: of a convolution the shapes of x and w, of a reduction
    that of x and the axis."""
    if operator == "reduce":
        return extents, 1
    if operator != "conv2d":
        return extents
    batch, height, width, channels, filters, *kernel = extents
    if channels % (groups or 1):
        raise typer.BadParameter(f"{channels} channels are no multiple of {groups}", param_hint="--groups")
    return (batch, height, width, channels), (filters, channels // (groups or 1), *kernel)
