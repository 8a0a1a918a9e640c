"""A tier that hangs, fails, tears and is reset at random under requests that are cancelled at random."""

import asyncio
import contextlib
import random

import pytest
import torch

from aiokvoffload.base import SecondaryTier, TierShape
from aiokvoffload.config import CPUOffloadingConfig
from aiokvoffload.service import OffloadingService
from aiokvoffload.testing import ManualClock
from aiokvoffload.testing.memory import make_kv_caches
from aiokvoffload.testing.tier_faults import FaultyTier
from aiokvoffload.tiering.config import CascadeMode, TierConfig, TieringOffloadingConfig
from aiokvoffload.tiering.memory import MemoryTier
from aiokvoffload.tiering.spec import TieringOffloadingSpec
from tests.service.conftest import keys_of
from tests.tiering.stage import settle

NUM_READERS, NUM_CHAINS, CHAIN_KEYS, NUM_SLOTS = 4, 6, 10, 16
PAGE_BYTES = 4096


class Storm:
    """Requests and faults, drawn from one seed."""

    def __init__(self, seed: int, cascade: CascadeMode) -> None:
        self.random = random.Random(seed)  # noqa: S311 - chance, not secrecy
        self.clock = ManualClock()
        self.tiers: list[FaultyTier] = []
        # Block content follows from chain and position; each reader has blocks of its own behind the originals.
        self.originals = (
            torch.arange(NUM_CHAINS * CHAIN_KEYS, dtype=torch.int64).repeat_interleave(512).reshape(-1, 512)
        )
        self.blocks = torch.cat([self.originals, torch.zeros((NUM_READERS * CHAIN_KEYS, 512), dtype=torch.int64)])
        tier = TierConfig(make=self.make, cascade=cascade, max_call_keys=3, max_failures=2)
        cpu = CPUOffloadingConfig(cpu_bytes=NUM_SLOTS * PAGE_BYTES, device="host")
        self.spec = TieringOffloadingSpec(TieringOffloadingConfig(cpu=cpu, tiers=(tier,)), clock=self.clock)
        self.served = self.resets = 0

    def make(self, shape: TierShape) -> SecondaryTier:
        self.tiers.append(FaultyTier(MemoryTier(40, shape.chunk_bytes, num_workers=shape.num_workers)))
        return self.tiers[0]

    async def request(self, service: OffloadingService, reader: int, number: int) -> None:
        chain = self.random.randrange(NUM_CHAINS)
        keys = keys_of(CHAIN_KEYS, name=f"chain-{chain}")
        first = len(self.originals) + reader * CHAIN_KEYS
        async with service.request(f"reader-{reader}-{number}") as request:
            if self.random.random() < 0.2:
                request.prefetch(keys)
            hits = request.lookup(keys)
            result = await request.load(keys[:hits], range(first, first + hits))
            got = self.blocks[first : first + result.served, 0].tolist()
            assert got == list(range(chain * CHAIN_KEYS, chain * CHAIN_KEYS + result.served)), "wrong bytes (I5)"
            self.served += result.served
            rest = range(chain * CHAIN_KEYS + result.served, (chain + 1) * CHAIN_KEYS)
            await request.store(keys[result.served :], rest)

    async def reader(self, service: OffloadingService, reader: int) -> None:
        for number in range(25):
            task = asyncio.create_task(self.request(service, reader, number))
            if self.random.random() < 0.2:
                await settle(self.random.randrange(1, 40))
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def faults(self, service: OffloadingService) -> None:
        (tier,) = self.tiers
        while True:
            await settle(self.random.randrange(1, 30))
            match self.random.randrange(6):
                case 0:
                    tier.hold()
                case 1 | 2:
                    tier.release()
                case 3:
                    tier.failing = self.random.random() < 0.3
                case 4:
                    tier.torn_keys = set(self.random.sample(keys_of(CHAIN_KEYS, name="chain-0"), 2))
                case 5 if self.random.random() < 0.1:
                    await service.reset(tiers=self.random.choice([["cpu"], None]))
                    self.resets += 1
            self.clock.advance(self.random.choice([0.0, 0.0, 4.0, 12.0]))
            service.check_integrity()

    async def settle_down(self, service: OffloadingService) -> None:
        """In peace something is served, if chance has kept everything from it before."""
        for number in range(100, 200):
            if not self.served:
                await self.request(service, 0, number)

    async def run(self) -> None:
        async with self.spec.open(make_kv_caches([self.blocks])) as service:
            await service.wait_grown()
            faults = asyncio.create_task(self.faults(service))
            await asyncio.gather(*(self.reader(service, reader) for reader in range(NUM_READERS)))
            faults.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await faults
            self.tiers[0].failing = False
            self.tiers[0].release()
            await self.settle_down(service)
        service.check_integrity()
        pools = service.statistics().manager.pools
        assert [(pool.pinned, pool.writing, pool.quarantined) for pool in pools] == [(0, 0, 0)]


@pytest.mark.parametrize("cascade", CascadeMode)
@pytest.mark.parametrize("seed", range(6))
async def test_whatever_a_tier_does_no_wrong_byte_is_served_and_no_slot_is_lost(
    seed: int, cascade: CascadeMode
) -> None:
    """I5, I7; faults 10, 25, 32, 53."""
    storm = Storm(seed, cascade)
    await storm.run()
    assert storm.served > 0
