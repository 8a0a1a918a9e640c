"""Fault 32, below CPU memory: cancelled, closed or reset in every phase, slots add up in every tier (I2, I7)."""

import asyncio

import pytest

from aiokvoffload.errors import AbandonedError, ClosedError, TierError
from aiokvoffload.service import OffloadingService
from tests.service.conftest import keys_of
from tests.tiering.stage import DeepStage, settle


@pytest.fixture
def stage() -> DeepStage:
    return DeepStage()


async def read(service: OffloadingService, *, count: int = 4, req_id: str = "reader") -> None:
    async with service.request(req_id) as request:
        await request.load(keys_of(count), range(count))


async def test_a_load_cancelled_during_its_promotion_leaves_the_promotion_alone(stage: DeepStage) -> None:
    keys = keys_of(4)
    async with stage as service:
        await stage.only_below(keys)
        stage.tier.hold()
        task = asyncio.create_task(read(service))
        await stage.tier.wait_for_calls(4)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        service.check_integrity()
        assert stage.manager.promoting_slots == 4
        stage.tier.release()
        await stage.drained()
        async with service.request("again") as request:
            result = await stage.finish(request.load(keys, range(4)))
        assert result.sources == (("cpu", 4),)
        stage.check()


async def test_one_of_two_cancelled_readers_changes_nothing_for_the_other(stage: DeepStage) -> None:
    """Fault 19."""
    keys = keys_of(4)
    async with stage as service:
        await stage.only_below(keys)
        stage.tier.hold()
        first = asyncio.create_task(read(service, req_id="first"))
        await settle()
        async with service.request("second") as request:
            handle = request.load(keys, range(4, 8))
            first.cancel()
            await asyncio.wait([first])
            stage.tier.release()
            assert (await stage.finish(handle)).served == 4
        stage.check()


async def test_a_load_cancelled_between_two_batches_holds_nothing_that_came_up() -> None:
    stage = DeepStage(max_loads=1, max_call_keys=1)
    keys = keys_of(4)
    async with stage as service:
        await stage.only_below(keys)
        task = asyncio.create_task(read(service))
        before = len(stage.worker.submitted)
        while len(stage.worker.submitted) == before:
            await asyncio.sleep(0)
        task.cancel()
        await settle()
        stage.worker.finish_all()
        await asyncio.wait([task])
        await stage.drained()
        stage.check()


async def test_a_load_cancelled_while_it_waits_for_room_leaves_the_queue() -> None:
    stage = DeepStage(num_slots=4)
    async with stage as service:
        await stage.only_below(keys_of(4))
        async with service.request("writer") as writer:
            store = writer.store(keys_of(4, name="busy"), range(4))
            task = asyncio.create_task(read(service))
            await stage.clock.wait_for_sleeper()
            task.cancel()
            await asyncio.wait([task])
            await stage.finish(store)
        await stage.drained()
        assert stage.memories[0].statistics().loaded == 0
        stage.check()


async def test_a_request_left_during_its_cascade_does_not_wait_for_the_tier(stage: DeepStage) -> None:
    async with stage as service:
        stage.tier.hold()
        async with service.request("writer") as request:
            await stage.finish(request.store(keys_of(4), range(4)))
        assert stage.manager.cascading_slots == 4
        service.check_integrity()
        stage.tier.release()
        await stage.drained()
        stage.check()


async def test_a_close_waits_for_what_is_going_down(stage: DeepStage) -> None:
    service = stage.service
    await service.__aenter__()
    stage.tier.hold()
    async with service.request("writer") as request:
        await stage.finish(request.store(keys_of(4), range(4)))
    closing = asyncio.create_task(service.aclose())
    await settle()
    assert not closing.done()
    stage.tier.release()
    await closing
    assert stage.memories[0].statistics().stored == 4
    assert not stage.worker.keeps_memory
    stage.check()


async def test_a_close_whose_waiter_is_cancelled_goes_on(stage: DeepStage) -> None:
    service = stage.service
    await service.__aenter__()
    stage.tier.hold()
    async with service.request("writer") as request:
        await stage.finish(request.store(keys_of(2), range(2)))
    closing = asyncio.create_task(service.aclose())
    await settle()
    closing.cancel()
    await asyncio.wait([closing])
    stage.tier.release()
    await service.aclose()
    stage.check()


async def test_a_close_during_a_promotion_ends_the_load_and_waits_for_the_tier(stage: DeepStage) -> None:
    service = stage.service
    await service.__aenter__()
    await stage.only_below(keys_of(4))
    stage.tier.hold()
    request = await service.request("reader").__aenter__()
    handle = request.load(keys_of(4), range(4))
    await settle()
    closing = asyncio.create_task(service.aclose())
    assert (await handle).served == 0
    await request.__aexit__(None, None, None)
    stage.tier.release()
    await closing
    stage.check()


async def test_a_close_with_a_hung_tier_ends_at_its_time_out_and_says_what_it_left(stage: DeepStage) -> None:
    """What the tier may still touch stays mapped (I2)."""
    service = stage.service
    await service.__aenter__()
    await stage.only_below(keys_of(2))
    stage.tier.hold()
    request = await service.request("reader").__aenter__()
    handle = request.load(keys_of(2), range(2))
    await settle()
    closing = asyncio.create_task(service.aclose())
    await settle()
    stage.clock.advance(10.0)
    await handle
    await request.__aexit__(None, None, None)
    await settle()
    assert not closing.done()
    for seconds in (14.0, 6.0):
        stage.clock.advance(seconds)
        await settle()
    with pytest.raises(AbandonedError, match=r"tier 'tier-0': 1 calls, its close"):
        await closing
    assert stage.worker.keeps_memory
    service.check_integrity()
    stage.tier.release()
    await settle()
    service.check_integrity()


async def test_a_reset_during_a_cascade_and_a_promotion_leaves_both_tiers_empty_and_whole(stage: DeepStage) -> None:
    """Fault 53."""
    async with stage as service:
        await stage.only_below(keys_of(2))
        stage.tier.hold()
        async with service.request("reader") as reader, service.request("writer") as writer:
            handle = reader.load(keys_of(2), range(2))
            await stage.finish(writer.store(keys_of(4, name="new"), range(2, 6)))
            resetting = asyncio.ensure_future(service.reset())
            await settle()
            service.check_integrity()
            stage.tier.release()
            result = await resetting
            assert result.deferred_tiers == ()
            assert (await handle).served == 0
        await stage.drained()
        every_key = [*keys_of(2), *keys_of(4, name="new")]
        assert not any(stage.tier.contains(every_key))
        async with service.request("after") as request:
            assert [request.lookup([key]) for key in every_key] == [0] * 6
        stage.check()


@pytest.mark.parametrize("passes", range(5))
async def test_a_reset_whose_caller_is_cancelled_goes_on(stage: DeepStage, passes: int) -> None:
    """Fault 53: half a reset would keep the tier out of service, and bring old chunks back after a restart."""
    keys = keys_of(4)
    async with stage as service:
        await stage.only_below(keys)
        resetting = asyncio.create_task(service.reset())
        await settle(passes)
        resetting.cancel()
        await asyncio.wait([resetting])
        await settle()
        if passes:  # it had begun
            assert not any(stage.memories[0].contains(keys))
        assert (stage.figures.serving, stage.figures.stores_waiting) == (True, 0)
        assert (await stage.fill(keys)).stored == 4
        assert stage.tier.contains(keys) == [True] * 4
        stage.check()


async def test_whoever_cancels_all_tasks_of_a_loop_frees_no_slot_that_a_tier_may_touch(stage: DeepStage) -> None:
    """I2: programs cancel every task at their end, and a thread may read on all the same."""
    service = stage.service
    await service.__aenter__()
    await stage.only_below(keys_of(2))
    stage.tier.hold()
    async with service.request("reader") as request:
        handle = request.load(keys_of(2), range(2))
        await settle()
        for task in asyncio.all_tasks():
            if task.get_name() == "aiokvoffload-tier-0":
                task.cancel()
        assert (await handle).served == 0
    stage.tier.release()
    await settle()
    assert stage.primary.statistics().pools[0].quarantined == 2
    closing = asyncio.create_task(service.aclose())
    await settle()
    for seconds in (24.0, 6.0):
        stage.clock.advance(seconds)
        await settle()
    with pytest.raises(AbandonedError, match="tier 'tier-0': 1 calls"):
        await closing
    assert stage.worker.keeps_memory
    service.check_integrity()


async def test_a_tier_that_cannot_be_opened_leaves_nothing_open(stage: DeepStage) -> None:
    async def refuse() -> None:
        raise TierError("the directory is somebody else's")

    stage.tier.open = refuse  # type: ignore[method-assign]
    with pytest.raises(TierError, match="somebody else's"):
        await stage.service.__aenter__()
    with pytest.raises(ClosedError):
        stage.worker.submit_store(1, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_an_opening_cancelled_twice_closes_the_tiers_that_were_open(turns: int) -> None:
    """Fault 32: two of three, while the third does not open; the second time they are just being closed."""
    stage = DeepStage(num_tiers=3)
    stuck = asyncio.Event()

    async def get_stuck() -> None:
        await stuck.wait()

    stage.memories[2].open = get_stuck  # type: ignore[method-assign]
    for tier in stage.tiers[:2]:
        tier.hold()
    opening = asyncio.create_task(stage.service.__aenter__())
    await settle(50)
    while not stage.memories[1]._is_open:
        await asyncio.sleep(0.001)
    opening.cancel()
    await settle(turns)
    opening.cancel()
    await settle()
    for tier in stage.tiers[:2]:
        tier.release()
    await asyncio.wait([opening])
    await settle()
    assert opening.cancelled()
    assert not any(memory._is_open for memory in stage.memories)
