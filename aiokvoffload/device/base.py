"""The contract of a device: what streams and events are made of.

Knows order and time on a device; knows nothing of blocks, slots or jobs. The design follows CUDA's: a stream is a queue
of work in order, an event marks a place in it, and work in one stream can be made to wait for a mark in another.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import cast

import torch

from aiokvoffload.base import Event, Stream
from aiokvoffload.errors import ArgumentError, BrokenError


def device_failure(what: str, error: Exception) -> BrokenError:
    """What to raise for a `RuntimeError` of torch's or an `OSError` of a driver's.

    CUDA errors are sticky: after one, every later call on the device fails, so there is nothing to retry.
    """
    return BrokenError(f"{what}: the device failed: {error}")


def is_stream(after: Stream | Event | None) -> bool:
    """Whether `after` is a stream; events cannot record events."""
    return hasattr(after, "record_event")


class Handover(ABC):
    """Makes one stream wait for what another has been given, again and again; one thread uses it."""

    @abstractmethod
    def between(self, before: Stream, after: Stream) -> None:
        """Later work of `after` waits for all work of `before` so far.

        Raises:
            BrokenError: the device has failed.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back what that takes; the streams' work must have ended."""


class RecordedHandover(Handover):
    """By an event of the device each time."""

    def __init__(self, device: "Device") -> None:
        self._device = device

    def between(self, before: Stream, after: Stream) -> None:
        """Record, and wait."""
        self._device.wait(after, self._device.record(before))

    def close(self) -> None:
        """Nothing is kept."""


class Device(ABC):
    """Streams, events and pinned memory of one device. Every method may be called from any thread.

    Attributes:
        name: `cuda`, `host`, or what torch calls the accelerator.
        torch_device: where tensors of this device live.
    """

    name: str
    torch_device: torch.device

    @abstractmethod
    def create_stream(self, *, priority: int = 0) -> Stream:
        """A new stream; a lower `priority` runs first where the device knows priorities."""

    @abstractmethod
    def destroy_stream(self, stream: Stream) -> None:
        """Give back a stream of `create_stream` whose work has ended."""

    @abstractmethod
    def current_stream(self) -> Stream:
        """The stream that this thread's work goes to."""

    @abstractmethod
    def use(self, stream: Stream) -> AbstractContextManager[None]:
        """Make `stream` this thread's current stream inside the context."""

    @abstractmethod
    def enqueue(self, stream: Stream, function: Callable[[], None]) -> None:
        """Put the work of `function` into `stream`.

        On the host `function` itself runs later, on the stream's thread; on an accelerator it runs now, with `stream`
        current, and what it launches runs later.
        """

    @abstractmethod
    def _record(self, stream: Stream) -> Event: ...

    def record(self, after: Stream | Event | None = None) -> Event:
        """Mark what must end first: the end of a stream as it is now; `None` is the current stream, events stay.

        Raises:
            ArgumentError: `after` is neither a stream nor an event.
            BrokenError: the device has failed.
        """
        if after is None or is_stream(after):
            if after is not None and not hasattr(after, "wait_event"):
                raise ArgumentError(f"after must be a stream that can wait for events, got {after!r}")
            try:
                event = self._record(self.current_stream() if after is None else cast("Stream", after))
            except (RuntimeError, OSError) as error:
                raise device_failure("record", error) from error
            if not hasattr(event, "query"):  # torch's stand-in streams of the CPU record nothing
                raise ArgumentError(f"after must be a stream of the {self.name} device, got {after!r}")
            return event
        if not (hasattr(after, "query") and hasattr(after, "synchronize")):
            raise ArgumentError(f"after must be a stream, an event or None, got {after!r}")
        return cast("Event", after)

    def mark(self, stream: Stream) -> Event:
        """The same for a stream of `create_stream`, by the quickest kind of event that there is.

        Raises:
            BrokenError: the device has failed.
        """
        return self.record(stream)

    def wait(self, stream: Stream, event: Event) -> None:
        """Make later work of `stream` wait for `event`, which must have been recorded.

        Raises:
            BrokenError: the device has failed.
        """
        try:
            stream.wait_event(event)
        except (RuntimeError, OSError) as error:
            raise device_failure("wait", error) from error

    def query(self, event: Event) -> bool:
        """Whether everything before `event` has ended; never waits.

        Raises:
            BrokenError: the device has failed.
        """
        try:
            return event.query()
        except (RuntimeError, OSError) as error:
            raise device_failure("query", error) from error

    def create_handover(self) -> Handover:
        """The cheapest way to make streams of `create_stream` wait for each other.

        Raises:
            BrokenError: the device has failed.
        """
        return RecordedHandover(self)

    @abstractmethod
    def elapsed_s(self, start: Event, end: Event) -> float:
        """Seconds on the device between two completed events of `record` or `mark`.

        Raises:
            BrokenError: the device has failed.
        """

    @abstractmethod
    def completed_at(self, event: Event) -> float:
        """When a completed event of `record` or `mark` completed, in seconds of `time.perf_counter`, as far as known.

        Raises:
            BrokenError: the device has failed.
        """

    @property
    def wants_thread(self) -> bool:
        """Whether what is enqueued now should be by a thread that may wait: there is upkeep to do that takes long."""
        return False

    @abstractmethod
    def synchronize_clock(self) -> None:
        """Refresh what `completed_at` knows, if it is old. May block for some ten microseconds."""

    @abstractmethod
    def pin(self, address: int, size_bytes: int) -> None:
        """Lock host memory so that the device can copy from and to it directly.

        Raises:
            OSError: it cannot be; nothing is pinned and no error is left pending.
        """

    @abstractmethod
    def unpin(self, address: int, size_bytes: int) -> None:
        """Undo one `pin` of the same range.

        Raises:
            OSError: the device refused.
        """

    def numa_node(self) -> int | None:
        """The node of the host's memory that is nearest to the device, or `None` where that is not known."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Let go of what the device keeps. Its streams must have ended. May wait for the driver's lock."""
