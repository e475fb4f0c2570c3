"""The artifact of a GPU as plain data: manifest, selector and door for the host, cubins and PTX for the device.

One `.vortex` file, like a CPU library: a zip whose comment has the manifest's hash, whose manifest has all others. No
TVM, no Pydantic, no driver. The hashes tell a damaged file from a whole one; they are no signature.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vortex.candidates import Admitted, Tile
from vortex.errors import LibraryError
from vortex.gpu_candidates import Backend, BlockStrategy, Variant

FORMAT = 3
KIND = "gpu"
MANIFEST, DOOR = "manifest.json", "door.so"
COMPILED, WITHOUT_SPILLS = "Variants", "FilterBySpills"
"""What `admitted` calls kernels that were compiled, of each backend, and those of all that ptxas held in registers."""
ELF, CUDA_MACHINE = b"\x7fELF", 190
UNREADABLE = (zipfile.BadZipFile, zlib.error, struct.error, KeyError, ValueError, OSError, EOFError, RuntimeError)
"""All that a damaged archive makes zipfile raise; RuntimeError of flags that say encrypted or unknown compression."""


@dataclass(frozen=True)
class Entry:
    """One symbol of the device code, and how it is launched."""

    symbol: str
    file: str
    """The cubin; its PTX has the same name and the ending `.ptx`."""
    args: tuple[str, ...]
    """Names of its parameters in order: `*A`, `M`, `@A`, ..."""
    block: tuple[int, int, int]
    shared_bytes: int
    """Dynamic shared memory."""
    registers: int
    stack: int
    spills: int


@dataclass(frozen=True)
class Kernel:
    """What the selector chooses: a variant, and the entries that run it."""

    variant: Variant
    direct: int
    """Entry that writes C."""
    split: int
    """Entry that writes partial sums to the workspace; -1 if the reduction is never split."""
    box_a: tuple[int, int] = (0, 0)
    box_b: tuple[int, int] = (0, 0)
    """Boxes of the TMA descriptors, contiguous extent first; zeros where there are none."""


@dataclass(frozen=True)
class GpuManifest:
    """What a library was built from and what its selector knows."""

    operator: str
    settings: dict[str, Any]
    """The operator's fields: `operators.rebuilt` makes it again."""
    dtype: str
    hardware: dict[str, Any]
    arch: str
    """Of the machine code, such as sm_80."""
    ptx: str
    """Virtual architecture of the PTX, such as compute_80; empty where the library carries none."""
    basis: str
    """`measured`, `replayed` or `computed`: what predicted times rest on."""
    admitted: tuple[Admitted, ...]
    kernels: tuple[Kernel, ...]
    entries: tuple[Entry, ...]
    reduce: int
    """The entry that adds partial sums up, -1 if no kernel splits."""
    reduce_columns: int
    """Elements of C that one block of it makes."""
    is_wide: bool
    """Whether kernels address operands of more than 2^31 elements."""
    workspace_bytes: int
    """Device memory that a call may use for partial sums, per stream."""
    selector: dict[str, Any]
    """Figures of the cost model, for the selector's mirror in Python."""
    versions: dict[str, str]
    offline_seconds: dict[str, float]

    @property
    def spilled(self) -> int:
        """Variants that were compiled and left out, because ptxas could not hold them in registers."""
        counts = {name: sum(r.count for r in self.admitted if r.filter == name) for name in (COMPILED, WITHOUT_SPILLS)}
        return counts[COMPILED] - counts[WITHOUT_SPILLS]

    def to_json(self, hashes: Mapping[str, str]) -> str:
        return json.dumps({"format": FORMAT, "kind": KIND, "files": dict(hashes), **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> tuple[GpuManifest, dict[str, str]]:
        """The manifest, and the hash of every other part."""
        data = json.loads(text)
        found, kind = data.pop("format", None), data.pop("kind", None)
        if (found, kind) != (FORMAT, KIND):
            raise LibraryError(
                f"the library has format {found!r} of kind {kind!r}, this vortex reads {FORMAT} of kind {KIND!r}; "
                "compile it again"
            )
        hashes = data.pop("files")
        data["admitted"] = tuple(Admitted(**row) for row in data["admitted"])
        data["kernels"] = tuple(_kernel(row) for row in data["kernels"])
        data["entries"] = tuple(
            Entry(**{**row, "args": tuple(row["args"]), "block": tuple(row["block"])}) for row in data["entries"]
        )
        return cls(**data), hashes


def _kernel(row: dict[str, Any]) -> Kernel:
    variant = row["variant"]
    strategy = dict(variant["strategy"])
    strategy["backend"] = Backend(strategy["backend"])
    strategy |= {name: Tile(**strategy[name]) for name in ("l0", "l1", "thread")}
    built = Variant(**{**variant, "strategy": BlockStrategy(**strategy)})
    return Kernel(built, row["direct"], row["split"], tuple(row["box_a"]), tuple(row["box_b"]))


@dataclass(frozen=True)
class GpuLibrary:
    """A manifest and what it describes: `door.so`, cubins, PTX."""

    manifest: GpuManifest
    parts: dict[str, bytes]

    @property
    def identity(self) -> str:
        """A hash of the device code."""
        whole = hashlib.sha256()
        for name in sorted(self.parts):
            whole.update(self.parts[name])
        return whole.hexdigest()

    @property
    def cubins(self) -> tuple[str, ...]:
        return tuple(sorted({entry.file for entry in self.manifest.entries}))

    def images(self, jit: bool) -> dict[str, bytes]:
        """What the driver is given under each cubin's name: machine code, or PTX for it to translate."""
        return {name: self.parts[ptx_name(name) if jit else name] for name in self.cubins}


def ptx_name(cubin: str) -> str:
    return f"{cubin.removesuffix('.cubin')}.ptx"


def write(library: GpuLibrary, path: Path) -> None:
    """Write the file in one step: a reader sees the old file or the new one, never half of it."""
    manifest = library.manifest.to_json({name: _hash(content) for name, content in library.parts.items()})
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with (
            os.fdopen(handle, "wb") as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as zipped,
        ):
            zipped.comment = json.dumps({MANIFEST: _hash(manifest.encode())}).encode()
            zipped.writestr(MANIFEST, manifest)
            for part, content in sorted(library.parts.items()):
                zipped.writestr(part, content)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read(path: Path) -> GpuLibrary:
    """Read and verify a `.vortex` file; LibraryError when it is missing, truncated, altered or contradicts itself."""
    if not path.is_file():
        raise LibraryError(f"{path}: no such file; expected a library written by `vortex compile` or `save`")
    try:
        with zipfile.ZipFile(path) as zipped:
            hashes = json.loads(zipped.comment)
            parts = {name: zipped.read(name) for name in zipped.namelist()}
        text = parts.pop(MANIFEST)
    except UNREADABLE as error:
        raise LibraryError(f"{path}: not a vortex library, or a truncated one ({error}); compile it again") from error
    _compare(path, MANIFEST, text, hashes)
    try:
        manifest, hashes = GpuManifest.from_json(text.decode())
    except (KeyError, TypeError, ValueError) as error:
        raise LibraryError(f"{path}: the manifest cannot be read ({error}); compile it again") from error
    if set(parts) != set(hashes):
        raise LibraryError(f"{path}: holds {sorted(parts)}, the manifest lists {sorted(hashes)}; compile it again")
    for name, content in parts.items():
        _compare(path, name, content, hashes)
    library = GpuLibrary(manifest, parts)
    verify(library, str(path))
    return library


def verify(library: GpuLibrary, place: str) -> None:
    """Refuse a manifest that its device code does not bear out: files, symbols, references from kernel to entry."""
    manifest, parts = library.manifest, library.parts
    wanted = {DOOR, *library.cubins, *(map(ptx_name, library.cubins) if manifest.ptx else ())}
    if missing := sorted(wanted - set(parts)):
        raise LibraryError(f"{place}: the manifest names {missing}, which the file does not hold; compile it again")
    symbols = {name: cubin_symbols(parts[name], f"{place}: {name}") for name in library.cubins}
    for name in library.cubins:
        if (found := cubin_arch(parts[name])) not in (None, manifest.arch.rstrip("af")):
            raise LibraryError(f"{place}: {name} is for {found}, the manifest says {manifest.arch}; compile it again")
    for entry in manifest.entries:
        if entry.symbol not in symbols[entry.file]:
            raise LibraryError(
                f"{place}: the manifest names the kernel {entry.symbol}, {entry.file} has none; compile it again"
            )
        _fitting(entry, manifest, place)
    used = [index for kernel in manifest.kernels for index in (kernel.direct, max(kernel.split, 0))]
    splits = any(kernel.split >= 0 for kernel in manifest.kernels)
    finishes = any("&C" in entry.args for entry in manifest.entries)  # sums of nothing, too
    if (
        (splits or finishes) != (manifest.reduce >= 0)
        or max([manifest.reduce, *used]) >= len(manifest.entries)
        or min(used, default=0) < 0
    ):
        raise LibraryError(f"{place}: kernels and entries of the manifest do not match; compile it again")


def _fitting(entry: Entry, manifest: GpuManifest, place: str) -> None:
    """Refuse a kernel that a library must not hold: spills and a stack are slow, and too much shared memory fails."""
    if entry.spills or entry.stack:
        raise LibraryError(
            f"{place}: {entry.symbol} has {entry.spills} bytes of spills and {entry.stack} of stack, and kernels of a "
            "library have none; compile it again"
        )
    most = manifest.hardware["shared_per_block_bytes"]
    if entry.shared_bytes > most:
        raise LibraryError(
            f"{place}: {entry.symbol} takes {entry.shared_bytes} bytes of shared memory, a block of "
            f"{manifest.hardware['name']} has {most}; compile it again"
        )


def cubin_symbols(image: bytes, place: str) -> frozenset[str]:
    """Names in a cubin's string tables. A cubin is a 64-bit ELF file for the machine 190."""
    try:
        if image[:4] != ELF or struct.unpack_from("<H", image, 18)[0] != CUDA_MACHINE:
            raise LibraryError(f"{place} is no machine code of an NVIDIA GPU; compile it again")
        offset, count = struct.unpack_from("<Q", image, 40)[0], struct.unpack_from("<H", image, 60)[0]
        names: set[str] = set()
        for index in range(count):
            kind, start, size = _section(image, offset + 64 * index)
            if kind == 3:  # SHT_STRTAB
                names.update(text.decode(errors="replace") for text in image[start : start + size].split(b"\0"))
    except struct.error as error:
        raise LibraryError(f"{place} is truncated machine code ({error}); compile it again") from error
    return frozenset(names)


def cubin_arch(image: bytes) -> str | None:
    """The architecture in a cubin's ELF flags; None for a version of that format other than CUDA 12's and 13's."""
    shift = {7: 0, 8: 8}.get(image[8])
    return None if shift is None else f"sm_{(struct.unpack_from('<I', image, 48)[0] >> shift) & 0xFF}"


def _section(image: bytes, at: int) -> tuple[int, int, int]:
    """Type, offset and size of an ELF section header."""
    return (
        struct.unpack_from("<I", image, at + 4)[0],
        struct.unpack_from("<Q", image, at + 24)[0],
        struct.unpack_from("<Q", image, at + 32)[0],
    )


def _compare(path: Path, name: str, content: bytes, hashes: Any) -> None:
    if not isinstance(hashes, dict) or hashes.get(name) != _hash(content):
        raise LibraryError(f"{path}: {name} was altered after it was written; compile it again")


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
