"""Loads and stores at full rate, for others to be measured beside. Knows blocks, keys and bytes; no model."""

import asyncio
import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from aiokvoffload.base import OffloadKey, make_offload_key
from aiokvoffload.service import OffloadingService

IN_FLIGHT = 4
"""Loads, and as many stores: two that take turns end together, and then a copy engine is without work."""


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes so far."""

    loaded: int
    stored: int


class Traffic:
    """Moves blocks in both directions between entering and leaving.

    Args:
        offload: the service.
        block_ids: GPU blocks that nobody else uses: `2 * IN_FLIGHT` parts of them are moved, each by itself.
        name: of its requests and keys, so that no other traffic has them.
    """

    def __init__(self, offload: OffloadingService, block_ids: list[int], *, name: str) -> None:
        size = len(block_ids) // (2 * IN_FLIGHT)
        parts = [block_ids[part * size : (part + 1) * size] for part in range(2 * IN_FLIGHT)]
        self._offload, self._name = offload, name
        self._store_parts, self._load_parts = parts[:IN_FLIGHT], parts[IN_FLIGHT:]
        self._new_chains: Iterator[list[OffloadKey]] = iter(())
        self._numbers = itertools.count()
        self._loaded = self._stored = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        # Made ahead, as an engine hashes its prompts elsewhere than on the loop.
        chains = await asyncio.to_thread(self._make_chains, len(self._store_parts[0]))
        self._new_chains = itertools.cycle(chains)
        load_chains = [self._keys(f"load-{number}", len(part)) for number, part in enumerate(self._load_parts)]
        await asyncio.gather(*(map(self._store_once, load_chains, self._load_parts)))
        loops = [self._store(part) for part in self._store_parts]
        loops += [self._load(keys, part) for keys, part in zip(load_chains, self._load_parts, strict=True)]
        self._tasks = [asyncio.create_task(loop) for loop in loops]
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        for task in self._tasks:
            if not task.cancelled():
                task.result()

    def moved(self) -> Moved:
        """Bytes so far."""
        return Moved(self._loaded, self._stored)

    async def _store(self, block_ids: list[int]) -> None:
        while True:
            stored_bytes = await self._store_once(next(self._new_chains), block_ids)
            self._stored += stored_bytes  # not `+= await`, which forgets what others add meanwhile

    async def _store_once(self, keys: list[OffloadKey], block_ids: list[int]) -> int:
        # A request of its own: what one has stored stays until it ends.
        async with self._offload.request(f"{self._name}-{next(self._numbers)}") as door:
            result = await door.store(keys, block_ids, protect_source=False)
        return result.stored_bytes

    async def _load(self, keys: list[OffloadKey], block_ids: list[int]) -> None:
        while True:
            # A request of its own, or what it loads would be used once, and soon be evicted by the stores.
            async with self._offload.request(f"{self._name}-{next(self._numbers)}") as door:
                result = await door.load(keys, block_ids)
            self._loaded += result.loaded_bytes
            if result.failed_keys:
                await self._store_once(keys, block_ids)

    def _make_chains(self, size: int) -> list[list[OffloadKey]]:
        """So many that a chain has long been evicted when its turn comes again."""
        room = sum(pool.capacity for pool in self._offload.statistics().manager.pools)
        return [self._keys(f"new-{number}", size) for number in range(2 * room // size + 1)]

    def _keys(self, chain: str, count: int) -> list[OffloadKey]:
        names = (f"{self._name}-{chain}-{index}" for index in range(count))
        return [make_offload_key(hashlib.sha256(name.encode()).digest(), 0) for name in names]
