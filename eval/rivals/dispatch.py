"""From votes to a dispatcher: a scikit-learn decision tree over (m, n, k), exported as C."""

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eval.rivals.space import MicroKernel

Shape = tuple[int, int, int]
AXES = "mnk"


@dataclass(frozen=True)
class Tree:
    """Shapes in, the index of a micro-kernel out."""

    kernels: tuple[MicroKernel, ...]
    source: str
    """The same tree as a C function `dispatch(m, n, k)`."""
    model: Any
    """A `DecisionTreeClassifier` of scikit-learn."""

    def choose(self, m: int, n: int, k: int) -> MicroKernel:
        return self.choose_all([(m, n, k)])[0]

    def choose_all(self, shapes: Sequence[Shape]) -> list[MicroKernel]:
        return [self.kernels[int(label)] for label in self.model.predict(np.array(shapes, float))]


def train(shapes: Sequence[Shape], votes: Sequence[MicroKernel]) -> Tree:
    """A tree that gives each sampled shape the micro-kernel it voted for, and any other one that of a neighbour."""
    from sklearn.tree import DecisionTreeClassifier  # pages and lists of cases do without

    kernels = tuple(dict.fromkeys(votes))
    labels = [kernels.index(vote) for vote in votes]
    model = DecisionTreeClassifier(random_state=0).fit(np.array(shapes, float), labels)
    return Tree(kernels, exported(model), model)


def exported(model: Any) -> str:
    """The tree as nested conditions in C."""
    tree, classes = model.tree_, model.classes_

    def node(at: int, depth: int) -> list[str]:
        pad = "  " * depth
        if tree.children_left[at] < 0:
            return [f"{pad}return {int(classes[int(np.argmax(tree.value[at][0]))])};"]
        axis, edge = AXES[tree.feature[at]], float(tree.threshold[at])
        return [
            f"{pad}if ({axis} <= {edge!r}) {{",
            *node(int(tree.children_left[at]), depth + 1),
            f"{pad}}}",
            *node(int(tree.children_right[at]), depth),
        ]

    return "\n".join(["int dispatch(long m, long n, long k) {", *node(0, 1), "}", ""])


def compiled(source: str) -> Callable[[int, int, int], int]:
    """The exported function as machine code."""
    with tempfile.TemporaryDirectory(prefix="vortex-eval-") as folder:
        text, binary = Path(folder) / "dispatch.c", Path(folder) / "dispatch.so"
        text.write_text(source)
        command = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-o", str(binary), str(text)]
        subprocess.run(command, check=True)
        function = ctypes.CDLL(str(binary)).dispatch
    function.argtypes, function.restype = [ctypes.c_long] * 3, ctypes.c_int
    return lambda m, n, k: int(function(m, n, k))
