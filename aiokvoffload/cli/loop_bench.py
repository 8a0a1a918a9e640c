"""How long the loop is blocked when many requests move long chains at once.

Knows the service's front door and the probe; the blocks are small, since it is the bookkeeping that is measured.
"""

import asyncio
import gc
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from rich.table import Table

from aiokvoffload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    OffloadKey,
    make_offload_key,
)
from aiokvoffload.cli.blocks import allocating
from aiokvoffload.cli.grown import wait_grown
from aiokvoffload.cli.probe import LoopProbe, Percentiles
from aiokvoffload.config import CPUOffloadingConfig
from aiokvoffload.cpu.common import PAGE_BYTES
from aiokvoffload.cpu.spec import CPUOffloadingSpec
from aiokvoffload.device import open_device
from aiokvoffload.service import OffloadingService

BLOCK_BYTES = 64
PROBE_PERIOD_S = 0.0005


@dataclass(frozen=True, slots=True)
class PhaseFigures:
    """One phase: what all requests did at once.

    Attributes:
        name: what that was.
        keys: keys stored or served, over all requests; the pool may have room for fewer than were offered.
        seconds: from the first request's start to the last one's end.
        loop_blocked_us: how late the loop got to what was posted to it.
    """

    name: str
    keys: int
    seconds: float
    loop_blocked_us: Percentiles


@dataclass(frozen=True, slots=True)
class LoopBenchmark:
    """One run of `loop_benchmark`: what was asked for, and what came out."""

    device: str
    requests: int
    keys_per_request: int
    cpu_chunks: int
    phases: tuple[PhaseFigures, ...]

    def to_json(self) -> str:
        """The record as one JSON object."""
        return json.dumps(asdict(self), indent=2)


async def loop_benchmark(
    *, requests: int = 64, keys_per_request: int = 4096, cpu_chunks: int | None = None, device: str = "auto"
) -> LoopBenchmark:
    """Let `requests` requests store a chain each at once, and load what is left of it at once, twice.

    Raises:
        ConfigError: there is no such device, or not enough memory.
    """
    target = open_device(device)
    try:
        total = requests * keys_per_request
        slots = cpu_chunks or total
        with allocating(f"{total:,} blocks of {BLOCK_BYTES} bytes"):
            blocks = torch.zeros((total, BLOCK_BYTES), dtype=torch.uint8, device=target.torch_device)
        caches = CanonicalKVCaches(
            [CanonicalKVCacheTensor(blocks, BLOCK_BYTES)], [[CanonicalKVCacheRef(0, BLOCK_BYTES)]]
        )
        config = CPUOffloadingConfig(cpu_bytes=slots * PAGE_BYTES, device=device)
        async with CPUOffloadingSpec(config).open(caches) as offload:
            await wait_grown(offload)
            chains = [_chain(number, keys_per_request) for number in range(requests)]
            # As docs tell servers to; going through these chains would be the collector's longest pause here.
            gc.collect()
            gc.freeze()
            phases = [await _phase(name, step, offload, chains) for name, step in _PHASES]
        return LoopBenchmark(target.name, requests, keys_per_request, slots, tuple(phases))
    finally:
        await asyncio.to_thread(target.close)


def _chain(number: int, length: int) -> list[OffloadKey]:
    return [make_offload_key(hashlib.sha256(b"%d/%d" % (number, index)).digest(), 0) for index in range(length)]


_Step = Callable[[OffloadingService, int, Sequence[OffloadKey]], Awaitable[int]]


async def _phase(
    name: str, step: _Step, offload: OffloadingService, chains: Sequence[Sequence[OffloadKey]]
) -> PhaseFigures:
    probe = LoopProbe(PROBE_PERIOD_S)
    began_s = time.perf_counter()
    with probe:
        counts = await asyncio.gather(*(step(offload, number, chain) for number, chain in enumerate(chains)))
    seconds = time.perf_counter() - began_s
    await asyncio.to_thread(probe.join)
    return PhaseFigures(name, sum(counts), seconds, probe.blocked_us.percentiles())


async def _store(offload: OffloadingService, number: int, chain: Sequence[OffloadKey]) -> int:
    async with offload.request(f"store-{number}") as request:
        hits = request.lookup(chain)
        blocks = range(number * len(chain) + hits, (number + 1) * len(chain))
        result = await request.store(chain[hits:] if hits else chain, blocks)
    return hits + result.stored


async def _load(offload: OffloadingService, number: int, chain: Sequence[OffloadKey]) -> int:
    async with offload.request(f"load-{number}") as request:
        hits = request.lookup(chain)
        result = await request.load(
            chain[:hits] if hits < len(chain) else chain, range(number * len(chain), number * len(chain) + hits)
        )
    return result.served


_PHASES: tuple[tuple[str, _Step], ...] = (("store", _store), ("load", _load), ("load again", _load))


def loop_table(benchmark: LoopBenchmark) -> Table:
    """The figures for people."""
    title = (
        f"{benchmark.requests:,} requests of {benchmark.keys_per_request:,} keys at once, "
        f"room for {benchmark.cpu_chunks:,}: {benchmark.device}"
    )
    table = Table(title=title)
    for column in ("phase", "keys", "seconds", "loop blocked, µs (p50, p99, max)"):
        table.add_column(column, justify="left" if column == "phase" else "right")
    for phase in benchmark.phases:
        blocked = phase.loop_blocked_us
        percentiles = f"{blocked.p50:,.0f}, {blocked.p99:,.0f}, {blocked.max:,.0f}"
        table.add_row(phase.name, f"{phase.keys:,}", f"{phase.seconds:.2f}", percentiles)
    return table
