"""Load stage of A in words with a prologue: the steps on elements as float32, which become words again.

Words of one element are float32 already, widened by the load stage. Of two bfloat16 each is widened, and rounded to the
nearest again, ties to even. Past the end of k, zeros may become anything that is finite: they meet zeros of B.
"""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T

from vortex.codegen.cpu_finish import Statements
from vortex.codegen.cpu_store import SLOTS, apply, narrowed
from vortex.dtypes import WordFormat
from vortex.epilogue import Epilogue

HALF = 16
"""Bits of the elements that share a word."""


class Begin:
    """Statements in TVMScript that take vectors of words through a chain; without any, there are none."""

    def __init__(self, chain: Epilogue, words: WordFormat, lanes: int) -> None:
        assert not chain or words.widened or (words.element, words.per_word) == ("bfloat16", 2), words
        self.chain, self.words, self.lanes = chain, words, lanes

    def allocate(self) -> None:
        """Room for intermediates."""
        if self.chain:
            room = T.sblock_alloc_buffer((SLOTS * self.lanes,), "float32", scope="local")
            self.vectors = Statements(self.lanes, room)

    def begun(self, found: Any) -> Any:
        """The words that `found` become."""
        if not self.chain:
            return found
        vectors = self.vectors
        vectors.used = 0
        if self.words.widened:
            return vectors.bits(self._done(vectors.bits(found, "float32")), "int32")
        kept = vectors.bits(vectors.keep(vectors.bits(found, "float32")), "uint32")
        half = vectors.of(HALF, "uint32")
        low = vectors.bits(self._rounded(kept << half), "float32")
        vectors.used = 1  # the words; what the low halves are made from is read before their slot is written
        low = vectors.bits(vectors.keep(low), "uint32")
        high = self._rounded(kept & vectors.of(0xFFFF0000, "uint32"))
        return vectors.bits(low | (high << half), "int32")

    def _rounded(self, high: Any) -> Any:
        """The low half of every word: what becomes of the bfloat16 in the high half."""
        value = self._done(self.vectors.bits(high, "float32"))
        return T.Cast(f"uint32x{self.lanes}", narrowed(self.vectors, value, "bfloat16"))

    def _done(self, value: Any) -> Any:
        return apply(self.vectors, self.chain, value, {})
