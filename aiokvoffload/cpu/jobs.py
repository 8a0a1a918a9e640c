"""What a worker remembers of a transfer while it runs. Holds state, moves nothing."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from aiokvoffload.base import Event, TransferResult
from aiokvoffload.copy.engine import Copies
from aiokvoffload.copy.selection import Selection
from aiokvoffload.transfer import JobTransfer


@dataclass(slots=True, eq=False)
class Job:
    """One accepted transfer, from submission to its end.

    Attributes:
        number: order of submission, from 1.
        handler: index of the handler whose stream it runs on.
        selection: what it moves.
        after: what must end first.
        transfer: what the submitter holds.
        waits_for: earlier jobs on other streams that share memory with it; dropped once it is enqueued.
        copies: planned; kept until they have ended, since the device may still read the arrays (fault 5).
        start: event before its first copy.
        released: event after its blocks have been read, where that is before the end.
        end: event after its last copy.
        enqueued: whether it has been put onto its stream, as far as that went.
        failure: why not all of it was.
        whole_chunks: leading chunks that surely were, if there was a failure.
        busy_s: seconds that the device spent on it, once it has ended and if that is known.
    """

    number: int
    handler: int
    selection: Selection
    after: Event
    transfer: JobTransfer
    waits_for: tuple["Job", ...] = ()
    copies: Copies | None = None
    start: Event | None = None
    released: Event | None = None
    end: Event | None = None
    enqueued: bool = False
    failure: str = ""
    whole_chunks: int = 0
    busy_s: float | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes that it moves."""
        return self.selection.size_bytes

    def fail(self, error: BaseException) -> None:
        """Note why it has failed; the first reason stands."""
        self.failure = self.failure or f"{type(error).__name__}: {error}"

    def result(self, *, transfer_time_s: float = 0.0, error: str = "") -> TransferResult:
        """How it ended; an `error` from outside leaves nothing certain."""
        failed_from = 0 if error else self.whole_chunks
        success = not (error or self.failure)
        return TransferResult(
            job_id=self.transfer.job_id,
            success=success,
            transfer_size=self.selection.size_bytes,
            transfer_time=transfer_time_s,
            failed_indices=() if success else tuple(range(failed_from, len(self.selection.chunk_ids))),
            error=error or self.failure,
        )


@dataclass(slots=True, eq=False)
class Released:
    """The place where a job's blocks are free, to be watched for like a job's end.

    Attributes:
        job: whose place it is.
        busy_s: `None`: how long gathering takes is not learnt, since it waits for the ring.
    """

    job: Job
    busy_s: float | None = None

    @property
    def start(self) -> Event | None:
        """The event before the job's first copy."""
        return self.job.start

    @property
    def size_bytes(self) -> int:
        """Bytes that the job moves."""
        return self.job.size_bytes

    @property
    def end(self) -> Event | None:
        """The event that marks it."""
        return self.job.released


class JobTable:
    """The jobs in flight, by the submitter's number and by order of submission."""

    def __init__(self) -> None:
        self._by_id: dict[int, Job] = {}
        self._by_number: dict[int, Job] = {}

    def add(self, job: Job) -> None:
        """A job is in flight from now on."""
        self._by_id[job.transfer.job_id] = job
        self._by_number[job.number] = job

    def remove(self, job: Job) -> None:
        """It has ended."""
        del self._by_id[job.transfer.job_id]
        del self._by_number[job.number]

    def take_all(self) -> list[Job]:
        """Empty the table, in order of submission."""
        jobs = list(self)
        self._by_id.clear()
        self._by_number.clear()
        return jobs

    def with_ids(self, job_ids: Collection[int]) -> list[Job]:
        """Those of `job_ids` that are in flight, in that order."""
        return [self._by_id[job_id] for job_id in job_ids if job_id in self._by_id]

    def with_numbers(self, numbers: Collection[int]) -> tuple[Job, ...]:
        """The jobs in flight of these numbers."""
        return tuple(self._by_number[number] for number in numbers)

    def __contains__(self, job: Job) -> bool:
        return self._by_number.get(job.number) is job

    def has_id(self, job_id: int) -> bool:
        """Whether a job in flight has this number."""
        return job_id in self._by_id

    def __iter__(self) -> Iterator[Job]:
        return iter(self._by_number.values())

    def __len__(self) -> int:
        return len(self._by_number)
