"""The service with transfers that end when the test says so: outcomes, sharing, order, reset, close."""

import asyncio
from collections import deque

import numpy as np
import pytest

from aiokvoffload.base import EventKind, GPULoadStoreSpec
from aiokvoffload.config import GroupConfig
from aiokvoffload.device.host import HostStream
from aiokvoffload.errors import ArgumentError, BrokenError, ClosedError, ModeError, TransferError
from aiokvoffload.events import EventRecord
from tests.service.conftest import Stage, keys_of


async def test_what_was_stored_is_served_from_the_same_slots(stage: Stage) -> None:
    keys = keys_of(3)
    async with stage.service as service:
        async with service.request("writer") as request:
            handle = request.store(keys, [4, 5, 6])
            assert not handle.done()
            stage.worker.finish_all()
            stored = await handle
        async with service.request("reader") as request:
            assert request.lookup(keys) == 3
            load = request.load(keys, [0, 1, 2])
            stage.worker.finish_all()
            loaded = await load
        assert (stored.stored, stored.present, stored.refused_keys, stored.failed_keys) == (3, 0, (), ())
        assert (loaded.served, loaded.failed_keys, loaded.sources) == (3, (), (("cpu", 3),))
        store_job, load_job = stage.worker.submitted
        assert store_job.dst.chunk_ids.tolist() == load_job.src.chunk_ids.tolist()
        assert load_job.dst.block_ids.tolist() == [0, 1, 2]
        service.check_integrity()


async def test_stores_in_a_row_of_what_is_there_or_refused_leave_the_loop_to_others(stage: Stage) -> None:
    """I10: their results are there when the calls return, and awaiting those gives the others a turn all the same."""
    keys, turns = keys_of(8), 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with stage.service as service:
        await stage.fill(keys)
        task = asyncio.create_task(others())
        async with service.request("a") as request:
            for number in range(10):
                assert (await request.store(keys, range(8))).present == 8
                assert len((await request.store(keys_of(2, name=f"more-{number}"), [0, 1])).refused_keys) == 2
        assert turns >= 20
        task.cancel()
        await asyncio.wait([task])


async def test_a_key_is_served_only_after_its_last_byte(stage: Stage) -> None:
    """I4: until then a lookup says it will come, and a load waits for it."""
    keys = keys_of(2)
    async with stage.service as service, service.request("a") as writer, service.request("b") as reader:
        writer.store(keys, [0, 1])
        assert reader.lookup(keys) == 2
        load = reader.load(keys, [2, 3])
        await asyncio.sleep(0)
        assert [job.direction.name for job in stage.worker.submitted] == ["STORE"]
        stage.worker.finish_all()
        while len(stage.worker.submitted) < 2:
            await asyncio.sleep(0)
        stage.worker.finish_all()
        assert (await load).served == 2


async def test_a_load_finds_less_than_the_lookup_said_when_a_key_left_meanwhile(stage: Stage) -> None:
    """Fault 13, I3."""
    keys = keys_of(4)
    async with stage.service as service:
        await stage.fill(keys)
        async with service.request("reader") as reader:
            assert reader.lookup(keys) == 4
            await stage.fill(keys_of(6, name="other"), req_id="evictor")
            load = reader.load(keys, [0, 1, 2, 3])
            stage.worker.finish_all()
            result = await load
        assert result.served == 2
        assert result.failed_keys == tuple(keys[2:])
        service.check_integrity()


async def test_keys_behind_the_first_miss_are_not_loaded(stage: Stage) -> None:
    keys = keys_of(4)
    async with stage.service as service:
        await stage.fill([keys[0], keys[2], keys[3]])
        async with service.request("reader") as reader:
            load = reader.load(keys, [0, 1, 2, 3])
            stage.worker.finish_all()
            assert (await load).served == 1


async def test_a_failed_part_fails_everything_behind_it(stage: Stage) -> None:
    """Fault 10: the first failure onward is failed; what failed is dropped, what did not stays."""
    keys = keys_of(4)
    async with stage.service as service:
        await stage.fill(keys)
        async with service.request("reader") as reader:
            load = reader.load(keys, [0, 1, 2, 3])
            stage.worker.finish(stage.worker.in_flight[0], failed_indices=[1])
            result = await load
            assert (result.served, result.failed_keys) == (1, tuple(keys[1:]))
            assert reader.lookup(keys) == 1
            assert reader.lookup(keys[2:]) == 2
        service.check_integrity()


async def test_a_failed_store_leaves_no_trace(stage: Stage) -> None:
    """I4."""
    keys = keys_of(3)
    async with stage.service as service, service.events.subscribe() as events:
        async with service.request("writer") as writer:
            store = writer.store(keys, [0, 1, 2])
            stage.worker.finish(stage.worker.in_flight[0], failed_indices=[2])
            result = await store
            assert (result.stored, result.failed_keys) == (2, (keys[2],))
            assert writer.lookup(keys) == 2
        record = await anext(events)
        assert isinstance(record, EventRecord)
        assert record.event.keys == tuple(keys[:2])
        service.check_integrity()


async def test_a_second_store_of_a_key_joins_the_first(stage: Stage) -> None:
    """Fault 18: one transfer, both informed, the second's GPU blocks free at once."""
    keys = keys_of(2)
    async with stage.service as service, service.request("a") as first, service.request("b") as second:
        one = first.store(keys, [0, 1])
        other = second.store(keys, [2, 3])
        await asyncio.wait_for(other.released, 5)
        assert not other.done()
        assert len(stage.worker.submitted) == 1
        stage.worker.finish_all()
        assert (await one).stored == (await other).stored == 2


async def test_joined_stores_share_a_failure_too(stage: Stage) -> None:
    keys = keys_of(2)
    async with stage.service as service, service.request("a") as first, service.request("b") as second:
        one, other = first.store(keys, [0, 1]), second.store(keys, [2, 3])
        stage.worker.finish(stage.worker.in_flight[0], success=False)
        assert (await one).failed_keys == (await other).failed_keys == tuple(keys)


async def test_sixteen_loads_of_one_prefix_are_sixteen_copies_that_wait_for_none_of_the_others(stage: Stage) -> None:
    """Fault 19."""
    keys = keys_of(4)
    async with stage.service as service:
        await stage.fill(keys)
        loads = []
        requests = [service.request(f"reader-{number}") for number in range(16)]
        for number, request in enumerate(requests):
            await request.__aenter__()
            loads.append(request.load(keys, range(number * 4, number * 4 + 4)))
        jobs = stage.worker.submitted[1:]
        assert len(jobs) == 16
        assert len({tuple(job.src.chunk_ids.tolist()) for job in jobs}) == 1
        stage.worker.finish(jobs[15].job_id)
        assert (await asyncio.wait_for(loads[15], 5)).served == 4
        assert not any(load.done() for load in loads[:15])
        stage.worker.finish_all()
        assert [(await load).served for load in loads] == [4] * 16
        for request in requests:
            await request.__aexit__(None, None, None)
        service.check_integrity()


async def test_a_load_keeps_its_slots_until_the_copy_ends(stage: Stage) -> None:
    """Fault 14: pinned from plan to event."""
    keys = keys_of(4)
    async with stage.service as service:
        await stage.fill(keys)
        async with service.request("reader") as reader, service.request("writer") as writer:
            load = reader.load(keys, [0, 1, 2, 3])
            store = writer.store(keys_of(8, name="other"), range(10, 18))
            assert writer.lookup(keys) == 4
            stage.worker.finish_all()
            assert (await load).served == 4
            assert (await store).stored == 4


async def test_a_store_without_room_is_refused_and_evicts_nothing(stage: Stage) -> None:
    """I6, fault 30: at once, without waiting for room that may never come."""
    keys = keys_of(8)
    async with stage.service as service:
        await stage.fill(keys)
        async with service.request("reader") as reader, service.request("writer") as writer:
            load = reader.load(keys, range(8))
            result = await writer.store(more := keys_of(2, name="more"), [8, 9])
            assert (result.stored, result.refused_keys) == (0, tuple(more))
            stage.worker.finish_all()
            assert (await load).served == 8
            assert reader.lookup(keys) == 8


async def test_a_long_call_is_cut_into_runs_and_ends_whole() -> None:
    """I10."""
    stage = Stage(num_slots=64, max_run_keys=8, max_jobs_in_flight=2)
    keys = keys_of(50)
    async with stage.service as service, service.request("writer") as writer:
        store = writer.store(keys, range(50))
        most = 0
        while not store.done():
            most = max(most, len(stage.worker.in_flight))
            for job_id in stage.worker.in_flight[:1]:
                stage.worker.finish(job_id)
            await asyncio.sleep(0)
        assert (await store).stored == 50
        assert most <= 2
        assert [len(job.dst.chunk_ids) for job in stage.worker.submitted] == [8] * 6 + [2]
        assert [b for job in stage.worker.submitted for b in job.src.block_ids.tolist()] == list(range(50))


async def test_a_later_run_of_which_some_is_resident_stores_the_rest_from_its_own_blocks() -> None:
    """I5. A run begins in the middle of the call's blocks."""
    stage = Stage(num_slots=16, max_run_keys=4)
    keys = keys_of(8)
    await_all = stage.worker.finish_all
    async with stage.service as service, service.request("one") as request:
        resident = request.store([keys[5]], [55])
        await_all()
        await resident
        store = request.store(keys, range(10, 18))
        while not store.done():
            await_all()
            await asyncio.sleep(0)
        assert ((await store).stored, (await store).present) == (7, 1)
    assert [job.src.block_ids.tolist() for job in stage.worker.submitted] == [[55], [10, 11, 12, 13], [14, 16, 17]]


@pytest.mark.parametrize("num_keys", [2, 12])
async def test_what_the_caller_writes_into_its_spec_after_the_call_reaches_no_job(num_keys: int) -> None:
    """I5, fault 39: also runs that are submitted later."""
    stage = Stage(num_slots=32, max_run_keys=4)
    async with stage.service as service, service.request("one") as request:
        spec = GPULoadStoreSpec(range(num_keys))
        store = request.store(keys_of(num_keys), spec)
        spec.block_ids[:] = 99
        while not store.done():
            stage.worker.finish_all()
            await asyncio.sleep(0)
        moved = [block for job in stage.worker.submitted for block in job.src.block_ids.tolist()]
        assert moved == list(range(num_keys))
        stage.worker.submitted[0].src.block_ids[:] = 77  # what a worker does with its own is no concern of the caller
        assert spec.block_ids.tolist() == [99] * num_keys


async def test_a_spec_is_checked_as_it_is_when_it_is_given() -> None:
    stage = Stage(num_slots=32)
    async with stage.service as service, service.request("one") as request:
        spec = GPULoadStoreSpec(range(2))
        spec.block_ids = np.array([4, 5], dtype=np.int32)
        store = request.store(keys_of(2), spec)
        stage.worker.finish_all()
        await store
        assert stage.worker.submitted[0].src.block_ids.tolist() == [4, 5]
        spec.block_ids = np.array([4, 5, 6])
        with pytest.raises(ArgumentError, match="group_sizes must be at least 0 and sum to len"):
            request.store(keys_of(3), spec)


async def test_loads_that_begin_and_end_inside_a_chunk_take_exactly_those_blocks() -> None:
    """Fault 47."""
    stage = Stage(groups=(GroupConfig(blocks_per_chunk=4),), max_run_keys=2)
    keys = keys_of(3)
    async with stage.service as service:
        async with service.request("writer") as writer:
            store = writer.store(keys, range(12))
            while not store.done():
                stage.worker.finish_all()
                await asyncio.sleep(0)
        async with service.request("reader") as reader:
            load = reader.load(keys, GPULoadStoreSpec([20, 21, 22, 23, 24, 25], [6], [3]))
            while not load.done():
                stage.worker.finish_all()
                await asyncio.sleep(0)
            assert (await load).served == 3
        first, second = stage.worker.submitted[-2:]
        assert (first.dst.block_ids.tolist(), first.dst.block_indices) == ([20, 21, 22, 23, 24], (3,))
        assert (second.dst.block_ids.tolist(), second.dst.block_indices) == ([25], (8,))


async def test_each_group_serves_its_own_prefix() -> None:
    """Fault 46."""
    stage = Stage(groups=(GroupConfig(), GroupConfig(span=2, window_chunks=1)))
    full, windowed = keys_of(4), keys_of(2, group_idx=1)
    async with stage.service as service:
        async with service.request("writer") as writer:
            store = writer.store([*full, windowed[1]], GPULoadStoreSpec(range(5), [4, 1], [0, 1]))
            stage.worker.finish_all()
            assert (await store).stored == 5
        async with service.request("reader") as reader:
            assert reader.lookup([full, windowed]) == 4
            assert reader.lookup([full[:2], windowed[:1]]) == 0
            load = reader.load([*full, windowed[1]], GPULoadStoreSpec(range(5), [4, 1], [0, 1]))
            stage.worker.finish_all()
            while not load.done():
                stage.worker.finish_all()
                await asyncio.sleep(0)
            assert (await load).served_by_group == (4, 1)


async def test_a_job_ends_when_all_workers_have_ended() -> None:
    stage = Stage(num_workers=2)
    keys = keys_of(2)
    async with stage.service as service, service.request("writer") as writer:
        store = writer.store(keys, [0, 1])
        stage.workers[0].finish_all()
        await asyncio.sleep(0)
        assert not store.done()
        assert service.statistics().jobs_in_flight == 1
        stage.workers[1].finish_all()
        assert (await store).stored == 2


async def test_a_block_that_one_worker_lost_is_lost() -> None:
    """Fault 9, I6: all tensors on all workers, or nothing."""
    stage = Stage(num_workers=2)
    keys = keys_of(2)
    async with stage.service as service, service.request("writer") as writer:
        store = writer.store(keys, [0, 1])
        stage.workers[0].finish_all()
        stage.workers[1].finish(stage.workers[1].in_flight[0], failed_indices=[0])
        assert (await store).failed_keys == (keys[0],)
        assert writer.lookup(keys) == 0
        service.check_integrity()


async def test_a_worker_that_refuses_fails_the_run_and_not_the_service(stage: Stage) -> None:
    """Fault 27."""
    keys = keys_of(2)
    async with stage.service as service, service.request("writer") as writer:
        stage.worker.submit_error = BrokenError("the device is gone")
        assert (await writer.store(keys, [0, 1])).failed_keys == tuple(keys)
        again = writer.store(keys, [0, 1])
        stage.worker.finish_all()
        assert (await again).stored == 2
        service.check_integrity()


async def test_a_load_that_a_worker_refuses_costs_the_cache_nothing(stage: Stage) -> None:
    keys = keys_of(2)
    async with stage.service as service:
        await stage.fill(keys)
        async with service.request("reader") as reader:
            stage.worker.submit_error = BrokenError("the device is gone")
            result = await reader.load(keys, [0, 1])
            assert (result.failed_keys, result.error) == (tuple(keys), "BrokenError: the device is gone")
            assert reader.lookup(keys) == 2
        service.check_integrity()


async def test_a_reset_makes_running_transfers_worthless(stage: Stage) -> None:
    """Fault 53: late completions of the old epoch are ignored."""
    old, new = keys_of(2), keys_of(2, name="new")
    async with stage.service as service:
        await stage.fill(old)
        async with service.request("a") as reader, service.request("b") as writer:
            load, store = reader.load(old, [0, 1]), writer.store(new, [2, 3])
            cleared = await service.reset()
            assert cleared.cleared_by_tier == (("cpu", 2),)
            again = writer.store(new, [2, 3])
            await asyncio.sleep(0)
            stage.worker.finish_all()
            assert (await load).served == 0
            assert (await store).failed_keys == tuple(new)
            assert (await again).stored == 2
            assert (reader.lookup(old), reader.lookup(new)) == (0, 2)
        service.check_integrity()


async def test_events_tell_stored_removed_and_cleared_in_order(stage: Stage) -> None:
    """I9, fault 49: stored only once it is readable."""
    async with stage.service as service, service.events.subscribe() as events:
        async with service.request("writer") as writer:
            store = writer.store(keys_of(8), range(8))
            assert service.statistics().events.published == 1  # that the tier begins empty
            stage.worker.finish_all()
            await store
        await stage.fill(keys_of(1, name="other"))
        await service.reset()
        kinds = []
        for _ in range(4):
            record = await anext(events)
            assert isinstance(record, EventRecord)
            kinds.append(record.event.kind)
        assert kinds == [EventKind.STORED, EventKind.REMOVED, EventKind.STORED, EventKind.CLEARED]


async def test_a_fence_taken_before_submission_waits_for_it() -> None:
    """Fault 2: a stream does not wait for an event that was not recorded, so the fence does."""
    stage = Stage(num_slots=32, max_run_keys=4, max_jobs_in_flight=1)
    keys = keys_of(12)
    stream = HostStream("test")
    try:
        async with stage.service as service, service.request("writer") as writer:
            store = writer.store(keys, range(12))
            fence = asyncio.ensure_future(store.fence(stream))
            for expected in (1, 2, 3):
                while len(stage.worker.submitted) < expected:
                    await asyncio.sleep(0)
                assert not fence.done()
                if expected < 3:
                    stage.worker.finish_all()
            await asyncio.wait_for(fence, 5)
            assert len(stage.worker.fenced) == 1  # the jobs before it have ended: nothing to wait for
            stage.worker.finish_all()
            await store
    finally:
        await asyncio.to_thread(stream.close)


async def test_a_fence_on_keys_that_cannot_be_served_names_them(stage: Stage) -> None:
    keys = keys_of(3)
    stream = HostStream("test")
    try:
        async with stage.service as service:
            await stage.fill(keys[:1])
            async with service.request("reader") as reader:
                load = reader.load(keys, [0, 1, 2])
                with pytest.raises(TransferError, match="2 keys cannot be served") as caught:
                    await load.fence(stream)
                assert caught.value.failed_keys == tuple(keys[1:])
                assert len(stage.worker.fenced) == 1
                stage.worker.finish_all()
                await load
    finally:
        await asyncio.to_thread(stream.close)


async def test_short_stores_protect_their_source_and_long_ones_say_so_only_when_asked() -> None:
    stage = Stage(num_slots=64, max_run_keys=4)
    async with stage.service as service, service.request("writer") as writer:
        handles = [
            writer.store(keys_of(4), range(4)),
            writer.store(keys_of(4, name="b"), range(4), protect_source=False),
            writer.store(keys_of(8, name="c"), range(8), protect_source=True),
            writer.store(keys_of(8, name="d"), range(8)),
        ]
        while not all(handle.done() for handle in handles):
            stage.worker.finish_all()
            await asyncio.sleep(0)
        assert [job.protect_source for job in stage.worker.submitted] == [True, False, True, True, False, False]


async def test_every_reuse_filtered_key_is_named() -> None:
    stage = Stage(store_threshold=2)
    keys = keys_of(2)
    async with stage.service as service:
        async with service.request("first") as request:
            assert (await request.store(keys, [0, 1])).refused_keys == tuple(keys)
        async with service.request("second") as request:
            store = request.store(keys, [0, 1])
            stage.worker.finish_all()
            assert (await store).stored == 2


async def test_misuse_is_named(stage: Stage) -> None:
    service = stage.service
    with pytest.raises(ClosedError, match="not open"):
        service.request("early")
    async with service:
        with pytest.raises(ArgumentError, match="non-empty string"):
            service.request("")
        request = service.request("a")
        with pytest.raises(ClosedError, match="not open"):
            request.load(keys_of(1), [0])
        async with request:
            with pytest.raises(ArgumentError, match="in use"):
                service.request("a")
            with pytest.raises(ArgumentError, match="for each of 1 workers, got 2"):
                request.store(keys_of(1), [0], after=[None, None])  # type: ignore[list-item]
            with pytest.raises(ArgumentError, match="after must be a stream, an event or None, got 3"):
                request.load(keys_of(1), [0], after=3)  # type: ignore[arg-type]
            with pytest.raises(ArgumentError, match="got a bytes"):
                request.lookup(keys_of(1)[0])  # type: ignore[arg-type]
            with pytest.raises(ArgumentError, match="which are bytes, got 'abc'"):
                request.lookup(["abc"])  # type: ignore[arg-type]
            with pytest.raises(ModeError, match="the thread of the loop"):
                await asyncio.to_thread(request.lookup, keys_of(1))
            with pytest.raises(ArgumentError, match="keys must be one chain, or one for each of 1 groups, got 2"):
                request.lookup([keys_of(1), keys_of(1)])
            assert request.prefetch(deque(keys_of(3))) == 0
            with pytest.raises(ArgumentError, match=r"keys\[1\] must be bytes made by make_offload_key, got b'abc'"):
                request.prefetch([*keys_of(1), b"abc"])  # type: ignore[arg-type]
            with pytest.raises(ArgumentError, match=r"keys\[0\] is of group 9, there are 1 groups"):
                request.prefetch(keys_of(1, group_idx=9))
    with pytest.raises(ClosedError, match="closed"):
        service.request("late")
    with pytest.raises(ClosedError, match="entered once"):
        await request.__aenter__()
    with pytest.raises(ClosedError, match="opened once"):
        await service.__aenter__()


async def test_statistics_add_up(stage: Stage) -> None:
    async with stage.service as service:
        await stage.fill(keys_of(3))
        async with service.request("reader") as reader:
            load = reader.load(keys_of(3), [0, 1, 2])
            during = service.statistics()
            assert (during.requests, during.loads, during.stores, during.jobs_in_flight) == (1, 1, 1, 1)
            stage.worker.finish_all()
            await load
        after = service.statistics()
        assert (after.requests, after.loads, after.stores, after.jobs_in_flight) == (0, 1, 1, 0)
        assert "0 requests" in repr(service)
