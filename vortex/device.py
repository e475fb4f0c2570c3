"""Run emitted code on the CPU at hand and time it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

from vortex.affinity import request_tiles
from vortex.codegen.cpu import measuring_table
from vortex.codegen.cpu_steps import NARROW
from vortex.codegen.cpu_tile import QUADS
from vortex.codegen.cpu_words_objects import word_measuring_table
from vortex.codegen.link import RUNTIME, link
from vortex.dtypes import WordFormat
from vortex.errors import DeviceError


class Meter:
    """Emitted micro-kernels and load stages, linked with the measuring loops; times are seconds of single calls."""

    def __init__(
        self,
        objects: Sequence[Path],
        shapes: Sequence[tuple[int, int]],
        lanes: int,
        folder: Path,
        words: WordFormat | None = None,
    ) -> None:
        """`shapes`: rows and vectors of the micro-kernels."""
        table, path = folder / "measuring_table.c", folder / "meter.so"
        table.write_text(word_measuring_table(words, lanes) if words else measuring_table(shapes, lanes))
        if words and words.tiles:
            request_tiles()
        link(path, objects, [table, RUNTIME / "measure.c", RUNTIME / "threads.c"])
        self._library = ctypes.CDLL(str(path))
        self.quads: bool | None = None if words or lanes <= NARROW else False

    def _times(self, function: str, repetitions: int, *arguments: int) -> list[float]:
        times = (ctypes.c_double * repetitions)()
        values = [ctypes.c_int64(value) if place else ctypes.c_int32(value) for place, value in enumerate(arguments)]
        if getattr(self._library, function)(*values, ctypes.c_int64(repetitions), times):
            raise DeviceError(f"out of memory in {function}{arguments}; free some memory and compile again")
        return list(times)

    def micro_kernel(
        self, layout: int, rows: int, vectors: int, depth: int, calls: int, repetitions: int
    ) -> list[float]:
        """Seconds per call with operands in the innermost cache; of those that can, as they are with `quads` or not."""
        return self._times("vx_time_l0", repetitions, layout, rows, vectors, depth, QUADS * bool(self.quads), calls)

    def multiply_add(self, repetitions: int) -> list[float]:
        """Seconds of one multiply-add of a vector, on registers alone: the peak of a core at its clock."""
        return self._times("vx_time_multiply_add", repetitions)

    def load_stage(self, stage: int, rows: int, width: int, stride: int, repetitions: int) -> list[float]:
        """Seconds per element; stage 0 copies, 1 transposes."""
        return self._times("vx_time_load", repetitions, stage, rows, width, stride)

    def hand_off(self, threads: int, repetitions: int) -> list[float]:
        """Seconds to hand one task to each of `threads` threads that wait for it, and to learn that all are done."""
        return self._times("vx_time_parallel", repetitions, threads)
