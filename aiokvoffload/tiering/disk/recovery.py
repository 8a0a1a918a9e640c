"""Reading the rows of an earlier run while the tier serves. A thread reads, the loop takes over what was read."""

import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from aiokvoffload.cpu.threads import Handover
from aiokvoffload.tiering.disk.damage import DAMAGE_ERRORS, is_damage
from aiokvoffload.tiering.disk.io_threads import ExitCount
from aiokvoffload.tiering.disk.rows import ChainRun, read_runs

logger = logging.getLogger(__name__)

BATCH_ROWS = 512
"""Taking over so many costs the loop about half a millisecond (I10)."""
_AHEAD = 2
"""Batches that are read before the loop has taken over the first of them."""


class Recovery:
    """Reads all rows, the earliest stored first; from the beginning again if the system did not let it read to the end.

    Args:
        reader: of the index, this thread's from now on; closed at the end.
        path: of the index.
        handover: leads to the owner's thread.
        retry_s: between two attempts, in seconds.
        adopt: called on the owner's thread with each batch; rows that it knows may be in it once more.
        on_end: called there when all has been read, or no more can be since the index is damaged, or is to be.

    Attributes:
        trouble: why the index cannot be read now; empty if it can, or as far as is known.
    """

    def __init__(
        self,
        reader: sqlite3.Connection,
        path: Path,
        handover: Handover,
        *,
        retry_s: float,
        adopt: Callable[[Sequence[ChainRun]], None],
        on_end: Callable[[], None],
    ) -> None:
        self.trouble = ""
        self._reader, self._path, self._handover, self._retry_s = reader, path, handover, retry_s
        self._adopt, self._on_end = adopt, on_end
        self._room = threading.Semaphore(_AHEAD)
        self._stopping = threading.Event()

    def start(self, exits: ExitCount) -> None:
        """Start the thread.

        Raises:
            TierError: the system gives no more.
        """
        exits.start("aiokvoffload-disk-recovery", self._run)

    def stop(self) -> None:
        """Read no more; returns at once. Batches that were read already may still be handed over."""
        self._stopping.set()
        self._room.release()

    def _run(self) -> None:
        try:
            while not self._has_ended() and not self._stopping.wait(self._retry_s):
                pass
        finally:
            self._reader.close()  # the last to close puts the log away, if it may write
            self._handover.post(self._on_end)

    def _has_ended(self) -> bool:
        """Read once; whether that was the end."""
        try:
            self._read()
        except Exception as error:
            if isinstance(error, DAMAGE_ERRORS) and is_damage(error):
                # What was not read is forgotten, and its slots are used again.
                logger.exception("%s is damaged, and cannot be read to its end", self._path)
                return True
            if not self.trouble:
                logger.warning("%s cannot be read to its end until the system lets it: %s", self._path, error)
            self.trouble = str(error) or repr(error)
            return False
        self.trouble = ""
        return True

    def _read(self) -> None:
        for runs in read_runs(self._reader, BATCH_ROWS):
            self._room.acquire()  # also lets go of the GIL, now and then
            if self._stopping.is_set():
                return
            self._handover.post(partial(self._take_over, runs))

    def _take_over(self, runs: Sequence[ChainRun]) -> None:
        self._room.release()
        if not self._stopping.is_set():
            self._adopt(runs)
