"""Time as the library sees it, so that a test can move it. Knows deadlines; knows nothing of what is waited for."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """A source of time. Seconds, from an arbitrary origin, never backwards."""

    def now_s(self) -> float:
        """The time now, in seconds."""
        ...

    async def sleep_until(self, time_s: float) -> None:
        """Return when `now_s()` has reached `time_s`."""
        ...


class SystemClock:
    """The machine's monotonic clock and the running loop's timers."""

    __slots__ = ()

    def now_s(self) -> float:
        """Seconds of `time.monotonic`."""
        return time.monotonic()

    async def sleep_until(self, time_s: float) -> None:
        """Sleep on the running loop."""
        await asyncio.sleep(max(0.0, time_s - self.now_s()))
