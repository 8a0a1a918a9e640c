"""How fast the disk tier stores and loads, against fio on the same device in the same run, turn by turn.

Knows the tier's contract and fio; no torch, no GPU and no CPU tier are part of it.
"""

import asyncio
import json
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from rich.table import Table

from aiokvoffload.base import ChunkViews, LoadOutcome, OffloadKey, StoreOutcome, TierShape, make_offload_key
from aiokvoffload.cli.fio import RANDOM_BOTH, RANDOM_READS, RANDOM_WRITES, Fio
from aiokvoffload.cli.probe import LoopProbe
from aiokvoffload.cli.room import require_directory, require_room
from aiokvoffload.cpu.common import PAGE_BYTES
from aiokvoffload.errors import ArgumentError, TierError
from aiokvoffload.testing.pages import page_buffers
from aiokvoffload.tiering.disk.config import DiskConfig
from aiokvoffload.tiering.disk.tier import DiskTier

CALL_BYTES = 4 << 20
"""Of one call, at least a chunk for each thread: callers promote and cascade in calls of about that size."""
CALLERS = 3
PROBE_PERIOD_S = 0.0005
MIN_CHUNKS = 16
SPARE_BYTES = 64 << 20
"""That is left to others, and to the index."""
GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFigure:
    """One kind of work on chunks of one size: medians over the turns.

    Attributes:
        work: store, load or mixed (as many stores as loads).
        chunk_bytes: of a chunk.
        gbps: of the tier, in 10**9 bytes per second.
        fio_gbps: of fio, where it is installed.
        ratio: of the two.
        cpu_s_per_gib: processor time of this process for 2**30 bytes, checksums included.
        loop_blocked_p99_us: how late the loop got to what was posted to it, in a turn of its own.
    """

    work: str
    chunk_bytes: int
    gbps: float
    fio_gbps: float | None
    ratio: float | None
    cpu_s_per_gib: float
    loop_blocked_p99_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskBenchmark:
    """One run: what was asked for, and what came out."""

    directory: str
    threads: int
    size_bytes: int
    repeat: int
    is_direct: bool
    figures: tuple[DiskFigure, ...]

    def to_json(self) -> str:
        """The record as one JSON object."""
        return json.dumps(asdict(self), indent=2)


async def disk_benchmark(
    *, directory: Path, chunk_bytes: Sequence[int], threads: int, size_bytes: int, repeat: int
) -> DiskBenchmark:
    """Measure each size of chunks in turn, in a folder of its own that is removed afterwards.

    Raises:
        ArgumentError: a chunk is no whole number of pages, the files hold too few, or there is no room for them.
        TierError: the directory cannot be used, or a chunk was not stored or loaded.
        FioError: fio is installed, and fails.
    """
    await asyncio.to_thread(_require_sensible, directory, chunk_bytes, size_bytes)
    figures: list[DiskFigure] = []
    is_direct = True
    for size in chunk_bytes:
        folder = await asyncio.to_thread(tempfile.TemporaryDirectory, prefix="bench-disk-", dir=directory)
        try:
            stage = await _Stage.open(Path(folder.name), size, threads=threads, size_bytes=size_bytes)
            try:
                is_direct &= stage.tier.statistics().is_direct
                figures += await stage.measure(repeat)
            finally:
                await stage.tier.aclose()
        finally:
            await asyncio.to_thread(folder.cleanup)
    return DiskBenchmark(
        directory=str(directory),
        threads=threads,
        size_bytes=size_bytes,
        repeat=repeat,
        is_direct=is_direct,
        figures=tuple(figures),
    )


def _require_sensible(directory: Path, chunk_bytes: Sequence[int], size_bytes: int) -> None:
    require_directory(directory)
    for size in chunk_bytes:
        if size < 1 or size % PAGE_BYTES:
            raise ArgumentError(f"--chunk-bytes must be multiples of {PAGE_BYTES}, got {size}")
        if size_bytes < MIN_CHUNKS * size:
            raise ArgumentError(f"--bytes must hold at least {MIN_CHUNKS} chunks of {size}, got {size_bytes}")
    require_room(directory, 2 * size_bytes + SPARE_BYTES, option=f"--bytes {size_bytes}")


@dataclass(frozen=True, slots=True)
class _Turn:
    bytes_per_s: float
    cpu_s: float


class _Stage:
    """A full tier of one chunk size, and fio's file beside it."""

    def __init__(self, tier: DiskTier, fio: Fio | None, chunk_bytes: int, *, threads: int, size_bytes: int) -> None:
        self.tier, self._fio, self._chunk_bytes = tier, fio, chunk_bytes
        self._num_chunks = size_bytes // chunk_bytes
        self._call_chunks = max(1, min(self._num_chunks // 8, max(threads, CALL_BYTES // chunk_bytes)))
        self._buffers = [page_buffers(self._call_chunks, chunk_bytes) for _ in range(CALLERS)]
        for views in self._buffers:
            for (view,) in views:
                view[:] = random.randbytes(chunk_bytes)  # noqa: S311
        self._next = self._first_key = 0
        self._keys: list[OffloadKey] = []
        self._ages: Iterator[list[int]] = iter(())

    @classmethod
    async def open(cls, folder: Path, chunk_bytes: int, *, threads: int, size_bytes: int) -> "_Stage":
        """Make the files."""
        config = DiskConfig(directories=(folder / "tier",), disk_bytes=size_bytes, namespace="bench", threads=threads)
        fio = None
        if Fio.is_installed():
            fio = await asyncio.to_thread(lambda: Fio(folder / "fio.data", size_bytes, chunk_bytes, num_jobs=threads))
        tier = DiskTier(config, TierShape((chunk_bytes,), 1))
        await tier.open()
        return cls(tier, fio, chunk_bytes, threads=threads, size_bytes=size_bytes)

    async def measure(self, repeat: int) -> list[DiskFigure]:
        """All kinds of work, the tier's and fio's turns alternating, over files that are wholly written."""
        for _ in range(2):
            self.prepare()
            await self._store_all()
        works: dict[str, tuple[Callable[[], Coroutine[Any, Any, None]], str]] = {
            "store": (self._store_all, RANDOM_WRITES),
            "load": (self._load_all, RANDOM_READS),
            "mixed": (self._mix_all, RANDOM_BOTH),
        }
        turns: dict[str, list[_Turn]] = {work: [] for work in works}
        ceilings: dict[str, list[float]] = {work: [] for work in works}
        moved_bytes = self._num_chunks * self._chunk_bytes
        for _ in range(repeat):
            for work, (run, kind) in works.items():
                self.prepare()
                turns[work].append(await _timed(run(), moved_bytes))
                if self._fio is not None:
                    ceilings[work].append(await asyncio.to_thread(self._fio.bytes_per_s, kind, moved_bytes))
        blocked_us: dict[str, float] = {}
        for work, (run, _) in works.items():  # not in the turns above: asking the loop so often slows all down
            self.prepare()
            blocked_us[work] = await _loop_blocked_us(run())
        return [self._figure(work, turns[work], ceilings[work], blocked_us[work], moved_bytes) for work in works]

    def _figure(
        self, work: str, turns: Sequence[_Turn], ceilings: Sequence[float], blocked_p99_us: float, moved_bytes: int
    ) -> DiskFigure:
        bytes_per_s = statistics.median(turn.bytes_per_s for turn in turns)
        ceiling = statistics.median(ceilings) if ceilings else None
        return DiskFigure(
            work=work,
            chunk_bytes=self._chunk_bytes,
            gbps=bytes_per_s / 1e9,
            fio_gbps=None if ceiling is None else ceiling / 1e9,
            ratio=None if ceiling is None else bytes_per_s / ceiling,
            cpu_s_per_gib=statistics.median(turn.cpu_s for turn in turns) * GIB / moved_bytes,
            loop_blocked_p99_us=blocked_p99_us,
        )

    async def _store_all(self) -> None:
        """As many new chunks as there are slots: each pushes an old one out."""
        await self._by_callers([self._store] * self._num_calls())

    async def _load_all(self) -> None:
        """As many loads as there are chunks, of random ones."""
        await self._by_callers([self._load] * self._num_calls())

    async def _mix_all(self) -> None:
        await self._by_callers([self._store, self._load] * (self._num_calls() // 2))

    def _num_calls(self) -> int:
        return max(2, self._num_chunks // self._call_chunks)

    async def _by_callers(self, calls: list[Callable[[Sequence[ChunkViews]], Coroutine[Any, Any, None]]]) -> None:
        left = iter(calls)

        async def caller(views: Sequence[ChunkViews]) -> None:
            for call in left:
                await call(views)

        await asyncio.gather(*map(caller, self._buffers))

    def prepare(self) -> None:
        """Make the keys that the next turn can need, and choose its loads: an engine has done so by then."""
        first = max(0, self._next - self._num_chunks)
        del self._keys[: first - self._first_key]
        for number in range(first + len(self._keys), self._next + self._num_chunks + self._call_chunks):
            self._keys.append(make_offload_key(number.to_bytes(32, "big"), 0))
        self._first_key = first
        # Of the newest half, which no store of the same turn pushes out.
        ages = random.sample(range(1, self._num_chunks // 2 + 1), self._num_chunks // 2)
        parts = [ages[start : start + self._call_chunks] for start in range(0, len(ages), self._call_chunks)]
        self._ages = cycle(part for part in parts if len(part) == self._call_chunks)
        self.tier.take_events()

    def _named(self, numbers: Sequence[int]) -> list[OffloadKey]:
        return [self._keys[number - self._first_key] for number in numbers]

    async def _store(self, views: Sequence[ChunkViews]) -> None:
        numbers = range(self._next, self._next + self._call_chunks)
        self._next += self._call_chunks
        outcomes = await self.tier.store(self._named(numbers), views)
        if outcomes.count(StoreOutcome.STORED) < len(outcomes):
            raise TierError(f"chunks were not stored: {set(outcomes)}")

    async def _load(self, views: Sequence[ChunkViews]) -> None:
        outcomes = await self.tier.load(self._named([self._next - age for age in next(self._ages)]), views)
        if outcomes.count(LoadOutcome.LOADED) + outcomes.count(LoadOutcome.MISS) < len(outcomes):
            raise TierError(f"chunks were not loaded: {set(outcomes)}")


async def _timed(work: Coroutine[Any, Any, None], moved_bytes: int) -> _Turn:
    cpu_s, started_s = _cpu_s(), time.perf_counter()
    await work
    return _Turn(moved_bytes / (time.perf_counter() - started_s), _cpu_s() - cpu_s)


async def _loop_blocked_us(work: Coroutine[Any, Any, None]) -> float:
    with LoopProbe(PROBE_PERIOD_S) as probe:
        await work
    await asyncio.to_thread(probe.join)
    return probe.blocked_us.percentiles().p99


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def disk_table(benchmark: DiskBenchmark) -> Table:
    """The figures for people."""
    how = "direct I/O" if benchmark.is_direct else "page cache"
    title = f"{benchmark.directory}: {benchmark.size_bytes:,} bytes, {benchmark.threads} threads, {how}"
    table = Table(title=title)
    for column in ("work", "chunk", "GB/s", "fio, GB/s", "ratio", "CPU s per GiB", "loop blocked p99, µs"):
        table.add_column(column, justify="left" if column == "work" else "right")
    for figure in benchmark.figures:
        table.add_row(
            figure.work,
            f"{figure.chunk_bytes:,}",
            f"{figure.gbps:.2f}",
            "not installed" if figure.fio_gbps is None else f"{figure.fio_gbps:.2f}",
            "" if figure.ratio is None else f"{figure.ratio:.0%}",
            f"{figure.cpu_s_per_gib:.2f}",
            f"{figure.loop_blocked_p99_us:,.0f}",
        )
    return table
