"""The worker of the CPU tier: moves chunks between one process's GPU tensors and its pinned CPU memory.

Knows which jobs are in flight, and who is told of their ends. Knows no keys: what a slot holds is the manager's
business.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence

from aiokvoffload.base import (
    CanonicalKVCaches,
    Event,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    PoolFile,
    PoolGrowth,
    Stream,
    Transfer,
    TransferResult,
)
from aiokvoffload.clock import Clock, SystemClock
from aiokvoffload.config import CopyConfig, Mode
from aiokvoffload.copy.arena import FILLED, ArenaOptions
from aiokvoffload.copy.choice import EngineMaker
from aiokvoffload.copy.direction import Direction
from aiokvoffload.copy.engine import CopyEngine
from aiokvoffload.cpu.common import CPULoadStoreSpec, PoolShape
from aiokvoffload.cpu.drain import drain
from aiokvoffload.cpu.jobs import Job, Released
from aiokvoffload.cpu.ledger import JobLedger
from aiokvoffload.cpu.machinery import EXPEDITED_LOADS, LOADS, PROTECTED_STORES, STORES, Machinery
from aiokvoffload.cpu.submitter import Submitter
from aiokvoffload.cpu.threads import Handover
from aiokvoffload.cpu.worker_statistics import WorkerStatistics
from aiokvoffload.device.base import Device
from aiokvoffload.errors import AbandonedError, ArgumentError, BrokenError, ClosedError, ModeError
from aiokvoffload.poller import Poller
from aiokvoffload.transfer import JobTransfer

STEPPED_PAUSE_S = 0.0005
"""Between two looks of a stepped close."""


class CPUOffloadingWorker(OffloadingWorker):
    """Stores to and loads from slots in CPU memory.

    It may be made on any thread, and takes as long as the memory takes to pin, or a first piece of it if it grows. In
    awaited mode it belongs to the loop on which it is bound or first used, in stepped mode to one plain thread.

    Args:
        kv_caches: the engine's tensors, kept alive until the worker is closed.
        pools: what slots there are, as the manager counts them.
        blocks_per_chunk: of each group.
        device: where the tensors are.
        mode: awaited or stepped.
        close_timeout_s: how long a close waits for copies before it abandons them, in seconds.
        clock: measures that time.
        owns_device: whether a close closes the device too.
        engine: enqueues copies, or makes what does; by default what `copy` says.
        copy: how bytes are copied.
        options: how the memory for slots is got.

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
        engine: CopyEngine | EngineMaker | None = None,
        copy: CopyConfig | None = None,
        options: ArenaOptions = FILLED,
    ) -> None:
        self._machinery = Machinery(
            kv_caches,
            pools,
            blocks_per_chunk=blocks_per_chunk,
            device=device,
            owns_device=owns_device,
            engine=engine,
            copy=copy,
            options=options,
        )
        self._device, self._mode = device, mode
        self._close_timeout_s, self._clock = close_timeout_s, clock or SystemClock()
        self._submitted = 0
        self._closed = self._is_freeing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._close_task: asyncio.Task[None] | None = None
        self._handover = Handover()
        self._ledger = JobLedger(self._machinery, self._handover, mode)
        self._poller: Poller[Job | Released] = Poller(
            device,
            2 * len(self._machinery.handlers),  # ends, and the marks behind which blocks are free
            on_ended=self._ledger.end,
            on_broken=self._ledger.break_down,
        )
        self._submitter = Submitter(
            device, self._machinery, ledger=self._ledger, handover=self._handover, poller=self._poller
        )
        self._machinery.growth.start(self._handover.post)

    def submit_store(
        self,
        job_id: int,
        src: GPULoadStoreSpec,
        dst: LoadStoreSpec,
        *,
        after: Stream | Event | None = None,
        protect_source: bool = True,
    ) -> Transfer:
        """Copy whole chunks out of GPU memory; see `OffloadingWorker.submit_store`. `ModeError` on a wrong thread."""
        job = self._accept(job_id, PROTECTED_STORES if protect_source else STORES, src, dst, after)
        if protect_source:
            self._submitter.enqueue_here(job, after)
        else:
            self._submitter.enqueue_soon(job)
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
        """Copy chunks into GPU memory; see `OffloadingWorker.submit_load`. `ModeError` on a wrong thread."""
        job = self._accept(job_id, EXPEDITED_LOADS if expedited else LOADS, dst, src, after)
        self._submitter.enqueue_soon(job)
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
        if not isinstance(job_id, int) or self._ledger.jobs.has_id(job_id):
            raise ArgumentError(f"job_id must be an int that is not in use, got {job_id!r}")
        selection = self._machinery.selector.select(direction, blocks, slots.chunk_ids)
        event = self.record_event(after)
        self._submitted += 1
        transfer = JobTransfer(job_id, mode=self._mode, wait=self._device.wait)
        job = Job(self._submitted, handler, selection, event, transfer)
        self._ledger.begin(job)
        try:
            job.waits_for = self._predecessors(job)
        except Exception as error:  # noqa: BLE001 - it may have left marks, so it takes its place as a failed job
            job.fail(error)
        return job

    def _predecessors(self, job: Job) -> tuple[Job, ...]:
        ended = [each.latest_ended for each in self._machinery.handlers]
        numbers = self._machinery.hazards.enter(job.number, job.handler, job.selection, ended)
        return self._ledger.jobs.with_numbers(numbers)

    def _require_usable(self) -> None:
        if self._closed:
            raise ClosedError("the worker is closed")
        if self._ledger.broken is not None:
            raise BrokenError(f"the worker is broken: {self._ledger.broken}") from self._ledger.broken
        if self._mode is Mode.AWAITED:
            self.bind()

    def bind(self) -> None:
        """Belong to the running loop from now on; see `OffloadingWorker.bind`.

        Raises:
            ModeError: no loop runs here, the worker belongs to another one, or it is stepped.
            ClosedError: the worker was closed before it belonged to a loop.
        """
        if self._mode is Mode.STEPPED:
            raise ModeError("a stepped worker belongs to no event loop")
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is None or self._loop not in (None, loop):
            raise ModeError("an awaited worker is used on the thread of its running event loop")
        if self._loop is None:
            if self._closed:
                raise ClosedError("the worker is closed")
            self._loop = loop
            self._handover.bind(loop)
            self._poller.start()

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

    def on_growth(self, callback: Callable[[PoolGrowth], None]) -> None:
        """Call `callback(growth)` now and after every change; see `OffloadingWorker.on_growth`."""
        self._machinery.growth.watch(callback)

    def pool_files(self) -> tuple[PoolFile, ...]:
        """One file for each pool, with `HostMemory.MEMFD`."""
        return self._machinery.pool_files()

    def slot_views(self, group_idx: int, slots: Sequence[int]) -> list[memoryview]:
        """The payload of each of these slots; see `OffloadingWorker.slot_views`."""
        return self._machinery.slot_views(group_idx, slots)

    def keep_memory(self) -> None:
        """Leave the slots' memory mapped for good; see `OffloadingWorker.keep_memory`."""
        self._machinery.keep_memory()

    def get_finished(self) -> list[TransferResult]:
        """Results since the last call, from any plain thread. Works after a close too.

        Raises:
            ModeError: the worker is awaited.
        """
        if self._mode is Mode.AWAITED:
            raise ModeError("get_finished belongs to stepped mode; await the transfers")
        self._look()
        return self._ledger.take_finished()

    def _look(self) -> None:
        """Take over what other threads have brought, and announce every job that has ended."""
        self._handover.run()
        self._poller.poll()

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
            if self._closed:
                return
            self.bind()
            self._closed = True
            self._machinery.growth.stop()
            self._close_task = asyncio.get_running_loop().create_task(self._aclose(), name="aiokvoffload-close")
            self._close_task.add_done_callback(self._close_ended)
        await asyncio.wait([self._close_task])
        if self._close_task.cancelled():
            raise AbandonedError("the close was cancelled from outside; the memory is freed when the copies have ended")
        self._close_task.result()

    async def _aclose(self) -> None:
        await drain(self._ledger, self._clock, timeout_s=self._close_timeout_s)
        if self._ledger.unsettled:  # a loop that was kept from its work has not seen what has ended
            self._look()
        self._poller.stop()
        if self._ledger.unsettled:
            raise self._ledger.abandon(self._close_timeout_s)
        self._is_freeing = True
        # No task, which a cancellation of all would reach before the thread has begun.
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._machinery.free))

    def _close_ended(self, close_task: "asyncio.Task[None]") -> None:
        """Whoever ends a loop cancels all its tasks, and the copies go on all the same: a thread takes over."""
        if close_task.cancelled() and not self._is_freeing:
            self._poller.stop()
            self._ledger.leave_to_thread(BrokenError("the close was cancelled"))

    def close(self) -> None:
        """What `aclose` does, from a plain thread, for a stepped worker or one without a living loop.

        Raises:
            AbandonedError: the time-out passed first.
            BrokenError: something could not be given back.
            ModeError: the worker belongs to an event loop that is not closed.
        """
        if self._loop is not None and not self._loop.is_closed():
            raise ModeError("an awaited worker is closed with aclose()")
        if self._closed:
            return
        self._closed = True
        self._machinery.growth.stop()
        self._poller.stop()
        deadline_s = self._clock.now_s() + self._close_timeout_s
        while self._ledger.unsettled:
            if self._clock.now_s() >= deadline_s:
                raise self._ledger.abandon(self._close_timeout_s)
            self._look()
            time.sleep(STEPPED_PAUSE_S)
        self._machinery.free()

    def statistics(self) -> WorkerStatistics:
        """A frozen record of counts."""
        return self._machinery.statistics(self._poller.statistics())

    def __repr__(self) -> str:
        state = "broken" if self._ledger.broken else "closed" if self._closed else self._mode.value
        jobs = f"{len(self._ledger.jobs)} in flight, {self._submitted} submitted"
        return f"CPUOffloadingWorker({state}, {jobs}, {self._machinery.pool_bytes} bytes of slots)"
