"""Real bytes through GPU blocks, CPU memory and tiers below, from one configuration."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from aiokvoffload.base import GPULoadStoreSpec, SecondaryTier, TierShape
from aiokvoffload.config import CPUOffloadingConfig, GroupConfig, Mode
from aiokvoffload.errors import ConfigError, ModeError
from aiokvoffload.service import OffloadingService
from aiokvoffload.testing.memory import make_kv_caches
from aiokvoffload.tiering.config import CascadeMode, TierConfig, TieringOffloadingConfig
from aiokvoffload.tiering.disk.config import DiskConfig
from aiokvoffload.tiering.disk.tier import DiskTier
from aiokvoffload.tiering.memory import MemoryTier
from aiokvoffload.tiering.spec import TieringOffloadingSpec
from tests.service.conftest import keys_of

PAGE_BYTES = 4096
POLICIES = ("lru", "arc", "s3fifo", "sieve", "lfu", "gap", "adaptive")


def memory_tier(shape: TierShape) -> SecondaryTier:
    return MemoryTier(64, shape.chunk_bytes, num_workers=shape.num_workers)


def spec_of(
    *tiers: TierConfig,
    num_workers: int = 1,
    num_slots: int = 8,
    groups: Sequence[GroupConfig] = (GroupConfig(),),
    policy: str = "lru",
) -> TieringOffloadingSpec:
    cpu_bytes = num_slots * PAGE_BYTES * num_workers
    cpu = CPUOffloadingConfig(cpu_bytes=cpu_bytes, device="host", groups=tuple(groups), policy=policy)
    return TieringOffloadingSpec(TieringOffloadingConfig(cpu=cpu, tiers=tiers))


def numbered(num_blocks: int, *, seed: int) -> torch.Tensor:
    return torch.randint(
        0, 255, (num_blocks, PAGE_BYTES), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


async def sunk(service: OffloadingService, count: int) -> None:
    """Return once so many chunks have gone down."""
    while service.statistics().tiers[0].cascaded < count:
        await asyncio.sleep(0)


async def store_all(service: OffloadingService, count: int) -> None:
    for start in range(0, count, 4):
        async with service.request(f"writer-{start}") as request:
            result = await request.store(keys_of(count)[start : start + 4], range(start, start + 4))
        assert result.stored == 4
        await sunk(service, start + 4)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cascade", CascadeMode)
async def test_every_rank_gets_back_its_own_bytes_of_a_chain_longer_than_cpu_memory(
    cascade: CascadeMode, policy: str
) -> None:
    """Whatever a policy thinks of newcomers: all go down, and all come up."""
    ranks = [numbered(64, seed=rank) for rank in range(2)]
    originals = [rank.clone() for rank in ranks]
    spec = spec_of(TierConfig(make=memory_tier, cascade=cascade), num_workers=2, policy=policy)
    async with spec.open([make_kv_caches([rank]) for rank in ranks]) as service:
        await service.wait_grown()
        await store_all(service, 24)
        async with service.request("reader") as request:
            assert request.lookup(keys_of(24)) == 24
            result = await request.load(keys_of(24), range(32, 56))
        assert result.served == 24
        for rank, original in zip(ranks, originals, strict=True):
            assert rank[32:56].equal(original[:24])
        service.check_integrity()
    pools = service.statistics().manager.pools
    assert [(pool.pinned, pool.writing, pool.quarantined) for pool in pools] == [(0, 0, 0)]


async def test_groups_of_different_chunk_sizes_go_down_and_come_up() -> None:
    full, window = numbered(32, seed=1), numbered(32, seed=2)
    groups = (GroupConfig(), GroupConfig(blocks_per_chunk=2, window_chunks=2))
    spec = spec_of(TierConfig(make=memory_tier), num_slots=24, groups=groups)
    keys = [*keys_of(4), *keys_of(4, group_idx=1)]
    async with spec.open(make_kv_caches([full, window], [[0], [1]])) as service:
        await service.wait_grown()
        async with service.request("writer") as request:
            blocks = GPULoadStoreSpec([*range(4), *range(8)], group_sizes=[4, 8])
            assert (await request.store(keys, blocks)).stored == 8
        await sunk(service, 8)
        await service.reset(tiers=["cpu"])
        async with service.request("reader") as request:
            assert request.lookup([keys[:4], keys[4:]]) == 4
            target = GPULoadStoreSpec([*range(16, 20), *range(16, 20)], group_sizes=[4, 4], block_indices=[0, 4])
            result = await request.load([*keys[:4], *keys[6:]], target)
        assert (result.served_by_group, result.sources) == ((4, 2), (("memory", 6),))
        assert full[16:20].equal(full[:4])
        assert window[16:20].equal(window[4:8])


async def test_a_directory_is_warm_after_a_restart(tmp_path: Path) -> None:
    blocks = numbered(64, seed=3)
    original = blocks.clone()
    disk = DiskConfig(directories=(tmp_path / "kv",), disk_bytes=64 * PAGE_BYTES, namespace="test")
    tiers: list[DiskTier] = []

    def make(shape: TierShape) -> DiskTier:
        tiers.append(DiskTier(disk, shape))
        return tiers[-1]

    spec = spec_of(TierConfig(make=make))
    async with spec.open(make_kv_caches([blocks])) as service:
        await service.wait_grown()
        await store_all(service, 24)
    blocks.zero_()
    async with spec.open(make_kv_caches([blocks])) as service, service.request("reader") as request:
        await service.wait_grown()
        await tiers[-1].wait_recovered()
        assert request.lookup(keys_of(24)) == 24
        result = await request.load(keys_of(24), range(24))
        assert (result.served, "disk" in dict(result.sources)) == (24, True)
        assert blocks[:24].equal(original[:24])


async def test_sixteen_requests_that_load_one_prefix_at_once_read_each_key_from_disk_once(tmp_path: Path) -> None:
    """Fault 19."""
    blocks = numbered(16 * 17, seed=4)
    original = blocks.clone()
    disk = DiskConfig(directories=(tmp_path / "kv",), disk_bytes=64 * PAGE_BYTES, namespace="test")
    spec = spec_of(TierConfig(make=lambda shape: DiskTier(disk, shape), max_call_keys=4), num_slots=32)
    async with spec.open(make_kv_caches([blocks])) as service:
        await service.wait_grown()
        await store_all(service, 16)
        await service.reset(tiers=["cpu"])

        async def read(number: int) -> int:
            async with service.request(f"reader-{number}") as request:
                return (await request.load(keys_of(16), range(16 * number, 16 * (number + 1)))).served

        assert await asyncio.gather(*map(read, range(1, 17))) == [16] * 16
        (figures,) = service.statistics().tiers
        assert (figures.promoted, figures.tier.loaded) == (16, 16)
        for number in range(1, 17):
            assert blocks[16 * number : 16 * (number + 1)].equal(original[:16])


async def test_without_a_loop_there_are_no_tiers_below() -> None:
    spec, kv_caches = spec_of(TierConfig(make=memory_tier)), make_kv_caches([numbered(4, seed=0)])
    for call in (spec.get_manager, spec.get_worker):
        with pytest.raises(ModeError, match="secondary tiers need an event loop"):
            call(kv_caches)
    stepped = CPUOffloadingConfig(cpu_bytes=PAGE_BYTES, device="host", mode=Mode.STEPPED)
    with pytest.raises(ModeError):
        TieringOffloadingSpec(TieringOffloadingConfig(cpu=stepped, tiers=(TierConfig(make=memory_tier),))).open(
            kv_caches
        )


async def test_tiers_have_names_of_their_own() -> None:
    spec = spec_of(TierConfig(make=memory_tier), TierConfig(make=memory_tier))
    with pytest.raises(ConfigError, match=r"names of their own, got \['cpu', 'memory', 'memory'\]"):
        await spec.open(make_kv_caches([numbered(4, seed=0)])).__aenter__()


@pytest.mark.parametrize(
    ("field", "value"),
    [("promotion_share", 1.5), ("head_room_share", 0), ("cascade_share", -1), ("room_timeout_s", 0), ("tiers", ())],
)
def test_a_configuration_that_cannot_work_is_refused_by_name(field: str, value: object) -> None:
    fields = {"cpu": CPUOffloadingConfig(cpu_bytes=1), "tiers": (TierConfig(make=memory_tier),), field: value}
    with pytest.raises(ConfigError, match=field):
        TieringOffloadingConfig(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["load_timeout_s", "max_failures", "max_call_keys", "max_store_delay_s", "make"])
def test_limits_of_a_tier_are_checked_when_they_are_given(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        TierConfig(**{"make": memory_tier, field: 0})  # type: ignore[arg-type]


async def test_of_a_chain_longer_than_cpu_memory_one_request_keeps_what_fits_and_the_next_one_the_rest() -> None:
    """What the request itself uses is no victim, although it has gone down."""
    spec = spec_of(TierConfig(make=memory_tier))
    async with spec.open(make_kv_caches([numbered(12, seed=5)])) as service:
        await service.wait_grown()
        async with service.request("first") as request:
            assert (await request.store(keys_of(12), range(12))).stored == 8
            await sunk(service, 8)
            assert (await request.store(keys_of(12)[8:], range(8, 12))).stored == 0
        async with service.request("second") as request:
            assert (await request.store(keys_of(12)[8:], range(8, 12))).stored == 4
        await sunk(service, 12)
        async with service.request("reader") as request:
            assert request.lookup(keys_of(12)) == 12


async def test_what_makes_no_tier_is_told_so() -> None:
    spec = spec_of(TierConfig(make=lambda _: None))  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigError, match=r"TierConfig\.make must return a SecondaryTier, got None of"):
        async with spec.open(make_kv_caches([numbered(4, seed=0)])):
            pass
