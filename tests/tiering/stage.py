"""A service over CPU memory and tiers that do what the test says, with time that the test moves."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokvoffload.base import OffloadKey
from aiokvoffload.config import GroupConfig
from aiokvoffload.cpu.common import PAGE_BYTES, PoolShape
from aiokvoffload.cpu.manager import CPUOffloadingManager
from aiokvoffload.service import Handle, OffloadingService, Parts, StoreResult, TierParts
from aiokvoffload.testing import ManualClock, MockOffloadingWorker
from aiokvoffload.testing.tier_faults import FaultyTier
from aiokvoffload.tiering.chain import Chain, TierStatistics
from aiokvoffload.tiering.config import CascadeMode, TierConfig
from aiokvoffload.tiering.manager import TieringOffloadingManager
from aiokvoffload.tiering.memory import MemoryTier
from aiokvoffload.tiering.rules import SlotShares, TierRules
from tests.service.conftest import LIMITS


async def settle(passes: int = 20) -> None:
    for _ in range(passes):
        await asyncio.sleep(0)


@dataclass
class DeepStage:
    """Everything a test of the chain looks at; `tier` is the first of the tiers."""

    num_slots: int = 8
    policy: str = "lru"
    tier_chunks: int = 64
    num_tiers: int = 1
    num_workers: int = 1
    cascade: CascadeMode = CascadeMode.WRITE_THROUGH
    max_call_keys: int = 2
    max_loads: int = 2
    max_failures: int = 3
    max_store_delay_s: float = 1000.0
    close_timeout_s: float = 30.0
    max_events: int = 10_000
    groups: Sequence[GroupConfig] = (GroupConfig(),)
    shares: SlotShares = field(default_factory=lambda: SlotShares(promotion=0.5, head_room=0.1, cascade=0.5))
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        chunk_bytes = [PAGE_BYTES] * len(self.groups)
        self.memories = [
            MemoryTier(
                self.tier_chunks,
                chunk_bytes,
                num_workers=self.num_workers,
                name=f"tier-{index}",
                max_events=self.max_events,
            )
            for index in range(self.num_tiers)
        ]
        self.tiers = [FaultyTier(memory) for memory in self.memories]
        self.workers = [MockOffloadingWorker() for _ in range(self.num_workers)]
        pool = PoolShape(tuple(range(len(self.groups))), PAGE_BYTES, self.num_slots)
        self.primary = CPUOffloadingManager(
            [pool], groups=self.groups, policy=self.policy, max_pending_events=self.max_events
        )
        config = TierConfig(
            make=lambda shape: MemoryTier(1, shape.chunk_bytes),
            cascade=self.cascade,
            max_loads_in_flight=self.max_loads,
            max_failures=self.max_failures,
            max_store_delay_s=self.max_store_delay_s,
        )
        rules = [TierRules(tier, self.cascade, [self.max_call_keys] * len(self.groups)) for tier in self.tiers]
        self.manager = TieringOffloadingManager(
            self.primary, rules, pools=[pool], groups=self.groups, shares=self.shares
        )
        tiers = TierParts(
            manager=self.manager,
            tiers=[(tier, config) for tier in self.tiers],
            close_timeout_s=self.close_timeout_s,
            clock=self.clock,
        )
        self.service = OffloadingService(
            lambda: Parts(self.manager, self.workers, None, tiers), groups=self.groups, limits=LIMITS
        )

    async def __aenter__(self) -> OffloadingService:
        return await self.service.__aenter__()

    async def __aexit__(self, *_: object) -> None:
        """Close; a test that failed half-way must not hang there."""
        for tier in self.tiers:
            tier.release()
        for worker in self.workers:
            worker.finish_all()
        await self.service.aclose()

    @property
    def tier(self) -> FaultyTier:
        return self.tiers[0]

    @property
    def worker(self) -> MockOffloadingWorker:
        return self.workers[0]

    @property
    def chain(self) -> Chain:
        assert self.service._depth is not None
        return self.service._depth.chain

    @property
    def figures(self) -> TierStatistics:
        return self.service.statistics().tiers[0]

    async def finish(self, handle: Handle[Any]) -> Any:
        """End copies as they come until the handle has its result."""
        while not handle.done():
            for worker in self.workers:
                worker.finish_all()
            await asyncio.sleep(0)
        return await handle

    async def fill(self, keys: Sequence[OffloadKey], *, req_id: str = "filler") -> StoreResult:
        """Make keys resident through the front door, and wait until the tiers have them."""
        async with self.service.request(req_id) as request:
            result: StoreResult = await self.finish(request.store(keys, range(len(keys))))
        await self.drained()
        return result

    async def drained(self) -> None:
        """Return once no tier has anything to do."""
        while self.chain.unreturned:
            await asyncio.sleep(0)

    async def only_below(self, keys: Sequence[OffloadKey], *, req_id: str = "sinker") -> None:
        """Make keys resident in the tiers and nowhere else."""
        await self.fill(keys, req_id=req_id)
        await self.service.reset(tiers=["cpu"])

    def check(self) -> None:
        """Nothing is held, and slots add up (I7)."""
        self.service.check_integrity()
        pools = self.primary.statistics().pools
        assert [(pool.pinned, pool.writing, pool.quarantined) for pool in pools] == [(0, 0, 0)] * len(pools)
        assert (self.manager.promoting_slots, self.manager.cascading_slots) == (0, 0)
