"""The traffic that answers are measured beside."""

import asyncio

import torch

from aiokvoffload.base import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor
from aiokvoffload.cli.serve_bench.traffic import IN_FLIGHT, Traffic
from aiokvoffload.config import CPUOffloadingConfig
from aiokvoffload.cpu.common import PAGE_BYTES
from aiokvoffload.cpu.spec import CPUOffloadingSpec

BLOCKS_PER_PART = 2
NUM_BLOCKS = 2 * IN_FLIGHT * BLOCKS_PER_PART


async def test_traffic_counts_what_all_its_stores_and_loads_have_moved() -> None:
    """Several add to one sum while others wait: none may forget what another has added."""
    blocks = torch.zeros((NUM_BLOCKS, PAGE_BYTES), dtype=torch.uint8)
    caches = CanonicalKVCaches([CanonicalKVCacheTensor(blocks, PAGE_BYTES)], [[CanonicalKVCacheRef(0, PAGE_BYTES)]])
    config = CPUOffloadingConfig(cpu_bytes=8 * NUM_BLOCKS * PAGE_BYTES, device="host", policy="lru")
    part_bytes = BLOCKS_PER_PART * PAGE_BYTES
    async with (
        CPUOffloadingSpec(config).open(caches) as offload,
        Traffic(offload, list(range(NUM_BLOCKS)), name="t") as traffic,
    ):
        while min(traffic.moved().stored, traffic.moved().loaded) < 20 * part_bytes:
            await asyncio.sleep(0)
        manager, moved = offload.statistics().manager, traffic.moved()
        # What has ended for the manager and not yet for the task that asked for it is a part for each of them.
        stored_bytes = manager.stored * PAGE_BYTES - IN_FLIGHT * part_bytes  # less what was prepared for the loads
        assert 0 <= stored_bytes - moved.stored <= IN_FLIGHT * part_bytes
        assert 0 <= manager.loaded * PAGE_BYTES - moved.loaded <= IN_FLIGHT * part_bytes
