"""Launches captured from a stream of the CUDA driver, to be replayed without the host between them."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator

from vortex.cuda_driver import Driver
from vortex.errors import DeviceError

RELAXED = 2
"""Of `CUstreamCaptureMode`: what other threads do meanwhile, and memory that the driver wants, end no capture."""


@contextlib.contextmanager
def captured(driver: Driver, stream: ctypes.c_void_p, queue: Callable[[], None]) -> Iterator[ctypes.c_void_p]:
    """What `queue` puts onto a stream, as a graph for `cuGraphLaunch`; nothing of it runs before."""
    graph, replay = _ended(driver, stream, queue), ctypes.c_void_p()
    try:
        driver.call("cuGraphInstantiateWithFlags", ctypes.byref(replay), graph, ctypes.c_ulonglong(0))
    finally:
        driver.release("cuGraphDestroy", graph)
    try:
        yield replay
    finally:
        driver.release("cuGraphExecDestroy", replay)


def _ended(driver: Driver, stream: ctypes.c_void_p, queue: Callable[[], None]) -> ctypes.c_void_p:
    """The graph of a capture; a launch that fails spoils the capture, and is what is told."""
    graph = ctypes.c_void_p()
    driver.call("cuStreamBeginCapture_v2", stream, RELAXED)
    try:
        queue()
    except BaseException:
        with contextlib.suppress(DeviceError):
            driver.call("cuStreamEndCapture", stream, ctypes.byref(graph))
            driver.release("cuGraphDestroy", graph)
        raise
    driver.call("cuStreamEndCapture", stream, ctypes.byref(graph))
    return graph
