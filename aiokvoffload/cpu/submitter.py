"""How an accepted job gets onto the device: from a submission thread, or at once from the owner's.

Knows which failures are the job's and which the device's. Whatever happens in here, the job ends once (I1).
"""

from collections.abc import Iterator
from functools import partial
from typing import cast

from aiokvoffload.base import Event, Stream
from aiokvoffload.copy.engine import Step
from aiokvoffload.cpu.jobs import Job, Released
from aiokvoffload.cpu.ledger import JobLedger
from aiokvoffload.cpu.machinery import Machinery
from aiokvoffload.cpu.threads import Handover
from aiokvoffload.device.base import Device, is_stream
from aiokvoffload.errors import BrokenError
from aiokvoffload.poller import Poller

FEW_FRAGMENTS = 8
"""Enqueueing so many takes the loop 0.1 ms; to have a thread do it takes half of that, and comes 0.1 ms later."""
FEW_JOBS = 16
"""In flight: behind more, nobody waits for 100 µs, and the device's queue may be full, which a call would wait for."""
FEW_BYTES = 256 << 10
"""On the bus for 5 µs, they have ended when their call has; a turn of the loop would notice 20 µs later."""


class Submitter:
    """Enqueues jobs and has their ends watched.

    Args:
        device: where to.
        machinery: whose handlers and thread do it.
        ledger: told of a device that broke.
        handover: back to the owner's thread.
        poller: watches what has been enqueued.
    """

    def __init__(
        self,
        device: Device,
        machinery: Machinery,
        *,
        ledger: JobLedger,
        handover: Handover,
        poller: Poller[Job | Released],
    ) -> None:
        self._device, self._machinery = device, machinery
        self._ledger, self._handover, self._poller = ledger, handover, poller
        self._jobs_there = [0] * len(machinery.submissions)

    def enqueue_soon(self, job: Job) -> None:
        """Leave it to its submission thread, whose driver calls may be slow; a small job is enqueued at once if it can.

        Each stream is fed by one thread at a time: hence only while that thread has nothing to do, and nothing that it
        did is still to be noted here. Beside the other thread's driver calls the driver's lock may be waited for.
        """
        thread_is_idle = self._jobs_there[self._machinery.thread_of(job.handler)] == 0
        if thread_is_idle and not self._device.wants_thread and self._is_quick(job):
            self._enqueue_now(job)
        else:
            self._enqueue_there(job, self._enqueue(job))

    def _enqueue_now(self, job: Job) -> None:
        steps = self._machinery.handlers[job.handler].enqueue(job)
        try:
            waits = any(step is Step.WAITS for step in steps)
        except BaseException:  # an interrupt, which the job has noted
            self._track(job)
            raise
        if waits:
            self._enqueue_there(job, self._enqueue_rest(job, steps))
        else:
            self._track_here(job)

    def _is_quick(self, job: Job) -> bool:
        return (
            job.selection.num_fragments <= FEW_FRAGMENTS
            and len(self._ledger.jobs) <= FEW_JOBS
            and self.may_begin(job)
            and self._ledger.broken is None
            and not self._machinery.waits_in_calls
        )

    def _enqueue_there(self, job: Job, steps: Iterator[Step]) -> None:
        thread = self._machinery.thread_of(job.handler)
        # Before it is there: an interrupt between the two must not let the loop feed the thread's streams.
        self._jobs_there[thread] += 1
        try:
            self._machinery.submit(job.handler, _Enqueueing(self, job, steps))
        except Exception as error:  # noqa: BLE001 - the job was accepted, so its transfer tells (I1)
            self._jobs_there[thread] -= 1
            job.fail(error)
            self._track(job)

    def may_begin(self, job: Job) -> bool:
        """Whether what `job` waits for is on the device, so that it can be waited for there."""
        return self._ledger.broken is not None or all(earlier.enqueued for earlier in job.waits_for)

    def _enqueue(self, job: Job) -> Iterator[Step]:
        """On a submission thread, step by step."""
        if self._ledger.broken is None:
            yield from self._enqueue_rest(job, self._machinery.handlers[job.handler].enqueue(job))

    def _enqueue_rest(self, job: Job, steps: Iterator[Step]) -> Iterator[Step]:
        try:
            yield from steps
        finally:
            self._handover.post(partial(self._enqueued_there, job))
        self._device.synchronize_clock()

    def enqueue_here(self, job: Job, after: Stream | Event | None) -> None:
        """Enqueue at once, and make the caller's stream wait: it may overwrite the blocks in what it runs next.

        A stream can wait only for an end that has been recorded, so this cannot be left to another thread. A stream
        that cannot be made to wait may overwrite what is being read, so the job has failed.
        """
        try:
            if late := {earlier.handler for earlier in job.waits_for if not earlier.enqueued}:
                self._machinery.flush(late)
            for _ in self._machinery.handlers[job.handler].enqueue(job):
                pass  # a step that waits for the device is tried again at once: nothing else may come between
            if job.end is not None:
                stream = cast("Stream", after) if is_stream(after) else self._device.current_stream()
                self._device.wait(stream, job.released if job.released is not None and not job.failure else job.end)
        except BrokenError as error:  # the job was accepted, so its transfer tells (I1)
            self._ledger.break_down(error)
        except BaseException as error:
            job.fail(error)
            job.whole_chunks = 0
            if not isinstance(error, Exception):
                raise
        finally:
            self._track_here(job)

    def _track_here(self, job: Job) -> None:
        """From the job's submission, which may be told of its end at once."""
        self._track(job)
        if job.size_bytes <= FEW_BYTES:
            self._poller.look_at(job.handler, job)

    def _enqueued_there(self, job: Job) -> None:
        self._jobs_there[self._machinery.thread_of(job.handler)] -= 1
        self._track(job)
        self._poller.look()

    def _track(self, job: Job) -> None:
        """On the owner's thread: the job is on the device, its end will come."""
        if job not in self._ledger.jobs:
            return
        if job.end is None:
            self._ledger.break_down(BrokenError(job.failure))
            return
        job.transfer.mark_enqueued(job.end, failure=job.failure)
        if job.released is not None:
            self._poller.track(self._machinery.queue_of_released(job.handler), Released(job))
        self._poller.track(job.handler, job)

    def __repr__(self) -> str:
        return f"Submitter({self._machinery.submissions!r})"


class _Enqueueing:
    """One job as work of the submission thread."""

    __slots__ = ("_job", "_steps", "_submitter")

    def __init__(self, submitter: Submitter, job: Job, steps: Iterator[Step]) -> None:
        self._submitter, self._job, self._steps = submitter, job, steps

    def ready(self) -> bool:
        return self._submitter.may_begin(self._job)

    def run(self) -> Iterator[Step]:
        return self._steps
