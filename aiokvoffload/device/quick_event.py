"""Marks in streams of CUDA, by the driver itself and with the GIL kept.

torch's own give up the GIL in every call: beside busy threads each question whether a copy has ended waits to get it
back, which takes longer than the copy.
"""

import contextlib
from typing import Any

from aiokvoffload.base import Stream
from aiokvoffload.device.driver import stream_handle
from aiokvoffload.device.quick_driver import QuickDriver

MOST_SPARE = 256
"""Events of one device that are kept to be used again: three for each of some eighty jobs in flight."""


class SpareEvents:
    """The driver's events that mark nothing any more. Making or destroying one may wait for the driver's lock.

    Args:
        driver: of the device.

    Attributes:
        driver: the same.
    """

    def __init__(self, driver: QuickDriver) -> None:
        self.driver = driver
        self._spare: list[int] = []
        self._most = MOST_SPARE  # an interpreter that ends may have forgotten the module's names
        self._is_closed = False

    def take(self) -> int:
        """One with a time, from any thread. `OSError` if the driver refuses."""
        try:
            return self._spare.pop()
        except IndexError:
            with self.driver.current():
                return self.driver.create_event(timed=True)

    def give(self, event: int) -> None:
        """Nobody asks for it any more; from any thread. Waits for what it marked go on."""
        if len(self._spare) < self._most:
            self._spare.append(event)
        else:
            self._destroy(event)
        if self._is_closed:  # asked afterwards, since another thread may be closing
            self.close()

    def close(self) -> None:
        """Give them back; later ones are given back at once."""
        self._is_closed = True
        with contextlib.suppress(IndexError):  # another thread's `give` may do the same
            while True:
                self._destroy(self._spare.pop())

    def _destroy(self, event: int) -> None:
        # With the process the context may have gone before, and the event with it.
        with contextlib.suppress(OSError, AttributeError), self.driver.current():
            self.driver.destroy_event(event)

    def __repr__(self) -> str:
        return f"SpareEvents({len(self._spare)})"


class QuickEvent:
    """A mark with a time at the end of a stream, from any thread. It stays where it is.

    Args:
        spare: of the stream's device.
        stream: torch's, as CUDA's own kind; none of the device's default ones.

    Attributes:
        cuda_event: the driver's handle, under the name that torch's events have for it.

    Raises:
        OSError: the driver refuses. This holds for every call.
    """

    __slots__ = ("_spare", "cuda_event")

    def __init__(self, spare: SpareEvents, stream: Stream) -> None:
        self._spare = spare
        self.cuda_event = spare.take()
        spare.driver.mark(self.cuda_event, stream_handle(stream))

    def query(self) -> bool:
        """Whether everything before the mark has ended; never waits."""
        return self._spare.driver.event_passed(self.cuda_event)

    def synchronize(self) -> None:
        """Block, without the GIL, until everything before the mark has ended."""
        with self._spare.driver.current():
            self._spare.driver.synchronize_event(self.cuda_event)

    def wait(self, stream: Any) -> None:
        """Make later work of `stream` wait for the mark; what `torch.cuda.Stream.wait_event` calls."""
        with self._spare.driver.current():
            self._spare.driver.wait_event(stream_handle(stream), self.cuda_event)

    def __del__(self) -> None:
        if hasattr(self, "cuda_event"):
            self._spare.give(self.cuda_event)

    def __repr__(self) -> str:
        return f"QuickEvent({self.cuda_event:#x})"
