"""One run of a load or a store on every worker; it ends when all of them have ended."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from aiokvoffload.base import OffloadKey, Stream, Transfer, TransferResult
from aiokvoffload.errors import TransferError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What all workers together made of a run.

    Attributes:
        failed_indices: positions of the chunks that did not arrive on every worker (I6).
        moved_bytes: bytes of the workers that succeeded.
        error: what went wrong first, for people; empty if nothing did.
        refused: whether a worker would not begin: what lies in the slots is as good as it was.
    """

    failed_indices: frozenset[int]
    moved_bytes: int
    error: str = ""
    refused: bool = False


class Job:
    """Collects the ends of one run's transfers.

    Args:
        keys: the chunks of the run; all of them count as failed when a worker refuses it.
        on_done: called once with the outcome, when every worker has ended.
        on_released: called once, when no worker touches the run's GPU blocks any more.
    """

    __slots__ = (
        "_error",
        "_failed",
        "_keys",
        "_moved_bytes",
        "_on_done",
        "_on_released",
        "_refused",
        "_running",
        "_touching",
        "transfers",
    )

    def __init__(
        self, keys: Sequence[OffloadKey], *, on_done: Callable[[JobOutcome], None], on_released: Callable[[], None]
    ) -> None:
        self.transfers: list[Transfer] = []
        self._keys = keys
        self._on_done = on_done
        self._on_released = on_released
        # Submitting counts as one more part, so that a worker that ends at once does not end the whole job.
        self._running = self._touching = 1
        self._failed: set[int] = set()
        self._error, self._refused = "", False
        self._moved_bytes = 0

    def submit(self, submissions: Iterable[Callable[[], Transfer]]) -> None:
        """Ask each worker in rank order. After a refusal the rest is not asked: a block is all workers or none (I6)."""
        try:
            for submission in submissions:
                self._watch(submission())
        except Exception as error:  # whatever it is, the run must end, and its slots with it (I1)
            logger.exception("a worker refused a run of %d chunks; the run fails", len(self._keys))
            self._failed.update(range(len(self._keys)))
            self._error = self._error or f"{type(error).__name__}: {error}"
            self._refused = True
        self._rank_released()
        self._part_ended()

    def _watch(self, transfer: Transfer) -> None:
        self.transfers.append(transfer)
        self._running += 1
        self._touching += 1
        transfer.on_done(self._rank_done)
        transfer.on_released(self._rank_released)

    async def fence(self, streams: Iterable[Stream]) -> None:
        """Make each rank's stream wait for that rank's copies, those of a rank that failed half-way included.

        Raises:
            TransferError: some rank's copies failed.
        """
        failures: list[TransferError] = []
        for transfer, stream in zip(self.transfers, streams, strict=False):
            try:
                await transfer.fence(stream)
            except TransferError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _rank_done(self, result: TransferResult) -> None:
        if result.success:
            self._moved_bytes += result.transfer_size
        else:
            logger.warning("transfer %d failed: %s", result.job_id, result.error)
            self._failed.update(result.failed_indices or range(len(self._keys)))
            self._error = self._error or result.error
        self._part_ended()

    def _part_ended(self) -> None:
        self._running -= 1
        if not self._running:
            on_done = self._on_done
            del self._on_done  # it leads back here: no cycle is left to the collector
            on_done(JobOutcome(frozenset(self._failed), self._moved_bytes, self._error, self._refused))

    def _rank_released(self) -> None:
        self._touching -= 1
        if not self._touching:
            on_released = self._on_released
            del self._on_released
            on_released()

    def __repr__(self) -> str:
        return f"<Job {len(self._keys)} chunks, {self._running} parts running>"
