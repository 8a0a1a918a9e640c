"""The worker of the CPU tier: moves chunks between one process's GPU tensors and its pinned CPU memory.

Knows which jobs are in flight, and who is told of their ends. Knows no keys: what a slot holds is the manager's
business.
"""

import asyncio
import time
from collections.abc import Collection, Sequence
from functools import partial
from typing import cast

from aiokvoffload.base import (
    CanonicalKVCaches,
    Event,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    Stream,
    Transfer,
    TransferResult,
)
from aiokvoffload.clock import Clock, SystemClock
from aiokvoffload.config import Mode
from aiokvoffload.copy.direction import Direction
from aiokvoffload.copy.engines import CopyEngine
from aiokvoffload.cpu.common import CPULoadStoreSpec, PoolShape
from aiokvoffload.cpu.jobs import Job
from aiokvoffload.cpu.ledger import JobLedger
from aiokvoffload.cpu.machinery import EXPEDITED_LOADS, LOADS, PROTECTED_STORES, STORES, Machinery
from aiokvoffload.cpu.threads import Handover
from aiokvoffload.cpu.worker_statistics import WorkerStatistics
from aiokvoffload.device.base import Device, is_stream
from aiokvoffload.errors import ArgumentError, BrokenError, ClosedError, ModeError
from aiokvoffload.poller import Poller
from aiokvoffload.transfer import JobTransfer

STEPPED_PAUSE_S = 0.0005
"""Between two looks of a stepped close."""


class CPUOffloadingWorker(OffloadingWorker):
    """Stores to and loads from slots in CPU memory.

    It may be made on any thread, and takes as long as the memory takes to pin. In awaited mode it belongs to the loop
    on which it is first used, in stepped mode to one plain thread.

    Args:
        kv_caches: the engine's tensors, kept alive until the worker is closed.
        pools: what slots there are, as the manager counts them.
        blocks_per_chunk: of each group.
        device: where the tensors are.
        mode: awaited or stepped.
        close_timeout_s: how long a close waits for copies before it abandons them, in seconds.
        clock: measures that time.
        owns_device: whether a close closes the device too.
        engine: enqueues copies; by default the fastest that the device has.

    Raises:
        ConfigError: tensors and pools do not fit together, or the memory cannot be had.
    """

    def __init__(
        self,
        kv_caches: CanonicalKVCaches,
        pools: Sequence[PoolShape],
        *,
        blocks_per_chunk: Sequence[int],
        device: Device,
        mode: Mode = Mode.AWAITED,
        close_timeout_s: float = 30.0,
        clock: Clock | None = None,
        owns_device: bool = False,
        engine: CopyEngine | None = None,
    ) -> None:
        self._machinery = Machinery(
            kv_caches,
            pools,
            blocks_per_chunk=blocks_per_chunk,
            device=device,
            owns_device=owns_device,
            engine=engine,
        )
        self._device, self._mode = device, mode
        self._close_timeout_s, self._clock = close_timeout_s, clock or SystemClock()
        self._submitted = 0
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._close_task: asyncio.Task[None] | None = None
        self._handover = Handover()
        self._ledger = JobLedger(self._machinery, self._handover, mode)
        self._poller: Poller[Job] = Poller(
            device,
            len(self._machinery.handlers),
            on_ended=self._ledger.end,
            on_broken=self._ledger.break_down,
        )

    def submit_store(
        self,
        job_id: int,
        src: GPULoadStoreSpec,
        dst: LoadStoreSpec,
        *,
        after: Stream | Event | None = None,
        protect_source: bool = True,
    ) -> Transfer:
        """Copy whole chunks out of GPU memory; see `OffloadingWorker.submit_store`.

        Raises:
            ArgumentError, ClosedError, BrokenError: as the contract says.
            ModeError: the worker is awaited, and this is not the thread of its running loop.
        """
        handler = PROTECTED_STORES if protect_source else STORES
        job = self._accept(job_id, handler, src, dst, after)
        if protect_source:
            self._enqueue_here(job, after)
        else:
            self._machinery.submission.put(partial(self._enqueue, job))
        return job.transfer

    def submit_load(
        self,
        job_id: int,
        src: LoadStoreSpec,
        dst: GPULoadStoreSpec,
        *,
        after: Stream | Event | None = None,
        expedited: bool = False,
    ) -> Transfer:
        """Copy chunks into GPU memory; see `OffloadingWorker.submit_load`.

        Raises:
            ArgumentError, ClosedError, BrokenError: as the contract says.
            ModeError: the worker is awaited, and this is not the thread of its running loop.
        """
        job = self._accept(job_id, EXPEDITED_LOADS if expedited else LOADS, dst, src, after)
        self._machinery.submission.put(partial(self._enqueue, job))
        return job.transfer

    def _accept(
        self,
        job_id: int,
        handler: int,
        blocks: GPULoadStoreSpec,
        slots: LoadStoreSpec,
        after: Stream | Event | None,
    ) -> Job:
        """Check everything, then note the job; it is in flight from here on."""
        self._require_usable()
        direction = self._machinery.handlers[handler].direction
        slot_name = "dst" if direction is Direction.STORE else "src"
        if not isinstance(slots, CPULoadStoreSpec):
            raise ArgumentError(f"{slot_name} must be a CPULoadStoreSpec, got {slots!r}")
        if self._ledger.jobs.has_id(job_id):
            raise ArgumentError(f"job_id must not be in use, got {job_id}")
        selection = self._machinery.selector.select(direction, blocks, slots.chunk_ids)
        event = self.record_event(after)
        self._submitted += 1
        ended = [each.latest_ended for each in self._machinery.handlers]
        waits_for = self._machinery.hazards.enter(self._submitted, handler, selection, ended)
        transfer = JobTransfer(job_id, mode=self._mode, wait=self._device.wait)
        job = Job(self._submitted, handler, selection, event, self._ledger.jobs.with_numbers(waits_for), transfer)
        self._ledger.jobs.add(job)
        self._machinery.handlers[handler].begin()
        return job

    def _require_usable(self) -> None:
        if self._closed:
            raise ClosedError("the worker is closed")
        if self._ledger.broken is not None:
            raise BrokenError(f"the worker is broken: {self._ledger.broken}") from self._ledger.broken
        if self._mode is Mode.AWAITED:
            self._bind()

    def _bind(self) -> None:
        """Belong to the running loop, from the first use on."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is None or self._loop not in (None, loop):
            raise ModeError("an awaited worker is used on the thread of its running event loop")
        if self._loop is None:
            self._loop = loop
            self._handover.bind(loop)
            self._poller.start()

    def _enqueue(self, job: Job) -> None:
        """On the submission thread."""
        if self._ledger.broken is not None:
            return
        self._machinery.handlers[job.handler].enqueue(job)
        self._handover.post(partial(self._track, job))
        self._device.synchronize_clock()

    def _enqueue_here(self, job: Job, after: Stream | Event | None) -> None:
        """Enqueue at once, and make the caller's stream wait: it may overwrite the blocks in what it runs next.

        A stream can wait only for an end that has been recorded, so this cannot be left to another thread.
        """
        if not all(earlier.enqueued for earlier in job.waits_for):
            self._machinery.submission.flush()
        self._machinery.handlers[job.handler].enqueue(job)
        self._track(job)
        if job.end is None:
            return
        stream = cast("Stream", after) if is_stream(after) else self._device.current_stream()
        try:
            self._device.wait(stream, job.end)
        except BrokenError as error:  # the job was accepted, so its transfer tells
            self._ledger.break_down(error)

    def _track(self, job: Job) -> None:
        """On the owner's thread: the job is on the device, its end will come."""
        if job not in self._ledger.jobs:
            return
        if job.end is None:
            self._ledger.break_down(BrokenError(job.failure))
            return
        job.transfer.mark_enqueued(job.end, failure=job.failure)
        self._poller.track(job.handler, job)

    def record_event(self, after: Stream | Event | None = None) -> Event:
        """What `after` means at this moment; see `OffloadingWorker.record_event`.

        Raises:
            ArgumentError: `after` is neither a stream nor an event.
            BrokenError: the device has failed.
        """
        return self._device.record(after)

    def validate_blocks(self, blocks: GPULoadStoreSpec) -> None:
        """Check ids against the GPU tensors; see `OffloadingWorker.validate_blocks`.

        Raises:
            ArgumentError: an id is out of range or repeated, or the groups do not match.
        """
        self._machinery.selector.check_blocks(blocks, "blocks")

    def fragments_per_chunk(self, group_idx: int) -> int:
        """Blocks of a chunk times tensors of a block; adjacent ones may still be merged."""
        return self._machinery.selector.fragments_per_chunk(group_idx)

    def get_finished(self) -> list[TransferResult]:
        """Results since the last call, from any plain thread. Works after a close too.

        Raises:
            ModeError: the worker is awaited.
        """
        if self._mode is Mode.AWAITED:
            raise ModeError("get_finished belongs to stepped mode; await the transfers")
        self._handover.run()
        self._poller.poll()
        return self._ledger.take_finished()

    async def wait(self, job_ids: Collection[int]) -> list[TransferResult]:
        """Wait for those of `job_ids` that are in flight; see `OffloadingWorker.wait`.

        Raises:
            ModeError: the worker is stepped.
        """
        if self._mode is Mode.STEPPED:
            raise ModeError("waiting needs an event loop; a stepped worker is asked with get_finished()")
        return [await job.transfer for job in self._ledger.jobs.with_ids(job_ids)]

    async def aclose(self) -> None:
        """Accept nothing more, wait for every job, free the memory; see `OffloadingWorker.aclose`.

        Being cancelled does not stop it: call again to wait for the same end.

        Raises:
            AbandonedError: the time-out passed first.
            BrokenError: something could not be given back.
            ModeError: the worker is stepped.
        """
        if self._mode is Mode.STEPPED:
            raise ModeError("a stepped worker is closed with close()")
        if self._close_task is None:
            self._bind()
            self._closed = True
            self._close_task = asyncio.get_running_loop().create_task(self._aclose(), name="aiokvoffload-close")
        await asyncio.shield(self._close_task)

    async def _aclose(self) -> None:
        drained = asyncio.create_task(self._all_ended())
        deadline = asyncio.create_task(self._clock.sleep_until(self._clock.now_s() + self._close_timeout_s))
        await asyncio.wait((drained, deadline), return_when=asyncio.FIRST_COMPLETED)
        in_time = drained.done()
        for task in (drained, deadline):
            task.cancel()
        await asyncio.wait((drained, deadline))
        await self._poller.stop()
        if not in_time:
            raise self._ledger.abandon(self._close_timeout_s)
        await asyncio.to_thread(self._machinery.free)

    async def _all_ended(self) -> None:
        while jobs := self._ledger.unsettled:
            for job in jobs:
                await job.transfer
                await job.transfer.released

    def close(self) -> None:
        """What `aclose` does, from a plain thread, for a stepped worker or one that was never used.

        Raises:
            AbandonedError: the time-out passed first.
            BrokenError: something could not be given back.
            ModeError: the worker belongs to an event loop.
        """
        if self._loop is not None:
            raise ModeError("an awaited worker is closed with aclose()")
        if self._closed:
            return
        self._closed = True
        deadline_s = self._clock.now_s() + self._close_timeout_s
        while self._ledger.unsettled:
            if self._clock.now_s() >= deadline_s:
                raise self._ledger.abandon(self._close_timeout_s)
            self._handover.run()
            self._poller.poll()
            time.sleep(STEPPED_PAUSE_S)
        self._machinery.free()

    def statistics(self) -> WorkerStatistics:
        """A frozen record of counts."""
        return WorkerStatistics(
            streams=tuple(handler.statistics() for handler in self._machinery.handlers),
            pool_bytes=self._machinery.pool_bytes,
            pinned_bytes=self._machinery.pinned_bytes,
            engine=self._machinery.engine_name,
            poller=self._poller.statistics(),
        )

    def __repr__(self) -> str:
        state = "broken" if self._ledger.broken else "closed" if self._closed else self._mode.value
        jobs = f"{len(self._ledger.jobs)} in flight, {self._submitted} submitted"
        return f"CPUOffloadingWorker({state}, {jobs}, {self._machinery.pool_bytes} bytes of slots)"
