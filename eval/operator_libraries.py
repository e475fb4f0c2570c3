"""The operators whose libraries the evaluation compiles, by the names that `eval.bench` knows them by."""

import importlib
from typing import Any

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemm": ("Gemm", {}),
    "bfloat16": ("Gemm", {"dtype": "bfloat16"}),
    "float16": ("Gemm", {"dtype": "float16"}),
    "int8": ("Gemm", {"dtype": "int8"}),
    "bias_gelu": ("Gemm", {}),
    "weights": ("Gemm", {}),
    "batch": ("BatchGemm", {}),
    "grouped": ("GroupedGemm", {}),
    "conv2d": ("Conv2d", {"layout": "nhwc"}),
    "reduce": ("Reduce", {}),
}
"""Class and settings of each; the epilogue of `bias_gelu` and the int4 of `weights` are added when it is made."""
NAMES = tuple(VARIANTS)
DTYPES = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "int8": "int8",
    "tf32": "tfloat32",
}
"""The operand types of a command line, as operators call them."""
GROUP = 128
"""Of the quantized weights: how many along k share a scale."""


def operator_named(name: str, dtype: str | None = None) -> Any:
    """The operator of one of NAMES, in one of DTYPES instead of its own where `dtype` is given.

    Raises the operator's own error where it has no such type.
    """
    operators: Any = importlib.import_module("vortex.operators")
    kind, fixed = VARIANTS[name]
    settings = dict(fixed)
    if name == "bias_gelu":
        settings["epilogue"] = operators.bias() >> operators.gelu()
    if name == "weights":
        settings["weights"] = operators.Weights("int4", group=GROUP)
    if dtype is not None:
        settings["dtype"] = DTYPES[dtype]
    return getattr(operators, kind)(**settings)


def names_for(hw: str) -> tuple[str, ...]:
    """Those of NAMES whose operands `hw` has an instruction for: cores without VNNI have none for int8."""
    specs: Any = importlib.import_module("vortex.specs")
    errors: Any = importlib.import_module("vortex.errors")
    spec = specs.load_spec(hw)

    def multiplied(name: str) -> bool:
        try:
            spec.multiplier(operator_named(name).dtype)
        except errors.NoInstructionError:
            return False
        return True

    return tuple(name for name in NAMES if multiplied(name))
