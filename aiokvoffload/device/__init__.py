"""What a stream and an event are, on a GPU and on a machine without one."""

from aiokvoffload.device.base import Device
from aiokvoffload.device.open import open_device

__all__ = ["Device", "open_device"]
