"""A tier that does on command what tiers do in the field: takes its time, fails, hangs, or hands over half a chunk."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from aiokvoffload.base import ChunkViews, LoadOutcome, OffloadingEvent, OffloadKey, SecondaryTier, StoreOutcome
from aiokvoffload.errors import TierError

TORN_BYTE = 0xEE
"""What torn chunks are filled with up to the middle."""


class FaultyTier(SecondaryTier):
    """Wraps a tier, which does the work as long as nothing is commanded.

    Args:
        inner: the tier.

    Attributes:
        failing: while it is set, stores and loads fail without reaching the tier.
        torn_keys: loads of these keys overwrite half of their buffers and fail; stores of them write, and fail.
        calls: stores and loads that wait now or have been let through.
    """

    def __init__(self, inner: SecondaryTier) -> None:
        self.name, self.medium = inner.name, inner.medium
        self.failing = False
        self.torn_keys: set[OffloadKey] = set()
        self.calls = 0
        self._inner = inner
        self._epoch = 0
        self._gate = asyncio.Event()
        self._gate.set()
        self._arrivals = asyncio.Condition()

    def hold(self) -> None:
        """From now on stores and loads wait: a tier that hangs."""
        self._gate.clear()

    def release(self) -> None:
        """Let through what waits, and what comes."""
        self._gate.set()

    async def wait_for_calls(self, count: int) -> None:
        """Return once so many stores and loads have arrived, in all."""
        async with self._arrivals:
            await self._arrivals.wait_for(lambda: self.calls >= count)

    async def open(self) -> None:
        """Open the tier."""
        await self._inner.open()

    def contains(self, keys: Sequence[OffloadKey]) -> Sequence[bool]:
        """What the tier says."""
        return self._inner.contains(keys)

    async def store(self, keys: Sequence[OffloadKey], views: Sequence[ChunkViews]) -> Sequence[StoreOutcome]:
        """Store, unless something is commanded."""
        epoch = self._epoch
        await self._arrive()
        if epoch != self._epoch:
            return [StoreOutcome.REFUSED] * len(keys)
        if self.failing:
            return [StoreOutcome.FAILED] * len(keys)
        if self.torn_keys.isdisjoint(keys):
            return await self._inner.store(keys, views)
        intact = [index for index, key in enumerate(keys) if key not in self.torn_keys]
        stored = await self._inner.store([keys[index] for index in intact], [views[index] for index in intact])
        outcomes = [StoreOutcome.FAILED] * len(keys)
        for index, outcome in zip(intact, stored, strict=True):
            outcomes[index] = outcome
        return outcomes

    async def load(self, keys: Sequence[OffloadKey], views: Sequence[ChunkViews]) -> Sequence[LoadOutcome]:
        """Load, unless something is commanded."""
        await self._arrive()
        if self.failing:
            return [LoadOutcome.FAILED] * len(keys)
        outcomes = list(await self._inner.load(keys, views))
        for index, key in enumerate(keys):
            if key in self.torn_keys:
                outcomes[index] = LoadOutcome.FAILED
                for buffer in views[index]:
                    half = buffer.nbytes // 2
                    buffer[:half] = bytes([TORN_BYTE]) * half
        return outcomes

    async def probe(self) -> None:
        """Answer, unless something is commanded."""
        await self._gate.wait()
        if self.failing:
            raise TierError(f"tier {self.name!r} fails because the test said so")

    async def reset(self) -> int:
        """Reset the tier; what waits here to be stored is of the old epoch then."""
        self._epoch += 1
        return await self._inner.reset()

    def take_events(self) -> list[OffloadingEvent]:
        """What the tier says."""
        return self._inner.take_events()

    def on_events(self, callback: Callable[[], None]) -> None:
        """What the tier does."""
        self._inner.on_events(callback)

    def resident_keys(self) -> Iterator[Sequence[OffloadKey]] | None:
        """What the tier says."""
        return self._inner.resident_keys()

    def check_integrity(self) -> None:
        """What the tier does."""
        self._inner.check_integrity()

    def statistics(self) -> Any:
        """What the tier says."""
        return self._inner.statistics()

    async def aclose(self) -> None:
        """Close the tier once what waits has been let through."""
        await self._gate.wait()
        await self._inner.aclose()

    def __repr__(self) -> str:
        state = "failing" if self.failing else "serving" if self._gate.is_set() else "holding"
        return f"FaultyTier({state}, {len(self.torn_keys)} torn keys, {self.calls} calls, {self._inner!r})"

    async def _arrive(self) -> None:
        async with self._arrivals:
            self.calls += 1
            self._arrivals.notify_all()
        await self._gate.wait()
