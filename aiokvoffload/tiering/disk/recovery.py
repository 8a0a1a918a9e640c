"""Reading the rows of an earlier run while the tier serves. A thread reads, the loop takes over what was read."""

import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from aiokvoffload.cpu.threads import Handover
from aiokvoffload.tiering.disk.io_threads import ExitCount
from aiokvoffload.tiering.disk.rows import ChainRun, connect, read_runs

logger = logging.getLogger(__name__)

BATCH_ROWS = 512
"""Taking over so many costs the loop about half a millisecond (I10)."""
_AHEAD = 2
"""Batches that are read before the loop has taken over the first of them."""


class Recovery:
    """Reads all rows once, the earliest stored first.

    Args:
        path: of the index.
        handover: leads to the owner's thread.
        adopt: called on the owner's thread with each batch.
        on_end: called there when all has been read, or no more can be.
    """

    def __init__(
        self,
        path: Path,
        handover: Handover,
        *,
        adopt: Callable[[Sequence[ChainRun]], None],
        on_end: Callable[[], None],
    ) -> None:
        self._path, self._handover = path, handover
        self._adopt, self._on_end = adopt, on_end
        self._room = threading.Semaphore(_AHEAD)
        self._stopping = False

    def start(self, exits: ExitCount) -> None:
        """Start the thread.

        Raises:
            TierError: the system gives no more.
        """
        exits.start("aiokvoffload-disk-recovery", self._run)

    def stop(self) -> None:
        """Read no more; returns at once. Batches that were read already may still be handed over."""
        self._stopping = True
        self._room.release()

    def _run(self) -> None:
        try:
            self._read()
        except Exception:  # what was not read is forgotten, and its slots are used again
            logger.exception("%s cannot be read to its end", self._path)
        finally:
            self._handover.post(self._on_end)

    def _read(self) -> None:
        connection: sqlite3.Connection = connect(self._path)  # the last to close puts the log away, if it may write
        try:
            for runs in read_runs(connection, BATCH_ROWS):
                self._room.acquire()  # also lets go of the GIL, now and then
                if self._stopping:
                    return
                self._handover.post(partial(self._take_over, runs))
        finally:
            connection.close()

    def _take_over(self, runs: Sequence[ChainRun]) -> None:
        self._room.release()
        if not self._stopping:
            self._adopt(runs)
