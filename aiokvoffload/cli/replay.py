"""Replays a trace on memory and a service made for it, and measures.

Knows what is set up, in which order it ends, and where each figure comes from; a request's own steps are in `server`.
"""

import asyncio
import importlib
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from aiokvoffload.cache.pool import PoolStatistics
from aiokvoffload.cli.blocks import BlockAllocator, as_kv_caches, make_pool
from aiokvoffload.cli.clocked import ManagerClock
from aiokvoffload.cli.grown import wait_grown
from aiokvoffload.cli.manager_bench import manager_benchmark
from aiokvoffload.cli.pattern import Pattern
from aiokvoffload.cli.probe import LoopProbe, Percentiles
from aiokvoffload.cli.replay_disk import DiskFigures, ReplayDisk
from aiokvoffload.cli.report import ReplayReport
from aiokvoffload.cli.server import Engine, Server
from aiokvoffload.cli.trace import TraceRequest
from aiokvoffload.config import CPUOffloadingConfig
from aiokvoffload.copy.direction import Direction
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.cpu.spec import memory_bytes
from aiokvoffload.cpu.worker_statistics import DirectionStatistics, WorkerStatistics
from aiokvoffload.device import Device, open_device
from aiokvoffload.errors import ArgumentError
from aiokvoffload.metrics import serve_metrics
from aiokvoffload.service.results import ServiceStatistics
from aiokvoffload.service.service import OffloadingService

NUM_TENSORS = 4
HOST_CHUNK_BYTES, GPU_CHUNK_BYTES = 16 << 10, 1 << 20
PROMPTS_IN_POOL = 4
"""How many of the longest prompt the paged pool holds, unless it is told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How a trace is replayed; the options of `aiokvoffload replay`, which docs/cli.md describes."""

    trace_name: str = ""
    policy: str = "lru"
    gpu_blocks: int | None = None
    cpu_chunks: int = 5_000
    chunk_bytes: int | None = None
    device: str = "auto"
    concurrency: int = 16
    verify: bool = False
    disk_dir: Path | None = None
    disk_bytes: int | None = None
    events: str | None = None
    events_replay: str | None = None
    metrics_port: int | None = None


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the options and the trace come to.

    Attributes:
        gpu_blocks: blocks in the paged pool.
        chunk_bytes: bytes of a block over all layers, and so of a chunk.
        cpu_bytes: memory for `cpu_chunks` slots.
    """

    gpu_blocks: int
    chunk_bytes: int
    cpu_bytes: int


def choose_sizes(requests: Sequence[TraceRequest], options: ReplayOptions, *, on_host: bool) -> Sizes:
    """Fill in what the options leave open.

    Raises:
        ArgumentError: a request's prompt does not fit the paged pool, or the slots not into memory.
    """
    longest = max(requests, key=lambda request: len(request.hash_ids))
    needed = max(1, len(longest.hash_ids))
    gpu_blocks = PROMPTS_IN_POOL * needed if options.gpu_blocks is None else options.gpu_blocks
    if gpu_blocks < needed:
        raise ArgumentError(
            f"{longest.name} of the trace needs {needed} blocks, the pool has {gpu_blocks}: raise --gpu-blocks"
        )
    chunk_bytes = options.chunk_bytes or (HOST_CHUNK_BYTES if on_host else GPU_CHUNK_BYTES)
    cpu_bytes = options.cpu_chunks * PoolShape((0,), chunk_bytes, 0).row_bytes
    if (limit := memory_bytes()) is not None and cpu_bytes > limit:
        raise ArgumentError(
            f"{options.cpu_chunks:,} chunks of {chunk_bytes:,} bytes do not fit into this machine's {limit:,} bytes of "
            "memory: lower --cpu-chunks or --chunk-bytes"
        )
    return Sizes(gpu_blocks, chunk_bytes, cpu_bytes)


async def replay(
    requests: Sequence[TraceRequest], options: ReplayOptions, *, on_served: Callable[[], None] = lambda: None
) -> ReplayReport:
    """Replay `requests` and report.

    Args:
        requests: at least one.
        options: how.
        on_served: called after each request.

    Raises:
        ArgumentError, ConfigError: an option cannot work, or not on this machine.
        BrokenError: the device failed.
    """
    device = open_device(options.device)
    launcher = ThreadPoolExecutor(1, thread_name_prefix="aiokvoffload-launcher")
    try:
        sizes = choose_sizes(requests, options, on_host=device.torch_device.type == "cpu")
        engine = build_engine(device, sizes, launcher, max_verified=count_blocks(requests) if options.verify else 0)
        run = await _run(engine, sizes, requests, options, on_served)
        return await _report(engine, sizes, requests, options, run)
    finally:
        # Joins threads that may have work left after a cancellation.
        await asyncio.to_thread(launcher.shutdown)
        await asyncio.to_thread(device.close)


def count_blocks(requests: Sequence[TraceRequest]) -> int:
    """Blocks of all prompts."""
    return sum(len(request.hash_ids) for request in requests)


def build_engine(device: Device, sizes: Sizes, launcher: ThreadPoolExecutor, *, max_verified: int) -> Engine:
    """Memory, a compute stream and kernels on `device`."""
    pool = make_pool(
        device.torch_device, num_tensors=NUM_TENSORS, num_blocks=sizes.gpu_blocks, chunk_bytes=sizes.chunk_bytes
    )
    pattern = Pattern(pool, max_verified=max_verified)
    compute = device.create_stream()
    # What prepared the pattern ran on the current stream.
    device.wait(compute, device.record())
    return Engine(device, compute, pool, BlockAllocator(sizes.gpu_blocks), pattern, launcher)


@dataclass(frozen=True, slots=True)
class _Run:
    """What is left of a service after all requests: its records, and what was measured beside it."""

    disk: DiskFigures | None
    server: Server
    statistics: ServiceStatistics
    manager_ns: int
    probe: LoopProbe
    seconds: float


async def _run(
    engine: Engine,
    sizes: Sizes,
    requests: Sequence[TraceRequest],
    options: ReplayOptions,
    on_served: Callable[[], None],
) -> _Run:
    config = CPUOffloadingConfig(cpu_bytes=sizes.cpu_bytes, policy=options.policy, device=options.device)
    clock, probe = ManagerClock(), LoopProbe()
    disk = ReplayDisk(options.disk_dir, options.disk_bytes)
    service = disk.open(config, as_kv_caches(engine.pool), clock.wrap)
    async with _metrics(service, options.metrics_port), service as offload, _publishing(offload, options):
        await wait_grown(offload)
        await disk.wait_recovered()
        server = Server(offload, engine, verify=options.verify)
        started_s = time.perf_counter()
        with probe:
            await server.serve_all(requests, concurrency=options.concurrency, on_served=on_served)
        seconds = time.perf_counter() - started_s
    offload.check_integrity()
    statistics = offload.statistics()
    return _Run(disk.figures(statistics), server, statistics, clock.spent_ns, probe, seconds)


def _publishing(offload: OffloadingService, options: ReplayOptions) -> AbstractAsyncContextManager[object]:
    if options.events is None:
        return nullcontext()
    # Imported by its name, since a replay that publishes nothing does without what that needs.
    publisher = importlib.import_module("aiokvoffload.events.publisher")
    config = publisher.PublisherConfig(endpoint=options.events, replay_endpoint=options.events_replay)
    opened: AbstractAsyncContextManager[object] = publisher.EventPublisher(offload.events, config)
    return opened


@asynccontextmanager
async def _metrics(service: OffloadingService, port: int | None) -> AsyncIterator[None]:
    if port is None:
        yield
        return
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(serve_metrics(service, port=port))
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else error
            raise ArgumentError(f"--metrics-port {port} cannot be listened on: {reason}") from error
        yield


async def _report(
    engine: Engine, sizes: Sizes, requests: Sequence[TraceRequest], options: ReplayOptions, run: _Run
) -> ReplayReport:
    await asyncio.to_thread(engine.device.record(engine.compute).synchronize)
    mismatches = await asyncio.to_thread(engine.pattern.mismatches)
    blocks = count_blocks(requests)
    alone = await asyncio.to_thread(manager_benchmark, requests, policy=options.policy, cpu_chunks=options.cpu_chunks)
    return ReplayReport(
        trace=options.trace_name,
        device=engine.device.name,
        policy=options.policy,
        concurrency=options.concurrency,
        gpu_blocks=sizes.gpu_blocks,
        cpu_chunks=options.cpu_chunks,
        chunk_bytes=sizes.chunk_bytes,
        verify=options.verify,
        seconds=run.seconds,
        requests=len(requests),
        blocks=blocks,
        verified_blocks=engine.pattern.verified,
        mismatches=len({mismatch.ordinal for mismatch in mismatches}),
        first_mismatch=run.server.describe(mismatches[0]) if mismatches else "",
        failed_loads=sum(stream.jobs_failed for stream in streams(run.statistics, Direction.LOAD)),
        store_busy_s=sum(stream.busy_s for stream in streams(run.statistics, Direction.STORE)),
        load_busy_s=sum(stream.busy_s for stream in streams(run.statistics, Direction.LOAD)),
        leaks=count_leaks(engine.allocator, run.statistics),
        manager_us_per_block=run.manager_ns / 1e3 / max(1, blocks),
        manager_alone_us_per_block=alone.us_per_block,
        lag_us=wake_up_lag(run.statistics),
        loop_blocked_us=run.probe.blocked_us.percentiles(),
        disk=run.disk,
        **asdict(run.server.tally),
    )


def streams(statistics: ServiceStatistics, direction: Direction) -> list[DirectionStatistics]:
    """What each stream of one direction has moved."""
    return [stream for worker in statistics.workers for stream in worker.streams if stream.direction is direction]


def count_leaks(allocator: BlockAllocator, statistics: ServiceStatistics) -> int:
    """What a closed service should not have left: GPU blocks in use, pins, unfinished slots, transfers."""
    return allocator.statistics().in_use + count_slots_and_transfers(statistics)


def count_slots_and_transfers(statistics: ServiceStatistics) -> int:
    """Of that, what the service says of itself."""
    pools: tuple[PoolStatistics, ...] = statistics.manager.pools
    slots = sum(pool.pinned + pool.writing + pool.quarantined for pool in pools)
    workers: tuple[WorkerStatistics, ...] = statistics.workers
    transfers = statistics.jobs_in_flight + sum(worker.jobs_in_flight for worker in workers)
    return slots + transfers + statistics.requests + statistics.waiting_flows


def wake_up_lag(statistics: ServiceStatistics) -> Percentiles:
    """From a copy's end on the device to the loop's knowing, of the one worker there is."""
    lag = statistics.workers[0].poller.lag
    return Percentiles(lag.p50_s * 1e6, lag.p99_s * 1e6, lag.max_s * 1e6)
