"""What a service tells of its tiers: each one, in truth, whoever listens (faults 49, 50 and 53)."""

import asyncio
from pathlib import Path

import pytest

from aiokvoffload.base import EventKind, OffloadingEvent, OffloadKey, RemovalReason, SecondaryTier, TierShape
from aiokvoffload.config import CPUOffloadingConfig
from aiokvoffload.cpu.spec import CPUOffloadingSpec
from aiokvoffload.errors import ArgumentError
from aiokvoffload.events import ChunkMetadata, EventRecord, ResidentKeys, SlowPolicy, Subscription
from aiokvoffload.service import OffloadingService
from aiokvoffload.testing.memory import make_kv_caches
from aiokvoffload.tiering.config import TierConfig
from aiokvoffload.tiering.disk.config import DiskConfig
from aiokvoffload.tiering.disk.tier import DiskTier
from aiokvoffload.tiering.memory import MemoryTier
from tests.service.conftest import Stage, keys_of
from tests.tiering.test_tiering_spec import PAGE_BYTES, numbered, spec_of, sunk

TIERS = ["cpu", "disk", "memory"]


class House:
    """A service over CPU memory, a disk and a tier in memory."""

    def __init__(self, directory: Path, *, max_events: int = 10_000) -> None:
        self.disk_config = DiskConfig(
            directories=(directory / "kv",), disk_bytes=64 * PAGE_BYTES, namespace="t", max_pending_events=max_events
        )
        self.max_events = max_events
        tiers = (TierConfig(make=self.make_disk), TierConfig(make=self.make_memory))
        self.service = spec_of(*tiers, num_slots=8).open(make_kv_caches([numbered(64, seed=1)]))
        self.records = self.service.events.subscribe()

    def make_disk(self, shape: TierShape) -> SecondaryTier:
        self.disk = DiskTier(self.disk_config, shape)
        return self.disk

    def make_memory(self, shape: TierShape) -> SecondaryTier:
        return MemoryTier(64, shape.chunk_bytes, max_events=self.max_events)

    async def __aenter__(self) -> "House":
        await self.service.__aenter__()
        await self.service.wait_grown()
        await self.disk.wait_recovered()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.service.aclose()

    async def store(self, keys: list[OffloadKey]) -> None:
        before = self.service.statistics().tiers[0].cascaded
        async with self.service.request(f"writer of {keys[0]!r}") as request:
            assert (await request.store(keys, range(len(keys)))).stored == len(keys)
        await sunk(self.service, before + len(keys))
        while self.service.statistics().tiers[1].cascaded < before + len(keys):
            await asyncio.sleep(0)

    async def told(self) -> dict[str, list[OffloadingEvent]]:
        """All that has been told, by tier; the service is closed."""
        by_tier: dict[str, list[OffloadingEvent]] = {tier: [] for tier in TIERS}
        async for record in self.records:
            assert isinstance(record, EventRecord)
            by_tier[record.event.tier].append(record.event)
        return by_tier


@pytest.mark.parametrize("tier", TIERS)
async def test_each_key_is_told_once_of_each_tier_with_its_medium(tier: str, tmp_path: Path) -> None:
    """Fault 49."""
    house = House(tmp_path)
    async with house:
        for start in (0, 4):
            await house.store(keys_of(8)[start : start + 4])
    begun, *events = (await house.told())[tier]
    medium = tier.upper()
    assert begun == OffloadingEvent(EventKind.CLEARED, (), medium, tier, RemovalReason.RESTART)
    assert {(event.kind, event.medium) for event in events} == {(EventKind.STORED, medium)}
    assert [key for event in events for key in event.keys] == keys_of(8)


@pytest.mark.parametrize("tier", TIERS)
async def test_a_reset_of_one_tier_is_told_of_that_tier_alone(tier: str, tmp_path: Path) -> None:
    """Fault 53."""
    house, view = House(tmp_path), ResidentKeys()
    async with house:
        await house.store(keys_of(4))
        await house.service.reset(tiers=[tier])
        view.load(await house.service.events.snapshot())
    assert {name: len(view.keys(name)) for name in TIERS} == {name: 0 if name == tier else 4 for name in TIERS}
    told = await house.told()
    resets = {name: [event.reason for event in told[name]].count(RemovalReason.RESET) for name in TIERS}
    assert resets == {name: int(name == tier) for name in TIERS}


async def test_what_a_disk_has_from_an_earlier_run_is_told_without_any_call(tmp_path: Path) -> None:
    """Fault 49: stored events that nobody fetches are missing ones."""
    async with House(tmp_path) as house:
        for start in range(0, 24, 4):
            await house.store(keys_of(24)[start : start + 4])
    house = House(tmp_path)
    async with house:
        view = ResidentKeys()
        async for record in house.records:
            view.apply(record)
            if len(view.keys("disk")) == 24:
                break
        assert (view.is_exact, view.keys("disk"), view.keys("cpu")) == (True, set(keys_of(24)), set())


@pytest.mark.parametrize("tier", ["disk", "memory"])
async def test_a_tier_that_could_not_keep_its_events_is_told_anew(tier: str, tmp_path: Path) -> None:
    """I9, I11: what was lost on the way to the bus is made up for, and said."""
    house = House(tmp_path, max_events=1)
    async with house:
        await house.store(keys_of(4))
        log = house.disk._events if tier == "disk" else house.service._depth.chain._links[tier].lane.tier._events  # type: ignore[union-attr]
        log.add(EventKind.REMOVED, keys_of(2), RemovalReason.EVICTED)
        log.add(EventKind.STORED, keys_of(2))
        assert log.is_lost
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(log) == 0
    *_, lost, again = (await house.told())[tier]
    assert (lost.kind, lost.reason) == (EventKind.CLEARED, RemovalReason.LOST)
    assert (again.kind, sorted(again.keys)) == (EventKind.STORED, sorted(keys_of(4)))


@pytest.mark.parametrize("policy", SlowPolicy)
async def test_a_subscriber_that_never_reads_delays_no_store_of_any_tier(policy: SlowPolicy, tmp_path: Path) -> None:
    """Fault 50: whoever asked to be waited for is waited for once."""
    house = House(tmp_path)
    async with house:
        stalled = house.service.events.subscribe(policy=policy, max_pending=2)
        for start in range(0, 24, 4):
            await house.store(keys_of(24)[start : start + 4])
        statistics = house.service.statistics().events
        assert statistics.congested_waits == (policy is SlowPolicy.BLOCK)
        assert statistics.disconnected == (policy is SlowPolicy.DISCONNECT)
        stalled.close()
    assert {tier: len(events) > 6 for tier, events in (await house.told()).items()} == dict.fromkeys(TIERS, True)


async def test_transfers_wait_for_a_subscriber_that_is_about_to_read() -> None:
    stage = Stage(num_slots=64)
    async with stage.service as service:
        subscription = service.events.subscribe(policy=SlowPolicy.BLOCK, max_pending=1)
        service.events._block_timeout_s = 60
        await stage.fill(keys_of(1))
        async with service.request("held up") as request:
            store = request.store(keys_of(1, name="second"), [0])
            await asyncio.sleep(0)
            assert stage.worker.in_flight == []
            assert (await read_one(subscription)).event.kind is EventKind.STORED
            while not stage.worker.in_flight:
                await asyncio.sleep(0)
            stage.worker.finish_all()
            assert (await store).stored == 1


async def read_one(subscription: Subscription) -> EventRecord:
    record = await anext(subscription)
    assert isinstance(record, EventRecord)
    return record


async def test_metadata_given_to_a_store_goes_with_every_tier_until_the_last_lets_go(tmp_path: Path) -> None:
    about = ChunkMetadata(token_ids=(1, 2, 3, 4), block_size=4)
    house = House(tmp_path)
    key = keys_of(1)[0]
    async with house:
        async with house.service.request("writer") as request:
            await request.store([key], [0], metadata={key: about})
        await sunk(house.service, 1)
        await house.service.reset(tiers=["cpu", "memory"])
        assert house.service.events.metadata_of(key) is about
        async with house.service.request("reader") as request:
            assert (await request.load([key], [1])).served == 1
        await house.service.reset()
        with pytest.raises(ArgumentError, match="metadata must be ChunkMetadata"):
            async with house.service.request("wrong") as request:
                request.store([key], [0], metadata={key: 7})  # type: ignore[dict-item]
    told = [record async for record in house.records if isinstance(record, EventRecord)]
    stored = [(record.event.tier, record.metadata) for record in told if record.event.kind is EventKind.STORED]
    assert {("cpu", (about,)), ("disk", (about,))} <= set(stored)
    assert all(metadata == (about,) for _, metadata in stored)


async def test_what_is_refused_leaves_no_metadata() -> None:
    """I11."""
    config = CPUOffloadingConfig(cpu_bytes=PAGE_BYTES * 8, device="host", store_threshold=2)
    async with CPUOffloadingSpec(config).open(make_kv_caches([numbered(8, seed=1)])) as service:
        assert await refused(service) == 1
        assert service.statistics().events.metadata_keys == 0


async def refused(service: OffloadingService) -> int:
    async with service.request("once") as request:
        result = await request.store(keys_of(1), [0], metadata={keys_of(1)[0]: ChunkMetadata(block_size=1)})
    return len(result.refused_keys)
