"""The contract of an offloading worker: who moves the bytes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from aiokvoffload.base.memory import GPULoadStoreSpec, LoadStoreSpec
from aiokvoffload.base.transfer import Event, Stream, Transfer, TransferResult
from aiokvoffload.errors import ModeError


@dataclass(frozen=True, slots=True)
class PoolGrowth:
    """How far the memory for slots has grown.

    Attributes:
        ready_slots: for each pool how many slots can be used, from slot 0 on, never fewer than before; `None` for a
            worker that does not grow, since it had all that was asked for when it was made.
        ended: whether there will be no more.
        error: why they are fewer than was asked for, for people; empty while they grow, and where all are there.
    """

    ready_slots: tuple[int, ...] | None
    ended: bool
    error: str = ""


class PoolFile(NamedTuple):
    """A pool's memory as a file that another process can map: row i is slot i.

    The other process gets the descriptor by inheriting it, through a Unix socket (SCM_RIGHTS), or opens
    `/proc/<pid>/fd/<descriptor>`; it maps `num_slots * row_bytes` bytes, shared. The descriptor is closed with the
    worker; what has been mapped stays.
    """

    descriptor: int
    row_bytes: int
    num_slots: int


class OffloadingWorker(ABC):
    """Moves bytes between the GPU blocks of one process and one medium. The direction is in the call's name.

    Both directions start only after `after` (I8); jobs that share a slot or a GPU block run in submission order, others
    may run side by side. Submitting never waits for a copy.
    """

    @abstractmethod
    def bind(self) -> None:
        """Belong to the running loop from now on; the first use does the same. Repeating it there does nothing.

        Raises:
            ModeError: no loop runs here, the worker belongs to another one, or it is stepped.
            ClosedError: the worker was closed before it belonged to a loop.
        """

    @abstractmethod
    def submit_store(
        self,
        job_id: int,
        src: GPULoadStoreSpec,
        dst: LoadStoreSpec,
        *,
        after: Stream | Event | None = None,
        protect_source: bool = True,
    ) -> Transfer:
        """Copy whole chunks out of GPU memory.

        Args:
            job_id: a number not in use.
            src: blocks to read; each group covers whole chunks.
            dst: slots to write, one per chunk, groups in order.
            after: what must end first: a stream (as it is now) or an event; `None` means the calling thread's current
                stream.
            protect_source: make the caller's stream (`after` if it is a stream, else the calling thread's current one)
                wait on the device until the blocks have been read, so that whatever is enqueued there after this call
                may overwrite them. Costs that stream the time of the copy, and the calling thread the time of
                enqueueing it. A caller that writes to no block before `Transfer.released`, or fences the streams that
                do, passes False.

        Raises:
            ArgumentError: ids are out of range, repeated, or do not match; nothing has moved.
            ClosedError: the worker is closed or closing.
            BrokenError: the device failed earlier.
        """

    @abstractmethod
    def submit_load(
        self,
        job_id: int,
        src: LoadStoreSpec,
        dst: GPULoadStoreSpec,
        *,
        after: Stream | Event | None = None,
        expedited: bool = False,
    ) -> Transfer:
        """Copy chunks into GPU memory; leading blocks of the first and trailing blocks of the last may be left out.

        Args:
            job_id: a number not in use.
            src: slots to read, one per chunk touched, groups in order.
            dst: blocks to write.
            after: as for `submit_store`.
            expedited: do not queue behind regular loads.

        Raises:
            ArgumentError, ClosedError, BrokenError: as for `submit_store`.
        """

    @abstractmethod
    def record_event(self, after: Stream | Event | None = None) -> Event:
        """What `after` means at this moment, to be given to submissions that follow later (I8)."""

    @abstractmethod
    def validate_blocks(self, blocks: GPULoadStoreSpec) -> None:
        """Check ids against the GPU tensors without moving anything.

        Raises:
            ArgumentError: an id is out of range or repeated, or the groups do not match.
        """

    @abstractmethod
    def fragments_per_chunk(self, group_idx: int) -> int:
        """Copies that one chunk of a group takes: what a submission costs is counted in them.

        Raises:
            ArgumentError: there is no such group.
        """

    def on_growth(self, callback: Callable[[PoolGrowth], None]) -> None:
        """Call `callback(growth)` now, and after every change where completions are consumed.

        No slot may be named in a submission before it is ready. Slot i is row i in every worker's pool, so with several
        workers those can be used that are ready on all of them. Unless this is overridden, nothing grows.
        """
        callback(PoolGrowth(None, ended=True))

    def pool_files(self) -> Sequence[PoolFile]:
        """One file for each pool, where the slots lie in such; else nothing, and that is so unless it is overridden."""
        return ()

    def slot_views(self, group_idx: int, slots: Sequence[int]) -> Sequence[memoryview]:
        """The payload of each of these slots, in this process's memory, for a tier below to read and write.

        Each begins on a page. They are good until the worker is closed, after `keep_memory` for good.

        Raises:
            ModeError: the slots do not lie in memory of this process; so it is unless this is overridden.
        """
        raise ModeError(f"slot_views: {type(self).__name__} has no slots in this process's memory for tiers below")

    def keep_memory(self) -> None:  # noqa: B027 - who gives no views has nobody outside
        """Leave the slots' memory mapped for good: somebody outside may touch it even after a close (I2)."""

    @abstractmethod
    def get_finished(self) -> list[TransferResult]:
        """Results since the last call. Stepped mode only.

        Raises:
            ModeError: the worker is awaited.
        """

    @abstractmethod
    async def wait(self, job_ids: Collection[int]) -> list[TransferResult]:
        """Wait for these jobs; unknown ones have ended. Awaited mode only."""

    @abstractmethod
    async def aclose(self) -> None:
        """Accept nothing more, wait for every job, free the memory. Repeating it waits for the same end.

        Raises:
            AbandonedError: the time-out passed first; what stragglers may touch stays mapped for good (I2).
        """

    @abstractmethod
    def close(self) -> None:
        """What `aclose` does, from a plain thread: for a stepped worker, or an awaited one without a living loop.

        A stepped worker's results are still to be had afterwards.

        Raises:
            AbandonedError: as for `aclose`.
            ModeError: the worker belongs to an event loop that is not closed.
        """

    @abstractmethod
    def statistics(self) -> Any:
        """A frozen record of counts: for metrics a `cpu.worker_statistics.WorkerStatistics`, or with its attributes."""
