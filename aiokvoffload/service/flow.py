"""What a load and a store have in common: they walk their segments run by run and end when their last job has ended."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from aiokvoffload import tracing
from aiokvoffload.base import Event, OffloadKey, ReqContext, Stream
from aiokvoffload.errors import InternalError, OffloadError
from aiokvoffload.service.backend import Backend
from aiokvoffload.service.handle import Handle
from aiokvoffload.service.job import Job, JobOutcome
from aiokvoffload.service.pump import Lane, Progress
from aiokvoffload.service.run_size import RunSize
from aiokvoffload.service.segments import Segment

ResultT = TypeVar("ResultT")

RESET_MEANWHILE = "the cache was reset meanwhile"


class TransferFlow(ABC, Generic[ResultT]):
    """One `load` or `store` from its keys to its result.

    Args:
        backend: what all requests share.
        lane: where the flow stands in line.
        ctx: the request.
        segments: checked keys and blocks.
        after: for each worker, what its copies start after.
        enqueued_here: whether the loop enqueues the copies itself, within the call, and not a submission thread.

    Attributes:
        handle: what the caller has.
        span: traces it, where somebody does.
        span_name: of that span.
    """

    span_name: str

    def __init__(
        self,
        backend: Backend,
        lane: Lane,
        *,
        ctx: ReqContext,
        segments: Sequence[Segment],
        after: Sequence[Stream | Event | None],
        enqueued_here: bool = False,
    ) -> None:
        self.handle: Handle[ResultT] = Handle(len(backend.workers))
        self.span: tracing.Span | None = None
        self._backend = backend
        self._lane = lane
        self._ctx = ctx
        self._segments = segments
        self._after = after
        self._enqueued_here = enqueued_here
        self._segment_idx = 0
        self._position = 0
        self._walking = True
        # The walk itself counts as one, so that a job that ends at once does not end the flow.
        self._running = self._touching = 1
        self._is_void = False
        self._moved_bytes = 0
        self._error = ""
        backend.flows.add(self)

    @property
    def req_id(self) -> str:
        """The request it belongs to."""
        return self._ctx.req_id

    @property
    def walked(self) -> bool:
        """Whether it will submit nothing more."""
        return not self._walking

    def trace(self) -> None:
        """Begin a span under the caller's, which ends with the result."""
        keys = sum(len(segment.keys) for segment in self._segments)
        self.span = tracing.begin(self.span_name, {"request_id": self.req_id, "keys": keys})
        if self.span is not None:
            self.handle._result.add_done_callback(self._end_span)

    def _end_span(self, ended: asyncio.Future[ResultT]) -> None:
        if self.span is None:
            return
        if ended.cancelled():
            self.span.end({}, error="cancelled")
        elif (error := ended.exception()) is not None:
            self.span.end({}, error=str(error))
        else:
            attributes, failure = self._traced(ended.result())
            self.span.end(attributes, error=failure)

    def step(self) -> Progress:
        """Handle the next run."""
        is_over = self._is_void or self._lane.stopped or self._backend.closing
        if self._walking and not is_over and self._segment_idx < len(self._segments):
            segment = self._segments[self._segment_idx]
            run = self._run(segment)
            began_s = time.thread_time()
            progress = self._step_run(segment, run)
            self._run_size(segment).learn(len(run), time.thread_time() - began_s)
            if progress is not Progress.DONE:
                return progress
        self._end_walk()
        return Progress.DONE

    def stop(self) -> None:
        """Submit nothing more. What is submitted goes on to its own end (I2)."""
        self._end_walk()
        self._backend.pump.wake(self._lane)

    def void(self) -> None:
        """The cache was reset: what was moved is of the old epoch, and what comes would mix it with the new one.

        It takes no time, since all flows are told at once; the flow is stopped later, by whoever said so or its step.
        """
        self._is_void = True
        self._error = self._error or RESET_MEANWHILE

    def fail(self, error: Exception) -> None:
        """Whoever awaits gets an error, and the blocks are free when the submitted jobs have ended."""
        if not isinstance(error, OffloadError):
            wrapped = InternalError(f"a step of {self!r} failed: {error}")
            wrapped.__cause__ = error
            error = wrapped
        self.handle._fail(error)
        self._end_walk()

    def abandon(self, error: OffloadError) -> None:
        """The close ran out of time."""
        self.handle._abandon(error)
        self._backend.flows.discard(self)

    @abstractmethod
    def _step_run(self, segment: Segment, run: Sequence[OffloadKey]) -> Progress:
        """Handle `run`, the keys at the current position of `segment`."""

    @abstractmethod
    def _result(self) -> ResultT: ...

    @abstractmethod
    def _traced(self, result: ResultT) -> tuple[tracing.Attributes, str]:
        """What a span says of the result, and its error."""

    def _run(self, segment: Segment) -> Sequence[OffloadKey]:
        return segment.keys[self._position : self._position + self._run_size(segment).keys]

    def _run_size(self, segment: Segment) -> RunSize:
        return self._backend.run_sizes.of(segment.group_idx, enqueued_here=self._enqueued_here)

    def _advance(self, segment: Segment, num_keys: int) -> Progress:
        self._position += num_keys
        if self._position < len(segment.keys):
            return Progress.AGAIN
        return self._next_segment()

    def _next_segment(self) -> Progress:
        self._segment_idx, self._position = self._segment_idx + 1, 0
        return Progress.AGAIN if self._segment_idx < len(self._segments) else Progress.DONE

    def _submit(
        self,
        keys: Sequence[OffloadKey],
        submission: Callable[[Any, int, Any], Callable[[], Any]],
        on_done: Callable[[JobOutcome], None],
    ) -> None:
        """Start a job: `submission(worker, job_id, after)` gives the call to make for one worker."""
        self._running += 1
        self._touching += 1

        def done(outcome: JobOutcome) -> None:
            self._moved_bytes += outcome.moved_bytes
            self._error = self._error or outcome.error
            try:
                on_done(outcome)
            finally:
                self.handle._job_ended(job)
                self._backend.job_ended()
                self._part_ended()

        job = Job(keys, on_done=done, on_released=self._part_released)
        job_id = self._backend.job_started()
        self.handle._job_submitted(job)
        job.submit(
            submission(worker, job_id, after) for worker, after in zip(self._backend.workers, self._after, strict=True)
        )

    def _end_walk(self) -> None:
        if not self._walking:
            return
        self._walking = False
        self.handle._all_submitted()
        self._part_released()
        self._part_ended()

    def _part_ended(self) -> None:
        self._running -= 1
        if not self._running:
            self.handle._resolve(self._result())
            self._check_over()

    def _part_released(self) -> None:
        self._touching -= 1
        if not self._touching:
            self.handle._release()
            self._check_over()

    def _check_over(self) -> None:
        if not self._running and not self._touching:
            self._backend.flows.discard(self)

    def __repr__(self) -> str:
        keys = sum(len(segment.keys) for segment in self._segments)
        return f"<{type(self).__name__} of {self._ctx.req_id!r}: {keys} keys, {self._running} parts running>"
