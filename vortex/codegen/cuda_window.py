"""The load stage of a convolution: an element of A is the input under a tap of the filter, or a zero beside it.

A row of A is an output pixel, a column of it a tap and a channel, channels last; no such matrix is in memory. A
kernel's own text stays as it is: the functions that copy A ask for the pixel and the tap in place of a row and a
column. Quotients are products with reciprocals that the door computes: a division of integers is some twenty
instructions.
"""

from __future__ import annotations

import re
from dataclasses import replace

from vortex.codegen.cuda_lower import KernelSource
from vortex.codegen.cuda_text import arguments
from vortex.errors import CodegenError

FUNCTIONS = r"""
/* x / by as x * times >> shift, for 0 <= x < 2^31. */
struct divisor { unsigned times; int by, shift; };
struct window {
  long long image, row, column; /* elements between images, rows and columns of the input */
  int height, width, stride[2], before[2], dilation[2]; /* `before`: zeros above and left of it */
  divisor pixels, columns, channels, taps; /* of an image of C; of a row of it; of a tap; of a row of the filter */
};
VORTEX_DEVICE int quotient(const divisor& d, int x) {
  return (int)((unsigned long long)(unsigned)x * d.times >> d.shift);
}
struct seen { long long offset; bool inside; };
VORTEX_DEVICE seen seen_at(const window& w, int pixel, int k) {
  int image = quotient(w.pixels, pixel), rest = pixel - image * w.pixels.by, down = quotient(w.columns, rest);
  int tap = quotient(w.channels, k), tall = quotient(w.taps, tap);
  int y = down * w.stride[0] - w.before[0] + tall * w.dilation[0];
  int x = (rest - down * w.columns.by) * w.stride[1] - w.before[1] + (tap - tall * w.taps.by) * w.dilation[1];
  bool inside = (unsigned)y < (unsigned)w.height && (unsigned)x < (unsigned)w.width;
  return {image * w.image + y * w.row + x * w.column + (k - tap * w.channels.by), inside};
}
#define VORTEX_SEEN(name) \
  template <class T> \
  VORTEX_DEVICE void seen_##name(void* to, const T* x, const window& w, int pixel, int k, bool inside) { \
    seen at = seen_at(w, pixel, k); \
    name(to, x + at.offset, inside && at.inside); \
  }
VORTEX_SEEN(copy_2)
VORTEX_SEEN(copy_4)
VORTEX_SEEN(copy_8)
VORTEX_SEEN(copy_16)
VORTEX_SEEN(cp_async_4)
VORTEX_SEEN(cp_async_8)
VORTEX_SEEN(cp_async_16)
"""
COPIES = re.compile(r"\b((?:cp_async|copy)_\d+)\(")
ELEMENT = "((void*)at(A, "


def windowed(kernel: KernelSource) -> KernelSource:
    """A kernel that reads A from the input of a convolution."""
    parts, end, count = [], 0, 0
    for match in COPIES.finditer(kernel.source):
        given, close = arguments(kernel.source, match.end() - 1)
        if len(given) == 3 and given[1].startswith(ELEMENT):
            (_, row, _, column), _ = arguments(given[1], len(ELEMENT) - len("(A, "))
            call = f"seen_{match[1]}({given[0]}, A, input, {row}, {column}, {given[2]})"
            parts += [kernel.source[end : match.start()], call]
            end, count = close, count + 1
    text = "".join([*parts, kernel.source[end:]])
    if not count or ELEMENT in text:
        raise CodegenError(f"{kernel.symbol}: A is read in a way that no filter could walk over its input")
    text = re.sub(
        r'(extern "C" __global__ void[^{]*)\) \{', r"\1, const __grid_constant__ window input) {", text, count=1
    )
    return replace(kernel, source=text, args=(*kernel.args, "&window"))
