"""A real service on the host device with a tier below, something done with it, and what its figures say."""

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import torch
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

import aiokvoffload as kv
from aiokvoffload.metrics import MetricsServer
from aiokvoffload.tiering.memory import MemoryTier
from tests.service.conftest import keys_of

NUM_BLOCKS = 16
BLOCK_BYTES = 4096


def make_service(*, cpu_chunks: int = 8, tier_chunks: int = 64) -> kv.OffloadingService:
    tensor = torch.arange(NUM_BLOCKS * BLOCK_BYTES // 8).reshape(NUM_BLOCKS, -1)
    caches = kv.CanonicalKVCaches(
        [kv.CanonicalKVCacheTensor(tensor, BLOCK_BYTES)], [[kv.CanonicalKVCacheRef(0, BLOCK_BYTES)]]
    )
    cpu = kv.CPUOffloadingConfig(cpu_bytes=cpu_chunks * BLOCK_BYTES, device="host")
    tier = kv.TierConfig(make=lambda shape: MemoryTier(tier_chunks, shape.chunk_bytes))
    return kv.TieringOffloadingSpec(kv.TieringOffloadingConfig(cpu=cpu, tiers=(tier,))).open(caches)


@asynccontextmanager
async def used_service() -> AsyncIterator[kv.OffloadingService]:
    """One that stored four keys, sent them down, forgot them above, and loaded them again, and a fifth in vain."""
    async with make_service() as service:
        await service.wait_grown()
        keys = keys_of(5)
        async with service.request("stores") as request:
            await request.store(keys[:4], range(4))
        while service.statistics().tiers[0].cascaded < 4:
            await asyncio.sleep(0)
        await service.reset(tiers=["cpu"])
        async with service.request("loads") as request:
            assert request.lookup(keys) == 4
            assert (await request.load(keys, range(8, 13))).served == 4
        yield service


async def get(url: str, *, method: str = "GET") -> tuple[int, str]:
    """Status and body, asked for from another thread, as a scraper would."""

    def ask() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method=method)) as answer:  # noqa: S310
                return answer.status, answer.read().decode()
        except urllib.request.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(ask)


def parsed(text: str) -> dict[str, Metric]:
    """Families by name, as `prometheus_client` reads them."""
    return {family.name: family for family in text_string_to_metric_families(text)}


async def scraped(server: MetricsServer) -> dict[str, Metric]:
    status, text = await get(server.url)
    assert status == 200
    return parsed(text)


def value(families: dict[str, Metric] | Sequence[Metric], name: str, **labels: str) -> float:
    """The one sample of that name and those labels."""
    found = families.values() if isinstance(families, dict) else families
    samples = [sample for family in found for sample in family.samples]
    [wanted] = [each.value for each in samples if each.name == f"aiokvoffload_{name}" and each.labels == labels]
    return wanted
