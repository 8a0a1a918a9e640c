"""Waiting for CPU memory to promote into: first come, first served, and not for ever."""

import asyncio
from collections import deque
from collections.abc import Callable

from aiokvoffload.clock import Clock
from aiokvoffload.tiering.chain.walk import PromotionWalk


class RoomQueue:
    """Walks that wait for room.

    Args:
        clock: measures how long.
        timeout_s: how long one waits before it is ended.
    """

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self._clock, self._timeout_s = clock, timeout_s
        self._waiting: deque[tuple[float, PromotionWalk]] = deque()
        self._walks: set[PromotionWalk] = set()
        self._watching: asyncio.Task[None] | None = None
        self.timeouts = 0

    def wait(self, walk: PromotionWalk) -> None:
        """Stand at the end of the queue, unless it stands there already."""
        if walk in self._walks:
            return
        self._walks.add(walk)
        self._waiting.append((self._clock.now_s() + self._timeout_s, walk))
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name="aiokvoffload-room")

    def serve_next(self, advance: Callable[[PromotionWalk], bool]) -> bool:
        """Let the first walk go on, unless `advance` says that there is no room for it; whether it left the queue."""
        while self._waiting and self._waiting[0][1].ended:
            self._leave()
        if not self._waiting or not advance(self._waiting[0][1]):
            return False
        self._leave()
        return True

    async def aclose(self) -> None:
        """Nobody waits any more."""
        while self._waiting:
            self._leave().end()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    async def _watch(self) -> None:
        """End those that have waited too long: all wait for as long, so the first to come is the first to go."""
        while self._waiting:
            await self._clock.sleep_until(self._waiting[0][0])
            while self._waiting and self._waiting[0][0] <= self._clock.now_s():
                walk = self._leave()
                if not walk.ended:
                    self.timeouts += 1
                    walk.end()
        self._watching = None

    def _leave(self) -> PromotionWalk:
        _, walk = self._waiting.popleft()
        self._walks.discard(walk)
        return walk

    def __len__(self) -> int:
        return len(self._waiting)

    def __repr__(self) -> str:
        return f"RoomQueue({len(self)} waiting, {self.timeouts} timed out)"
