"""What a manager costs a block when nothing else runs: a trace's requests, one after the other, no byte moved.

Knows a manager and a clock. In a service the same calls take longer: between them other code has used the caches, and
a loop that slept wakes up cold, as with a pause before each call. Without one this is the figure to set beside those of
other managers, which are taken like this, but for the clock: it runs within calls only, as in `replay`.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.table import Table

from aiokvoffload.base import OffloadingManager, OffloadKey, ReqContext
from aiokvoffload.cli.clocked import ManagerClock
from aiokvoffload.cli.trace import TraceRequest
from aiokvoffload.config import GroupConfig
from aiokvoffload.cpu.common import PAGE_BYTES, PoolShape
from aiokvoffload.cpu.manager import CPUOffloadingManager


@dataclass(frozen=True, slots=True)
class ManagerFigures:
    """One policy at one capacity.

    Attributes:
        policy: its name.
        cpu_chunks: slots.
        requests: requests of the trace.
        blocks: blocks of all their prompts.
        hit_ratio: leading resident blocks of a request over all blocks.
        us_per_block: microseconds inside the manager, per block.
        pause_us: microseconds slept before each call, which are not in it.
    """

    policy: str
    cpu_chunks: int
    requests: int
    blocks: int
    hit_ratio: float
    us_per_block: float
    pause_us: int = 0


def manager_benchmark(
    requests: Sequence[TraceRequest], *, policy: str, cpu_chunks: int, pause_us: int = 0
) -> ManagerFigures:
    """Look up, load and store every request of a trace, each done before the next begins.

    Raises:
        ConfigError: there is no such policy.
    """
    clock = ManagerClock(pause_us / 1e6)
    manager = clock.wrap(make_manager(policy, cpu_chunks))
    hits = sum(serve(manager, request.keys(), ReqContext(request.name)) for request in requests)
    manager.check_integrity()
    blocks = max(1, sum(len(request.hash_ids) for request in requests))
    us_per_block = clock.spent_ns / 1e3 / blocks
    return ManagerFigures(policy, cpu_chunks, len(requests), blocks, hits / blocks, us_per_block, pause_us)


def make_manager(policy: str, cpu_chunks: int) -> CPUOffloadingManager:
    """A manager of one pool for one group.

    Raises:
        ConfigError: there is no such policy.
    """
    return CPUOffloadingManager([PoolShape((0,), PAGE_BYTES, cpu_chunks)], groups=[GroupConfig()], policy=policy)


def serve(manager: OffloadingManager, keys: Sequence[OffloadKey], ctx: ReqContext) -> int:
    """One request from its beginning to its end; returns how many leading keys it was served."""
    manager.on_new_request(ctx)
    hits = manager.lookup_prefix(keys, ctx)
    if hits:
        manager.complete_load(manager.prepare_load(keys[:hits], ctx).token)
    prepared = manager.prepare_store(keys[hits:], ctx) if hits < len(keys) else None
    if prepared is not None:
        manager.complete_store(prepared.token)
    manager.on_request_finished(ctx)
    manager.take_events()
    return hits


def manager_json(figures: Sequence[ManagerFigures]) -> str:
    """The records as one JSON list."""
    return json.dumps([asdict(each) for each in figures], indent=2)


def manager_table(figures: Sequence[ManagerFigures]) -> Table:
    """The figures for people."""
    pause_us = figures[0].pause_us
    slept = f", {pause_us:,} µs of sleep before each call" if pause_us else ""
    table = Table(title=f"{figures[0].requests:,} requests, {figures[0].blocks:,} blocks, the manager alone{slept}")
    for column in ("policy", "chunks", "hit ratio", "µs per block"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for each in figures:
        table.add_row(each.policy, f"{each.cpu_chunks:,}", f"{each.hit_ratio:.4f}", f"{each.us_per_block:.2f}")
    return table
