"""Requests over several tiers: what a lookup counts, what a load promotes, and who waits for what."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator

import pytest

from aiokvoffload.base import EventKind, LookupResult, OffloadKey, ReqContext
from aiokvoffload.base.tier import ChunkViews, LoadOutcome
from aiokvoffload.config import GroupConfig
from aiokvoffload.device.host import HostStream
from aiokvoffload.errors import ArgumentError, TransferError
from aiokvoffload.events import EventRecord
from aiokvoffload.service import LoadResult
from tests.service.conftest import keys_of
from tests.tiering.stage import DeepStage, settle


@pytest.fixture
def stage() -> DeepStage:
    return DeepStage()


@pytest.fixture
def stream() -> Iterator[HostStream]:
    stream = HostStream("test")
    yield stream
    stream.close()


async def load(stage: DeepStage, keys: list[OffloadKey], *, req_id: str = "reader") -> LoadResult:
    async with stage.service.request(req_id) as request:
        result: LoadResult = await stage.finish(request.load(keys, range(len(keys))))
    return result


async def test_what_was_stored_goes_down_and_comes_up_again_with_its_bytes(stage: DeepStage) -> None:
    keys = keys_of(3)
    async with stage as service:
        async with service.request("writer") as request:
            store = request.store(keys, range(3))
            for number, slot in enumerate(stage.worker.submitted[0].dst.chunk_ids.tolist()):
                stage.worker.slot_views(0, [slot])[0][:] = bytes([number]) * 4096
            await stage.finish(store)
        await stage.drained()
        assert (stage.figures.cascaded, stage.tier.contains(keys)) == (3, [True] * 3)
        await service.reset(tiers=["cpu"])
        stage.worker.pages.clear()
        result = await load(stage, keys)
        assert (result.served, result.failed_keys, result.sources) == (3, (), (("tier-0", 3),))
        slots = [slot for job in stage.worker.submitted[1:] for slot in job.src.chunk_ids.tolist()]
        assert [bytes(stage.worker.pages[0, slot]) for slot in slots] == [bytes([n]) * 4096 for n in range(3)]
    stage.check()


async def test_a_lookup_counts_chunks_in_any_tier(stage: DeepStage) -> None:
    keys = keys_of(6)
    async with stage as service:
        await stage.only_below(keys[:4])
        await stage.fill(keys[4:], req_id="second")
        async with service.request("reader") as request:
            assert request.lookup(keys) == 6
            assert request.lookup([*keys[:2], *keys_of(1, name="absent"), *keys[2:]]) == 2


async def test_sources_say_from_which_tier_each_key_came(stage: DeepStage) -> None:
    keys = keys_of(5)
    async with stage as service:
        await stage.only_below(keys)
        async with service.request("first") as request:
            await stage.finish(request.load(keys[:2], range(2)))
        result = await load(stage, keys)
    assert result.sources == (("cpu", 2), ("tier-0", 3))


async def test_a_common_position_is_looked_for_over_all_tiers() -> None:
    stage = DeepStage(groups=(GroupConfig(), GroupConfig(window_chunks=1)))
    full, window = keys_of(3), keys_of(3, group_idx=1)
    async with stage as service:
        await stage.only_below([*full])
        await stage.fill(window[2:], req_id="window")
        async with service.request("reader") as request:
            assert request.lookup([full, window]) == 3
            assert request.lookup([full, window[:2]]) == 0


async def test_sixteen_requests_that_load_one_prefix_at_once_read_each_key_once() -> None:
    """Fault 19."""
    stage = DeepStage(num_slots=32)
    keys = keys_of(8)
    async with stage:
        await stage.only_below(keys)
        results = await asyncio.gather(*(load(stage, keys, req_id=f"reader-{index}") for index in range(16)))
        assert [result.served for result in results] == [8] * 16
        assert stage.memories[0].statistics().loaded == 8
        stage.check()


async def test_the_first_chunks_are_copied_while_later_ones_are_still_read(stage: DeepStage) -> None:
    keys = keys_of(4)
    async with stage as service:
        await stage.only_below(keys)
        loaded: list[int] = []
        second_call, inner = asyncio.Event(), stage.tier.load

        async def load_in_turn(keys: list[OffloadKey], views: list[ChunkViews]) -> list[LoadOutcome]:
            loaded.append(len(keys))
            if len(loaded) > 1:
                await second_call.wait()
            return list(await inner(keys, views))

        stage.tier.load = load_in_turn  # type: ignore[method-assign,assignment]
        async with service.request("reader") as request:
            handle = request.load(keys, range(4))
            before = len(stage.worker.submitted)
            while len(stage.worker.submitted) == before:
                await asyncio.sleep(0)
            assert len(stage.worker.submitted[-1].src.chunk_ids) == 2
            assert (loaded, handle.done()) == ([2, 2], False)
            second_call.set()
            assert (await stage.finish(handle)).served == 4
        stage.check()


async def test_nothing_is_promoted_beyond_the_first_miss(stage: DeepStage) -> None:
    """Fault 22."""
    keys = keys_of(6)
    async with stage:
        await stage.only_below([*keys[:2], *keys[3:]])
        result = await load(stage, keys)
        assert (result.served, result.failed_keys) == (2, tuple(keys[2:]))
        assert stage.memories[0].statistics().loaded == 2
        stage.check()


async def test_a_chunk_that_fails_ends_the_load_there_and_nothing_is_reported_whole(
    stage: DeepStage, stream: HostStream
) -> None:
    """Fault 10: per-key outcomes, and failed from the first failure on; the torn chunk is never readable (I4)."""
    keys = keys_of(6)
    async with stage as service:
        await stage.only_below(keys)
        stage.tier.torn_keys.add(keys[3])
        async with service.request("reader") as request:
            handle = request.load(keys, range(6))
            with pytest.raises(TransferError) as caught:
                await asyncio.gather(handle.fence(stream), stage.finish(handle))
            assert caught.value.failed_keys == tuple(keys[3:])
            assert (await handle).served == 3
        assert stage.primary.lookup(keys[3], request._ctx) is LookupResult.MISS
        assert stage.figures.failed_loads == 1
        await stage.drained()
        stage.check()


async def test_a_hanging_tier_ends_a_fence_at_the_deadline_with_an_error(stage: DeepStage, stream: HostStream) -> None:
    """Fault 25: not with garbage; the slots stay quarantined until the read has returned."""
    keys = keys_of(2)
    async with stage as service:
        await stage.only_below(keys)
        stage.tier.hold()
        async with service.request("reader") as request:
            handle = request.load(keys, range(2))
            fence = asyncio.ensure_future(handle.fence(stream))
            await stage.clock.wait_for_sleeper()
            await settle()
            assert not fence.done()
            stage.clock.advance(10.0)
            with pytest.raises(TransferError, match="2 keys cannot be served"):
                await fence
            assert (await handle).served == 0
            assert request.lookup(keys) == 0
        assert stage.primary.statistics().pools[0].quarantined == 2
        service.check_integrity()
        assert (stage.figures.serving, stage.figures.calls_late) == (False, 1)
        stage.tier.release()
        await stage.drained()
        assert stage.primary.statistics().pools[0].quarantined == 0
        stage.check()


async def test_a_tier_that_hung_is_probed_and_taken_back(stage: DeepStage) -> None:
    """Fault 25."""
    keys = keys_of(2)
    async with stage as service:
        await stage.only_below(keys)
        stage.tier.hold()
        async with service.request("reader") as request:
            handle = request.load(keys, range(2))
            await settle()
            stage.clock.advance(10.0)
            await handle
            stage.clock.advance(5.0)
            await settle()
            assert stage.figures.calls_late == 1  # as long as its read is out it is not even asked
            stage.tier.release()
            await settle()
            stage.clock.advance(5.0)
            await settle()
            assert stage.figures.serving
            assert request.lookup(keys) == 2
        assert (await load(stage, keys, req_id="again")).served == 2
        assert stage.figures.outages == 1
        stage.check()


async def test_a_dead_tier_never_slows_a_hit_in_cpu_memory(stage: DeepStage) -> None:
    keys, below = keys_of(2), keys_of(2, name="below")
    async with stage as service:
        await stage.only_below(below)
        await stage.fill(keys, req_id="second")
        stage.tier.hold()
        async with service.request("stuck") as stuck, service.request("reader") as reader:
            waiting = stuck.load(below, range(2))
            await settle()
            assert (await stage.finish(reader.load(keys, range(2)))).served == 2
            assert not waiting.done()
            stage.tier.release()
            await stage.finish(waiting)
        stage.check()


async def test_a_dead_tier_never_stops_stores_into_cpu_memory() -> None:
    """Fault 26: what it does not take is dropped and counted when its slots are needed."""
    stage = DeepStage(num_slots=8)
    async with stage:
        stage.tier.hold()
        for number in range(6):
            async with stage.service.request(f"writer-{number}") as request:
                result = await stage.finish(request.store(keys_of(4, name=f"chain-{number}"), range(4)))
                assert result.stored == 4
        assert stage.manager.cascading_slots == 4
        assert stage.figures.dropped == 16
        stage.tier.release()
        await stage.drained()
        assert stage.figures.cascaded == 8
        stage.check()


async def test_queued_promotions_leave_room_for_running_stores() -> None:
    """Fault 21: a cap on slots under promotion, and head-room."""
    stage = DeepStage(num_slots=8)
    keys, new = keys_of(16), keys_of(4, name="new")
    async with stage as service:
        for start in range(0, 16, 8):
            await stage.only_below(keys[start : start + 8], req_id=f"sinker-{start}")
        stage.tier.hold()
        async with service.request("a") as first, service.request("b") as second, service.request("writer") as writer:
            loads = [first.load(keys[:8], range(8)), second.load(keys[8:], range(8, 16))]
            await settle()
            assert stage.manager.promoting_slots == 4
            assert (await stage.finish(writer.store(new, range(16, 20)))).stored == 4
            stage.tier.release()
            assert [(await stage.finish(load)).served for load in loads] == [8, 8]
        await stage.drained()
        stage.check()


async def test_a_chain_longer_than_cpu_memory_streams_through_it() -> None:
    stage = DeepStage(num_slots=4)
    keys = keys_of(12)
    async with stage:
        for start in range(0, 12, 4):
            await stage.only_below(keys[start : start + 4], req_id=f"sinker-{start}")
        result = await load(stage, keys)
        assert (result.served, result.sources) == (12, (("tier-0", 12),))
        stage.check()


@pytest.mark.parametrize("policy", ["gap", "adaptive"])
async def test_a_chain_that_its_policy_thinks_worthless_goes_down_and_comes_up_whole(policy: str) -> None:
    """Popular chunks fill CPU memory; what is asked for once goes through it all the same, longer than it is."""
    stage = DeepStage(policy=policy, num_slots=32, tier_chunks=256)
    keys, popular = keys_of(48), keys_of(32, name="popular")
    async with stage as service:
        await stage.only_below(keys[:24], req_id="first half")
        await stage.only_below(keys[24:], req_id="second half")
        await stage.fill(popular)
        for number in range(200):
            async with service.request(f"regular-{number}") as request:
                assert (await stage.finish(request.load(popular, range(32)))).served == 32
        declined = stage.primary.prepare_store(keys_of(4, name="worthless"), ReqContext("newcomer"))
        assert declined is None
        async with service.request("reader") as request:
            assert (await stage.finish(request.load(keys, range(48)))).served == 48
        assert (await stage.fill(keys_of(4, name="worthless"))).stored == 4
        assert all(stage.memories[0].contains(keys_of(4, name="worthless")))
        stage.check()


async def test_loads_wait_for_room_in_turn_and_not_longer_than_the_deadline() -> None:
    stage = DeepStage(num_slots=4)
    keys, busy = keys_of(2), keys_of(4, name="busy")
    async with stage as service:
        await stage.only_below(keys)
        async with service.request("writer") as writer, service.request("reader") as reader:
            store = writer.store(busy, range(4))
            handle = reader.load(keys, range(4, 6))
            await stage.clock.wait_for_sleeper()
            await settle()
            assert not handle.done()
            stage.clock.advance(2.0)
            assert (await handle).served == 0
            again = reader.load(keys, range(4, 6))
            await stage.finish(store)
            assert (await stage.finish(again)).served == 2
        await stage.drained()
        stage.check()


@pytest.mark.parametrize(("num_slots", "num_chains", "num_keys", "copy_passes"), [(8, 3, 12, 5), (6, 2, 8, 8)])
async def test_loads_of_one_chain_never_keep_each_other_from_room(
    num_slots: int, num_chains: int, num_keys: int, copy_passes: int
) -> None:
    """Fault 21: what a load has from another's promotion is not brought up for it once more, and held for nobody."""
    stage = DeepStage(num_slots=num_slots, max_call_keys=128)
    chains = [keys_of(num_keys, name=f"chain-{number}") for number in range(num_chains)]
    async with stage as service, contextlib.AsyncExitStack() as left:
        for keys in chains:
            for start in range(0, num_keys, 4):
                await stage.only_below(keys[start : start + 4], req_id=f"{keys[start]!r}")
        loads = []
        for number in range(16):
            request = await left.enter_async_context(service.request(f"reader-{number}"))
            loads.append(request.load(chains[number % num_chains], range(num_keys)))
        for _ in range(200):  # time stands still, so no deadline ends what is stuck
            stage.worker.finish_all()
            await settle(copy_passes)
        assert [load.done() and (await load).served for load in loads] == [num_keys] * 16
        await left.aclose()
        await stage.drained()
        stage.check()


async def test_a_prefetch_takes_keys_as_a_lookup_does_and_checks_all_before_any_comes_up(stage: DeepStage) -> None:
    keys = keys_of(4)
    async with stage as service:
        await stage.only_below(keys)
        async with service.request("reader") as request:
            with pytest.raises(ArgumentError, match="must be bytes made by make_offload_key, got 5"):
                request.prefetch([*keys, 5])  # type: ignore[arg-type]
            assert request.lookup(deque(keys)) == request.prefetch(deque(keys)) == 4
            await stage.drained()
        stage.check()


async def test_a_prefetch_brings_chunks_up_and_the_load_finds_them_in_cpu_memory(stage: DeepStage) -> None:
    keys = keys_of(5)
    async with stage as service:
        await stage.only_below(keys[:4])
        async with service.request("reader") as request:
            assert request.prefetch(keys) == 4
            assert request.prefetch(keys_of(2, name="absent")) == 0
            await stage.drained()
            await settle()
            assert request.prefetch(keys) == 0
            result = await stage.finish(request.load(keys[:4], range(4)))
        assert result.sources == (("cpu", 4),)
        stage.check()


async def test_a_second_store_of_a_key_on_its_way_up_joins_the_promotion(stage: DeepStage) -> None:
    """Fault 18."""
    keys = keys_of(2)
    async with stage as service:
        await stage.only_below(keys)
        stage.tier.hold()
        async with service.request("reader") as reader, service.request("writer") as writer:
            handle = reader.load(keys, range(2))
            await settle()
            store = writer.store(keys, range(2, 4))
            await asyncio.wait_for(store.released, 5)
            stage.tier.release()
            assert (await stage.finish(store)).stored == 2
            await stage.finish(handle)
        stage.check()


async def test_a_key_that_one_tier_has_lost_is_fetched_from_the_next() -> None:
    stage = DeepStage(num_tiers=2)
    keys = keys_of(4)
    async with stage:
        await stage.only_below(keys)
        stage.tiers[0].torn_keys.add(keys[2])
        result = await load(stage, keys)
        assert (result.served, result.sources) == (4, (("tier-0", 2), ("tier-1", 1), ("tier-0", 1)))
        stage.check()


async def test_events_of_every_tier_go_to_the_one_bus_in_the_order_they_became_true(stage: DeepStage) -> None:
    """I9."""
    keys = keys_of(2)
    with_bus = stage.service.events.subscribe()
    async with stage:
        await stage.only_below(keys)
        await load(stage, keys)
        await stage.service.reset()
    records = [record async for record in with_bus if isinstance(record, EventRecord)]
    told = [(record.event.kind, record.event.medium, record.event.tier) for record in records]
    stored_cpu, stored_below = (EventKind.STORED, "CPU", "cpu"), (EventKind.STORED, "MEMORY", "tier-0")
    cleared_cpu, cleared_below = (EventKind.CLEARED, "CPU", "cpu"), (EventKind.CLEARED, "MEMORY", "tier-0")
    begun = [cleared_cpu, cleared_below]
    assert told == [*begun, stored_cpu, stored_below, cleared_cpu, stored_cpu, cleared_cpu, cleared_below]
    first = records[0].sequence
    assert [record.sequence for record in records] == list(range(first, first + 8))


async def test_a_reset_says_what_it_cleared_in_which_tier(stage: DeepStage) -> None:
    """Fault 53."""
    keys = keys_of(4)
    async with stage as service:
        await stage.fill(keys)
        assert (await service.reset(tiers=["tier-0"])).cleared_by_tier == (("tier-0", 4),)
        async with service.request("reader") as request:
            assert request.lookup(keys) == 4
        await stage.fill(keys_of(1, name="new"), req_id="second")
        assert (await service.reset()).cleared_by_tier == (("cpu", 5), ("tier-0", 1))
        async with service.request("after") as request:
            assert request.lookup(keys) == 0
        with pytest.raises(ArgumentError, match=r"tiers must be among \['cpu', 'tier-0'\], got 'disc'"):
            await service.reset(tiers=["disc"])
        with pytest.raises(ArgumentError, match=r"tiers must be a set of names, such as \{'cpu'\}, got 'cpu'"):
            await service.reset(tiers="cpu")
        with pytest.raises(ArgumentError, match=r"tiers must be a set of names, such as \{'cpu'\}, got 5"):
            await service.reset(tiers=5)  # type: ignore[arg-type]


async def test_nothing_old_is_served_while_a_tier_is_still_being_reset(stage: DeepStage) -> None:
    """Fault 53: not even in the pass of the loop in which the reset is asked for."""
    keys = keys_of(2)
    async with stage as service:
        await stage.fill(keys)
        async with service.request("reader") as request:
            resetting = asyncio.ensure_future(service.reset())
            served = []
            while not resetting.done():
                await asyncio.sleep(0)
                served.append(request.lookup(keys))
        assert set(served) == {0}


async def test_a_tier_that_cannot_be_reset_now_is_reset_before_it_is_used_again(stage: DeepStage) -> None:
    """Fault 53: the result says so."""
    keys = keys_of(2)
    async with stage as service:
        await stage.only_below(keys)
        stage.tier.hold()
        async with service.request("reader") as request:
            handle = request.load(keys, range(2))
            await settle()
            stage.clock.advance(10.0)
            await handle
            result = await service.reset()
            assert (result.cleared_by_tier, result.deferred_tiers) == ((("cpu", 0),), ("tier-0",))
            stage.tier.release()
            await settle()
            stage.clock.advance(5.0)
            await settle()
            assert stage.figures.serving
            assert request.lookup(keys) == 0
        assert stage.tier.contains(keys) == [False, False]
        stage.check()


async def test_a_promotion_that_a_reset_overtook_serves_nobody(stage: DeepStage) -> None:
    """Fault 53: late completions of the old epoch are ignored."""
    keys = keys_of(2)
    async with stage as service:
        await stage.only_below(keys)
        stage.tier.hold()
        async with service.request("reader") as request:
            handle = request.load(keys, range(2))
            await settle()
            resetting = asyncio.ensure_future(service.reset(tiers=["tier-0"]))
            await settle()
            stage.tier.release()
            await resetting
            assert (await stage.finish(handle)).served == 0
            assert request.lookup(keys) == 0
        stage.check()
