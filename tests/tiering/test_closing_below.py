"""What is owed to the tiers below when a service is closed: it goes down, or it is counted (I1, I2, I11)."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from aiokvoffload.base import OffloadKey, SecondaryTier, TierShape
from aiokvoffload.config import CPUOffloadingConfig
from aiokvoffload.errors import AbandonedError
from aiokvoffload.metrics import MetricsCollector
from aiokvoffload.registry import BUILTIN
from aiokvoffload.service import OffloadingService
from aiokvoffload.testing.memory import make_kv_caches
from aiokvoffload.tiering.chain import TierStatistics
from aiokvoffload.tiering.config import CascadeMode, TierConfig, TieringOffloadingConfig
from aiokvoffload.tiering.disk.config import DiskConfig
from aiokvoffload.tiering.disk.tier import DiskTier
from aiokvoffload.tiering.spec import TieringOffloadingSpec
from tests.metrics.scene import value
from tests.service.conftest import keys_of
from tests.tiering.stage import DeepStage, settle

CHUNK_BYTES = 8192
DISK_BYTES = 4096 * CHUNK_BYTES
CASCADE_SHARE = 0.25
NUM_OWED = 8


def fates(figures: TierStatistics) -> int:
    """Keys that were to go down and of which the tier's figures say what became of them."""
    kept = figures.cascaded + figures.present
    return kept + figures.refused + figures.failed_stores + figures.dropped


def disk_spec(
    directory: Path, num_slots: int, *, policy: str = "lru", on_tier: Callable[[DiskTier], None] = lambda _: None
) -> TieringOffloadingSpec:
    disk = DiskConfig(directories=(directory,), disk_bytes=DISK_BYTES, namespace="test", policy=policy)

    def make(shape: TierShape) -> SecondaryTier:
        tier = DiskTier(disk, shape)
        on_tier(tier)
        return tier

    cpu = CPUOffloadingConfig(cpu_bytes=num_slots * CHUNK_BYTES, device="host")
    config = TieringOffloadingConfig(cpu=cpu, tiers=(TierConfig(make=make),), cascade_share=CASCADE_SHARE)
    return TieringOffloadingSpec(config)


async def on_disk(directory: Path, keys: list[OffloadKey]) -> int:
    """How many of the keys a later run finds there."""
    tier = DiskTier(
        DiskConfig(directories=(directory,), disk_bytes=DISK_BYTES, namespace="test"),
        TierShape(chunk_bytes=(CHUNK_BYTES,), num_workers=1),
    )
    await tier.open()
    await tier.wait_recovered()
    count = sum(tier.contains(keys))
    await tier.aclose()
    return count


@pytest.mark.parametrize(("num_slots", "count"), [(512, 100), (512, 200), (512, 512), (1024, 1000), (2048, 1000)])
async def test_a_clean_close_leaves_every_chunk_on_the_disk(tmp_path: Path, num_slots: int, count: int) -> None:
    """However much more it is than may be held for the disk at a time."""
    blocks = torch.zeros((count, CHUNK_BYTES), dtype=torch.uint8)
    keys = keys_of(count)
    async with disk_spec(tmp_path / "kv", num_slots).open(make_kv_caches([blocks])) as service:
        await service.wait_grown()
        async with service.request("writer") as request:
            assert (await request.store(keys, range(count))).stored == count
    (figures,) = service.statistics().tiers
    assert (figures.cascaded, figures.dropped) == (count, 0)
    assert await on_disk(tmp_path / "kv", keys) == count


@pytest.mark.parametrize("policy", BUILTIN["policies"])
async def test_a_service_finds_all_that_one_before_it_left_on_the_disk(tmp_path: Path, policy: str) -> None:
    caches = make_kv_caches([torch.zeros((64, CHUNK_BYTES), dtype=torch.uint8)])
    tiers: list[DiskTier] = []
    spec = disk_spec(tmp_path / "kv", 64, policy=policy, on_tier=tiers.append)
    chains = [keys_of(8, name=f"chain-{number}") for number in range(6)]
    async with spec.open(caches) as service:
        for keys in chains:
            async with service.request("writer") as request:
                assert (await request.store(keys, range(8))).stored == 8
    async with spec.open(caches) as service:
        await tiers[-1].wait_recovered()
        async with service.request("reader") as request:
            assert [request.lookup(keys) for keys in chains] == [8] * len(chains)
        tiers[-1].check_integrity()


async def test_of_more_than_cpu_memory_holds_every_chunk_is_on_the_disk_or_counted(tmp_path: Path) -> None:
    """Fault 26: what the second request takes the place of before its turn is lost to the disk, and no more."""
    blocks = torch.zeros((400, CHUNK_BYTES), dtype=torch.uint8)
    first, second = keys_of(400, name="first"), keys_of(400, name="second")
    async with disk_spec(tmp_path / "kv", 512).open(make_kv_caches([blocks])) as service:
        await service.wait_grown()
        for keys in (first, second):
            async with service.request("writer") as request:
                await request.store(keys, range(400))
        stored = service.statistics().manager.stored
    (figures,) = service.statistics().tiers
    assert (fates(figures), figures.dropped) == (stored, figures.dropped_held)
    assert await on_disk(tmp_path / "kv", first + second) == figures.cascaded


async def owing(stage: DeepStage) -> OffloadingService:
    """A service that owes a tier twice as much as may be held for it; the tier is in the midst of its first calls."""
    service = stage.service
    await service.__aenter__()
    stage.tier.hold()
    async with service.request("writer") as request:
        await stage.finish(request.store(keys_of(NUM_OWED), range(NUM_OWED)))
    await settle()
    assert stage.manager.cascading_slots == NUM_OWED // 2
    return service


async def begin_close(service: OffloadingService) -> "asyncio.Task[None]":
    """A close that is under way."""
    closing = asyncio.create_task(service.aclose())
    await settle()
    return closing


@pytest.mark.parametrize("cascade", CascadeMode)
async def test_a_close_gives_a_tier_all_that_it_is_owed(cascade: CascadeMode) -> None:
    stage = DeepStage(cascade=cascade)
    service = await owing(stage)
    closing = await begin_close(service)
    stage.tier.release()
    await closing
    assert (stage.figures.cascaded, stage.figures.dropped) == (NUM_OWED, 0)
    stage.check()


async def test_a_tier_is_not_closed_while_another_holds_what_it_is_owed() -> None:
    """Tiers share the slots that may be held: one has nothing to do for a while, and is owed everything."""
    stage = DeepStage(num_tiers=2)
    service = await owing(stage)
    closing = await begin_close(service)
    assert service.statistics().tiers[1].cascaded == 0
    stage.tier.release()
    await closing
    assert [(each.cascaded, each.dropped) for each in service.statistics().tiers] == [(NUM_OWED, 0)] * 2
    stage.check()


async def test_what_is_being_copied_into_cpu_memory_at_a_close_still_goes_down() -> None:
    stage = DeepStage()
    service = stage.service
    await service.__aenter__()
    async with service.request("writer") as request:
        store = request.store(keys_of(NUM_OWED), range(NUM_OWED))
        await settle()
        closing = await begin_close(service)
        assert (await stage.finish(store)).stored == NUM_OWED
    await closing
    assert (stage.figures.cascaded, stage.figures.dropped) == (NUM_OWED, 0)
    stage.check()


async def test_what_would_wait_too_long_while_a_service_runs_has_the_time_of_its_close() -> None:
    stage = DeepStage(max_store_delay_s=0.1)
    service = await owing(stage)
    closing = await begin_close(service)
    stage.clock.advance(10.0)
    stage.tier.release()
    await closing
    assert (stage.figures.cascaded, stage.figures.dropped) == (NUM_OWED, 0)
    stage.check()


async def test_a_close_counts_what_it_has_no_time_for_and_waits_for_the_calls_that_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Close enough to its end that the tier still has time to be closed."""
    stage = DeepStage(close_timeout_s=10.0)
    service = await owing(stage)
    closing = await begin_close(service)
    stage.clock.advance(7.9)
    await settle()
    assert stage.figures.dropped == 0
    with caplog.at_level(logging.WARNING):
        stage.clock.advance(0.1)
        await settle()
    assert caplog.messages == ["tier tier-0: the close had no time for 4 keys that were to go down"]
    stage.tier.release()
    await closing
    assert (stage.figures.cascaded, stage.figures.dropped, stage.figures.dropped_at_close) == (4, 4, 4)
    families = list(MetricsCollector(service).collect())
    reasons = ("closed", "out_of_service", "slots_held", "queue_full")
    refused = [value(families, "refused_keys_total", tier="tier-0", reason=reason) for reason in reasons]
    assert refused == [4, 0, 0, 0]
    assert not stage.worker.keeps_memory
    stage.check()


async def test_a_close_whose_tier_hangs_ends_at_its_time_out_and_counts_what_never_began() -> None:
    """I2: a call that runs is not known to have failed, so what it has is neither stored nor dropped."""
    stage = DeepStage(close_timeout_s=10.0)
    service = await owing(stage)
    closing = await begin_close(service)
    for seconds in (8.0, 1.9):
        stage.clock.advance(seconds)
        await settle()
    assert not closing.done()
    stage.clock.advance(0.1)
    with pytest.raises(AbandonedError, match=r"tier 'tier-0': 2 calls, its close"):
        await closing
    assert stage.worker.keeps_memory
    assert (stage.figures.cascaded, stage.figures.dropped, stage.figures.dropped_at_close) == (0, 4, 4)
    stage.tier.release()
    await settle()
    assert fates(stage.figures) == NUM_OWED
    stage.check()


async def test_a_close_whose_loop_is_late_abandons_nothing_that_has_ended() -> None:
    stage = DeepStage(close_timeout_s=10.0)
    service = await owing(stage)
    closing = await begin_close(service)
    stage.tier.release()
    stage.clock.advance(60.0)
    await closing
    assert fates(stage.figures) == NUM_OWED
    assert not stage.worker.keeps_memory
    stage.check()


async def test_a_tier_that_is_idle_has_time_to_close_where_the_loop_was_late() -> None:
    stage = DeepStage(close_timeout_s=10.0)
    service = await owing(stage)
    closing = await begin_close(service)
    stage.tier.release()
    stage.tier.aclose = partial(asyncio.sleep, 0.02)  # type: ignore[method-assign]
    stage.clock.advance(60.0)
    await closing
    assert not stage.worker.keeps_memory


async def test_a_tier_that_fails_during_a_close_ends_it_at_once() -> None:
    """Nobody waits for a tier that is out of service; that is the reason, not the close."""
    stage = DeepStage(max_failures=1)
    service = await owing(stage)
    closing = await begin_close(service)
    stage.tier.failing = True
    stage.tier.release()
    await closing
    assert (fates(stage.figures), stage.figures.dropped_at_close, stage.figures.dropped_held) == (NUM_OWED, 0, 0)
    stage.check()


async def test_a_close_that_is_cancelled_still_gives_a_tier_all_that_it_is_owed() -> None:
    """Fault 32."""
    stage = DeepStage()
    service = await owing(stage)
    for _ in range(3):
        closing = await begin_close(service)
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
    stage.tier.release()
    await service.aclose()
    assert (stage.figures.cascaded, stage.figures.dropped) == (NUM_OWED, 0)
    stage.check()


async def test_what_a_reset_takes_from_a_tier_is_counted() -> None:
    stage = DeepStage()
    service = await owing(stage)
    await service.reset(tiers=["cpu"])
    stage.tier.release()
    await service.aclose()
    assert (fates(stage.figures), stage.figures.dropped) == (NUM_OWED, 4)
    stage.check()
