"""Serves requests as the scheduler of an async engine would, with exclusive-or in place of a model.

Knows the order of one request's steps and counts their outcomes; knows nothing of traces as files or of the terminal.
"""

import asyncio
import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiokvoffload.base import OffloadKey, Stream
from aiokvoffload.cli.blocks import BlockAllocator
from aiokvoffload.cli.pattern import Pattern
from aiokvoffload.cli.trace import TraceRequest
from aiokvoffload.device import Device
from aiokvoffload.errors import TransferError
from aiokvoffload.service import LoadHandle, LoadResult, OffloadingService, Request, StoreHandle, StoreResult


@dataclass(slots=True)
class Tally:
    """What happened to the requests so far; the fields are those of `ReplayReport`."""

    served_blocks: int = 0
    short_loads: int = 0
    loaded_bytes: int = 0
    stored_bytes: int = 0
    refused_blocks: int = 0
    failed_store_blocks: int = 0


@dataclass(frozen=True, slots=True)
class Engine:
    """What an engine brings along.

    Attributes:
        device: where the blocks lie.
        compute: the stream that its kernels run on.
        allocator: who has which block.
        pattern: what computed blocks hold.
    """

    device: Device
    compute: Stream
    allocator: BlockAllocator
    pattern: Pattern

    def enqueue(self, kernel: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Run `kernel` after all that was enqueued before; returns at once."""
        self.device.enqueue(self.compute, partial(kernel, *args, **kwargs))


class Server:
    """Serves requests through an offloading service.

    Args:
        offload: the open service.
        engine: memory, stream and kernels.
        verify: compare every loaded byte with what was stored.
    """

    def __init__(self, offload: OffloadingService, engine: Engine, *, verify: bool = False) -> None:
        self.tally = Tally()
        self._offload = offload
        self._engine = engine
        self._verify = verify
        # For each verified load, the ordinal of its first block: tells what a mismatch belongs to.
        self._verified_ordinals: list[int] = []
        self._verified_requests: list[TraceRequest] = []

    def __repr__(self) -> str:
        return f"Server({self.tally.served_blocks} blocks served, {len(self._verified_requests)} loads verified)"

    async def serve_all(
        self, requests: Sequence[TraceRequest], *, concurrency: int, on_served: Callable[[], None]
    ) -> None:
        """Serve the requests; they arrive in order, each as soon as fewer than `concurrency` are in service."""
        arrivals = iter(requests)
        async with asyncio.TaskGroup() as lanes:
            for _ in range(min(concurrency, len(requests))):
                lanes.create_task(self._serve_lane(arrivals, on_served))

    async def _serve_lane(self, arrivals: Iterator[TraceRequest], on_served: Callable[[], None]) -> None:
        for request in arrivals:
            await self.serve(request)
            on_served()

    async def serve(self, request: TraceRequest) -> None:
        """One request from its arrival to the end of its store."""
        store = await self._serve_on_gpu(request)
        # The GPU blocks are free already; the way into CPU memory may be longer.
        self._count_store(await store)

    async def _serve_on_gpu(self, request: TraceRequest) -> StoreHandle:
        keys = request.keys()
        block_ids: list[int] = []
        try:
            async with self._offload.request(request.name) as offload_request:
                hits = offload_request.lookup(keys)
                block_ids = await self._engine.allocator.allocate(len(keys))
                served = await self._load(offload_request, request, block_ids[:hits])
                self._engine.enqueue(self._engine.pattern.fill, block_ids[served:], request.hash_ids[served:])
                store = offload_request.store(keys[served:], block_ids[served:], after=self._engine.compute)
                await store.released
            # Only here does no transfer touch the blocks any more, however the request ended.
        finally:
            self._engine.allocator.free(block_ids)
        return store

    async def _load(self, offload_request: Request, request: TraceRequest, block_ids: Sequence[int]) -> int:
        """Load the promised blocks; returns how many leading ones are served, which may be fewer (I3)."""
        if not block_ids:
            return 0
        if self._verify:
            self._engine.enqueue(self._engine.pattern.poison, block_ids)
        keys = request.keys()[: len(block_ids)]
        load = offload_request.load(keys, block_ids, after=self._engine.compute)
        # A fence that fails is no fault: the result says what was there.
        with contextlib.suppress(TransferError):
            await load.fence(self._engine.compute)
        ...
    def _count_store(self, result: StoreResult) -> None:
        self.tally.stored_bytes += result.stored_bytes
        self.tally.refused_blocks += len(result.refused_keys)
        self.tally.failed_store_blocks += len(result.failed_keys)
