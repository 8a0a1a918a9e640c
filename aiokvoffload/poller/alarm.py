"""Something that rings once, on an event loop, after a short time. Knows loops and timers; knows nothing of jobs.

uvloop rounds its timers to whole milliseconds and asyncio's epoll rounds up to one, so both are told of a timer of the
kernel as of a socket that has become readable.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from aiokvoffload.poller.timerfd import TimerDescriptor

COARSE_S = 0.001
"""What loops' own timers are good for. uvloop would spin through anything below half of it."""


class Alarm(Protocol):
    """Rings once for each `set`, on the loop it was opened on."""

    def set(self, delay_s: float) -> None:
        """Ring in `delay_s` seconds, and not when it was to ring before."""
        ...

    def clear(self) -> None:
        """Do not ring."""
        ...

    def close(self) -> None:
        """Never ring again; also when the loop has been closed."""
        ...


class TimerAlarm:
    """Exact, by a timer that the loop reads like a socket.

    Args:
        loop: where it rings; its thread makes all calls.
        ring: called on the loop.

    Raises:
        OSError: the system has no such timers, or no descriptor is left.
        NotImplementedError: the loop watches no descriptors.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop, self._ring = loop, ring
        self._is_on = self._is_spent = False
        self._timer = TimerDescriptor()
        loop.add_reader(self._timer.fileno, self._on_readable)

    def set(self, delay_s: float) -> None:
        """Ring in `delay_s` seconds."""
        self._is_on, self._is_spent = True, False
        self._timer.set(delay_s)

    def clear(self) -> None:
        """Do not ring."""
        if self._is_on:
            self._is_on = False
            self._timer.clear()

    def _on_readable(self) -> None:
        self._is_spent = True
        try:
            self._ring()
        finally:  # most often it has been set again by now; left readable, it would keep the loop spinning
            if self._is_spent:
                self.clear()

    def close(self) -> None:
        """Give the descriptor back."""
        if not self._loop.is_closed():
            self._loop.remove_reader(self._timer.fileno)
        self._timer.close()

    def __repr__(self) -> str:
        return f"TimerAlarm({self._timer!r})"


class CoarseAlarm:
    """By the loop's own timers, to a millisecond, where there is nothing better.

    Args:
        loop: where it rings; its thread makes all calls.
        ring: called on the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop, self._ring = loop, ring
        self._handle: asyncio.TimerHandle | None = None

    def set(self, delay_s: float) -> None:
        """Ring in `delay_s` seconds, or a little later."""
        self.clear()
        self._handle = self._loop.call_later(max(COARSE_S, delay_s), self._ring)

    def clear(self) -> None:
        """Do not ring."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def close(self) -> None:
        """The same."""
        self.clear()

    def __repr__(self) -> str:
        return f"CoarseAlarm({'off' if self._handle is None else 'set'})"


def open_alarm(loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> Alarm:
    """The best alarm that the system and the loop offer."""
    try:
        return TimerAlarm(loop, ring)
    except (OSError, NotImplementedError):
        return CoarseAlarm(loop, ring)
