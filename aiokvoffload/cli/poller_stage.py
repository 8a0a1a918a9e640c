"""What the poller's benchmark measures with: a worker over little memory, and who keeps it busy.

Knows the worker and its transfers; knows no figures beyond the samples it takes.
"""

import asyncio
import hashlib
import itertools
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import numpy as np
import torch

from aiokvoffload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    Event,
    GPULoadStoreSpec,
    Transfer,
)
from aiokvoffload.cli.blocks import allocating
from aiokvoffload.copy.direction import Direction
from aiokvoffload.cpu.common import CPULoadStoreSpec, PoolShape
from aiokvoffload.cpu.gpu_worker import CPUOffloadingWorker
from aiokvoffload.device.base import Device
from aiokvoffload.errors import InternalError, TransferError
from aiokvoffload.transfer import JobTransfer

FRAGMENT_BYTES = 2048
LAYERS = 64
"""Tensors that a block of many fragments lies in: a fragment is what a block has in one of them."""
ORDERS = 17
"""Random orders of the blocks of many fragments, used in turn for blocks and for slots."""
HASHED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Sample:
    """One transfer: the event at its end, when who awaited it went on, and its seconds on the device."""

    end: Event
    resumed_s: float
    copy_s: float


@dataclass(slots=True)
class Traffic:
    """What one stretch of transfers left: samples, and processor seconds that their submission took on the loop."""

    samples: list[Sample] = field(default_factory=list)
    submitting_s: float = 0.0


class PollerStage:
    """A worker whose transfers are one contiguous copy each, and jobs of many fragments beside them.

    Args:
        device: where the blocks lie.
        transfer_bytes: of a transfer.
        fragments: of a job of many fragments; 0 leaves out the memory for it.
    """

    def __init__(self, device: Device, transfer_bytes: int, *, fragments: int = 0) -> None:
        self._blocks = fragments // LAYERS
        self._groups = 2 if self._blocks else 1
        shapes = [(len(Direction), transfer_bytes), *[(self._blocks, FRAGMENT_BYTES)] * LAYERS]
        with allocating(f"{fragments:,} fragments, transfers of {transfer_bytes:,} bytes, and slots for them"):
            tensors = [
                torch.zeros(shape, dtype=torch.uint8, device=device.torch_device) for shape in shapes if shape[0]
            ]
            refs = [CanonicalKVCacheRef(index, tensor.shape[1]) for index, tensor in enumerate(tensors)]
            pools = [
                PoolShape((0,), transfer_bytes, len(Direction)),
                PoolShape((1,), FRAGMENT_BYTES * LAYERS, self._blocks),
            ]
            self.worker = CPUOffloadingWorker(
                CanonicalKVCaches(
                    [CanonicalKVCacheTensor(tensor, tensor.shape[1]) for tensor in tensors],
                    [refs[:1], refs[1:]][: self._groups],
                ),
                pools[: self._groups],
                blocks_per_chunk=(1,) * self._groups,
                device=device,
            )
        self._job_ids = itertools.count()
        random = np.random.default_rng(0)
        # Made before: drawing lots is no part of what a server does on its loop.
        self._orders = itertools.cycle([random.permutation(self._blocks) for _ in range(ORDERS)])

    async def move(self, direction: Direction, traffic: Traffic, *, until_s: float, depth: int, pause_s: float) -> None:
        """Keep `depth` transfers in flight until `time.perf_counter` says `until_s`."""
        in_flight: deque[JobTransfer] = deque()
        while in_flight or time.perf_counter() < until_s:
            while len(in_flight) < depth and time.perf_counter() < until_s:
                begun_s = time.thread_time()
                in_flight.append(self._submit(direction))
                traffic.submitting_s += time.thread_time() - begun_s
            if in_flight:
                traffic.samples.append(await _sample(in_flight.popleft()))
            if pause_s:
                await asyncio.sleep(pause_s)

    def _submit(self, direction: Direction) -> JobTransfer:
        row = list(Direction).index(direction)
        sizes = (1, 0)[: self._groups]
        blocks, slots = GPULoadStoreSpec([row], sizes), CPULoadStoreSpec([row])
        if direction is Direction.STORE:
            return _own(self.worker.submit_store(next(self._job_ids), blocks, slots, protect_source=False))
        return _own(self.worker.submit_load(next(self._job_ids), slots, blocks, expedited=self._groups > 1))

    async def submit_fragments(self, *, until_s: float, submits_s: list[float]) -> None:
        """Store all fragments as one job, again and again; notes how long each call took."""
        while time.perf_counter() < until_s:
            sources = GPULoadStoreSpec(next(self._orders), (0, self._blocks))
            targets = CPULoadStoreSpec(next(self._orders))
            begun_s = time.perf_counter()
            transfer = self.worker.submit_store(next(self._job_ids), sources, targets, protect_source=False)
            submits_s.append(time.perf_counter() - begun_s)
            await transfer


async def _sample(transfer: JobTransfer) -> Sample:
    result = await transfer
    resumed_s = time.perf_counter()
    if not result.success or transfer.end is None:
        raise TransferError(f"a benchmarked copy failed: {result.error}")
    return Sample(transfer.end, resumed_s, result.transfer_time)


def _own(transfer: Transfer) -> JobTransfer:
    if not isinstance(transfer, JobTransfer):
        raise InternalError(f"the worker's transfer is {transfer!r}")
    return transfer


class BusyThreads:
    """Threads that hash, as those of a disk tier would: the interpreter lock is theirs only between two megabytes.

    Args:
        count: how many.
    """

    def __init__(self, count: int) -> None:
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._hash, name=f"aiokvoffload-busy-{i}") for i in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()

    def join(self) -> None:
        """Wait until all have ended; not to be called on the loop."""
        for thread in self._threads:
            thread.join()

    def _hash(self) -> None:
        data = bytes(HASHED_BYTES)
        while not self._stopping.is_set():
            hashlib.sha256(data)

    def __repr__(self) -> str:
        return f"BusyThreads({sum(thread.is_alive() for thread in self._threads)} alive)"
