"""What the service makes of workers that grow at different speeds."""

import asyncio
from collections.abc import Callable

import pytest

from aiokvoffload.base import PoolGrowth
from aiokvoffload.config import GroupConfig
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.cpu.manager import CPUOffloadingManager
from aiokvoffload.errors import ClosedError
from aiokvoffload.service.growth_watch import GrowthWatch
from aiokvoffload.testing import MockOffloadingWorker
from tests.service.conftest import Stage


class GrowingWorker(MockOffloadingWorker):
    """Grows when the test says so."""

    def on_growth(self, callback: Callable[[PoolGrowth], None]) -> None:
        self.tell = callback


def make_watch(num_workers: int = 2) -> tuple[CPUOffloadingManager, list[GrowingWorker], GrowthWatch]:
    manager = CPUOffloadingManager([PoolShape((0,), 4096, 8)], groups=[GroupConfig()], grows=True)
    workers = [GrowingWorker() for _ in range(num_workers)]
    return manager, workers, GrowthWatch(manager, workers)


def capacity(manager: CPUOffloadingManager) -> tuple[int, int]:
    (pool,) = manager.statistics().pools
    return pool.capacity, pool.growing


async def test_a_slot_is_used_once_every_worker_has_it() -> None:
    """I6: slot i is row i in every worker's pool."""
    manager, (first, second), watch = make_watch()
    first.tell(PoolGrowth((6,), False))
    assert (capacity(manager), watch.common) == ((0, 8), None)
    second.tell(PoolGrowth((2,), False))
    assert capacity(manager) == (2, 6)
    first.tell(PoolGrowth((8,), True))
    second.tell(PoolGrowth((5,), False))
    assert capacity(manager) == (5, 3)
    manager.check_integrity()


async def test_the_wait_ends_when_all_have_ended_and_says_what_is_common() -> None:
    manager, (first, second), watch = make_watch()
    waiting = asyncio.create_task(watch.wait())
    first.tell(PoolGrowth((8,), True))
    second.tell(PoolGrowth((3,), False))
    await asyncio.sleep(0)
    assert not waiting.done()
    second.tell(PoolGrowth((3,), True, "no memory"))
    assert await waiting == await watch.wait() == PoolGrowth((3,), True, "no memory")
    assert capacity(manager) == (3, 0)


async def test_a_cancelled_wait_disturbs_no_other() -> None:
    _, (worker,), watch = make_watch(1)
    waits = [asyncio.create_task(watch.wait()) for _ in range(2)]
    await asyncio.sleep(0)
    waits[0].cancel()
    worker.tell(PoolGrowth((8,), True))
    assert (await waits[1]).ended
    assert waits[0].cancelled()


async def test_a_close_ends_the_wait_and_the_manager_learns_no_more() -> None:
    manager, (worker,), watch = make_watch(1)
    worker.tell(PoolGrowth((2,), False))
    waiting = asyncio.create_task(watch.wait())
    await asyncio.sleep(0)
    watch.close()
    with pytest.raises(ClosedError, match="wait_grown"):
        await waiting
    worker.tell(PoolGrowth((8,), True))
    assert capacity(manager) == (2, 6)
    assert "1 workers" in repr(watch)


async def test_a_service_whose_workers_do_not_grow_has_grown(stage: Stage) -> None:
    async with stage.service as service:
        assert (await service.wait_grown()).ended
        assert service.statistics().manager.pools[0].capacity == 8
        assert service.pool_files() == ((),)
    with pytest.raises(ClosedError):
        await service.wait_grown()
    with pytest.raises(ClosedError):
        service.pool_files()
