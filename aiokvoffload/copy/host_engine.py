"""Copies on the threads of the host device."""

from functools import partial

from aiokvoffload.base import Stream
from aiokvoffload.copy.engine import PartialCopyError, RunEngine
from aiokvoffload.copy.host_copy import copy_fragments
from aiokvoffload.copy.plan import CopyPlan
from aiokvoffload.device.base import Device
from aiokvoffload.errors import OffloadError


class HostEngine(RunEngine):
    """Copies on the stream's thread, for the host device."""

    def __init__(self, device: Device) -> None:
        self.name = "host"
        self._device = device

    def copy(self, plan: CopyPlan, stream: Stream, *, ordered: bool) -> None:
        """Enqueue all runs as one piece of work."""
        try:
            self._device.enqueue(stream, partial(copy_fragments, plan.dst_ptrs, plan.src_ptrs, plan.sizes))
        except OffloadError as error:
            raise PartialCopyError(str(error)) from error
