"""Marks in streams of CUDA, by the driver itself and with the GIL kept.

torch's own give up the GIL in every call: beside busy threads each question whether a copy has ended waits to get it
back, which takes longer than the copy.
"""

import contextlib
from typing import Any

from aiokvoffload.base import Stream
from aiokvoffload.device.driver import stream_handle
from aiokvoffload.device.quick_driver import QuickDriver


class QuickEvent:
    """A mark with a time at the end of a stream, from any thread. It stays where it is.

    Args:
        driver: of the stream's device.
        stream: torch's, as CUDA's own kind.

    Attributes:
        cuda_event: the driver's handle, under the name that torch's events have for it.

    Raises:
        OSError: the driver refuses. This holds for every call.
    """

    __slots__ = ("_driver", "cuda_event")

    def __init__(self, driver: QuickDriver, stream: Stream) -> None:
        self._driver = driver
        with driver.current():
            self.cuda_event = driver.create_event(timed=True)
            driver.record_event(self.cuda_event, stream_handle(stream))

    def query(self) -> bool:
        """Whether everything before the mark has ended; never waits."""
        return self._driver.event_passed(self.cuda_event)

    def synchronize(self) -> None:
        """Block, without the GIL, until everything before the mark has ended."""
        with self._driver.current():
            self._driver.synchronize_event(self.cuda_event)

    def wait(self, stream: Any) -> None:
        """Make later work of `stream` wait for the mark; what `torch.cuda.Stream.wait_event` calls."""
        with self._driver.current():
            self._driver.wait_event(stream_handle(stream), self.cuda_event)

    def __del__(self) -> None:
        # With the process the context may have gone before, and the event with it.
        with contextlib.suppress(OSError, AttributeError), self._driver.current():
            self._driver.destroy_event(self.cuda_event)

    def __repr__(self) -> str:
        return f"QuickEvent({self.cuda_event:#x})"
