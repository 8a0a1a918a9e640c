"""Many tasks at random on one worker: store, evict, load, rewrite, cancel; every byte that is read is compared.

`AIOKVOFFLOAD_STRESS_S` says for how many seconds on a GPU.
"""

import asyncio
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

from aiokvoffload.base import GPULoadStoreSpec, Stream, Transfer
from aiokvoffload.config import CopyConfig
from aiokvoffload.device.base import Device
from aiokvoffload.device.open import open_device
from aiokvoffload.testing.contract import WorkerRig
from aiokvoffload.testing.memory import make_worker_rig

GPU_SECONDS = float(os.environ.get("AIOKVOFFLOAD_STRESS_S", "8"))
TASKS, CHUNKS_PER_TASK, NUM_SLOTS = 12, 3, 24

DEVICES = [
    *(("host", engine) for engine in ("auto", "staged")),
    *(pytest.param("cuda", engine, marks=pytest.mark.gpu) for engine in ("auto", "staged", "direct", "batched")),
]


@dataclass
class Shared:
    """What all tasks know.

    Attributes:
        rig: the worker and its tensors.
        content: seed of what each slot holds once the jobs submitted so far have ended.
        wrong: on the device, how many words were not what they should be.
        job_ids: not yet used.
        cancelled: waiters that were cancelled.
    """

    rig: WorkerRig
    content: dict[int, int] = field(default_factory=dict)
    job_ids: int = 0
    cancelled: int = 0
    loads: int = 0

    def __post_init__(self) -> None:
        self.wrong = torch.zeros((), dtype=torch.int64, device=self.rig.device.torch_device)
        words = self.rig.tensors[0].shape[1] // 8
        self.pattern = torch.arange(words, dtype=torch.int64, device=self.rig.device.torch_device)

    def next_id(self) -> int:
        self.job_ids += 1
        return self.job_ids


class Engine:
    """A task that owns some blocks and a compute stream, as a model runner would."""

    def __init__(self, shared: Shared, number: int) -> None:
        self.shared, self.rig = shared, shared.rig
        self.random = random.Random(number)  # noqa: S311 - not for cryptography
        per_chunk = self.rig.blocks_per_chunk
        first = number * CHUNKS_PER_TASK * per_chunk
        self.chunks = [list(range(first + i * per_chunk, first + (i + 1) * per_chunk)) for i in range(CHUNKS_PER_TASK)]
        self.seeds: list[int | None] = [None] * CHUNKS_PER_TASK
        self.readers: list[list[Transfer]] = [[] for _ in range(CHUNKS_PER_TASK)]
        self.stream = self.rig.device.create_stream()
        self.own_slot, self.own_jobs = NUM_SLOTS + number, list[Transfer]()
        self.waiters: list[asyncio.Future[object]] = []

    async def step(self) -> None:
        """Do something to one chunk."""
        chunk = self.random.randrange(CHUNKS_PER_TASK)
        action = self.random.choice(("rewrite", "store", "store", "load", "load", "cancel"))
        if action == "load" and self.shared.content:
            await self.load(chunk)
        elif action == "store" and self.seeds[chunk] is not None:
            await self.store(chunk)
        elif action == "cancel" and self.waiters:
            self.waiters.pop(self.random.randrange(len(self.waiters))).cancel()
            self.shared.cancelled += 1
        else:
            await self.rewrite(chunk)

    async def rewrite(self, chunk: int) -> None:
        """Wait, on the device or on the host, until nobody reads the blocks; then compute new content."""
        for transfer in self.readers[chunk]:
            if self.random.random() < 0.5:
                await transfer.fence(self.stream)
            else:
                await transfer.released
        self.readers[chunk].clear()
        seed = self.seeds[chunk] = self.random.randrange(1 << 60)
        self.rig.device.enqueue(self.stream, lambda: self.write(chunk, seed))

    def write(self, chunk: int, seed: int) -> None:
        for layer, tensor in enumerate(self.rig.tensors):
            for block in self.chunks[chunk]:
                index = block - self.chunks[chunk][0]
                tensor[block].view(torch.int64).copy_(self.shared.pattern + (seed + 1000 * layer + index))

    async def store(self, chunk: int) -> None:
        """Into any slot: whatever it held is evicted, and loads of it that were submitted before are not disturbed.

        A protected store goes into a slot of its own: it would block the loop while others' jobs are being enqueued.
        """
        protect = self.random.random() < 0.3
        slot = self.own_slot if protect else self.random.randrange(NUM_SLOTS)
        for job in self.own_jobs if protect else ():
            await job.fence(self.stream)
        seed = self.seeds[chunk]
        transfer = self.rig.worker.submit_store(
            self.shared.next_id(),
            GPULoadStoreSpec(self.chunks[chunk]),
            self.rig.slots([slot]),
            after=self.stream,
            protect_source=protect,
        )
        assert seed is not None
        if protect:
            self.own_jobs, self.own_seed = [transfer], seed
        else:
            self.shared.content[slot] = seed
            self.readers[chunk].append(transfer)
        self.watch(transfer)

    async def load(self, chunk: int) -> None:
        """Over the chunk's content, which needs no fence of ours: the worker orders jobs that share blocks."""
        own = bool(self.own_jobs) and self.random.random() < 0.2
        slot = self.own_slot if own else self.random.choice(list(self.shared.content))
        seed = self.seeds[chunk] = self.own_seed if own else self.shared.content[slot]
        transfer = self.rig.worker.submit_load(
            self.shared.next_id(),
            self.rig.slots([slot]),
            GPULoadStoreSpec(self.chunks[chunk]),
            after=self.stream,
            expedited=self.random.random() < 0.3,
        )
        self.shared.loads += 1
        if own:
            self.own_jobs.append(transfer)
        self.watch(transfer)
        await transfer.fence(self.stream)
        self.rig.device.enqueue(self.stream, lambda: self.compare(chunk, seed))

    def compare(self, chunk: int, seed: int) -> None:
        for layer, tensor in enumerate(self.rig.tensors):
            for index, block in enumerate(self.chunks[chunk]):
                expected = self.shared.pattern + (seed + 1000 * layer + index)
                self.shared.wrong += (tensor[block].view(torch.int64) != expected).sum()

    def watch(self, transfer: Transfer) -> None:
        self.waiters.append(asyncio.ensure_future(_result(transfer)))

    async def run(self, steps: int, until_s: float) -> None:
        for _ in range(steps):
            await self.step()
            if time.monotonic() > until_s:
                break
        await asyncio.gather(*self.waiters, return_exceptions=True)


async def _result(transfer: Transfer) -> object:
    return await transfer


def make_rig(device: Device, engine: str) -> WorkerRig:
    page_bytes = (96 << 10) + 8 if device.name == "cuda" else 1032
    return make_worker_rig(
        device,
        num_blocks=TASKS * CHUNKS_PER_TASK * 2,
        page_bytes=page_bytes,
        num_slots=NUM_SLOTS + TASKS,
        copy=CopyConfig(engine=engine, staging_bytes=4 << 20),
    )


@pytest.mark.parametrize(("device_name", "engine"), DEVICES)
async def test_random_tasks_never_see_a_wrong_byte(device_name: str, engine: str) -> None:
    """I1, I2, I8, faults 1 to 5."""
    device = await asyncio.to_thread(open_device, device_name)
    rig = await asyncio.to_thread(make_rig, device, engine)
    shared = Shared(rig)
    on_gpu = device_name == "cuda"
    until_s = time.monotonic() + (GPU_SECONDS if on_gpu else 60.0)
    tasks = [Engine(shared, number) for number in range(TASKS)]
    await asyncio.gather(*(task.run(100_000 if on_gpu else 40, until_s) for task in tasks))
    for task in tasks:
        await asyncio.to_thread(device.record(task.stream).synchronize)
    await rig.worker.aclose()
    assert int(shared.wrong) == 0
    assert shared.loads > 20
    assert shared.cancelled > 5
    statistics = rig.worker.statistics()
    assert (statistics.jobs_in_flight, statistics.jobs_failed, statistics.jobs_ended) == (0, 0, shared.job_ids)
    device.close()


@pytest.mark.parametrize(("device_name", "engine"), DEVICES)
async def test_without_its_fence_a_reader_sees_old_bytes(device_name: str, engine: str) -> None:
    """Fault 2: that the comparison above finds nothing is the fences' doing."""
    device = await asyncio.to_thread(open_device, device_name)
    rig = await asyncio.to_thread(make_rig, device, engine)
    stream, reader = device.create_stream(), device.create_stream()
    source, target = rig.blocks(0, NUM_SLOTS), rig.blocks(48, 12)
    rig.write(stream, source, 3)
    rig.write(stream, target, 50)
    await rig.worker.submit_store(1, GPULoadStoreSpec(source), rig.slots(range(NUM_SLOTS)), after=stream)
    assert await read_in_time(rig, stream, reader, target) == rig.values(target, 50)
    rig.write(stream, target, 50)
    go_on = rig.stall(stream)
    load = rig.worker.submit_load(2, rig.slots(range(12)), GPULoadStoreSpec(target), after=stream)
    await load.fence(reader)
    read = asyncio.ensure_future(rig.read(reader, target))
    go_on()
    assert await read == rig.values(source[: len(target)], 3)
    assert (await load).success
    await rig.worker.aclose()
    device.close()


async def read_in_time(rig: WorkerRig, stream: Stream, reader: Stream, target: Sequence[int]) -> list[list[int]]:
    """What a reader without a fence sees while the load is held back.

    On a busy GPU the reader may come when that has ended already; then it proves nothing, and is tried again.
    """
    for _ in range(20):
        go_on = rig.stall(stream)
        held = rig.device.record(stream)
        load = rig.worker.submit_load(2, rig.slots(range(12)), GPULoadStoreSpec(target), after=stream)
        (seen,) = await asyncio.gather(rig.read(reader, target), return_exceptions=True)  # late, it may be torn
        came_late = held.query()
        go_on()
        assert (await load).success
        if not came_late:
            assert not isinstance(seen, BaseException)
            return seen
        rig.write(stream, target, 50)
        await asyncio.to_thread(rig.device.record(stream).synchronize)
    raise AssertionError("every reader came late")
