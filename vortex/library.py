"""The artifact as plain data: one `.vortex` file, a zip of `manifest.json` and `library.so`. No TVM, no Pydantic.

Loading runs native code. The hashes tell a damaged file from a whole one; they are no signature, so load only files
you trust.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zipfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

import numpy as np

from vortex.candidates import Admitted, Stage, Strategy, Tile, dot_strategy
from vortex.dtypes import WORDS
from vortex.errors import LibraryError
from vortex.rates import Rates
from vortex.reduction_tiles import Family, Measured, ReduceTile

if TYPE_CHECKING:  # a call needs no mirror of the native selector: opening a library takes a fraction of a second
    from vortex.selector import Selector, Shortlists

FORMAT = 20
MANIFEST, BINARY = "manifest.json", "library.so"


@dataclass(frozen=True)
class Manifest:
    """What a library was built from and what its selector knows. Times in seconds."""

    operator: str
    settings: dict[str, Any]
    """The operator's fields; `operators.rebuilt` makes it again."""
    dtype: str
    hardware: dict[str, Any]
    features: tuple[str, ...]
    basis: str
    """`measured`, `replayed` or `computed`: what the costs of L0 rest on."""
    profile: dict[str, Any]
    strategies: tuple[Strategy, ...]
    shortlists: Shortlists | None
    """Those that each kind of B is chosen from: `selector.Shortlists`."""
    admitted: tuple[Admitted, ...]
    rates: Rates
    slopes: tuple[tuple[float, ...], ...]
    lanes: int
    panel: int
    words: str
    """The name of the `dtypes.WordFormat` that operands are multiplied in; empty where they are float32."""
    versions: dict[str, str]
    offline_seconds: dict[str, float]
    invariant: str | None = None
    """`m` where a row has the same bits whatever m is."""
    reused: int = 0
    """Objects of earlier compilations in it: `offline_seconds` are without what emitting those took."""

    def selector(self) -> Selector:
        rates = replace(self.rates, cores=1.0) if self.invariant else self.rates
        return self._selector(self.strategies, rates, self.shortlists)

    def free_selector(self) -> Selector:
        """As if no invariance had been asked for: with dot products and split reductions."""
        dots = self.invariant and not self.words and not self.settings.get("prologue")
        free = (dot_strategy(round(self.rates.registers), self.lanes),) if dots else ()
        return self._selector((*self.strategies, *free), self.rates, None if free else self.shortlists)

    def _selector(self, strategies: tuple[Strategy, ...], rates: Rates, shortlists: Shortlists | None) -> Selector:
        from vortex.selector import Selector, SlopeTable

        table = SlopeTable(np.array(self.slopes, np.float32))
        return Selector(strategies, rates, table, self.lanes, self.panel, WORDS.get(self.words), shortlists)

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        data = _checked(text)
        data["features"] = tuple(data["features"])
        data["strategies"] = tuple(
            Strategy(Tile(**row["l0"]), Tile(**row["l1"]), Stage(**row["stage"])) for row in data["strategies"]
        )
        if data["shortlists"] is not None:
            data["shortlists"] = tuple(tuple(those) for those in data["shortlists"])
        data["admitted"] = tuple(Admitted(**row) for row in data["admitted"])
        data["rates"] = Rates(**data["rates"])
        data["slopes"] = tuple(tuple(row) for row in data["slopes"])
        return cls(**data)


@dataclass(frozen=True)
class ReduceManifest:
    """What a library of reductions was built from and what its choice rests on."""

    operator: str
    settings: dict[str, Any]
    dtype: str
    hardware: dict[str, Any]
    features: tuple[str, ...]
    basis: str
    strategies: tuple[Measured, ...]
    admitted: tuple[Admitted, ...]
    lanes: int
    versions: dict[str, str]
    offline_seconds: dict[str, float]

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1, default=lambda family: family.value)

    @classmethod
    def from_json(cls, text: str) -> ReduceManifest:
        data = _checked(text)
        data["features"] = tuple(data["features"])
        data["strategies"] = tuple(
            Measured(ReduceTile(Family(row["tile"].pop("family")), **row["tile"]), row["start_s"], row["slope_s"])
            for row in data["strategies"]
        )
        data["admitted"] = tuple(Admitted(**row) for row in data["admitted"])
        return cls(**data)


def _checked(text: str) -> dict[str, Any]:
    """The fields of a manifest of this format."""
    data: dict[str, Any] = json.loads(text)
    found = data.pop("format", None)
    if found != FORMAT:
        raise LibraryError(f"the library has format {found!r}, this vortex reads {FORMAT}; compile it again")
    return data


if TYPE_CHECKING:  # a library of a GPU is opened where typing_extensions is not
    from typing_extensions import TypeVar

    M = TypeVar("M", Manifest, ReduceManifest, default=Manifest)
else:
    from typing import TypeVar

    M = TypeVar("M", Manifest, ReduceManifest)


@dataclass(frozen=True)
class Library(Generic[M]):
    """A manifest and the machine code it describes."""

    manifest: M
    binary: bytes

    @property
    def identity(self) -> str:
        """A hash of the machine code: what a packed operand belongs to."""
        return hashlib.sha256(self.binary).hexdigest()


def write(library: Library[Any], path: Path) -> None:
    """Write the file in one step: a reader sees the old file or the new one, never half of it."""
    manifest = library.manifest.to_json()
    hashes = {MANIFEST: _hash(manifest.encode()), BINARY: _hash(library.binary)}
    made: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        made = Path(name)
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as archive:
            archive.comment = json.dumps(hashes).encode()
            archive.writestr(MANIFEST, manifest)
            archive.writestr(BINARY, library.binary)
        made.chmod(0o644)
        made.replace(path)
    except OSError as error:
        raise LibraryError(f"{path}: cannot be written ({error.strerror}); give a file in a folder of yours") from error
    finally:
        if made is not None:
            made.unlink(missing_ok=True)


def read(path: Path) -> Library[Any]:
    """Read and verify a `.vortex` file; LibraryError when it is missing, truncated, altered or something else."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "no such file"
        raise LibraryError(f"{path}: {what}; expected a library written by `vortex compile` or `save`")
    try:
        with zipfile.ZipFile(path) as archive:
            hashes = json.loads(archive.comment)
            parts = {name: archive.read(name) for name in (MANIFEST, BINARY)}
    except (zipfile.BadZipFile, KeyError, ValueError, OSError, EOFError, RuntimeError) as error:
        raise LibraryError(f"{path}: not a vortex library, or a truncated one ({error}); compile it again") from error
    for name, content in parts.items():
        if not isinstance(hashes, dict) or hashes.get(name) != _hash(content):
            raise LibraryError(f"{path}: {name} was altered after it was written; compile it again")
    try:
        text = parts[MANIFEST].decode()
        kind = MANIFESTS.get(json.loads(text).get("operator"), Manifest)
        return Library(kind.from_json(text), parts[BINARY])
    except (KeyError, TypeError, ValueError) as error:
        raise LibraryError(f"{path}: the manifest cannot be read ({error}); compile it again") from error


def is_gpu_library(path: Path) -> bool:
    """Whether a library file is one for GPUs; what cannot be read is left for the reader to refuse."""
    try:
        with zipfile.ZipFile(path) as archive:
            return BINARY not in archive.namelist() and MANIFEST in archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return False


MANIFESTS: dict[str, type[ReduceManifest]] = {"reduce": ReduceManifest}
"""By operator; all others have the manifest of a GEMM."""


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
