"""What `load` and `store` return at once: something to await, to fence on, and to know when GPU blocks are free."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Generic, TypeVar

from aiokvoffload.base import OffloadKey, Stream
from aiokvoffload.errors import ArgumentError, OffloadError, TransferError
from aiokvoffload.service.job import Job

ResultT = TypeVar("ResultT")


class Handle(Generic[ResultT]):
    """One accepted load or store. Awaiting it gives its result; cancelling whoever awaits changes nothing else (I2).

    It is no coroutine: `asyncio.ensure_future` makes a task of it, `create_task` does not.
    """

    def __init__(self, num_workers: int) -> None:
        loop = asyncio.get_running_loop()
        self._num_workers = num_workers
        self._result: asyncio.Future[ResultT] = loop.create_future()
        self._submitted: asyncio.Future[None] = loop.create_future()
        self._released: asyncio.Future[None] = loop.create_future()
        self._unserved: Sequence[Sequence[OffloadKey]] = ()
        # Ended jobs are let go: they lead back here, and a long call would leave a heap of cycles to the collector.
        self._jobs: set[Job] = set()

    def __await__(self) -> Generator[Any, None, ResultT]:
        if self._result.done():
            # Else whoever loads or stores in a row what is there or refused would keep the loop to itself (I10).
            yield
        return (yield from asyncio.shield(self._result).__await__())

    def done(self) -> bool:
        """Whether the result is there."""
        return self._result.done()

    @property
    def released(self) -> Awaitable[None]:
        """Resolves when none of the GPU blocks is touched any more and none will be."""
        return asyncio.shield(self._released)

    def on_released(self, callback: Callable[[], None]) -> None:
        """Call `callback()` once the GPU blocks are free; soon, on the loop, if they are already.

        It is never called for blocks that an abandoned copy may still touch.

        Raises:
            ArgumentError: it cannot be called.
        """
        require_callable(callback)
        self._released.add_done_callback(lambda future: None if future.exception() else callback())

    async def fence(self, stream: Stream | Sequence[Stream]) -> None:
        """Return once `stream` has been made to wait, on the device, for the last copy.

        Later work on the stream then sees loaded blocks, or may overwrite stored ones. The host waits only until
        everything is submitted.

        Args:
            stream: one stream for all workers, or one per worker in rank order.

        Raises:
            ArgumentError: another number of streams than workers.
            TransferError: some keys cannot be served; the stream waits for the others all the same.
        """
        streams = per_rank("stream", stream, self._num_workers)
        await asyncio.shield(self._submitted)
        if not await self._fence_jobs(streams):
            # What failed is known exactly when the job has ended, which it does soon: it was not enqueued in full.
            await asyncio.wait([self._result])
        if unserved := tuple(itertools.chain.from_iterable(self._unserved)):
            raise TransferError(f"{len(unserved)} keys cannot be served, the first is {unserved[0].hex()}", unserved)

    async def _fence_jobs(self, streams: Sequence[Stream]) -> bool:
        """Whether every running job could be fenced; those that could are, whatever happens to the others."""
        all_fenced = True
        for job in tuple(self._jobs):
            try:
                await job.fence(streams)
            except TransferError:
                all_fenced = False
        return all_fenced

    def _job_submitted(self, job: Job) -> None:
        self._jobs.add(job)

    def _job_ended(self, job: Job) -> None:
        self._jobs.discard(job)

    def _cannot_serve(self, parts: Sequence[Sequence[OffloadKey]]) -> None:
        """Keys known so far, in parts; a fence tells."""
        self._unserved = parts

    def _all_submitted(self) -> None:
        if not self._submitted.done():
            self._submitted.set_result(None)

    def _release(self) -> None:
        if not self._released.done():
            self._released.set_result(None)

    def _resolve(self, result: ResultT) -> None:
        if not self._result.done():
            self._result.set_result(result)

    def _fail(self, error: OffloadError) -> None:
        _set_exception(self._result, error)

    def _abandon(self, error: OffloadError) -> None:
        """The close ran out of time: waiters get the error, and the blocks never count as free."""
        for future in (self._result, self._submitted, self._released):
            _set_exception(future, error)

    def __repr__(self) -> str:
        if self.done():
            return f"<Handle done: {self._result.exception() or self._result.result()}>"
        state = "released" if self._released.done() else "submitted" if self._submitted.done() else "waiting"
        return f"<Handle {state}, {len(self._jobs)} jobs running>"


def _set_exception(future: asyncio.Future[Any], error: OffloadError) -> None:
    if not future.done():
        future.set_exception(error)
        # Marks it as seen: whoever awaits gets it, and if nobody does, that is no second error.
        future.exception()


def require_callable(callback: object) -> None:
    """Check it where it is given: called later, on the loop, nobody would hear of it.

    Raises:
        ArgumentError: it cannot be called.
    """
    if not callable(callback):
        raise ArgumentError(f"callback must be callable, got {callback!r}")


def per_rank(name: str, value: Any, num_workers: int) -> Sequence[Any]:
    """One entry per worker: a single value is meant for all of them.

    Raises:
        ArgumentError: a list or tuple of another length.
    """
    if not isinstance(value, list | tuple):
        return [value] * num_workers
    if len(value) != num_workers:
        raise ArgumentError(f"{name} must be one, or one for each of {num_workers} workers, got {len(value)}")
    return value
