"""What a submitter holds in its hand: one accepted job, to be awaited, fenced or called back.

Knows who waits for a job and tells each of them once; knows nothing of copies, and never decides when a job ends.
"""

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import Any

from aiokvoffload.base import Event, Stream, Transfer, TransferResult
from aiokvoffload.config import Mode
from aiokvoffload.errors import ArgumentError, BrokenError, InternalError, ModeError, TransferError

logger = logging.getLogger(__name__)


class Latch:
    """Opens once. Everyone who awaits it or left a callback is told, on the thread that opens it.

    Each waiter has a future of its own, so that cancelling one detaches that one only (I2).
    """

    __slots__ = ("_callbacks", "_error", "_mode", "_opened", "_waiters")

    def __init__(self, mode: Mode = Mode.AWAITED) -> None:
        self._mode = mode
        self._opened = False
        self._error: Exception | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._callbacks: list[Callable[[], None]] = []

    @property
    def opened(self) -> bool:
        """Whether it has opened."""
        return self._opened

    def open(self) -> None:
        """Tell everyone; doing it again does nothing."""
        if self._opened or self._error is not None:
            return
        self._opened = True
        self._settle()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            _call(callback)

    def never(self, error: Exception) -> None:
        """It will never open: waiters get `error`, callbacks are dropped."""
        if not self._opened:
            self._error = error
            self._callbacks.clear()
            self._settle()

    def on_open(self, callback: Callable[[], None]) -> None:
        """Call `callback()` once when it opens; at once if it has."""
        if self._opened:
            _call(callback)
        else:
            self._callbacks.append(callback)

    def __await__(self) -> Generator[Any, None, None]:
        if self._mode is Mode.STEPPED:
            raise ModeError("awaiting needs an event loop; a stepped worker is asked with get_finished()")
        if not self._opened and self._error is None:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            yield from waiter
        if self._error is not None:
            raise self._error

    def _settle(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done() and not waiter.get_loop().is_closed():  # on a closed loop nobody can be told
                waiter.set_result(None)


def _call(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:  # a caller's mistake must not lose a result or stop the consumer of all jobs
        logger.exception("a transfer's callback raised; the transfer's result stands")


class JobTransfer(Transfer):
    """The `Transfer` of one job; whoever runs the job tells it what has become true.

    Args:
        job_id: the job's number.
        mode: whether it can be awaited at all.
        wait: makes a stream wait for an event; the device's way where streams of several kinds exist.
    """

    __slots__ = ("_done", "_end", "_enqueued", "_failure", "_job_id", "_released", "_result", "_wait")

    def __init__(
        self, job_id: int, *, mode: Mode = Mode.AWAITED, wait: Callable[[Stream, Event], None] | None = None
    ) -> None:
        self._job_id = job_id
        self._result: TransferResult | None = None
        self._end: Event | None = None
        self._failure = ""
        self._enqueued, self._released, self._done = Latch(mode), Latch(mode), Latch(mode)
        self._wait = wait or (lambda stream, event: stream.wait_event(event))

    @property
    def job_id(self) -> int:
        """The number it was submitted under."""
        return self._job_id

    @property
    def result(self) -> TransferResult | None:
        """The result, or `None` while the job runs."""
        return self._result

    @property
    def end(self) -> Event | None:
        """The event after its last copy, or `None` before that is enqueued."""
        return self._end

    def __await__(self) -> Generator[Any, None, TransferResult]:
        yield from self._done.__await__()
        return self._ended()

    async def fence(self, stream: Stream) -> None:
        """Return once `stream` has been made to wait, on the device, for the job's last copy.

        A job that failed holds the stream too, until the copies that were enqueued have ended: what the caller
        computes instead would be overwritten by them (I2).

        Raises:
            ArgumentError: `stream` is no stream.
            TransferError: the job failed, or not all of its copies could be enqueued.
            AbandonedError: a close gave the job up before it was known to be enqueued; its blocks are never free.
            ModeError: the worker is stepped.
        """
        if not hasattr(stream, "wait_event"):
            raise ArgumentError(f"stream must be a stream, got {stream!r}")
        await self._enqueued
        if not self._touches_nothing:
            await self._hold_back(stream)
        if self._failure:
            raise TransferError(f"job {self._job_id} failed: {self._failure}")

    @property
    def _touches_nothing(self) -> bool:
        """Whether its copies have surely ended: a failure may be known before that."""
        return self._result is not None and (self._result.success or self._released.opened)

    async def _hold_back(self, stream: Stream) -> None:
        """Make `stream` wait for what has been enqueued; where it cannot, because there is no mark, the host waits."""
        if self._end is not None:
            try:
                self._wait(stream, self._end)
            except BrokenError as error:
                logger.debug("%r cannot be waited for on the device: %s", self, error)
            else:
                return
        await self._released

    @property
    def released(self) -> Latch:
        """Opens when the job touches its GPU blocks no more; raises `AbandonedError` if that will never be known."""
        return self._released

    def on_done(self, callback: Callable[[TransferResult], None]) -> None:
        """Call `callback(result)` once, on the consumer of completions, when the job ends; at once if it has."""
        self._done.on_open(lambda: callback(self._ended()))

    def on_released(self, callback: Callable[[], None]) -> None:
        """Call `callback()` once when the GPU blocks are free again; at once if they are."""
        self._released.on_open(callback)

    def mark_enqueued(self, end: Event | None, *, failure: str = "") -> None:
        """Its copies are on the device and end at `end`, or they could not all be put there."""
        self._end, self._failure = end, failure
        self._enqueued.open()

    def release(self) -> None:
        """It touches its GPU blocks no more."""
        self._released.open()

    def never_release(self, error: Exception) -> None:
        """Whether it still touches its GPU blocks will never be known."""
        self._released.never(error)

    def finish(self, result: TransferResult) -> None:
        """It has ended; a second result is ignored (I1)."""
        if self._result is not None:
            return
        self._result = result
        if not result.success:
            self._failure = self._failure or result.error or "it failed"
        self._enqueued.open()
        self._done.open()

    def _ended(self) -> TransferResult:
        if self._result is None:
            raise InternalError(f"job {self._job_id} was announced as ended without a result")
        return self._result

    def __repr__(self) -> str:
        state = "running" if self._result is None else "done" if self._result.success else "failed"
        return f"JobTransfer(job {self._job_id}, {state}, {'released' if self._released.opened else 'busy'})"
