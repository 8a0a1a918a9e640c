"""Memory that grows under a running service: the manager learns of slots when every worker has them.

Knows counts; knows nothing of memory. Lives on the loop's thread.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from aiokvoffload.base import OffloadingManager, OffloadingWorker, PoolGrowth
from aiokvoffload.errors import ClosedError


class GrowthWatch:
    """Keeps the manager's slots in step with the workers' memory: slot i is usable when it is on all of them.

    Args:
        manager: is told of new slots.
        workers: tell of theirs, in rank order.
        on_more: called when the manager has been told.
    """

    def __init__(
        self,
        manager: OffloadingManager,
        workers: Sequence[OffloadingWorker],
        *,
        on_more: Callable[[], None] = lambda: None,
    ) -> None:
        self._manager, self._on_more = manager, on_more
        self._by_rank: list[PoolGrowth | None] = [None] * len(workers)
        self._settled = asyncio.Event()
        self._closed = False
        for rank, worker in enumerate(workers):
            worker.on_growth(partial(self._on_growth, rank))

    @property
    def common(self) -> PoolGrowth | None:
        """What all workers have; `None` before each of them has told."""
        told = [growth for growth in self._by_rank if growth is not None]
        if len(told) < len(self._by_rank):
            return None
        growing = [growth.ready_slots for growth in told if growth.ready_slots is not None]
        ready = tuple(map(min, zip(*growing, strict=True))) if growing else None
        errors = "; ".join(growth.error for growth in told if growth.error)
        return PoolGrowth(ready, ended=all(growth.ended for growth in told), error=errors)

    async def wait(self) -> PoolGrowth:
        """Wait for the end of the growth.

        Raises:
            ClosedError: the service was closed before.
        """
        await self._settled.wait()
        common = self.common
        if common is None or self._closed:
            raise ClosedError("wait_grown: the service was closed while its memory grew")
        return common

    def close(self) -> None:
        """Tell the manager nothing more, and whoever waits that it was in vain."""
        if not self._settled.is_set():
            self._closed = True
            self._settled.set()

    def _on_growth(self, rank: int, growth: PoolGrowth) -> None:
        self._by_rank[rank] = growth
        common = self.common
        if common is None or self._closed:
            return
        if common.ready_slots is not None:
            self._manager.grow(common.ready_slots, ended=common.ended)
            self._on_more()
        if common.ended:
            self._settled.set()

    def __repr__(self) -> str:
        return f"GrowthWatch({len(self._by_rank)} workers, {self.common})"
