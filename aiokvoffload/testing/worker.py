"""A worker without bytes: it accepts what a real one accepts, and its transfers end when the test says so."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokvoffload.base import (
    Event,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    Stream,
    Transfer,
    TransferResult,
)
from aiokvoffload.config import Mode
from aiokvoffload.copy.direction import Direction
from aiokvoffload.cpu.common import PAGE_BYTES
from aiokvoffload.cpu.worker_statistics import DirectionStatistics, WorkerStatistics
from aiokvoffload.device.host import HostEvent
from aiokvoffload.errors import ArgumentError, ClosedError, ModeError
from aiokvoffload.poller import LagRecorder, PollerStatistics
from aiokvoffload.transfer import JobTransfer


@dataclass(slots=True)
class SubmittedJob:
    """One call of `submit_store` or `submit_load`; `src` and `dst` are what was passed, of either kind of spec."""

    job_id: int
    direction: Direction
    src: Any
    dst: Any
    transfer: JobTransfer
    after: Stream | Event | None
    expedited: bool = False
    protect_source: bool = False
    end: HostEvent = field(default_factory=HostEvent)


class MockOffloadingWorker(OffloadingWorker):
    """Implements the contract on no bytes at all.

    Attributes:
        submitted: every accepted job, in order, ended ones included.
        fenced: each stream that was made to wait, with the event it waits for.
        hold_enqueue: while true, accepted jobs count as not yet enqueued until `enqueue` or `finish`.
        submit_error: raised by the next submission, once.
        pages: what tiers below wrote, or were to read, by group and slot.
        keeps_memory: whether slots are to stay after a close.
    """

    def __init__(self, *, mode: Mode = Mode.AWAITED, hold_enqueue: bool = False) -> None:
        self.submitted: list[SubmittedJob] = []
        self.fenced: list[tuple[Stream, Event]] = []
        self.hold_enqueue = hold_enqueue
        self.submit_error: Exception | None = None
        self.pages: dict[tuple[int, int], bytearray] = {}
        self.keeps_memory = False
        self._mode = mode
        self._jobs: dict[int, SubmittedJob] = {}
        self._finished: list[TransferResult] = []
        self._failed = 0
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind(self) -> None:
        if self._mode is Mode.STEPPED:
            raise ModeError("a stepped worker belongs to no event loop")
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is None or self._loop not in (None, loop):
            raise ModeError("an awaited worker is used on the thread of its running event loop")
        if self._loop is None and self._closed:
            raise ClosedError("the worker is closed")
        self._loop = loop

    def submit_store(
        self,
        job_id: int,
        src: GPULoadStoreSpec,
        dst: LoadStoreSpec,
        *,
        after: Stream | Event | None = None,
        protect_source: bool = True,
    ) -> Transfer:
        transfer = self._transfer(job_id)
        job = SubmittedJob(job_id, Direction.STORE, src, dst, transfer, after, protect_source=protect_source)
        return self._accept(job)

    def submit_load(
        self,
        job_id: int,
        src: LoadStoreSpec,
        dst: GPULoadStoreSpec,
        *,
        after: Stream | Event | None = None,
        expedited: bool = False,
    ) -> Transfer:
        transfer = self._transfer(job_id)
        return self._accept(SubmittedJob(job_id, Direction.LOAD, src, dst, transfer, after, expedited=expedited))

    def _transfer(self, job_id: int) -> JobTransfer:
        if self._closed:
            raise ClosedError("the worker is closed")
        if self.submit_error is not None:
            error, self.submit_error = self.submit_error, None
            raise error
        if job_id in self._jobs:
            raise ArgumentError(f"job_id must not be in use, got {job_id}")
        return JobTransfer(job_id, mode=self._mode, wait=self._fence)

    def _fence(self, stream: Stream, event: Event) -> None:
        self.fenced.append((stream, event))
        stream.wait_event(event)

    def _accept(self, job: SubmittedJob) -> Transfer:
        job.end.record()
        self._jobs[job.job_id] = job
        self.submitted.append(job)
        if not self.hold_enqueue:
            self.enqueue(job.job_id)
        return job.transfer

    @property
    def in_flight(self) -> list[int]:
        """Numbers of the jobs accepted and not finished, in order."""
        return list(self._jobs)

    def enqueue(self, job_id: int) -> None:
        """The job's copies are on the device now: fences go through."""
        job = self._jobs[job_id]
        job.transfer.mark_enqueued(job.end)

    def release(self, job_id: int) -> None:
        """The job's GPU blocks are free; its result is still to come."""
        self._jobs[job_id].transfer.release()

    def finish(self, job_id: int, *, success: bool = True, failed_indices: Collection[int] = ()) -> None:
        """End the job: its result, and its blocks free; naming failed indices makes it a failure."""
        job = self._jobs.pop(job_id)
        success = success and not failed_indices
        self._failed += not success
        error = "" if success else "the test said so"
        job.end.complete()
        job.transfer.release()
        result = TransferResult(job_id, success, 0, 0.0, tuple(failed_indices), error)
        if self._mode is Mode.STEPPED:
            self._finished.append(result)
        job.transfer.finish(result)

    def finish_all(self) -> None:
        """End every job with success, in order of submission."""
        for job_id in self.in_flight:
            self.finish(job_id)

    def record_event(self, after: Stream | Event | None = None) -> Event:
        if after is None:
            return HostEvent()
        if hasattr(after, "record_event"):
            return after.record_event()
        if not hasattr(after, "query"):
            raise ArgumentError(f"after must be a stream, an event or None, got {after!r}")
        return after

    def validate_blocks(self, blocks: GPULoadStoreSpec) -> None:
        """Accepts everything: there is no memory to check against."""

    def fragments_per_chunk(self, group_idx: int) -> int:
        """One: nothing is cut short because of it."""
        return 1

    def slot_views(self, group_idx: int, slots: Sequence[int]) -> list[memoryview]:
        """A page for each slot, in memory of this process, but nothing moves between it and any block."""
        return [memoryview(self.pages.setdefault((group_idx, slot), bytearray(PAGE_BYTES))) for slot in slots]

    def keep_memory(self) -> None:
        self.keeps_memory = True

    def get_finished(self) -> list[TransferResult]:
        if self._mode is Mode.AWAITED:
            raise ModeError("get_finished belongs to stepped mode; await the transfers")
        finished, self._finished = self._finished, []
        return finished

    async def wait(self, job_ids: Collection[int]) -> list[TransferResult]:
        return [await self._jobs[job_id].transfer for job_id in job_ids if job_id in self._jobs]

    async def aclose(self) -> None:
        """Refuse new jobs, and wait until the test has finished those in flight."""
        self._closed = True
        for job in list(self._jobs.values()):
            await job.transfer

    def close(self) -> None:
        """Refuse new jobs; those in flight are the test's to finish."""
        self._closed = True

    def statistics(self) -> WorkerStatistics:
        ended = len(self.submitted) - len(self._jobs)
        stream = DirectionStatistics("mock", Direction.STORE, len(self._jobs), ended, self._failed, 0, 0.0)
        return WorkerStatistics((stream,), 0, 0, 0, "mock", PollerStatistics(0, ended, LagRecorder().statistics()))

    def __repr__(self) -> str:
        return f"MockOffloadingWorker({len(self._jobs)} in flight, {len(self.submitted)} submitted)"
