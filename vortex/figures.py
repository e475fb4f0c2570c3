"""How one figure of a hardware spec is written: units, plausible ranges, and how a refused one is told.

A refusal says where, what was given, what was expected and what to do, for every problem of a file at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, StringConstraints, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from vortex.errors import SpecError


def refusal(given: object, expected: str, remedy: str) -> PydanticCustomError:
    """One refused figure, with what was given, what was expected, and what to do."""
    context = {"given": str(given), "expected": expected, "remedy": remedy}
    return PydanticCustomError("figure", "given {given}; expected {expected}; {remedy}", context)


@dataclass(frozen=True)
class Quantity:
    """An integer in a base SI unit; the plausible range catches figures written in another unit."""

    unit: str
    least: int
    most: int
    remedy: str
    or_zero: bool = False
    """Zero is admitted too, and says that there is no such figure."""

    def __str__(self) -> str:
        kind = f"an integer in {self.unit}" if self.unit else "a whole number"
        return f"{kind} between {self.least:_} and {self.most:_}" + (", or 0 for none" if self.or_zero else "")

    def check(self, value: Any) -> int:
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not (self.least <= value <= self.most or (self.or_zero and value == 0)):
            raise refusal(repr(value), str(self), self.remedy)
        return int(value)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.check, serialization=core_schema.plain_serializer_function_ser_schema(int)
        )


Count = Annotated[int, Quantity("", 1, 65_536, "count whole things, at least one")]
CacheCount = Annotated[int, Quantity("", 1, 2**26, "count whole things, at least one", or_zero=True)]
Cycles = Annotated[int, Quantity("clock cycles", 1, 100, "give cycles, not nanoseconds")]
Hertz = Annotated[int, Quantity("Hz", 10**8, 10**10, "write out the hertz: 2.5 GHz is 2_500_000_000")]
Flops = Annotated[int, Quantity("flop/s", 10**9, 10**18, "write out the flop/s: 287 GFLOP/s is 287_000_000_000")]
CacheBytes = Annotated[
    int, Quantity("bytes", 1024, 2**40, "write out the bytes: 48 KiB is 49_152, 32 MiB is 33_554_432", or_zero=True)
]
LineBytes = Annotated[int, Quantity("bytes", 16, 1024, "give the bytes of one cache line, usually 64", or_zero=True)]
BytesPerSecond = Annotated[
    int, Quantity("bytes/s", 10**8, 10**16, "write out the bytes per second: 43 GB/s is 43_000_000_000")
]
Nanoseconds = Annotated[int, Quantity("ns", 10, 10**7, "give nanoseconds: 1.5 us is 1_500")]
Fraction = Annotated[float, Field(ge=0.0, le=1.0, strict=True)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class Figures(BaseModel):
    """A table of a spec: frozen, no unknown fields, refused with `SpecError`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise SpecError(readable(type(self), error, type(self).__name__, data)) from error

    # Pydantic then validates nested tables itself, so that every problem of a file is told at once with its path.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


def nearest(word: str, known: list[str]) -> str:
    return difflib.get_close_matches(word, known, n=1, cutoff=0.0)[0]


def _fields(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """The field names that are known where `path` ends."""
    for key in path:
        if isinstance(key, str):
            inner = get_args(model.model_fields[key].annotation)[0]  # tuple[Memory, ...] -> Memory
            model = inner if isinstance(inner, type) and issubclass(inner, BaseModel) else model
    return list(model.model_fields)


def _place(problem: ErrorDetails, data: Mapping[str, Any]) -> str:
    """Where a problem is, tables by their name: `memories.l2.ways` and not `memories.1.ways`."""
    words: list[str] = []
    at: Any = data
    for key in problem["loc"]:
        try:
            at = at[key]
        except (KeyError, IndexError, TypeError):
            at = None
        named = isinstance(key, int) and isinstance(at, Mapping) and isinstance(at.get("name"), str)
        words.append(str(at["name"] if named else key))
    return ".".join(words)


def readable(model: type[BaseModel], error: ValidationError, source: str, data: Mapping[str, Any]) -> str:
    """Every problem of a file: where, what was given, what was expected, what to do."""
    texts = []
    for problem in error.errors(include_url=False):
        kind, path, context = problem["type"], problem["loc"], problem.get("ctx", {})
        known = _fields(model, path[:-1])
        given, expected, remedy = repr(problem["input"]), problem["msg"], "mend the figure (see docs/hardware-spec.md)"
        if kind == "figure":
            given, expected, remedy = (str(context[key]) for key in ("given", "expected", "remedy"))
        elif kind == "extra_forbidden":
            given, expected = f"an unknown field {path[-1]!r}", f"one of {', '.join(known)}"
            remedy = f"did you mean {nearest(str(path[-1]), known)!r}?"
        elif kind == "missing":
            given, expected, remedy = "nothing", f"the field {path[-1]!r}", "add it, with its source in a comment"
        place = f"{source}: {_place(problem, data)}".removesuffix(": ")
        texts.append(f"{place}\n  given:    {given}\n  expected: {expected}\n  remedy:   {remedy}")
    return "\n".join(texts)
