"""A device that the test drives: the host device's semantics, without its threads.

What is enqueued stays put until the test says `step` or `run_all`; marks and waits between pieces of work are passed as
soon as nothing is in front of them, as on an idle GPU.
"""

import threading
from collections import deque
from collections.abc import Callable

from aiokvoffload.base import Event, Stream
from aiokvoffload.device.host import HostDevice, HostEvent, HostStream
from aiokvoffload.errors import BrokenError, TransferError


class _Wait:
    """A place in a stream that is passed once an event has completed."""

    __slots__ = ("event",)

    def __init__(self, event: Event) -> None:
        self.event = event


class ManualStream(HostStream):
    """A stream of a `ManualDevice`; runs nothing by itself."""

    def __init__(self, name: str, device: "ManualDevice") -> None:  # deliberately without the base's thread
        self._name, self._device = name, device
        self.pending: deque[Callable[[], None] | HostEvent | _Wait] = deque()

    def _put(self, item: Callable[[], None] | HostEvent | _Wait) -> None:
        with self._device.lock:
            self.pending.append(item)
            self._device.settle()

    def enqueue(self, function: Callable[[], None]) -> None:
        self._put(function)

    def record_event(self) -> HostEvent:
        event = HostEvent()
        event.record()
        self._put(event)
        return event

    def wait_event(self, event: Event, /) -> None:
        if not event.query():
            self._put(_Wait(event))

    def close(self) -> None:
        """Nothing to end."""

    def pass_marks(self) -> bool:
        """Complete the marks and pass the waits that nothing is in front of; returns whether there were any."""
        passed = False
        while self.pending:
            item = self.pending[0]
            if isinstance(item, HostEvent):
                item.complete()
            elif not (isinstance(item, _Wait) and item.event.query()):
                break
            self.pending.popleft()
            passed = True
        return passed

    def take_work(self) -> Callable[[], None] | None:
        """The piece of work at the head, if there is one and not a wait."""
        if self.pending and not isinstance(self.pending[0], HostEvent | _Wait):
            item = self.pending.popleft()
            return item if callable(item) else None
        return None

    def __repr__(self) -> str:
        return f"ManualStream({self._name}, {len(self.pending)} pending)"


class ManualDevice(HostDevice):
    """A host device on which nothing moves before the test says so.

    Args:
        hold: whether work is held; without, it runs when it is enqueued.
    """

    def __init__(self, *, hold: bool = True) -> None:
        self.lock = threading.RLock()
        self._hold = hold
        self._broken = False
        self._refusals = 0
        self._owner = threading.current_thread()
        self._gate = threading.Event()
        self._gate.set()
        self._manual_streams: list[ManualStream] = []
        super().__init__()

    def create_stream(self, *, priority: int = 0) -> ManualStream:
        stream = ManualStream(f"manual-{next(self._numbers)}", self)
        with self.lock:
            self._manual_streams.append(stream)
        return stream

    def destroy_stream(self, stream: Stream) -> None:
        with self.lock:
            self._manual_streams = [each for each in self._manual_streams if each is not stream]

    def settle(self) -> None:
        """Pass all marks and waits that can be passed; run work too where it is not held."""
        with self.lock:
            while any(stream.pass_marks() for stream in self._manual_streams) or (not self._hold and self._run_one()):
                pass

    def _run_one(self) -> bool:
        for stream in self._manual_streams:
            work = stream.take_work()
            if work is not None:
                work()
                return True
        return False

    def step(self) -> bool:
        """Run the first piece of work that can run, in order of the streams' creation; False if there is none."""
        with self.lock:
            ran = self._run_one()
            self.settle()
            return ran

    def run_all(self) -> int:
        """Run everything that can run; returns how many pieces of work that were."""
        steps = 0
        while self.step():
            steps += 1
        return steps

    @property
    def pending_work(self) -> int:
        """Pieces of work enqueued and not run."""
        with self.lock:
            items = [item for stream in self._manual_streams for item in stream.pending]
            return sum(not isinstance(item, HostEvent | _Wait) for item in items)

    def hold(self) -> None:
        """From now on work stays put until `step`."""
        self._hold = True

    def release(self) -> None:
        """Run everything, and from now on run work when it is enqueued."""
        self._hold = False
        self.settle()

    def hold_submissions(self) -> None:
        """Keep other threads than the test's from putting anything onto the device."""
        self._gate.clear()

    def release_submissions(self) -> None:
        """Let them go on."""
        self._gate.set()

    @property
    def wants_thread(self) -> bool:
        return not self._gate.is_set()

    def refuse_next_copy(self) -> None:
        """The next piece of work cannot be enqueued; the device stays good."""
        self._refusals += 1

    def break_down(self) -> None:
        """From now on every call fails, as after a sticky CUDA error."""
        self._broken = True

    def _pass_gate(self) -> None:
        if threading.current_thread() is not self._owner:
            self._gate.wait()
        if self._broken:
            raise BrokenError("the test broke the device")

    def enqueue(self, stream: Stream, function: Callable[[], None]) -> None:
        self._pass_gate()
        if self._refusals:
            self._refusals -= 1
            raise TransferError("the test refused this copy")
        super().enqueue(stream, function)

    def _record(self, stream: Stream) -> Event:
        self._pass_gate()
        return super()._record(stream)

    def wait(self, stream: Stream, event: Event) -> None:
        self._pass_gate()
        super().wait(stream, event)

    def query(self, event: Event) -> bool:
        if self._broken:
            raise BrokenError("the test broke the device")
        return super().query(event)

    def close(self) -> None:
        """Drop what is pending."""
        with self.lock:
            self._manual_streams.clear()

    def __repr__(self) -> str:
        return f"ManualDevice({len(self._manual_streams)} streams, {self.pending_work} pieces of work held)"


class PinGateDevice(HostDevice):
    """A host device that pins a range when the test allows it, and refuses when the test says so.

    Args:
        refusal: what it raises then.

    Attributes:
        pinned: address and size of every range that is pinned.
        calls: how often pinning was asked for.
    """

    def __init__(self, refusal: Exception | None = None) -> None:
        super().__init__()
        self.pinned: list[tuple[int, int]] = []
        self.calls = 0
        self._refusal = refusal or OSError("cuMemHostRegister: CUDA_ERROR_OUT_OF_MEMORY (2)")
        self._limit: int | None = None
        self._allowed = threading.Semaphore(0)
        self._waiting = threading.Event()

    def allow(self, count: int) -> None:
        """Let so many further ranges be pinned, or refused."""
        self._allowed.release(count)

    def refuse_after(self, limit: int) -> None:
        """Refuse while so many ranges are pinned."""
        self._limit = limit

    def wait_until_pinning(self, timeout_s: float) -> bool:
        """Wait until some thread waits to be allowed."""
        return self._waiting.wait(timeout_s)

    def pin(self, address: int, size_bytes: int) -> None:
        self.calls += 1
        if not self._allowed.acquire(blocking=False):
            self._waiting.set()
            self._allowed.acquire()
        if self._limit is not None and len(self.pinned) >= self._limit:
            raise self._refusal
        self.pinned.append((address, size_bytes))

    def unpin(self, address: int, size_bytes: int) -> None:
        self.pinned.remove((address, size_bytes))

    def __repr__(self) -> str:
        return f"PinGateDevice({len(self.pinned)} pinned, {self.calls} asked for)"
