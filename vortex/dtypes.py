"""Element types of operands: their names and sizes."""

from dataclasses import dataclass
from typing import Any

from vortex.errors import DtypeError, ShapeError

ITEM_BYTES = {"float32": 4, "tfloat32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
"""Bytes of an element in memory. tfloat32 is float32 in memory and rounded to 10 bits of fraction by the multiplier."""
STORED_BYTES = ITEM_BYTES | {"uint8": 1, "int32": 4}
"""Of an element of an output."""


WEIGHT_BITS = {"int4": 4, "int8": 8}
"""What a weight may be kept in: signed integers."""
CHUNK = 256
"""Weights of a column without groups that dot products add up before they are multiplied by the scale."""
GROUPS = (0, 16, 32, 64, 128, 256)
"""Neighbours along k that may share a scale; 0 for a whole column."""


@dataclass(frozen=True)
class Weights:
    """How a B of quantized weights is kept: integers of `dtype`, a float32 scale for each `group` of them along k.

    B[i, j] stands for q[i, j] scales[i // group, j]; a group of 0 is the whole column. With `zeros` each group has a
    zero point beside its scale, int8, and B[i, j] stands for (q[i, j] - zeros[i // group, j]) scales[i // group, j].
    """

    dtype: str = "int4"
    group: int = 0
    zeros: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in WEIGHT_BITS:
            raise DtypeError(f"Weights({self.dtype!r}): expected one of {sorted(WEIGHT_BITS)}; quantize to one of them")
        if self.group not in GROUPS or isinstance(self.group, bool):
            raise ShapeError(f"Weights(group={self.group!r}): expected one of {GROUPS}, 0 for a scale of each column")

    @property
    def per_word(self) -> int:
        """Neighbours along k that share a 32-bit word of the packed operand."""
        return 32 // WEIGHT_BITS[self.dtype]

    @property
    def largest(self) -> int:
        return int(2 ** (WEIGHT_BITS[self.dtype] - 1)) - 1

    @property
    def bytes(self) -> float:
        """Of one weight and its share of what a group has; of what a whole column has nothing is counted."""
        return WEIGHT_BITS[self.dtype] / 8 + (4 * self.heads / self.group if self.group else 0.0)

    @property
    def heads(self) -> int:
        """Lines of a packed panel before the words of a group: its scales, then what becomes of its zero points."""
        return 1 + self.zeros

    def scales(self, k: int) -> int:
        """Rows of scales that k rows of weights have."""
        return -(-k // self.group) if self.group else 1

    def lines(self, k: int) -> int:
        """Lines of a packed panel."""
        return -(-k // self.per_word) + self.heads * self.scales(k)

    def quantize(self, b: Any, *, transpose: bool = False) -> tuple[Any, ...]:
        """(q, scales) of a float32 b[k, n] ([n, k] with `transpose`), or (q, scales, zeros), as they are packed.

        q is int8 of the shape of b, rounded to the nearest; scales are float32 [groups, n] ([n, groups]), such that the
        largest weight of a group is `largest` of them. With zero points, int8 of the shape of the scales, the range of
        q is that of a group and 0. Other rules (GPTQ, AWQ) may fill all of them as well.
        """
        import numpy as np

        b = np.asarray(b, np.float32)
        plain = b.T if transpose else b
        if plain.ndim != 2:
            raise ShapeError(f"b has shape {b.shape}; expected two dimensions; reshape it")
        q, scales = np.empty(plain.shape, np.int8), np.empty((self.scales(len(plain)), plain.shape[1]), np.float32)
        zeros = np.zeros(scales.shape, np.int8)
        for index in range(len(scales)):
            lines = slice(index * self.group, (index + 1) * self.group) if self.group else slice(None)
            low, high = plain[lines].min(axis=0, initial=0.0), plain[lines].max(axis=0, initial=0.0)
            least, count = -self.largest, self.largest
            if self.zeros:
                least, count = least - 1, 2 * self.largest + 1
            scales[index] = (high - low if self.zeros else np.maximum(-low, high)) / count
            step = np.where(scales[index] > 0, scales[index], np.float32(1))
            if self.zeros:
                zeros[index] = np.clip(np.rint(least - low / step), least, self.largest)
            q[lines] = np.clip(np.rint(plain[lines] / step) + zeros[index], least, self.largest)
        found = (q, scales, zeros) if self.zeros else (q, scales)
        return tuple(part.T.copy() for part in found) if transpose else found

    def dequantize(self, q: Any, scales: Any, zeros: Any = None, *, transpose: bool = False) -> Any:
        """The float32 that every weight stands for, bit by bit what a call multiplies; arguments as of `pack`."""
        import numpy as np

        along = 1 if transpose else 0
        count = q.shape[along]

        def spread(of_groups: Any) -> Any:
            wide = np.repeat(of_groups, self.group or max(count, 1), axis=along)
            return wide[:, :count] if transpose else wide[:count]

        whole = q.astype(np.float32)
        return (whole - spread(zeros.astype(np.float32)) if self.zeros else whole) * spread(scales)

    def settings(self) -> dict[str, str | int]:
        return {"dtype": self.dtype, "group": self.group, "zeros": self.zeros}

    def __str__(self) -> str:
        kept = f"{self.dtype} in {f'groups of {self.group}' if self.group else 'columns'}"
        return f"{kept} with zero points" if self.zeros else kept


@dataclass(frozen=True)
class WordFormat:
    """How elements narrower than 32 bits reach a CPU's multiplier: in 32-bit words, `per_word` neighbours along k each.

    A dot instruction multiplies the neighbours and adds them up. Without one for the element type, a word is one
    element that a load stage widened to float32.
    """

    element: str
    per_word: int
    accumulator: str
    in_flight: int
    """Registers that a broadcast word, and what it is made from, pass through: measured, see docs/performance.md. Of
    tiles, the two that the other operand passes through: its last tile has a size of its own."""
    weights: Weights | None = None
    """Of a B that is widened in L0: it is packed beforehand, and k counts elements."""
    tiles: bool = False
    """Multiplied in tiles of 16 rows, by AMX: A and B lie as for the dot instructions."""

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.element]

    @property
    def stored(self) -> str:
        """The integer type that carries an element where the compiler has no name for it."""
        return f"uint{8 * self.item_bytes}"

    @property
    def widened(self) -> bool:
        return self.per_word == 1 and self.element != "float32"

    @property
    def held(self) -> bool:
        """Whether the held family has kernels of it: words of A are read as they lie, and sums begin at zero."""
        return self.per_word > 1 and self.accumulator == "float32" and not (self.tiles or self.weights)

    def lines(self, k: int) -> int:
        """Lines of a packed panel of B."""
        return self.weights.lines(k) if self.weights else -(-k // (self.per_word * self.whole)) * self.whole + 1

    @property
    def whole(self) -> int:
        """Words of k that a panel of B has a multiple of, with zeros past its end: those of a tile."""
        return 16 if self.tiles else 1

    @property
    def step(self) -> int:
        """Words of k that a cut of k is a multiple of: those of a group of weights, or of a sum that gets its scale."""
        if not self.weights:
            return 1
        chunk = CHUNK if self.per_word > 1 else 1
        return max(1, (self.weights.group or chunk) // self.per_word)

    @property
    def name(self) -> str:
        own = self.element + (" widened" if self.widened else " tiles" if self.tiles else "")
        return f"{own} by {self.weights}" if self.weights else own


FORMATS = (
    WordFormat("bfloat16", 2, "float32", 4),
    WordFormat("int8", 4, "int32", 5),
    WordFormat("bfloat16", 1, "float32", 1),
    WordFormat("float16", 1, "float32", 1),
    WordFormat("bfloat16", 2, "float32", 2, tiles=True),
    WordFormat("int8", 4, "int32", 2, tiles=True),
    *(
        WordFormat(element, per_word, "float32", in_flight, Weights(dtype, group, zeros))
        for element, per_word, in_flight in (
            ("float32", 1, 3),
            ("bfloat16", 2, 5),
            ("bfloat16", 1, 3),
            ("float16", 1, 3),
        )
        for dtype in WEIGHT_BITS
        for group in GROUPS
        for zeros in (False, True)
    ),
)
WORDS = {words.name: words for words in FORMATS}
SUMS = {"int8": "int32"}
"""What products are added up in, where not in float32."""
SOUGHT = {
    "bfloat16": "vdpbf16ps of AVX512_BF16",
    "int8": "vpdpbusd of AVX512_VNNI",
    "float32": "vfmadd231ps of FMA or AVX-512",
}
"""What an instruction for a dtype is called."""
