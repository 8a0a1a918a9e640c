"""Lets the copies of others in between: the copies of one direction share one piece of the GPU.

That goes on with a stream for as long as the stream has copies that need not wait, and while stores keep theirs full, a
model's token on its way to the host waited for 13 seconds. Where the next copy is in another stream, which waits for
the first one's end, whoever else is there comes first. Knows streams and bytes; knows nothing of jobs.
"""

from aiokvoffload.base import Stream
from aiokvoffload.device.base import Device, Handover


class Turns:
    """Says in which stream the next copy of a lane goes. One thread uses it.

    Args:
        device: makes the second stream, when it is wanted first.
        turn_bytes: copied in one stream before the next is another.
        priority: of the second stream.
    """

    def __init__(self, device: Device, turn_bytes: int, *, priority: int = 0) -> None:
        self.turn_bytes = turn_bytes
        self._device, self._priority = device, priority
        self._left_bytes = turn_bytes
        self._other: Stream | None = None
        self._handover: Handover | None = None
        self._is_away = False

    def next(self, main: Stream, size_bytes: int) -> Stream:
        """The stream for the next `size_bytes`; what was given out before is waited for there.

        Args:
            main: where the lane's copies begin and end.
            size_bytes: of the next copies.

        Raises:
            BrokenError: the device has failed.
        """
        if self._left_bytes <= 0:
            self._change(main)
        self._left_bytes -= size_bytes
        return self._second() if self._is_away else main

    def rejoin(self, main: Stream) -> None:
        """From now on `main` waits for everything that was given out.

        Raises:
            BrokenError: the device has failed.
        """
        if self._is_away:
            self._change(main)

    def _change(self, main: Stream) -> None:
        here, there = (self._second(), main) if self._is_away else (main, self._second())
        if self._handover is None:
            self._handover = self._device.create_handover()
        self._handover.between(here, there)
        self._is_away = not self._is_away
        self._left_bytes = self.turn_bytes

    def _second(self) -> Stream:
        if self._other is None:
            self._other = self._device.create_stream(priority=self._priority)
        return self._other

    def close(self) -> None:
        """Give the stream back; all work must have ended."""
        if self._handover is not None:
            self._handover.close()
            self._handover = None
        if self._other is not None:
            self._device.destroy_stream(self._other)
            self._other = None

    def __repr__(self) -> str:
        return f"Turns({self._left_bytes} of {self.turn_bytes} bytes left, {'second' if self._is_away else 'first'})"
