"""What is counted of a tier's calls, on a chain whose time the test moves."""

from aiokvoffload.cpu.common import PAGE_BYTES
from aiokvoffload.tiering.chain.calls import TierCall
from aiokvoffload.tiering.chain.queues import TierQueues
from tests.service.conftest import keys_of
from tests.tiering.stage import DeepStage, settle


async def test_bytes_seconds_and_calls_are_those_of_the_tiers_own_calls() -> None:
    stage = DeepStage(num_workers=2)
    async with stage as service:
        stage.tier.hold()
        async with service.request("r") as request:
            await stage.finish(request.store(keys_of(2), range(2)))
            await settle()
            stage.clock.advance(3.0)
            stage.tier.release()
            await stage.drained()
        cascades = stage.figures.cascades
        assert (cascades.calls, cascades.moved_bytes, cascades.busy_s) == (1, 2 * 2 * PAGE_BYTES, 3.0)
        await stage.fill(keys_of(2))  # present: nothing moves
        assert stage.figures.cascades.moved_bytes == 2 * 2 * PAGE_BYTES


async def test_the_latency_of_a_promotion_begins_with_its_slots_and_ends_with_its_keys() -> None:
    stage = DeepStage()
    async with stage as service:
        await stage.only_below(keys_of(2))
        stage.tier.hold()
        async with service.request("r") as request:
            load = request.load(keys_of(2), range(2))
            await settle()
            stage.clock.advance(0.3)
            stage.tier.release()
            assert (await stage.finish(load)).served == 2
        latency, promotions = stage.figures.promotion_latency, stage.figures.promotions
        assert (latency.count, latency.total, latency.quantile(0.5)) == (1, 0.3, 0.5)
        assert (promotions.moved_bytes, promotions.busy_s) == (2 * PAGE_BYTES, 0.3)
        assert service.statistics().keys.served_by_tier == (("tier-0", 2),)


async def test_keys_for_a_tier_out_of_service_are_dropped_for_that_reason() -> None:
    stage = DeepStage(max_failures=1)
    async with stage:
        stage.tier.failing = True
        await stage.fill(keys_of(2))
        assert not stage.figures.storing
        await stage.fill(keys_of(2, name="more"))
        figures = stage.figures
        assert (figures.failed_stores, figures.dropped_slow, figures.dropped_held) == (2, 0, 0)


def test_keys_that_would_wait_too_long_are_counted_apart() -> None:
    """Fault 26."""

    def call(count: int) -> TierCall:
        return TierCall(keys_of(count), 0, 8, lambda: (), lambda *_: None, lambda: None)

    queues = TierQueues(max_loads=1, max_stores=1, max_store_delay_s=5.0)
    queues.store_ended(1, 10.0)
    assert queues.admit_store(call(1))
    assert not queues.admit_store(call(3))
    assert queues.refused_store_keys == 3


def test_a_call_of_one_key_does_not_make_a_queue_that_goes_in_large_calls_look_long() -> None:
    """It is mostly the price of a call."""
    queues = TierQueues(max_loads=1, max_stores=1, max_store_delay_s=5.0)
    queues.store_ended(128, 0.01)
    queues.store_ended(1, 0.01)
    call = TierCall(keys_of(128), 0, 128, lambda: (), lambda *_: None, lambda: None)
    for _ in range(64):
        assert queues.admit_store(call)
    assert queues.store_delay_s < 2.0


def test_what_stores_take_is_learned_anew_when_a_tier_becomes_slow() -> None:
    """Fault 26."""
    queues = TierQueues(max_loads=1, max_stores=1, max_store_delay_s=5.0)
    for _ in range(20):
        queues.store_ended(128, 0.01)
    for _ in range(10):
        queues.store_ended(128, 128.0)
    assert queues.admit_store(TierCall(keys_of(8), 0, 8, lambda: (), lambda *_: None, lambda: None))
    assert queues.store_delay_s > 0.8 * 8
