import asyncio

import pytest

from aiokvoffload.base import OffloadKey
from aiokvoffload.cli.demo.pages import PagePool, PagePoolStatistics, chain_keys
from aiokvoffload.errors import ArgumentError, InternalError

KEYS = [OffloadKey(b"key %d" % number) for number in range(8)]


def test_equal_keys_mean_equal_prefixes() -> None:
    keys = chain_keys([1, 2, 3, 4, 5], 2)
    assert len(keys) == 2
    assert chain_keys([1, 2, 3, 9], 2)[0] == keys[0] != chain_keys([0, 2, 3, 4], 2)[0]
    assert chain_keys([1, 2, 3, 9], 2)[1] != keys[1] != chain_keys([0, 2, 3, 4], 2)[1]
    assert chain_keys([3, 4], 2, parent=keys[0]) == keys[1:]


async def test_blocks_that_nobody_uses_are_found_until_they_are_handed_out() -> None:
    pool = PagePool(4)
    first = await pool.lease(KEYS[:3], 3)
    assert first.num_cached == 0
    pool.publish(KEYS[:3], first.block_ids)
    first.release()
    again = await pool.lease(KEYS[:2], 3)
    assert (again.block_ids[:2], again.num_cached) == (first.block_ids[:2], 2)
    again.release()
    (await pool.lease([], 4)).release()
    assert (await pool.lease(KEYS[:3], 3)).num_cached == 0


async def test_of_a_chain_nobody_uses_the_tail_goes_first() -> None:
    pool = PagePool(4)
    lease = await pool.lease(KEYS[:4], 4)
    pool.publish(KEYS[:4], lease.block_ids)
    lease.release()
    (await pool.lease([], 1)).release()
    assert (await pool.lease(KEYS[:4], 4)).num_cached == 3


async def test_cached_blocks_are_used_in_whole_units() -> None:
    pool = PagePool(6, unit=2)
    lease = await pool.lease(KEYS[:3], 3)
    pool.publish(KEYS[:3], lease.block_ids)
    assert (await pool.lease(KEYS[:3], 3)).num_cached == 2


async def test_a_small_request_does_not_overtake_one_that_waits() -> None:
    pool = PagePool(4)
    lease = await pool.lease([], 3)
    large, small = asyncio.create_task(pool.lease([], 4)), asyncio.create_task(pool.lease([], 1))
    await asyncio.sleep(0)
    assert pool.statistics().waiting == 2
    lease.release()
    (await large).release()
    assert len((await small).block_ids) == 1


async def test_cancelling_who_waits_takes_no_block_and_lets_the_next_one_in() -> None:
    pool = PagePool(4)
    await pool.lease([], 3)
    large, small = asyncio.create_task(pool.lease([], 4)), asyncio.create_task(pool.lease([], 1))
    await asyncio.sleep(0)
    large.cancel()
    (await small).release()
    assert pool.statistics() == PagePoolStatistics(in_use=3, cached=0, waiting=0)


async def test_a_grant_that_meets_a_cancellation_gives_the_blocks_back() -> None:
    pool = PagePool(4)
    lease = await pool.lease([], 3)
    waiting = asyncio.create_task(pool.lease([], 4))
    await asyncio.sleep(0)
    lease.release()  # grants them, and before the task hears of it:
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert pool.statistics().in_use == 0


async def test_who_was_cancelled_and_does_not_know_yet_gets_nothing() -> None:
    """Its blocks would be nobody's."""
    pool = PagePool(4)
    lease = await pool.lease([], 3)
    cancelled, next_one = asyncio.create_task(pool.lease([], 4)), asyncio.create_task(pool.lease([], 3))
    await asyncio.sleep(0)
    cancelled.cancel()
    lease.release()
    assert len((await next_one).block_ids) == 3
    await asyncio.wait([cancelled])
    assert cancelled.cancelled()
    assert pool.statistics() == PagePoolStatistics(in_use=3, cached=0, waiting=0)


async def test_blocks_go_back_when_their_last_user_has_released_them() -> None:
    pool = PagePool(2)
    lease = await pool.lease([], 2)
    lease.hold()
    lease.release()
    assert pool.statistics().in_use == 2
    lease.release()
    assert pool.statistics().in_use == 0
    with pytest.raises(InternalError, match="more often"):
        lease.release()


async def test_more_blocks_than_there_are_is_refused() -> None:
    with pytest.raises(ArgumentError, match="at most 2, all there are, got 3"):
        await PagePool(2).lease([], 3)
