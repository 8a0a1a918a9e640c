"""How fast a service stores and evicts, beside different listeners in turn. Knows the service's front door."""

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from aiokvoffload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    OffloadKey,
    make_offload_key,
)
from aiokvoffload.cli.grown import wait_grown
from aiokvoffload.config import CPUOffloadingConfig
from aiokvoffload.cpu.common import PAGE_BYTES
from aiokvoffload.cpu.spec import CPUOffloadingSpec
from aiokvoffload.events import EventBus, Subscription
from aiokvoffload.service import OffloadingService

_BLOCK_BYTES = 64
_CHAIN_KEYS, _CHAINS, _SLOTS = 256, 64, 4096

Listen = Callable[[EventBus], list[Subscription]]


async def store_cycles(listeners: Sequence[Listen], *, turns: int) -> list[float]:
    """Keys stored a second beside each of the listeners, on the host; they take turns, so that all have the same luck.

    Args:
        listeners: each subscribes to the bus it is given.
        turns: of each, the median of which is taken; one more is not counted.
    """
    blocks = torch.zeros((_CHAIN_KEYS, _BLOCK_BYTES), dtype=torch.uint8)
    caches = CanonicalKVCaches([CanonicalKVCacheTensor(blocks, _BLOCK_BYTES)], [[CanonicalKVCacheRef(0, _BLOCK_BYTES)]])
    rates: list[list[float]] = [[] for _ in listeners]
    config = CPUOffloadingConfig(cpu_bytes=_SLOTS * PAGE_BYTES, policy="lru", device="host")
    async with CPUOffloadingSpec(config).open(caches) as offload:
        await wait_grown(offload)
        for turn in range(turns + 1):
            for number, listen in enumerate(listeners):
                rate = await _turn(offload, listen, f"{turn}-{number}")
                if turn:
                    rates[number].append(rate)
    return [statistics.median(each) for each in rates]


async def _turn(offload: OffloadingService, listen: Listen, name: str) -> float:
    chains = [_chain(f"{name}-{number}") for number in range(_CHAINS)]
    subscriptions = listen(offload.events)
    began_s = time.perf_counter()
    for number, chain in enumerate(chains):
        async with offload.request(f"{name}-{number}") as request:
            await request.store(chain, range(len(chain)))
    passed_s = time.perf_counter() - began_s
    for subscription in subscriptions:
        subscription.close()
    await asyncio.sleep(0)
    return _CHAINS * _CHAIN_KEYS / passed_s


def _chain(name: str) -> list[OffloadKey]:
    return [make_offload_key(f"{name}-{index}".encode(), 0) for index in range(_CHAIN_KEYS)]
