"""First come, first served, and nothing is granted to nobody. Its users' tests say the same of blocks."""

import asyncio

from aiokvoffload.cli.waiting_line import WaitingLine


class Store:
    """So many things, of which everyone in the line takes some."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.line = WaitingLine(self.put)

    def put(self, count: int) -> None:
        self.left += count
        self.line.serve()

    async def want(self, count: int) -> int:
        return await self.line.wait(lambda: self._take(count))

    def _take(self, count: int) -> int | None:
        if count > self.left:
            return None
        self.left -= count
        return count


async def test_the_first_one_is_waited_for_though_the_next_needs_less() -> None:
    store = Store(2)
    assert await store.want(0) == 0
    large, small = asyncio.create_task(store.want(3)), asyncio.create_task(store.want(1))
    await asyncio.sleep(0)
    assert (len(store.line), repr(store.line)) == (2, "WaitingLine(2 waiting)")
    store.put(2)
    assert (await large, await small, store.left, len(store.line)) == (3, 1, 0, 0)


async def test_who_was_cancelled_holds_nobody_up_before_he_knows() -> None:
    store = Store(0)
    cancelled, next_one = asyncio.create_task(store.want(9)), asyncio.create_task(store.want(1))
    await asyncio.sleep(0)
    cancelled.cancel()
    store.put(1)
    assert len(store.line) == 0
    assert await next_one == 1
    await asyncio.wait([cancelled])
    assert (cancelled.cancelled(), store.left) == (True, 0)


async def test_what_is_granted_to_who_is_cancelled_then_goes_back() -> None:
    store = Store(0)
    cancelled, next_one = asyncio.create_task(store.want(2)), asyncio.create_task(store.want(1))
    await asyncio.sleep(0)
    store.put(2)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert (cancelled.cancelled(), await next_one, store.left) == (True, 1, 1)
