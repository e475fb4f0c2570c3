"""Element types of operands: their names and sizes."""

ITEM_BYTES = {"float32": 4, "tfloat32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of an element in memory. tfloat32 is float32 in memory and rounded to 10 bits of fraction by the multiplier."""
