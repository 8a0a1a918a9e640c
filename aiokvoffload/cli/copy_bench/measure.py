"""Takes the time of copies: of each engine, and of contiguous copies of as many bytes in the same run.

Knows streams, marks and medians. The time of a job begins before its call: planning, descriptors and all are in it.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from aiokvoffload.base import Event, GPULoadStoreSpec, Stream, Transfer
from aiokvoffload.cli.blocks import allocating
from aiokvoffload.cli.copy_bench.compute import products, seconds
from aiokvoffload.cli.copy_bench.engines import ONE_CALL
from aiokvoffload.cli.copy_bench.memory import LOAD_HALF, STORE_HALF, BenchMemory, random_tensors, succeed
from aiokvoffload.cli.copy_bench.options import CopyOptions, Shape, SlotOrder, Ways
from aiokvoffload.cli.probe import LoopProbe, Percentiles
from aiokvoffload.cli.trace import TraceRequest, read_trace
from aiokvoffload.cpu.common import CPULoadStoreSpec
from aiokvoffload.device import Device, open_device

WARM_UPS = 2
UNDER_WAY_S = 0.05
"""After so long all jobs are being copied."""
PROBE_PERIOD_S = 0.0005
PATIENCE_S = 2.0
"""A slow engine is measured less often."""
SLOW_ENGINES = ("torch", ONE_CALL)
SLOW_FRAGMENTS = 32_768
"""Of more fragments than these, engines that pay for each get one job at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFigures:
    """One engine on one shape, in one order of slots, in one direction or both. Medians.

    Attributes:
        engine: as it was asked for.
        uses: what that is on this machine.
        fragment_bytes: one block in one tensor.
        slot_bytes: one chunk.
        slots: order of slots.
        ways: directions.
        job_bytes: of one job.
        jobs: at once in each direction.
        gigabytes_per_s: of all of them together, from before the first call to the end of the last copy.
        ceiling_gigabytes_per_s: contiguous copies of as many bytes, as many at once.
        percent: the first over the second.
        submit_us: of the loop's time, for the call of one job.
        loop_blocked_us: how long callbacks of the loop had to wait meanwhile.
        gemm_slowdown: of a GEMM beside copies at full rate; `None` where not measured.
        gemv_slowdown: of a GEMV.
    """

    engine: str
    uses: str
    fragment_bytes: int
    slot_bytes: int
    slots: str
    ways: str
    job_bytes: int
    jobs: int
    gigabytes_per_s: float
    ceiling_gigabytes_per_s: float
    percent: float
    submit_us: float
    loop_blocked_us: Percentiles
    gemm_slowdown: float | None = None
    gemv_slowdown: float | None = None


class Ceiling:
    """Contiguous copies from and to pinned memory."""

    def __init__(self, device: Device, options: CopyOptions) -> None:
        self._device, self._options = device, options
        pinned = device.torch_device.type != "cpu"
        with allocating(f"4 times {options.job_bytes:,} bytes"):
            self._hosts = [torch.ones(options.job_bytes, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
            self._gpus = [host.to(device.torch_device, copy=True) for host in self._hosts]  # on host, too
        self._streams = [device.create_stream() for _ in range(2)]
        self._cancelled = False

    async def gigabytes_per_s(self, ways: Ways) -> float:
        """The median of as many measurements as the engines get."""
        try:
            # One at a time: a thread cannot be cancelled, and the end of the process waits for what it still does.
            return median([await asyncio.to_thread(self._measure, ways) for _ in range(self._options.repeat)])
        except asyncio.CancelledError:
            self._cancelled = True
            raise

    def _measure(self, ways: Ways) -> float:
        start = self._device.record(self._streams[0])
        self._device.wait(self._streams[1], start)
        ends = []
        for index, wanted in enumerate((ways.stores, ways.loads)):
            if wanted:
                self._device.enqueue(self._streams[index], lambda index=index: self._copy(index))  # type: ignore[misc]
                ends.append(self._device.record(self._streams[index]))
        for end in ends:
            end.synchronize()
        seconds = max(self._device.elapsed_s(start, end) for end in ends)
        return ways.count * self._options.jobs * self._options.job_bytes / seconds / 1e9

    def _copy(self, index: int) -> None:
        memory = (self._hosts[index], self._gpus[index])
        target, source = memory if index == STORE_HALF else memory[::-1]
        for _ in range(self._options.jobs):
            if not self._cancelled:
                target.copy_(source, non_blocking=True)


async def measure(options: CopyOptions, on_figures: Callable[[CopyFigures], None]) -> None:
    """Measure every combination, and say each as it comes.

    Raises:
        ArgumentError: the trace cannot be read.
        ConfigError: there is no such device, or not so much memory.
        InternalError: an engine has copied wrong bytes.
    """
    requests = await asyncio.to_thread(read_trace, options.trace) if SlotOrder.AGED in options.slots else []
    device = await asyncio.to_thread(open_device, options.device)
    try:
        ceiling = await asyncio.to_thread(Ceiling, device, options)
        for shape in options.shapes:
            async with _memory(device, options, shape, requests) as memory:
                ceilings = {ways: await ceiling.gigabytes_per_s(ways) for ways in options.ways}
                for slots in options.slots:
                    await asyncio.to_thread(memory.order, slots)
                    for engine in options.engines:
                        await _measure_engine(
                            memory,
                            options,
                            shape=shape,
                            slots=slots,
                            engine=engine,
                            ceilings=ceilings,
                            on_figures=on_figures,
                        )
    finally:
        await asyncio.to_thread(device.close)


@contextlib.asynccontextmanager
async def _memory(
    device: Device, options: CopyOptions, shape: Shape, requests: Sequence[TraceRequest]
) -> AsyncIterator[BenchMemory]:
    tensors = await random_tensors(device, options, shape)
    memory = await asyncio.to_thread(BenchMemory, device, options, shape, tensors, requests)
    try:
        yield memory
    finally:
        await memory.aclose()


async def _measure_engine(
    memory: BenchMemory,
    options: CopyOptions,
    *,
    shape: Shape,
    slots: SlotOrder,
    engine: str,
    ceilings: dict[Ways, float],
    on_figures: Callable[[CopyFigures], None],
) -> None:
    memory.engine.switch(engine)
    await memory.verify()
    slow = engine in SLOW_ENGINES and options.job_bytes // shape.fragment_bytes > SLOW_FRAGMENTS
    jobs = 1 if slow else options.jobs
    runner = Runner(memory, options.job_bytes, jobs)
    for ways in options.ways:
        samples, blocked_us = await runner.sample(ways, options.repeat)
        slowdowns = await _slowdowns(runner, ways, options.repeat) if options.compute and not slow else (None, None)
        rate = median(sample.gigabytes_per_s for sample in samples)
        on_figures(
            CopyFigures(
                engine=engine,
                uses=memory.engine.name,
                fragment_bytes=shape.fragment_bytes,
                slot_bytes=shape.slot_bytes,
                slots=slots.value,
                ways=ways.value,
                job_bytes=options.job_bytes,
                jobs=jobs,
                gigabytes_per_s=rate,
                ceiling_gigabytes_per_s=ceilings[ways],
                percent=100 * rate / ceilings[ways],
                submit_us=median(sample.submit_us for sample in samples),
                loop_blocked_us=blocked_us,
                gemm_slowdown=slowdowns[0],
                gemv_slowdown=slowdowns[1],
            )
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: gigabytes per second of all jobs, and microseconds of the longest call."""

    gigabytes_per_s: float
    submit_us: float


class Runner:
    """Submits jobs and waits for them.

    Args:
        memory: what they copy.
        job_bytes: of each.
        jobs: at once in each direction.
    """

    def __init__(self, memory: BenchMemory, job_bytes: int, jobs: int) -> None:
        self._memory, self._job_bytes, self._jobs = memory, job_bytes, jobs
        self._stream: Stream = memory.device.create_stream()
        self.compute_stream: Stream = memory.device.create_stream()

    @property
    def device(self) -> Device:
        """Where they run."""
        return self._memory.device

    async def sample(self, ways: Ways, repeat: int) -> tuple[list[Sample], Percentiles]:
        """Measure a few times, after warm-ups; less often what is slow."""
        await self.once(ways)
        # Chosen before: a thread that orders slots in Python would keep the interpreter from the loop that is watched.
        prepared = [await asyncio.to_thread(self._prepare, ways) for _ in range(repeat)]
        probe, began_s = LoopProbe(PROBE_PERIOD_S), time.perf_counter()
        with probe:
            samples: list[Sample] = []
            while prepared and not (len(samples) > 1 and time.perf_counter() - began_s > PATIENCE_S):
                samples.append(await self._copy(prepared.pop()))
        await asyncio.to_thread(probe.join)
        return samples, probe.blocked_us.percentiles()

    async def once(self, ways: Ways) -> Sample:
        """All jobs once."""
        return await self._copy(await asyncio.to_thread(self._prepare, ways))

    async def _copy(self, calls: list[Callable[[], Transfer]]) -> Sample:
        start, began_s = self.device.record(self._stream), time.perf_counter()
        transfers, submit_s = [], 0.0
        for call in calls:
            before_s = time.perf_counter()
            transfers.append(call())
            submit_s = max(submit_s, time.perf_counter() - before_s)
            await asyncio.sleep(0)
        for transfer in transfers:
            await transfer.fence(self._stream)
        end = self.device.record(self._stream)
        for transfer in transfers:
            await succeed(transfer)
        await asyncio.to_thread(end.synchronize)
        moved_bytes = len(calls) * self._job_bytes
        return Sample(moved_bytes / self._seconds(start, began_s, end) / 1e9, submit_s * 1e6)

    def _seconds(self, start: Event, began_s: float, end: Event) -> float:
        """On the device; on the host by its clock, as a stream's thread may get to `start` when copies have ended."""
        if self.device.name == "host":
            return self.device.completed_at(end) - began_s
        return self.device.elapsed_s(start, end)

    def _prepare(self, ways: Ways) -> list[Callable[[], Transfer]]:
        calls: list[Callable[[], Transfer]] = []
        kinds = ((ways.stores, STORE_HALF, self._memory.store), (ways.loads, LOAD_HALF, self._memory.load))
        for _ in range(self._jobs):
            for wanted, half, submit in kinds:
                if wanted:
                    blocks, slots = self._memory.choose(half)
                    specs = (GPULoadStoreSpec(blocks), CPULoadStoreSpec(slots))
                    calls.append(lambda submit=submit, specs=specs: submit(*specs))  # type: ignore[misc]
        return calls

    async def keep_copying(self, ways: Ways, stop: asyncio.Event) -> None:
        """As many jobs at once as are measured, each again as soon as it has ended."""
        async with asyncio.TaskGroup() as group:
            for call in await asyncio.to_thread(self._prepare, ways):
                group.create_task(_repeat(call, stop))


async def _repeat(call: Callable[[], Transfer], stop: asyncio.Event) -> None:
    while not stop.is_set():
        await succeed(call())


async def _slowdowns(runner: Runner, ways: Ways, repeat: int) -> tuple[float, float]:
    """How much longer a GEMM and a GEMV take beside the copies, by medians."""
    factors = []
    for product in await asyncio.to_thread(products, runner.device):
        measured = partial(seconds, runner.device, runner.compute_stream, product.run)
        await asyncio.to_thread(measured, repeat=WARM_UPS)
        alone_s = await asyncio.to_thread(measured, repeat=repeat)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(runner.keep_copying(ways, stop))
            await asyncio.sleep(UNDER_WAY_S)
            beside_s = await asyncio.to_thread(measured, repeat=repeat)
            stop.set()
        factors.append(beside_s / alone_s)
    return factors[0], factors[1]
