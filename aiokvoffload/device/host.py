"""A device without a GPU: streams are threads, memory is CPU memory, and the order is CUDA's.

It exists so that everything above runs, and can be tested, on any machine with the asynchrony of the real thing: work
enqueued has not happened yet, and waiting for an event that was not recorded does not wait.
"""

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from aiokvoffload.base import Event, Stream
from aiokvoffload.device.base import Device
from aiokvoffload.errors import ArgumentError, BrokenError


class HostEvent:
    """A mark in a host stream. Until it is recorded it counts as complete, and nobody waits for it, as on CUDA."""

    __slots__ = ("_completed", "_completed_at_s", "_error", "_recorded")

    def __init__(self) -> None:
        self._recorded = False
        self._completed = threading.Event()
        self._completed_at_s = 0.0
        self._error: BaseException | None = None

    def record(self) -> None:
        """From now on the mark is pending, until `complete`."""
        self._recorded = True

    def complete(self, error: BaseException | None = None) -> None:
        """The mark has been reached, or its stream has failed with `error`."""
        self._error = error
        self._completed_at_s = time.perf_counter()
        self._completed.set()

    @property
    def completed_at_s(self) -> float:
        """When it completed, in seconds of `time.perf_counter`."""
        return self._completed_at_s

    def query(self) -> bool:
        """Whether everything before the mark has ended.

        Raises:
            BrokenError: work before the mark has failed.
        """
        if not self._recorded:
            return True
        if not self._completed.is_set():
            return False
        if self._error is not None:
            raise BrokenError(f"host stream: enqueued work failed: {self._error!r}")
        return True

    def synchronize(self) -> None:
        """Block until the mark is reached.

        Raises:
            BrokenError: work before the mark has failed.
        """
        if self._recorded:
            self._completed.wait()
            self.query()

    def __repr__(self) -> str:
        state = "complete" if self._completed.is_set() else "pending" if self._recorded else "not recorded"
        return f"HostEvent({state})"


class HostStream:
    """Work in order on one daemon thread.

    A piece that raises breaks the stream for good: later pieces are skipped and later marks report the error.
    """

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | HostEvent | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def enqueue(self, function: Callable[[], None]) -> None:
        """Run `function` on the stream's thread after everything enqueued before."""
        self._work.put(function)

    def record_event(self) -> HostEvent:
        """Mark the end of what has been enqueued so far."""
        event = HostEvent()
        event.record()
        self._work.put(event)
        return event

    def wait_event(self, event: Event, /) -> None:
        """Make later work wait for `event`."""
        if isinstance(event, HostEvent) and event.query():
            return
        self._work.put(event.synchronize)

    def synchronize(self) -> None:
        """Block until everything enqueued so far has ended."""
        self.record_event().synchronize()

    def close(self) -> None:
        """Have the thread end after what has been enqueued; does not wait for it, so that a loop may close a device."""
        self._work.put(None)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            if isinstance(item, HostEvent):
                item.complete(self._error)
            elif self._error is None:
                try:
                    item()
                except BaseException as error:  # noqa: BLE001 - the thread must go on completing marks, or all would hang
                    self._error = error
            item = None  # an idle stream must not keep the last piece's buffers alive

    def __repr__(self) -> str:
        return f"HostStream({self._thread.name}, {self._work.qsize()} enqueued)"


class HostDevice(Device):
    """CPU memory with streams and events."""

    def __init__(self) -> None:
        self.name = "host"
        self.torch_device = torch.device("cpu")
        self._numbers = itertools.count()
        self._streams: set[HostStream] = set()
        self._default = self.create_stream()
        self._local = threading.local()

    def create_stream(self, *, priority: int = 0) -> HostStream:
        """A new stream; the host knows no priorities."""
        stream = HostStream(f"aiokvoffload-stream-{next(self._numbers)}")
        self._streams.add(stream)
        return stream

    def destroy_stream(self, stream: Stream) -> None:
        """End the stream's thread."""
        host_stream = self._own(stream)
        host_stream.close()
        self._streams.discard(host_stream)

    def current_stream(self) -> HostStream:
        """The stream of the innermost `use` in this thread, or the device's default stream."""
        current: HostStream = getattr(self._local, "stream", self._default)
        return current

    @contextmanager
    def use(self, stream: Stream) -> Iterator[None]:
        """Make `stream` current in this thread."""
        previous = self.current_stream()
        self._local.stream = self._own(stream)
        try:
            yield
        finally:
            self._local.stream = previous

    def enqueue(self, stream: Stream, function: Callable[[], None]) -> None:
        """Run `function` later, on the stream's thread."""
        self._own(stream).enqueue(function)

    def _record(self, stream: Stream) -> Event:
        return stream.record_event()

    def elapsed_s(self, start: Event, end: Event) -> float:
        """Seconds between the completions of two events of this device."""
        return self.completed_at(end) - self.completed_at(start)

    def completed_at(self, event: Event) -> float:
        """Exactly when the stream's thread reached the mark."""
        if not isinstance(event, HostEvent):
            raise ArgumentError(f"event must be a HostEvent, got {event!r}")
        return event.completed_at_s

    def synchronize_clock(self) -> None:
        """Nothing to do: the device's clock is the host's."""

    def pin(self, address: int, size_bytes: int) -> None:
        """Nothing to do: this device reaches all memory of the process."""

    def unpin(self, address: int, size_bytes: int) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Have every stream's thread end."""
        while self._streams:
            self._streams.pop().close()

    @staticmethod
    def _own(stream: Stream) -> HostStream:
        if not isinstance(stream, HostStream):
            raise ArgumentError(f"stream must be a stream of the host device, got {stream!r}")
        return stream

    def __repr__(self) -> str:
        return f"HostDevice({len(self._streams)} streams)"
