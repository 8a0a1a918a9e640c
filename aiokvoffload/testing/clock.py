"""A clock that stands still until the test moves it."""

import asyncio


class ManualClock:
    """Implements `Clock`; belongs to one loop's thread.

    Args:
        now_s: where it starts, in seconds.
    """

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []
        self._arrived = asyncio.Event()

    def now_s(self) -> float:
        """The time now."""
        return self._now_s

    async def sleep_until(self, time_s: float) -> None:
        """Return when the test has moved the time to `time_s`."""
        if time_s <= self._now_s:
            return
        sleeper = asyncio.get_running_loop().create_future()
        self._sleepers.append((time_s, sleeper))
        self._arrived.set()
        await sleeper

    async def wait_for_sleeper(self) -> None:
        """Return once somebody sleeps on this clock."""
        while not self.sleepers:
            self._arrived.clear()
            await self._arrived.wait()

    @property
    def sleepers(self) -> int:
        """How many sleep."""
        return sum(not sleeper.done() for _, sleeper in self._sleepers)

    def advance(self, seconds: float) -> None:
        """Move the time and wake those whose time has come."""
        self._now_s += seconds
        for time_s, sleeper in self._sleepers:
            if time_s <= self._now_s and not sleeper.done():
                sleeper.set_result(None)
        self._sleepers = [(time_s, sleeper) for time_s, sleeper in self._sleepers if not sleeper.done()]

    def __repr__(self) -> str:
        return f"ManualClock({self._now_s} s, {self.sleepers} sleeping)"
