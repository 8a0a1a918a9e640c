"""How soon a coroutine goes on after its transfer has ended on the device, and what the waiting costs the loop's core.

Knows the phases and what is computed from their samples.
"""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from aiokvoffload.base import Stream
from aiokvoffload.cli.device_clock import DatedMark, DeviceClock, date_mark
from aiokvoffload.cli.poller_figures import TRANSFER_BYTES, LagFigures, LoadedFigures, PollerBenchmark, ShareFigures
from aiokvoffload.cli.poller_stage import BusyThreads, PollerStage, Sample, Traffic
from aiokvoffload.cli.probe import Percentiles, Reservoir
from aiokvoffload.copy.direction import Direction
from aiokvoffload.device import Device, open_device
from aiokvoffload.errors import ArgumentError
from aiokvoffload.poller import PollerStatistics
from aiokvoffload.poller.alarm import open_alarm

STREAM_BYTES = 2 << 20
LONG_BYTES = 128 << 20
PAUSE_S = 0.001
"""Between two transfers of the lag's phases: the loop has nothing to do, and its core may doze off."""
LONG_DEPTH = 2
BUSY_THREADS = 4
COST_SAMPLES = 300
COST_DELAY_S = 0.0001


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
        handover_us = await bench.handovers()
        lags = [figures for size in transfer_bytes for figures in await bench.lags(size)]
        shares = [
            await bench.idle(),
            await bench.share("stream of 2 MiB loads", STREAM_BYTES, (Direction.LOAD,), depth=1),
            await bench.share("long loads", long_bytes, (Direction.LOAD,), depth=LONG_DEPTH),
            await bench.share("long, both ways", long_bytes, tuple(Direction), depth=LONG_DEPTH),
        ]
        loaded = await bench.loaded(fragments) if fragments else None
        return PollerBenchmark(
            device=target.name,
            loop=type(asyncio.get_running_loop()).__module__.partition(".")[0],
            seconds=seconds,
            clock_error_us=bench.clock_error_s * 1e6,
            handover_us=handover_us,
            lags=tuple(lags),
            shares=tuple(shares),
            loaded=loaded,
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

    async def handovers(self) -> Percentiles:
        """Bare callbacks from a thread to the idle loop, with the same pauses as between the lags' transfers."""
        loop, thread, lags_us = asyncio.get_running_loop(), ThreadPoolExecutor(1), Reservoir()

        def post(arrived: "asyncio.Future[float]") -> None:
            time.sleep(COST_DELAY_S)  # on the thread: the loop has gone to sleep by then
            loop.call_soon_threadsafe(_arrive, arrived, time.perf_counter())

        for _ in range(COST_SAMPLES):
            arrived: asyncio.Future[float] = loop.create_future()
            thread.submit(post, arrived)
            lags_us.add(await arrived * 1e6)
            await asyncio.sleep(PAUSE_S)
        await asyncio.to_thread(thread.shutdown)
        return lags_us.percentiles()

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


def _arrive(arrived: "asyncio.Future[float]", posted_s: float) -> None:
    arrived.set_result(time.perf_counter() - posted_s)
