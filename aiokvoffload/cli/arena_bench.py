"""How soon a service can be used, and how soon all of its pinned memory is there, against torch's pinned allocator.

Knows the service's front door, the probe and torch's allocator; the block is small, since it is the memory that is
measured.
"""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, fields, replace

import torch
from rich.table import Table

from aiokvoffload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    make_offload_key,
)
from aiokvoffload.cli.blocks import allocating
from aiokvoffload.cli.grown import wait_grown
from aiokvoffload.cli.probe import LoopProbe, Percentiles
from aiokvoffload.config import CPUOffloadingConfig, HostMemory
from aiokvoffload.cpu.spec import CPUOffloadingSpec
from aiokvoffload.device import open_device
from aiokvoffload.errors import TransferError
from aiokvoffload.service import OffloadingService

PROBE_PERIOD_S = 0.0005
STORE_PERIOD_S = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFigures:
    """How a service got its memory.

    Attributes:
        pinned: whether the memory could be pinned; never on the host, which reaches all of it as it is.
        open_s: from opening the service to its being open.
        first_store_s: from opening it to a first chunk being stored.
        grown_s: from opening it to all memory being ready, to a few milliseconds.
        tuned_s: from opening it to copies being as fast as they get, kernels compiled and copies calibrated.
        ready_bytes: the memory that is, then.
        stores_while_growing: further stores of a chunk, one after the other, until then.
        slowest_store_s: the longest of them.
        loop_blocked_us: how late the loop got to what was posted to it meanwhile.
        close_s: unpinning and unmapping it.
    """

    pinned: bool
    open_s: float
    first_store_s: float
    grown_s: float
    tuned_s: float
    ready_bytes: int
    stores_while_growing: int
    slowest_store_s: float
    loop_blocked_us: Percentiles
    close_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaBenchmark(ServiceFigures):
    """One run of `arena_benchmark`: what was asked for, and what came out.

    Attributes:
        device: `cuda`, `host`, or what torch calls the accelerator.
        memory: anonymous or memfd.
        size_bytes: memory asked for.
        piece_bytes: faulted and pinned in one go.
        torch_s: `torch.empty` of as many bytes, with `pin_memory=True` where there is a device to pin for.
        ratio: `grown_s` over `torch_s`.
    """

    device: str
    memory: str
    size_bytes: int
    piece_bytes: int
    torch_s: float
    ratio: float

    def to_json(self) -> str:
        """The record as one JSON object."""
        return json.dumps(asdict(self), indent=2)


async def arena_benchmark(
    *,
    size_bytes: int = 8 << 30,
    chunk_bytes: int = 2 << 20,
    piece_bytes: int | None = None,
    memory: HostMemory = HostMemory.ANONYMOUS,
    device: str = "auto",
) -> ArenaBenchmark:
    """Open a service with `size_bytes` of CPU memory, wait until it has grown, close it; then let torch do the same.

    Raises:
        ConfigError: there is no such device, or not enough memory.
        TransferError: the first chunk could not be stored.
    """
    config = CPUOffloadingConfig(cpu_bytes=size_bytes, device=device, host_memory=memory)
    if piece_bytes:
        config = replace(config, pin_piece_bytes=piece_bytes)
    target = open_device(device)
    try:
        with allocating(f"a block of {chunk_bytes:,} bytes"):
            block = torch.zeros((1, chunk_bytes), dtype=torch.uint8, device=target.torch_device)
        caches = CanonicalKVCaches(
            [CanonicalKVCacheTensor(block, chunk_bytes)], [[CanonicalKVCacheRef(0, chunk_bytes)]]
        )
        service = await _measure_service(config, caches, can_pin=target.name != "host")
        torch_s = await asyncio.to_thread(_torch_s, size_bytes, block.device)
        return ArenaBenchmark(
            device=target.name,
            memory=memory.value,
            size_bytes=size_bytes,
            piece_bytes=config.pin_piece_bytes,
            **{field.name: getattr(service, field.name) for field in fields(service)},
            torch_s=torch_s,
            ratio=service.grown_s / torch_s,
        )
    finally:
        target.close()


async def _measure_service(config: CPUOffloadingConfig, caches: CanonicalKVCaches, *, can_pin: bool) -> ServiceFigures:
    started_s = time.perf_counter()
    async with CPUOffloadingSpec(config).open(caches) as offload:
        opened_s = time.perf_counter()
        await _store(offload, 0)
        stored_s = time.perf_counter()
        with LoopProbe(PROBE_PERIOD_S) as probe:
            store_seconds, grown_s = [], 0.0
            async with _growing(offload) as growing:
                async for number in _until(growing):
                    store_seconds.append(await _store(offload, number))
                    grown_s = grown_s or _time_if_ready(offload)
                tuned_s = time.perf_counter()
                await growing
        (worker,) = offload.statistics().workers
    closed_s = time.perf_counter()
    await asyncio.to_thread(probe.join)
    return ServiceFigures(
        pinned=can_pin and worker.pinned,
        open_s=opened_s - started_s,
        first_store_s=stored_s - started_s,
        grown_s=(grown_s or tuned_s) - started_s,
        tuned_s=tuned_s - started_s,
        ready_bytes=worker.ready_bytes,
        stores_while_growing=len(store_seconds),
        slowest_store_s=max(store_seconds, default=0.0),
        loop_blocked_us=probe.blocked_us.percentiles(),
        close_s=closed_s - tuned_s,
    )


@contextlib.asynccontextmanager
async def _growing(offload: OffloadingService) -> AsyncIterator[asyncio.Task[None]]:
    """What waits for all memory, and does so no longer when this is left."""
    growing = asyncio.create_task(wait_grown(offload))
    try:
        yield growing
    finally:
        growing.cancel()
        await asyncio.wait([growing])


def _time_if_ready(offload: OffloadingService) -> float:
    """Now, if there is nothing left to pin; otherwise 0."""
    (worker,) = offload.statistics().workers
    return time.perf_counter() if worker.ready_bytes == worker.pool_bytes else 0.0


async def _until(growing: asyncio.Task[None]) -> AsyncIterator[int]:
    for number in itertools.count(1):
        await asyncio.wait([growing], timeout=STORE_PERIOD_S)
        if growing.done():
            return
        yield number


async def _store(offload: OffloadingService, number: int) -> float:
    """Seconds that storing one chunk takes, as a request of its own."""
    started_s = time.perf_counter()
    async with offload.request(f"store {number}") as request:
        result = await request.store([make_offload_key(f"chunk {number}".encode(), 0)], [0])
    if result.stored != 1:
        raise TransferError(f"a chunk could not be stored: {result}")
    return time.perf_counter() - started_s


def _torch_s(size_bytes: int, device: torch.device) -> float:
    started_s = time.perf_counter()
    with allocating(f"{size_bytes:,} bytes of torch's pinned memory"):
        if device.type == "cpu":
            torch.ones(size_bytes, dtype=torch.uint8)  # gives it its pages; nothing can be pinned here
        else:
            torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
    return time.perf_counter() - started_s


def arena_table(benchmark: ArenaBenchmark) -> Table:
    """The figures for people."""
    pinned = "pinned" if benchmark.pinned else "not pinned"
    title = f"{benchmark.size_bytes:,} bytes of {benchmark.memory} memory: {benchmark.device}, {pinned}"
    table = Table(title=title)
    table.add_column("figure")
    table.add_column("value", justify="right")
    blocked = benchmark.loop_blocked_us
    stores = f"{benchmark.stores_while_growing:,}, {benchmark.slowest_store_s * 1e3:,.1f} ms"
    for name, value in (
        ("service open", f"{benchmark.open_s:.3f} s"),
        ("first chunk stored", f"{benchmark.first_store_s:.3f} s"),
        ("all memory ready", f"{benchmark.grown_s:.3f} s"),
        ("copies at full speed", f"{benchmark.tuned_s:.3f} s"),
        ("stores meanwhile, the slowest", stores),
        ("the same from torch", f"{benchmark.torch_s:.3f} s"),
        ("ratio", f"{benchmark.ratio:.0%}"),
        ("close", f"{benchmark.close_s:.3f} s"),
        ("loop blocked, µs (p50, p99, max)", f"{blocked.p50:,.0f}, {blocked.p99:,.0f}, {blocked.max:,.0f}"),
    ):
        table.add_row(name, value)
    return table
