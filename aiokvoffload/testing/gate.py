"""Holds a stream back, so that a test can say what comes while it waits. Knows nothing of what waits behind it."""

import threading
from collections.abc import Callable
from typing import Any

import torch

from aiokvoffload.base import Stream
from aiokvoffload.device.base import Device

_HOLD_CYCLES = 100_000_000
"""GPU clock cycles: some fifty milliseconds."""
_LIMIT_S = 30.0
_sleep: Any = torch.cuda._sleep


def hold(device: Device, stream: Stream) -> Callable[[], None]:
    """Keep later work of `stream` waiting until the returned function is called; on a GPU for a while, come what may.

    There a wait for a word of host memory would be exact. But a kernel that is launched for the first time is loaded
    first, which waits for all that the device has to do: the caller, who is to open the gate, would wait for it.
    """
    if device.torch_device.type == "cuda":
        device.enqueue(stream, lambda: _sleep(_HOLD_CYCLES))
        return _nothing
    gate = threading.Event()
    device.enqueue(stream, lambda: _pass(gate))
    return gate.set


def _pass(gate: threading.Event) -> None:
    gate.wait(_LIMIT_S)


def _nothing() -> None:
    pass
