"""Who is told what: every accepted job gets exactly one result (I1), and no block is freed under a copy (I2).

Knows the jobs in flight and the three ways they end: by their event, with a device that broke, or abandoned by a close.
All of it happens on the owner's thread. Decides nothing about copies.
"""

import logging
import threading
from functools import partial

from aiokvoffload.base import TransferResult
from aiokvoffload.config import Mode
from aiokvoffload.cpu.jobs import Job, JobTable, Released
from aiokvoffload.cpu.machinery import Machinery
from aiokvoffload.cpu.threads import Handover
from aiokvoffload.errors import AbandonedError, BrokenError

logger = logging.getLogger(__name__)


class JobLedger:
    """Jobs in flight, and their ends.

    Args:
        machinery: whose handlers the jobs run on.
        handover: back to the owner's thread.
        mode: in stepped mode results are also kept for `take_finished`.

    Attributes:
        jobs: in flight.
        broken: why the device cannot be used any more, or `None`.
    """

    def __init__(self, machinery: Machinery, handover: Handover, mode: Mode) -> None:
        self.jobs = JobTable()
        self.broken: BrokenError | None = None
        self._machinery, self._handover, self._mode = machinery, handover, mode
        self._unreleased: list[Job] = []
        self._finished: list[TransferResult] = []
        self._confirming: threading.Thread | None = None

    @property
    def unsettled(self) -> list[Job]:
        """Jobs without a result, and those that may still touch their blocks."""
        return [*self.jobs, *self._unreleased]

    def begin(self, job: Job) -> None:
        """The job has been accepted."""
        self.jobs.add(job)
        self._machinery.handlers[job.handler].begin()

    def end(self, job: Job | Released) -> None:
        """The event after the job's last copy has completed, or the one after its blocks have been read."""
        if isinstance(job, Released):
            if job.job in self.jobs:
                job.job.transfer.release()
            return
        if job not in self.jobs:
            return
        try:
            result = self._machinery.handlers[job.handler].conclude(job)
        except Exception as error:  # noqa: BLE001 - whatever it is, the job is in flight and must get its result (I1)
            self.break_down(error)
            return
        self.jobs.remove(job)
        job.transfer.release()
        self._publish(job, result)

    def break_down(self, error: Exception) -> None:
        """The device cannot be asked any more: all jobs have failed; blocks are free once nothing can run."""
        if self.broken is not None:
            return
        self.broken = error if isinstance(error, BrokenError) else BrokenError(str(error))
        jobs = self.jobs.take_all()
        self._unreleased += jobs
        for job in jobs:
            self._fail(job, f"the worker is broken: {error}")
        confirm = partial(self._confirm_ended, jobs)
        self._confirming = threading.Thread(target=confirm, name="aiokvoffload-confirm", daemon=True)
        self._confirming.start()

    def _confirm_ended(self, jobs: list[Job]) -> None:
        self._machinery.synchronize()
        self._handover.post(partial(self._release, jobs))

    def leave_to_thread(self, error: BrokenError) -> None:
        """The loop is ending: all jobs have failed, and a thread frees the memory once nothing can run."""
        self.break_down(error)
        threading.Thread(target=self._free_when_ended, name="aiokvoffload-free", daemon=True).start()

    def _free_when_ended(self) -> None:
        if self._confirming is not None:
            self._confirming.join()
        try:
            self._machinery.free()
        except BrokenError:  # nobody waits for it any more
            logger.exception("after a close that was cancelled")

    def _release(self, jobs: list[Job]) -> None:
        for job in jobs:
            job.transfer.release()
        self._unreleased = [job for job in self._unreleased if job not in jobs]

    def abandon(self, timeout_s: float) -> AbandonedError:
        """Give up on all unsettled jobs: they fail, their blocks are never free, their memory is leaked.

        Returns:
            The error to raise, which lists them.
        """
        jobs = self.unsettled
        self.jobs.take_all()
        self._unreleased = []
        self._machinery.abandon(jobs)
        job_ids = [job.transfer.job_id for job in jobs]
        error = AbandonedError(f"close timed out after {timeout_s} s; jobs left on the device: {job_ids}")
        for job in jobs:
            job.transfer.never_release(error)
            if job.transfer.result is None:
                self._fail(job, str(error))
        return error

    def take_finished(self) -> list[TransferResult]:
        """Results since the last call; stepped mode only."""
        finished, self._finished = self._finished, []
        return finished

    def _fail(self, job: Job, reason: str) -> None:
        result = job.result(error=reason)
        self._machinery.handlers[job.handler].count(result)
        self._publish(job, result)

    def _publish(self, job: Job, result: TransferResult) -> None:
        if self._mode is Mode.STEPPED:
            self._finished.append(result)
        job.transfer.finish(result)

    def __repr__(self) -> str:
        return f"JobLedger({len(self.jobs)} in flight, {len(self._unreleased)} unreleased, broken: {self.broken})"
