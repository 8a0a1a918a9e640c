"""One stream and the jobs on it: how a job gets onto the device, and how it ended.

Knows the order of one stream; what other streams must be waited for is in the job. Knows nothing of threads: exactly
one of them feeds each handler.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace

from aiokvoffload.base import Stream, TransferResult
from aiokvoffload.copy.direction import Direction
from aiokvoffload.copy.engine import CopyEngine, Lane, PartialCopyError, Step
from aiokvoffload.copy.turns import Turns
from aiokvoffload.cpu.jobs import Job
from aiokvoffload.cpu.worker_statistics import DirectionStatistics
from aiokvoffload.device.base import Device
from aiokvoffload.errors import BrokenError

logger = logging.getLogger(__name__)


class SingleDirectionOffloadingHandler:
    """Puts the jobs of one direction onto a stream of its own, and counts how they end.

    Args:
        name: what the stream is for.
        direction: of all its jobs.
        device: makes the stream.
        engine: enqueues the copies.
        priority: of the stream.
        staging_bytes: most GPU memory for staging.
        turn_bytes: copied before others' copies may come in between; 0 never lets them.

    Raises:
        ConfigError: the memory for staging cannot be had.
    """

    def __init__(
        self,
        name: str,
        direction: Direction,
        *,
        device: Device,
        engine: CopyEngine,
        priority: int = 0,
        staging_bytes: int = 0,
        turn_bytes: int = 0,
    ) -> None:
        self.name, self.direction = name, direction
        self._device, self._engine = device, engine
        self._stream: Stream = device.create_stream(priority=priority)
        try:
            turns = Turns(device, turn_bytes, priority=priority) if turn_bytes else None
            self._lane = Lane(direction, self._stream, engine.open_staging(direction, staging_bytes), turns)
        except BaseException:
            device.destroy_stream(self._stream)
            raise
        self._latest_ended = 0
        self._begun = self._ended = self._failed = 0
        self._moved_bytes = 0
        self._busy_s = 0.0

    def use(self, engine: CopyEngine, staging_bytes: int) -> None:
        """Copy later jobs by this engine; from any one thread.

        Raises:
            ConfigError: the memory for its stages cannot be had; nothing has changed.
        """
        self._lane = replace(self._lane, staging=engine.open_staging(self.direction, staging_bytes))
        # After the lane: a job that is planned between the two finds nothing missing.
        self._engine = engine

    @property
    def latest_ended(self) -> int:
        """Number of the latest job that has ended."""
        return self._latest_ended

    def begin(self) -> None:
        """A job has been accepted."""
        self._begun += 1

    def enqueue(self, job: Job) -> Iterator[Step]:
        """Put `job` onto the stream and mark its end there, whatever happens; of a job that has failed, only the end.

        Yields after each step.

        A failure is noted in the job: it ends with the part that was enqueued, not before (I2). Without an end even
        that cannot be known, and the device is broken. An interrupt is noted too, and raised again.
        """
        try:
            if not job.failure:
                yield from self._enqueue_copies(job)
        except PartialCopyError as error:
            job.failure = str(error) or "the copy engine refused"
            job.whole_chunks = job.copies.whole_chunks_before(error.runs_enqueued) if job.copies else 0
        except BaseException as error:
            job.fail(error)  # any failure fails this job, and must not end the submitting thread
            if not isinstance(error, Exception):
                raise
        finally:
            self._mark_end(job)

    def _mark_end(self, job: Job) -> None:
        try:
            job.end = self._device.mark(self._stream)
        except Exception as error:  # noqa: BLE001 - the owner finds no end and declares the device broken
            job.fail(error)
        job.waits_for = ()
        job.enqueued = True

    def _enqueue_copies(self, job: Job) -> Iterator[Step]:
        copies = job.copies = self._engine.plan(job.selection, self._lane)
        self._device.wait(copies.first_stream, job.after)
        for earlier in job.waits_for:
            if earlier.end is None:
                raise BrokenError(f"job {earlier.transfer.job_id}, which must end first, has no known end")
            self._device.wait(copies.first_stream, earlier.end)
        job.start = self._device.mark(copies.first_stream)
        # A load's slots are stable, unless a store that it waits for is still writing them.
        ordered = self.direction is Direction.STORE or bool(job.waits_for)
        yield from copies.enqueue(ordered=ordered)
        if copies.sources_stream is not None:
            job.released = self._device.mark(copies.sources_stream)

    def conclude(self, job: Job) -> TransferResult:
        """Count a job whose end event has completed.

        Raises:
            BrokenError: the device has failed.
        """
        job.busy_s = self._busy_time_s(job)
        busy_s = job.busy_s or 0.0
        result = job.result(transfer_time_s=busy_s)
        self._latest_ended = max(self._latest_ended, job.number)
        self._busy_s += busy_s
        self.count(result)
        return result

    def _busy_time_s(self, job: Job) -> float | None:
        if job.start is None or job.end is None or job.copies is None:
            return None
        try:
            # In another stream, nothing kept the start before the end of a job that failed.
            if job.copies.first_stream is not self._stream and not self._device.query(job.start):
                return None
            return self._device.elapsed_s(job.start, job.end)
        except BrokenError:
            raise
        except Exception:  # a figure must never cost a result (fault 52)
            logger.debug("the time of job %d is not known", job.transfer.job_id, exc_info=True)
            return None

    def count(self, result: TransferResult) -> None:
        """Count one result."""
        self._ended += 1
        self._failed += not result.success
        self._moved_bytes += result.transfer_size if result.success else 0

    def synchronize(self) -> None:
        """Block until the stream has ended all it was given.

        Raises:
            BrokenError: the device has failed.
        """
        for stream in (self._stream, *(() if self._lane.staging is None else (self._lane.staging.stream,))):
            self._device.record(stream).synchronize()

    def close(self) -> None:
        """Give the streams and the staging back; all their work must have ended."""
        self._device.destroy_stream(self._stream)
        if self._lane.turns is not None:
            self._lane.turns.close()
        if self._lane.staging is not None:
            self._device.destroy_stream(self._lane.staging.stream)
            self._lane.staging.close()

    def abandon(self) -> None:
        """Leave everything that a straggler may touch where it is; the caller keeps this object for good (I2)."""
        if self._lane.staging is not None:
            self._lane.staging.abandon()

    @property
    def staging_bytes(self) -> int:
        """GPU memory in use for staging."""
        return 0 if self._lane.staging is None else self._lane.staging.size_bytes

    def statistics(self) -> DirectionStatistics:
        """A frozen record of counts."""
        return DirectionStatistics(
            name=self.name,
            direction=self.direction,
            jobs_in_flight=self._begun - self._ended,
            jobs_ended=self._ended,
            jobs_failed=self._failed,
            moved_bytes=self._moved_bytes,
            busy_s=self._busy_s,
        )

    def __repr__(self) -> str:
        return f"SingleDirectionOffloadingHandler({self.name}, {self._begun - self._ended} in flight)"
