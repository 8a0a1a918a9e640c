"""Serves requests as the scheduler of an async engine would, with exclusive-or in place of a model.

Knows the order of one request's steps and counts their outcomes; knows nothing of trace files or of the terminal.
"""

import asyncio
import bisect
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch

from aiokvoffload.base import Stream
from aiokvoffload.cli.blocks import BlockAllocator
from aiokvoffload.cli.pattern import Mismatch, Pattern
from aiokvoffload.cli.trace import TraceRequest
from aiokvoffload.cpu.common import CPU_TIER
from aiokvoffload.device import Device
from aiokvoffload.errors import TransferError
from aiokvoffload.service.handle import Handle
from aiokvoffload.service.pump import Turnstile
from aiokvoffload.service.results import LoadResult, StoreResult
from aiokvoffload.service.service import OffloadingService


@dataclass(slots=True)
class Tally:
    """What became of the requests so far; the fields are those of `ReplayReport`."""

    served_blocks: int = 0
    disk_blocks: int = 0
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
        compute: the stream that kernels run on.
        pool: the memory of the blocks, as `make_pool` gives it.
        allocator: who has which block.
        pattern: what computed blocks hold.
        launcher: the thread that launches kernels on a GPU, which is too much work for a loop.
    """

    device: Device
    compute: Stream
    pool: torch.Tensor
    allocator: BlockAllocator
    pattern: Pattern
    launcher: ThreadPoolExecutor

    async def launch(self, kernel: Callable[[], None]) -> None:
        """Return when `kernel` stands in the compute stream, behind all that was launched before."""
        enqueue = partial(self.device.enqueue, self.compute, kernel)
        if self.device.torch_device.type == "cpu":  # its stream is a thread already
            enqueue()
        else:
            await asyncio.get_running_loop().run_in_executor(self.launcher, enqueue)


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
        self._turnstile = Turnstile()
        # For each verified load, the ordinal of its first block: tells what a mismatch belongs to.
        self._verified_from: list[int] = []
        self._verified_requests: list[TraceRequest] = []

    def __repr__(self) -> str:
        return f"Server({self.tally.served_blocks} blocks served, {len(self._verified_requests)} loads verified)"

    async def serve_all(
        self, requests: Sequence[TraceRequest], *, concurrency: int, on_served: Callable[[], None]
    ) -> None:
        """Serve the requests: they arrive in order, each as soon as fewer than `concurrency` are in service."""
        arrivals = iter(requests)
        async with asyncio.TaskGroup() as lanes:
            for _ in range(min(concurrency, len(requests))):
                lanes.create_task(self._serve_lane(arrivals, on_served))

    async def _serve_lane(self, arrivals: Iterator[TraceRequest], on_served: Callable[[], None]) -> None:
        for request in arrivals:
            await self.serve(request)
            on_served()

    async def serve(self, request: TraceRequest) -> None:
        """One request, from its arrival to the end of its store."""
        keys = request.keys()
        async with self._offload.request(request.name) as door:
            hits = door.lookup(keys)
            block_ids = await self._engine.allocator.allocate(len(keys))
            # However the request ends, its blocks are not free before the last copy that touches them has ended.
            door.on_released(partial(self._engine.allocator.free, block_ids))
            # Copies that end together wake many requests together: one step in each pass of the loop (I10).
            await self._turnstile.wait_turn()
            await self._poison(block_ids[:hits])
            load = door.load(keys[:hits], block_ids[:hits], after=self._engine.compute)
            served = await self._fence(load, promised=hits)
            await self._turnstile.wait_turn()
            await self._compute(request, block_ids, served)
            # Nothing overwrites the blocks before `released`: the compute stream need not wait for the copies.
            store = door.store(keys[served:], block_ids[served:], after=self._engine.compute, protect_source=False)
            await store.released
            self._count_load(await load, promised=hits)
        # The GPU blocks are free by now; the way into CPU memory may be longer.
        self._count_store(await store)

    async def _poison(self, block_ids: Sequence[int]) -> None:
        if self._verify and block_ids:
            await self._engine.launch(partial(self._engine.pattern.poison, block_ids))

    async def _fence(self, load: Handle[LoadResult], *, promised: int) -> int:
        """Make the compute stream wait for the load; returns how many leading blocks are served, maybe fewer (I3)."""
        try:
            await load.fence(self._engine.compute)
        except TransferError:
            return (await load).served
        return promised

    async def _compute(self, request: TraceRequest, block_ids: Sequence[int], served: int) -> None:
        """Read the served blocks, if they are to be verified, and write the others."""
        pattern = self._engine.pattern
        if self._verify and served:
            ordinal = pattern.reserve(served)
            self._verified_from.append(ordinal)
            self._verified_requests.append(request)
            verify = partial(pattern.verify, block_ids[:served], request.hash_ids[:served], ordinal=ordinal)
            await self._engine.launch(verify)
        await self._engine.launch(partial(pattern.fill, block_ids[served:], request.hash_ids[served:]))

    def _count_load(self, result: LoadResult, *, promised: int) -> None:
        self.tally.served_blocks += result.served
        self.tally.disk_blocks += sum(count for tier, count in result.sources if tier != CPU_TIER)
        self.tally.loaded_bytes += result.loaded_bytes
        self.tally.short_loads += result.served < promised

    def _count_store(self, result: StoreResult) -> None:
        self.tally.stored_bytes += result.stored_bytes
        self.tally.refused_blocks += len(result.refused_keys)
        self.tally.failed_store_blocks += len(result.failed_keys)

    def describe(self, mismatch: Mismatch) -> str:
        """Which request, block and tensor a mismatch was found in."""
        index = bisect.bisect_right(self._verified_from, mismatch.ordinal) - 1
        request = self._verified_requests[index]
        block = mismatch.ordinal - self._verified_from[index]
        return (
            f"{request.name}, block {block} (hash id {request.hash_ids[block]}), tensor {mismatch.tensor}: "
            f"{mismatch.wrong_words} words differ"
        )
