"""A close comes to its end, whoever is cancelled meanwhile."""

import asyncio
import contextlib
import itertools

import pytest

from aiokvoffload.config import GroupConfig
from aiokvoffload.copy.memory_use import MemoryUse, memory_use
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.cpu.manager import CPUOffloadingManager
from aiokvoffload.device.host import HostDevice
from aiokvoffload.errors import AbandonedError
from aiokvoffload.service import OffloadingService, Parts
from aiokvoffload.service.closing import undeterred
from aiokvoffload.testing.memory import make_worker_rig
from tests.service.conftest import LIMITS, Stage, keys_of


async def test_a_step_is_taken_again_if_it_is_cancelled_and_not_for_ever() -> None:
    taken = itertools.count()

    async def step() -> int:
        if (number := next(taken)) < 2:
            raise asyncio.CancelledError
        return number

    assert await undeterred(step) == 2

    async def never() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await undeterred(never)


def _service_on(device: HostDevice) -> OffloadingService:
    def build() -> Parts:
        rig, pool, groups = make_worker_rig(device), PoolShape((0,), 3072, 8), [GroupConfig(blocks_per_chunk=2)]
        return Parts(CPUOffloadingManager([pool], groups=groups), [rig.worker])

    return OffloadingService(build, groups=[GroupConfig(blocks_per_chunk=2)], limits=LIMITS)


@pytest.mark.parametrize("num_passes", range(8))
async def test_a_close_ends_although_every_task_is_cancelled(num_passes: int) -> None:
    """I1, I2, fault 35: as programs do that go on, or ask again, after they have cancelled all tasks."""
    before, device = memory_use(), HostDevice()
    service = _service_on(device)
    await service.__aenter__()
    with contextlib.suppress(AbandonedError):  # of the store, whose outcome nobody knows then
        async with service.request("a") as request:
            request.store(keys_of(8), range(16), protect_source=False)
            closing = asyncio.create_task(service.aclose())
            for _ in range(num_passes):
                await asyncio.sleep(0)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.wait([closing])
    ends = await asyncio.wait_for(asyncio.gather(service.aclose(), service.aclose(), return_exceptions=True), 10)
    assert all(end is None or isinstance(end, AbandonedError) for end in ends), ends
    await _until_freed(before)
    await asyncio.to_thread(device.close)


@pytest.mark.parametrize("num_passes", range(2, 8))
def test_a_loop_that_ends_during_a_close_leaves_nothing(num_passes: int) -> None:
    """I2, fault 35: `asyncio.run` cancels all tasks, and waits for them."""
    before, device = memory_use(), HostDevice()

    async def main() -> None:
        service = _service_on(device)
        await service.__aenter__()
        closing = asyncio.create_task(service.aclose())
        for _ in range(num_passes):
            await asyncio.sleep(0)
        del closing

    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(lambda *_: None)  # it says that the close was cancelled
        runner.run(main())
    asyncio.run(_until_freed(before))
    device.close()


async def test_whoever_waits_for_a_close_hears_how_it_ended_also_when_its_task_is_begun_anew(stage: Stage) -> None:
    await stage.service.__aenter__()
    first = asyncio.create_task(stage.service.aclose())
    await asyncio.sleep(0)
    next(task for task in asyncio.all_tasks() if task.get_name() == "aiokvoffload-close").cancel()
    await asyncio.wait_for(asyncio.gather(first, stage.service.aclose()), 10)


async def _until_freed(before: MemoryUse) -> None:
    async with asyncio.timeout(10):
        while memory_use() != before:
            await asyncio.sleep(0.01)
