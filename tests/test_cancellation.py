"""Fault 32: cancelled in every phase, nothing leaks and nothing is free early (I2)."""

import asyncio

import pytest

from aiokvoffload.service import Handle, LoadResult
from tests.service.conftest import Stage, keys_of


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def settle(passes: int = 5) -> None:
    for _ in range(passes):
        await asyncio.sleep(0)


async def test_a_cancelled_waiter_detaches_and_the_load_goes_on(stage: Stage) -> None:
    keys = keys_of(2)
    async with stage.service as service:
        await stage.fill(keys)
        async with service.request("reader") as reader:
            load = reader.load(keys, [0, 1])
            waiters = [asyncio.ensure_future(_wait(load)) for _ in range(2)]
            await settle()
            waiters[0].cancel()
            await settle()
            assert waiters[0].cancelled()
            assert stage.worker.in_flight
            stage.worker.finish_all()
            assert (await waiters[1]).served == 2
        service.check_integrity()


async def _wait(handle: Handle[LoadResult]) -> LoadResult:
    return await handle


async def test_a_request_cancelled_before_its_lookup_leaves_nothing(stage: Stage) -> None:
    async with stage.service as service:

        async def request() -> None:
            async with service.request("a"):
                await asyncio.Event().wait()

        task = asyncio.create_task(request())
        await settle()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert service.statistics().requests == 0


async def test_leaving_a_request_waits_until_no_copy_touches_its_blocks(stage: Stage) -> None:
    keys = keys_of(2)
    released: list[str] = []
    async with stage.service as service:

        async def request() -> None:
            async with service.request("a") as entered:
                entered.on_released(lambda: released.append("a"))
                entered.store(keys, [0, 1])

        task = asyncio.create_task(request())
        await settle()
        assert not task.done()
        assert released == []
        stage.worker.finish_all()
        await asyncio.wait_for(task, 5)
        assert released == ["a"]


async def test_the_blocks_are_free_at_the_release_and_the_result_may_come_later(stage: Stage) -> None:
    async with stage.service as service, service.request("a") as request:
        store = request.store(keys_of(1), [0])
        stage.worker.release(stage.worker.in_flight[0])
        await asyncio.wait_for(store.released, 5)
        assert not store.done()
        stage.worker.finish_all()
        await store


async def test_an_aborted_request_is_left_only_when_its_copies_have_ended(stage: Stage) -> None:
    async with stage.service as service:

        async def request() -> None:
            async with service.request("a") as entered:
                await entered.store(keys_of(2), [0, 1])

        task = asyncio.create_task(request())
        await settle()
        task.cancel()
        await settle()
        assert not task.done()
        stage.worker.finish_all()
        await asyncio.wait([task])
        assert task.cancelled()
        service.check_integrity()


async def test_a_second_cancellation_detaches_and_the_blocks_stay_busy(stage: Stage) -> None:
    released: list[str] = []
    async with stage.service as service:

        async def request() -> None:
            async with service.request("a") as entered:
                entered.on_released(lambda: released.append("a"))
                await entered.store(keys_of(2), [0, 1])

        task = asyncio.create_task(request())
        await settle()
        task.cancel()
        await settle()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert (released, stage.worker.in_flight) == ([], [stage.worker.submitted[0].job_id])
        stage.worker.finish_all()
        await settle()
        assert released == ["a"]
        service.check_integrity()


async def test_a_cancellation_while_leaving_is_delivered_after_the_copies_ended(stage: Stage) -> None:
    async with stage.service as service:

        async def request() -> None:
            async with service.request("a") as entered:
                entered.store(keys_of(2), [0, 1])

        task = asyncio.create_task(request())
        await settle()
        task.cancel()
        await settle()
        assert not task.done()
        stage.worker.finish_all()
        await asyncio.wait([task])
        assert task.cancelled()


async def test_an_abort_submits_no_further_run() -> None:
    stage = Stage(num_slots=32, max_run_keys=2, max_jobs_in_flight=1)
    async with stage.service as service:
        store = None

        async def request() -> None:
            nonlocal store
            async with service.request("a") as entered:
                store = entered.store(keys_of(10), range(10))
                await store

        task = asyncio.create_task(request())
        while not stage.worker.submitted:
            await asyncio.sleep(0)
        task.cancel()
        await settle()
        stage.worker.finish_all()
        await asyncio.wait([task])
        await settle()
        assert len(stage.worker.submitted) == 1
        assert store is not None
        result = await store
        assert (result.stored, len(result.refused_keys)) == (2, 8)
        service.check_integrity()


async def test_a_load_cancelled_while_it_waits_for_a_store_leaves_the_store_alone(stage: Stage) -> None:
    keys = keys_of(2)
    async with stage.service as service, service.request("writer") as writer:
        store = writer.store(keys, [0, 1])

        async def read() -> None:
            async with service.request("reader") as reader:
                await reader.load(keys, [2, 3])

        task = asyncio.create_task(read())
        await settle()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        stage.worker.finish_all()
        assert (await store).stored == 2
        await settle()
        assert len(stage.worker.submitted) == 1
        service.check_integrity()


async def test_cancelling_one_of_two_joined_stores_changes_nothing_for_the_other(stage: Stage) -> None:
    """Fault 18."""
    keys = keys_of(2)
    async with stage.service as service, service.request("second") as second:

        async def first() -> None:
            async with service.request("first") as request:
                await request.store(keys, [0, 1])

        task = asyncio.create_task(first())
        await settle()
        joined = second.store(keys, [2, 3])
        task.cancel()
        await settle()
        task.cancel()
        await asyncio.wait([task])
        stage.worker.finish_all()
        assert (await joined).stored == 2
        service.check_integrity()


async def test_closing_waits_for_copies_and_goes_on_when_its_waiter_is_cancelled(stage: Stage) -> None:
    """I2, fault 35."""
    service = stage.service
    await service.__aenter__()
    request = await service.request("a").__aenter__()
    store = request.store(keys_of(1), [0])
    closing = asyncio.create_task(service.aclose())
    await settle()
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    assert not store.done()
    stage.worker.finish_all()
    await asyncio.wait_for(service.aclose(), 5)
    assert (await store).stored == 1
    await request.__aexit__(None, None, None)
    await service.aclose()
    service.check_integrity()


async def test_a_close_ends_what_was_not_submitted_yet() -> None:
    stage = Stage(num_slots=32, max_run_keys=2, max_jobs_in_flight=1)
    service = stage.service
    await service.__aenter__()
    request = await service.request("a").__aenter__()
    store = request.store(keys_of(10), range(10))
    while not stage.worker.submitted:
        await asyncio.sleep(0)
    closing = asyncio.create_task(service.aclose())
    await settle()
    stage.worker.finish_all()
    await asyncio.wait_for(closing, 5)
    assert (await store).stored == 2
    await request.__aexit__(None, None, None)
