"""How soon a coroutine goes on after its transfer has ended on the device, and what the waiting costs the loop's core.

Knows the phases and what is computed from their samples; knows nothing of terminals beyond the table it fills.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from rich.table import Table

from aiokvoffload.base import Stream
from aiokvoffload.cli.device_clock import DatedMark, DeviceClock, date_mark
from aiokvoffload.cli.poller_stage import BusyThreads, PollerStage, Sample, Traffic
from aiokvoffload.cli.probe import Percentiles, Reservoir
from aiokvoffload.copy.direction import Direction
from aiokvoffload.device import Device, open_device
from aiokvoffload.errors import ArgumentError
from aiokvoffload.poller import PollerStatistics
from aiokvoffload.poller.alarm import open_alarm

TRANSFER_BYTES = (64 << 10, 2 << 20, 16 << 20, 128 << 20)
STREAM_BYTES = 2 << 20
LONG_BYTES = 128 << 20
PAUSE_S = 0.001
"""Between two transfers of the lag's phases: the loop has nothing to do, and its core may doze off."""
LONG_DEPTH = 2
BUSY_THREADS = 4
COST_SAMPLES = 300
COST_DELAY_S = 0.0001


@dataclass(frozen=True, slots=True)
class LagFigures:
    """Transfers of one size and direction.

    Attributes:
        direction: store or load.
        transfer_bytes: of each.
        transfers: how many.
        copy_us: median of their time on the device.
        lag_us: from the end on the device until who awaited it went on.
    """

    direction: str
    transfer_bytes: int
    transfers: int
    copy_us: float
    lag_us: Percentiles


@dataclass(frozen=True, slots=True)
class ShareFigures:
    """What one phase took of the loop's core; all shares are of one core, and without what an idle loop takes.

    Attributes:
        phase: what went on.
        transfers_per_s: how many transfers ended.
        loop_share: the loop's thread in all.
        submitting_share: the part of it inside `submit_store` and `submit_load`.
        polling_share: the part of it for asking and waiting: the poller's turns, and what the loop itself takes for the
            alarms and turns that the poller asks it for.
        lag_us: from the end on the device until who awaited it went on.
    """

    phase: str
    transfers_per_s: float
    loop_share: float
    submitting_share: float
    polling_share: float
    lag_us: Percentiles


@dataclass(frozen=True, slots=True)
class LoadedFigures:
    """Lags while jobs of many fragments are submitted and threads are busy, and how long one such submission blocks."""

    fragments: int
    threads: int
    submit_us: Percentiles
    lag: LagFigures


@dataclass(frozen=True, slots=True)
class PollerBenchmark:
    """One run of `poller_benchmark`.

    Attributes:
        device: its name.
        loop: the event loop's module.
        seconds: of each phase.
        clock_error_us: how wrong the ends' times may be.
        lags: on an idle loop.
        shares: of one core.
        loaded: on a loop that is not idle, if that was asked for.
    """

    device: str
    loop: str
    seconds: float
    clock_error_us: float
    lags: tuple[LagFigures, ...]
    shares: tuple[ShareFigures, ...]
    loaded: LoadedFigures | None

    def to_json(self) -> str:
        """The record as one JSON object."""
        return json.dumps(asdict(self), indent=2)


async def poller_benchmark(
    *,
    transfer_bytes: Sequence[int] = TRANSFER_BYTES,
    seconds: float = 1.0,
    device: str = "auto",
    long_bytes: int = LONG_BYTES,
    fragments: int = 0,
) -> PollerBenchmark:
    """Move blocks on the running loop and look at its clock and its core.

    Args:
        transfer_bytes: sizes of the transfers whose lags are measured.
        seconds: of each phase.
        device: `auto`, `cuda` or `host`.
        long_bytes: size of the transfers that count as long.
        fragments: of the jobs beside which lags are measured once more; 0 leaves that out.

    Raises:
        ArgumentError: a number is not above zero.
        ConfigError: there is no such device, or not so much memory.
    """
    if min((*transfer_bytes, long_bytes)) < 1 or not seconds > 0 or fragments < 0:
        raise ArgumentError(f"sizes and seconds must be above 0, got {tuple(transfer_bytes)}, {long_bytes}, {seconds}")
    target = open_device(device)
    try:
        bench = _Bench(target, seconds)
        await bench.measure_costs()
        lags = [figures for size in transfer_bytes for figures in await bench.lags(size)]
        shares = [
            await bench.idle(),
            await bench.share("stream of 2 MiB loads", STREAM_BYTES, (Direction.LOAD,), depth=1),
            await bench.share("long loads", long_bytes, (Direction.LOAD,), depth=LONG_DEPTH),
            await bench.share("long, both ways", long_bytes, tuple(Direction), depth=LONG_DEPTH),
        ]
        loaded = await bench.loaded(fragments) if fragments else None
        loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
        return PollerBenchmark(
            target.name, loop, seconds, bench.clock_error_s * 1e6, tuple(lags), tuple(shares), loaded
        )
    finally:
        await asyncio.to_thread(target.close)


class _Bench:
    """One device, and what waiting costs on this loop."""

    def __init__(self, device: Device, seconds: float) -> None:
        self._device, self._seconds = device, seconds
        self._clock_stream: Stream = device.create_stream()
        self.clock_error_s = 0.0
        self._idle_share = self._alarm_s = self._turn_s = 0.0

    async def measure_costs(self) -> None:
        """Processor time of an idle loop, and of one alarm and one turn that do nothing."""
        begun_s, cpu_s = time.perf_counter(), time.thread_time()
        await asyncio.sleep(self._seconds)
        self._idle_share = (time.thread_time() - cpu_s) / (time.perf_counter() - begun_s)
        rung = asyncio.Event()
        alarm = open_alarm(asyncio.get_running_loop(), rung.set)
        cpu_s = time.thread_time()
        for _ in range(COST_SAMPLES):
            rung.clear()
            alarm.set(COST_DELAY_S)
            await rung.wait()
        self._alarm_s = (time.thread_time() - cpu_s) / COST_SAMPLES
        alarm.close()
        cpu_s = time.thread_time()
        for _ in range(COST_SAMPLES):
            await asyncio.sleep(0)
        self._turn_s = (time.thread_time() - cpu_s) / COST_SAMPLES

    async def _stage(self, transfer_bytes: int, *, fragments: int = 0) -> PollerStage:
        stage = await asyncio.to_thread(PollerStage, self._device, transfer_bytes, fragments=fragments)
        stage.worker.bind()
        warm_up = Traffic()
        until_s = time.perf_counter() + self._seconds / 10
        for direction in Direction:  # one after the other, and from then on as the phase does
            await stage.move(direction, warm_up, until_s=until_s, depth=1, pause_s=0.0)
            until_s += self._seconds / 10
        await asyncio.sleep(PAUSE_S)  # for the poller's last turn
        return stage

    async def lags(self, transfer_bytes: int) -> list[LagFigures]:
        """One transfer at a time, with a pause after each: all loads, then all stores."""
        stage = await self._stage(transfer_bytes)
        figures = []
        for direction in Direction:
            traffic = Traffic()
            first = await self._mark()
            until_s = time.perf_counter() + self._seconds
            await stage.move(direction, traffic, until_s=until_s, depth=1, pause_s=PAUSE_S)
            figures.append(await self._figures(direction, transfer_bytes, traffic.samples, first))
        await stage.worker.aclose()
        return figures

    async def _mark(self) -> DatedMark:
        return await asyncio.to_thread(date_mark, self._device, self._clock_stream)

    async def _figures(
        self, direction: Direction, transfer_bytes: int, samples: Sequence[Sample], first: DatedMark
    ) -> LagFigures:
        copy_us = median(sample.copy_s for sample in samples) * 1e6
        lag_us = await self._lag_us(samples, first)
        return LagFigures(direction.value, transfer_bytes, len(samples), copy_us, lag_us)

    async def _lag_us(self, samples: Sequence[Sample], first: DatedMark) -> Percentiles:
        clock = DeviceClock(self._device, first, await self._mark())
        self.clock_error_s = max(self.clock_error_s, clock.error_s)
        lags_us = Reservoir()
        for sample in samples:
            lags_us.add((sample.resumed_s - clock.time_of(sample.end)) * 1e6)
        return lags_us.percentiles()

    async def idle(self) -> ShareFigures:
        """A worker that has been used and has nothing to do."""
        stage = await self._stage(STREAM_BYTES)
        figures = await self._watched("nothing in flight", stage, (), depth=0)
        await stage.worker.aclose()
        return figures

    async def share(
        self, phase: str, transfer_bytes: int, directions: Sequence[Direction], *, depth: int
    ) -> ShareFigures:
        """Transfers one behind the other, `depth` of them in flight in each direction."""
        stage = await self._stage(transfer_bytes)
        figures = await self._watched(phase, stage, directions, depth=depth)
        await stage.worker.aclose()
        return figures

    async def _watched(
        self, phase: str, stage: PollerStage, directions: Sequence[Direction], *, depth: int
    ) -> ShareFigures:
        traffic, first = Traffic(), await self._mark()
        before = stage.worker.statistics().poller
        begun_s, cpu_s = time.perf_counter(), time.thread_time()
        until_s = begun_s + self._seconds
        moves = [stage.move(each, traffic, until_s=until_s, depth=depth, pause_s=0.0) for each in directions]
        await asyncio.gather(*moves or [asyncio.sleep(self._seconds)])
        cpu_s, took_s = time.thread_time() - cpu_s, time.perf_counter() - begun_s
        after = stage.worker.statistics().poller
        return ShareFigures(
            phase=phase,
            transfers_per_s=len(traffic.samples) / took_s,
            loop_share=max(0.0, cpu_s / took_s - self._idle_share),
            submitting_share=traffic.submitting_s / took_s,
            polling_share=self._polling_s(before, after) / took_s,
            lag_us=await self._lag_us(traffic.samples, first),
        )

    def _polling_s(self, before: PollerStatistics, after: PollerStatistics) -> float:
        alarms, spins = after.alarms - before.alarms, after.spins - before.spins
        return after.polling_s - before.polling_s + alarms * self._alarm_s + spins * self._turn_s

    async def loaded(self, fragments: int) -> LoadedFigures:
        """One 2 MiB load at a time, beside jobs of many fragments and busy threads."""
        stage = await self._stage(STREAM_BYTES, fragments=fragments)
        traffic, submits_s = Traffic(), list[float]()
        first = await self._mark()
        with BusyThreads(BUSY_THREADS) as threads:
            until_s = time.perf_counter() + self._seconds
            await asyncio.gather(
                stage.move(Direction.LOAD, traffic, until_s=until_s, depth=1, pause_s=PAUSE_S),
                stage.submit_fragments(until_s=until_s, submits_s=submits_s),
            )
        await asyncio.to_thread(threads.join)
        lag = await self._figures(Direction.LOAD, STREAM_BYTES, traffic.samples, first)
        await stage.worker.aclose()
        submit_us = Reservoir()
        for submit_s in submits_s:
            submit_us.add(submit_s * 1e6)
        return LoadedFigures(fragments, BUSY_THREADS, submit_us.percentiles(), lag)


def poller_tables(benchmark: PollerBenchmark) -> list[Table]:
    """The figures for people."""
    where = f"{benchmark.device}, {benchmark.loop}"
    lags = Table(title=f"Wake-up lag: {where}, ends dated to ±{benchmark.clock_error_us:.1f} µs")
    for column in ("", "bytes", "transfers", "copy µs", "lag µs: p50", "p99", "max"):
        lags.add_column(column, justify="right" if column else "left")
    rows = list(benchmark.lags)
    loaded = benchmark.loaded
    for figures in rows:
        _add_lag(lags, figures.direction, figures)
    if loaded is not None:
        _add_lag(lags, f"load, beside jobs of {loaded.fragments:,} fragments", loaded.lag)
    shares = Table(title=f"Shares of one core: {where}")
    for column in ("", "transfers/s", "loop", "of it submitting", "of it polling", "lag µs: p50", "p99", "max"):
        shares.add_column(column, justify="right" if column else "left")
    for share in benchmark.shares:
        percents = (f"{value:.1%}" for value in (share.loop_share, share.submitting_share, share.polling_share))
        lag = (f"{value:,.0f}" for value in (share.lag_us.p50, share.lag_us.p99, share.lag_us.max))
        shares.add_row(share.phase, f"{share.transfers_per_s:,.0f}", *percents, *lag)
    return [lags, shares]


def _add_lag(table: Table, name: str, figures: LagFigures) -> None:
    lag = figures.lag_us
    percentiles = (f"{value:,.0f}" for value in (lag.p50, lag.p99, lag.max))
    table.add_row(
        name, f"{figures.transfer_bytes:,}", f"{figures.transfers:,}", f"{figures.copy_us:,.0f}", *percentiles
    )
