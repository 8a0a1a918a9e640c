"""Holds a stream until a test says so, so that what must come before and what after is no question of time.

Knows how a device's stream is made to wait for the host; knows nothing of what waits behind it.
"""

import ctypes
import threading
from collections.abc import Callable

import torch

from aiokvoffload.base import Stream
from aiokvoffload.device.base import Device
from aiokvoffload.device.driver import stream_handle

_WAIT_UNTIL_EQUAL = 1
_OPEN = 1
_LIMIT_S = 20.0
"""After which a gate opens by itself: a stream that waits for ever cannot be destroyed, nor can its process end."""


def hold(device: Device, stream: Stream) -> Callable[[], None]:
    """Keep later work of `stream` waiting until the returned function is called.

    Raises:
        OSError: the CUDA driver refused.
    """
    if device.torch_device.type == "cuda":
        return _hold_cuda(stream)
    gate = threading.Event()
    device.enqueue(stream, lambda: _pass(gate))
    return gate.set


def _pass(gate: threading.Event) -> None:
    gate.wait(_LIMIT_S)


def _hold_cuda(stream: Stream) -> Callable[[], None]:
    """By a word of pinned memory that the stream polls (CUDA Driver API reference, "Stream Memory Operations").

    A kernel that sleeps would end too early on a busy machine, and a host function would need the GIL.
    """
    word = torch.zeros(1, dtype=torch.int32, pin_memory=True)
    wait_value = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue32_v2
    wait_value.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint)
    if code := wait_value(stream_handle(stream), word.data_ptr(), _OPEN, _WAIT_UNTIL_EQUAL):
        raise OSError(f"cuStreamWaitValue32: error {code}")
    timer = threading.Timer(_LIMIT_S, word.fill_, (_OPEN,))

    def go_on() -> None:
        word.fill_(_OPEN)
        timer.cancel()
        timer.join()

    timer.daemon = True
    timer.start()
    return go_on
