"""How long a restart takes with many rows, and what the tier can do meanwhile. Makes the rows; there are no chunks."""

import asyncio
import gc
import json
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from aiokvoffload.base import OffloadKey, StoreOutcome, TierShape, make_offload_key
from aiokvoffload.cli.probe import LoopProbe, Percentiles
from aiokvoffload.cli.room import require_directory, require_room
from aiokvoffload.errors import TierError
from aiokvoffload.testing.pages import page_buffers
from aiokvoffload.tiering.disk.config import DiskConfig
from aiokvoffload.tiering.disk.description import Description
from aiokvoffload.tiering.disk.rows import INDEX_NAME, RowColumns, RowStore
from aiokvoffload.tiering.disk.slot_cache import spare_slots
from aiokvoffload.tiering.disk.tier import DiskTier

CHUNK_BYTES = 4096
ROW_BYTES = 5_000
"""Of disk for each row: a slot, and the row in the index and its log."""
STORE_PERIOD_S = 0.01
_BATCH_ROWS = 10_000
_PROBE_PERIOD_S = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryBenchmark:
    """One run.

    Attributes:
        rows: in the index.
        index_bytes: its size.
        open_s: until the tier serves.
        recovered_s: until every row is known.
        stores: chunks stored meanwhile, one every hundredth of a second.
        slowest_store_s: the longest of them.
        loop_blocked_us: how late the loop got to what was posted to it, from the opening on.
        close_s: closing it.
    """

    rows: int
    index_bytes: int
    open_s: float
    recovered_s: float
    stores: int
    slowest_store_s: float
    loop_blocked_us: Percentiles
    close_s: float

    def to_json(self) -> str:
        """The record as one JSON object."""
        return json.dumps(asdict(self), indent=2)


async def recovery_benchmark(*, directory: Path, rows: int) -> RecoveryBenchmark:
    """Write so many rows as an earlier run would have left, and open a tier on them.

    Raises:
        ArgumentError: there is no such directory, or no room in it.
        TierError: the directory cannot be used, or a chunk was not stored meanwhile.
    """
    await asyncio.to_thread(_require_room, directory, rows)
    folder = await asyncio.to_thread(tempfile.TemporaryDirectory, prefix="bench-recovery-", dir=directory)
    try:
        path = Path(folder.name)
        num_slots = rows + 2 * spare_slots(rows)
        index_bytes = await _write_until_cancelled(path, rows, num_slots)
        config = DiskConfig(directories=(path,), disk_bytes=num_slots * CHUNK_BYTES, namespace="bench")
        return await _measure(DiskTier(config, TierShape((CHUNK_BYTES,), 1)), rows, index_bytes)
    finally:
        await asyncio.to_thread(folder.cleanup)


async def _write_until_cancelled(path: Path, rows: int, num_slots: int) -> int:
    """A thread cannot be cancelled: it is told, and ends behind the batch that it writes."""
    stopping = threading.Event()
    writing = asyncio.ensure_future(asyncio.to_thread(_write_rows, path, rows, num_slots, stopping))
    try:
        return await asyncio.shield(writing)
    finally:
        stopping.set()
        await asyncio.wait([writing])


def _require_room(directory: Path, rows: int) -> None:
    require_directory(directory)
    require_room(directory, rows * ROW_BYTES, option=f"--rows {rows}")


async def _measure(tier: DiskTier, rows: int, index_bytes: int) -> RecoveryBenchmark:
    await asyncio.to_thread(gc.collect)  # or what the making of the rows owes falls due meanwhile
    with LoopProbe(_PROBE_PERIOD_S) as probe:
        started_s = time.perf_counter()
        await tier.open()
        opened_s = time.perf_counter()
        store_seconds: list[float] = []
        while tier.statistics().recovering:
            store_seconds.append(await _store(tier, rows + len(store_seconds)))
            await asyncio.sleep(STORE_PERIOD_S)
        recovered_s = time.perf_counter()
    await asyncio.to_thread(probe.join)
    if tier.statistics().recovered < rows - len(store_seconds):
        raise TierError(f"only {tier.statistics().recovered} of {rows} rows were recovered")
    closing_s = time.perf_counter()
    await tier.aclose()
    return RecoveryBenchmark(
        rows=rows,
        index_bytes=index_bytes,
        open_s=opened_s - started_s,
        recovered_s=recovered_s - started_s,
        stores=len(store_seconds),
        slowest_store_s=max(store_seconds, default=0.0),
        loop_blocked_us=probe.blocked_us.percentiles(),
        close_s=time.perf_counter() - closing_s,
    )


async def _store(tier: DiskTier, number: int) -> float:
    started_s = time.perf_counter()
    (outcome,) = await tier.store([_key(number)], page_buffers(1, CHUNK_BYTES))
    if outcome is not StoreOutcome.STORED:
        raise TierError(f"a chunk was not stored during recovery: {outcome}")
    return time.perf_counter() - started_s


def _write_rows(path: Path, count: int, num_slots: int, stopping: threading.Event) -> int:
    description = Description("bench", (CHUNK_BYTES,), 1, 1)
    store = RowStore(path / INDEX_NAME, description, max_slots=num_slots, now_s=int(time.time()))
    first_rank = (time.time_ns() // 1_000_000 - count) << 20
    for start in range(0, count, _BATCH_ROWS):
        if stopping.is_set():
            break
        numbers = range(start, min(count, start + _BATCH_ROWS))
        # Chains of 64 chunks, whose slots are anywhere.
        rows = [(n * 7919 % count, _key(n), first_rank + (n // 64 << 20) + n % 64, bytes(16)) for n in numbers]
        with store.changing(inserts={0: RowColumns(*zip(*sorted(rows), strict=True))}):
            pass
    store.close()
    return (path / INDEX_NAME).stat().st_size


def _key(number: int) -> OffloadKey:
    return make_offload_key(number.to_bytes(32, "little"), 0)


def recovery_table(benchmark: RecoveryBenchmark) -> Table:
    """The figures for people."""
    blocked = benchmark.loop_blocked_us
    table = Table(title=f"{benchmark.rows:,} rows, an index of {benchmark.index_bytes:,} bytes")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in (
        ("tier serves", f"{benchmark.open_s:.3f} s"),
        ("every row known", f"{benchmark.recovered_s:.3f} s"),
        ("stores meanwhile, the slowest", f"{benchmark.stores:,}, {benchmark.slowest_store_s * 1e3:,.1f} ms"),
        ("loop blocked, µs (p50, p99, max)", f"{blocked.p50:,.0f}, {blocked.p99:,.0f}, {blocked.max:,.0f}"),
        ("close", f"{benchmark.close_s:.3f} s"),
    ):
        table.add_row(name, value)
    return table
