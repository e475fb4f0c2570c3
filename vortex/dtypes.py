"""Element types of operands: their names and sizes."""

from dataclasses import dataclass

ITEM_BYTES = {"float32": 4, "tfloat32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
"""Bytes of an element in memory. tfloat32 is float32 in memory and rounded to 10 bits of fraction by the multiplier."""


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
    """Registers that a broadcast word, and what it is made from, pass through: measured, see docs/performance.md."""

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.element]

    @property
    def stored(self) -> str:
        """The integer type that carries an element where the compiler has no name for it."""
        return f"uint{8 * self.item_bytes}"

    @property
    def widened(self) -> bool:
        return self.per_word == 1

    @property
    def name(self) -> str:
        return f"{self.element} widened" if self.widened else self.element


FORMATS = (
    WordFormat("bfloat16", 2, "float32", 4),
    WordFormat("int8", 4, "int32", 5),
    WordFormat("bfloat16", 1, "float32", 1),
    WordFormat("float16", 1, "float32", 1),
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
