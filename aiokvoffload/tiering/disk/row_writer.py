"""The one thread that writes the index: changes in the order they come, as many in one transaction as have come.

Knows rows and whom to tell; knows no keys' order and no slot's state.
"""

import logging
import queue
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

from aiokvoffload.cpu.threads import Handover
from aiokvoffload.tiering.disk.calls import DiskCalls, Step
from aiokvoffload.tiering.disk.io_threads import ExitCount
from aiokvoffload.tiering.disk.rows import RowColumns, RowStore

logger = logging.getLogger(__name__)

MAX_BATCH_CHANGES = 1024
COMMIT_PERIOD_S = 0.001
"""Between two commits, while changes come faster: each wants the GIL some ten times, among others that want it."""


class RowChange(NamedTuple):
    """Rows that come and rows that go, by their slots in a pool; `clears` deletes all that came before.

    `on_committed` is called on the owner's thread once that survives the death of the process.
    """

    pool: int = 0
    inserts: RowColumns = RowColumns()
    deletes: Sequence[int] = ()
    on_committed: Callable[[], None] | None = None
    clears: bool = False


class RowWriter:
    """Writes changes of rows, and tries again while it cannot.

    Args:
        rows: the index, this thread's from now on; closed at the end.
        calls: told of each step.
        handover: leads to the owner's thread.
        retry_s: between two attempts, in seconds.
        on_trouble: called on the owner's thread when an attempt has failed.

    Attributes:
        trouble: why the index cannot be written now; empty if it can, or as far as is known.
        commits: transactions so far.
        failures: attempts that failed, so far.
    """

    def __init__(
        self,
        rows: RowStore,
        *,
        calls: DiskCalls,
        handover: Handover,
        retry_s: float,
        on_trouble: Callable[[], None],
    ) -> None:
        self.trouble = ""
        self.commits = self.failures = 0
        self._rows, self._calls, self._handover = rows, calls, handover
        self._retry_s, self._on_trouble = retry_s, on_trouble
        self._changes: queue.SimpleQueue[RowChange | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._committed_s = 0.0

    def start(self, exits: ExitCount) -> None:
        """Start the thread.

        Raises:
            TierError: the system gives no more.
        """
        exits.start("aiokvoffload-disk-rows", self._run)

    def put(self, change: RowChange) -> None:
        """Write a change after all that were put before; returns at once."""
        self._changes.put(change)

    def stop(self) -> None:
        """End after what has been put, unless it cannot be written; returns at once."""
        self._stopping.set()
        self._changes.put(None)

    @property
    def waiting(self) -> int:
        """Changes that are not being written yet."""
        return self._changes.qsize()

    def _run(self) -> None:
        try:
            is_last = False
            while not is_last:
                batch, is_last = self._collect()
                self._write(batch)
            self._rows.close()
        except Exception:  # nobody waits for this thread's result, but its end must be told
            logger.exception("the index cannot be closed")

    def _collect(self) -> tuple[list[RowChange], bool]:
        batch: list[RowChange] = []
        change = self._changes.get()
        if (pause_s := self._committed_s + COMMIT_PERIOD_S - time.monotonic()) > 0:
            time.sleep(pause_s)
        while change is not None:
            batch.append(change)
            if len(batch) == MAX_BATCH_CHANGES:
                return batch, False
            try:
                change = self._changes.get_nowait()
            except queue.Empty:
                return batch, False
        return batch, True

    def _write(self, batch: Sequence[RowChange]) -> None:
        while batch:
            try:
                self._commit(batch)
            except Exception as error:  # noqa: BLE001 - whoever waits for a slot would hang without this thread (31)
                self._note(error)
                if self._stopping.wait(self._retry_s):
                    logger.warning("%s: %d changes of rows are lost: %s", self._rows.path, len(batch), error)
                    return
                continue
            self.trouble = ""
            self._committed_s = time.monotonic()
            self.commits += 1
            self._handover.post(partial(_tell, [change.on_committed for change in batch if change.on_committed]))
            self._calls.reached(Step.SLOTS_FREED)
            return

    def _commit(self, batch: Sequence[RowChange]) -> None:
        clears = False
        inserts, deletes = defaultdict[int, list[RowColumns]](list), defaultdict[int, list[int]](list)
        for change in batch:
            if change.clears:
                clears = True
                inserts.clear()
                deletes.clear()
            inserts[change.pool].append(change.inserts)
            # A slot gets no row in the batch that deletes its last one: it is free only when that is committed.
            deletes[change.pool] += change.deletes
        joined = {pool: _joined(parts) for pool, parts in inserts.items()}
        with self._rows.changing(clear=clears, inserts=joined, deletes=deletes):
            self._calls.reached(Step.ROWS_CHANGED)
        self._calls.reached(Step.ROWS_COMMITTED)

    def _note(self, error: Exception) -> None:
        self.failures += 1
        if not self.trouble:
            level = logging.WARNING if isinstance(error, sqlite3.Error | OSError) else logging.ERROR
            logger.log(level, "%s cannot be written, nothing is stored until it can: %s", self._rows.path, error)
        self.trouble = str(error) or repr(error)
        self._handover.post(self._on_trouble)

    def __repr__(self) -> str:
        return f"RowWriter({self.commits} commits, {self.waiting} changes waiting, trouble {self.trouble!r})"


def _joined(parts: Sequence[RowColumns]) -> RowColumns:
    return RowColumns(*(list(chain.from_iterable(columns)) for columns in zip(*parts, strict=True)))


def _tell(callbacks: Sequence[Callable[[], None]]) -> None:
    for callback in callbacks:
        callback()
