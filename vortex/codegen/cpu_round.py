"""float32 to bfloat16 by the instruction that processors with dot products of bfloat16 have.

It rounds to nearest, ties to even, in place of eight instructions, and takes denormal numbers for zero, as the dot
products do whose sums it is for; what scales or steps of an epilogue made of them may be denormal.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from vortex.dtypes import WordFormat
from vortex.epilogue import Store
from vortex.steps import Cast

SYMBOL = "vortex_round_bf16"
TEXT = """
declare <{lanes} x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.{bits}(<{lanes} x float>)
define weak_odr hidden <{lanes} x i16> @{symbol}_{lanes}(<{lanes} x float> %x) #9 {{
  %rounded = call <{lanes} x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.{bits}(<{lanes} x float> %x)
  %result = bitcast <{lanes} x bfloat> %rounded to <{lanes} x i16>
  ret <{lanes} x i16> %result
}}
attributes #9 = {{ alwaysinline nounwind willreturn memory(none) }}
"""
"""TVM cannot name LLVM's bfloat."""


def rounds_bare_sums(store: Store, words: WordFormat | None) -> bool:
    """Whether a store stage does no more than round sums of dot products of bfloat16 to bfloat16."""
    by_dots = words is not None and words.element == "bfloat16" and words.per_word > 1 and not words.weights
    return by_dots and store.out == "bfloat16" and all(isinstance(step, Cast) for step in store.chain.steps)


def rounding_ir(lanes: int) -> str:
    """LLVM text of what `rounded` calls."""
    return TEXT.format(lanes=lanes, bits=32 * lanes, symbol=SYMBOL)


def rounded(sums: Any, lanes: int) -> Any:
    """The bfloat16 nearest to each of some sums, as integers."""
    return tirx.call_pure_extern(f"uint16x{lanes}", f"{SYMBOL}_{lanes}", sums)
