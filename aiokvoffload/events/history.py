"""A history of events that outlives the process: written and read on a thread, never waited for by who publishes.

What the disk does not take in time is left out, which the numbers say. A history that is continued says where the
earlier process ended: numbers that nobody can know were used or not are a gap.
"""

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from aiokvoffload.errors import ArgumentError, ClosedError
from aiokvoffload.events.history_files import HistoryFiles, Place
from aiokvoffload.events.records import EventRecord

logger = logging.getLogger(__name__)

_READ_RECORDS = 256
_WRITE_RECORDS = 256
"""Records encoded in one go: the thread holds the interpreter's lock meanwhile (I10)."""


class _Read(NamedTuple):
    """Somebody wants records."""

    first: int
    before: int
    loop: asyncio.AbstractEventLoop
    answer: "asyncio.Future[Sequence[EventRecord]]"


@dataclass(frozen=True, slots=True)
class HistoryStatistics:
    """Counts of a history.

    Attributes:
        first: number of the oldest record on disk.
        last: number of the latest one; -1 if there is none.
        waiting: records that are still to be written.
        written: records written by this process.
        dropped: records that were not, since the disk was too slow or failed.
        trouble: why the latest could not be written, for people; empty if they were.
    """

    first: int
    last: int
    waiting: int
    written: int
    dropped: int
    trouble: str


class EventHistory:
    """Keeps what a bus publishes in files. Open it with `async with`, around the service: `bus.use_archive(history)`.

    What has been published is the operating system's some milliseconds later: it survives the process, however that
    ends, and a crash of the machine as far as that has written it.

    Args:
        directory: for this history alone; is made if it is not there.
        max_bytes: most bytes on disk; beyond it the oldest records go.
        max_waiting: records that may wait to be written; beyond it they are left out.

    Raises:
        ArgumentError: a bound is below 1, or the directory is no path.
    """

    def __init__(self, directory: Path | str, *, max_bytes: int = 64 << 20, max_waiting: int = 10_000) -> None:
        for name, value in (("max_bytes", max_bytes), ("max_waiting", max_waiting)):
            if not isinstance(value, int) or value < 1:
                raise ArgumentError(f"{name} must be at least 1, a whole number, got {value!r}")
        if not isinstance(directory, str | Path):
            raise ArgumentError(f"directory must be a path, got {directory!r}")
        self._directory, self._max_bytes, self._max_waiting = Path(directory), max_bytes, max_waiting
        self._files: HistoryFiles | None = None
        self._thread: threading.Thread | None = None
        self._queue: queue.SimpleQueue[EventRecord | _Read | None] = queue.SimpleQueue()
        self._place: tuple[int, Place] | None = None
        self._is_closed = False
        self._written = self._dropped = 0
        self._trouble = ""

    @property
    def last(self) -> int:
        """Number of the latest record that was written; -1 if there is none.

        Raises:
            ClosedError: the history was never opened.
        """
        return self._opened().last

    async def __aenter__(self) -> Self:
        """Open it.

        Raises:
            ArgumentError: something in the directory is named like a file of a history and is a pipe or leads to none.
            BusyError: another history has the directory open, in this process or another.
            ClosedError: it was opened or closed before, or is closed meanwhile.
            OSError: the directory cannot be used.
        """
        if self._thread is not None or self._is_closed:
            raise ClosedError("a history is opened once")
        opening: Future[HistoryFiles] = Future()
        # One thread opens the files and closes them: no cancellation comes between the two.
        thread = threading.Thread(target=self._run, args=(opening,), name="aiokvoffload-events-history", daemon=True)
        thread.start()
        self._thread = thread
        try:
            self._files = await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            await self.aclose()
            raise
        except BaseException:
            self._thread = None
            raise
        if self._is_closed:
            raise ClosedError("the history was closed while it was being opened")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Write what waits, and let go of the directory. Repeating it does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._queue.put(None)
        if self._thread is not None:
            await asyncio.shield(asyncio.to_thread(self._thread.join))

    def append(self, record: EventRecord) -> None:
        """Have a record written; returns at once. Who publishes calls this, so it never raises."""
        if self._is_closed or self._queue.qsize() >= self._max_waiting:
            self._dropped += 1
        else:
            self._queue.put(record)

    async def read(self, first: int, before: int) -> Sequence[EventRecord]:
        """Some of the records from number `first` to `before`, exclusively, in order; none if none are left."""
        if self._is_closed:
            return ()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[EventRecord]] = loop.create_future()
        self._queue.put(_Read(first, before, loop, answer))
        return await answer

    def statistics(self) -> HistoryStatistics:
        """Counts so far.

        Raises:
            ClosedError: the history was never opened.
        """
        files = self._opened()
        return HistoryStatistics(
            files.first, files.last, self._queue.qsize(), self._written, self._dropped, self._trouble
        )

    def __repr__(self) -> str:
        return f"<EventHistory {self._directory}: {self._written} written, {self._dropped} dropped>"

    def _opened(self) -> HistoryFiles:
        if self._files is None:
            raise ClosedError("the history is not open; use `async with`")
        return self._files

    def _run(self, opening: "Future[HistoryFiles]") -> None:
        """The thread, from the opening of the files to their end."""
        if not opening.set_running_or_notify_cancel():
            return
        try:
            files = HistoryFiles(self._directory, self._max_bytes)
        except BaseException as error:  # noqa: BLE001 - raised where somebody waits for the opening
            opening.set_exception(error)
            return
        opening.set_result(files)
        self._serve(files)

    def _serve(self, files: HistoryFiles) -> None:
        """Everything in the order in which it was asked for."""
        records: list[EventRecord] = []
        try:
            while True:
                task = self._queue.get()
                if isinstance(task, EventRecord):
                    records.append(task)
                    if len(records) < _WRITE_RECORDS and not self._queue.empty():
                        continue
                if records:
                    self._write(files, records)
                    records = []
                if isinstance(task, _Read):
                    _answer(task, self._read(files, task))
                elif task is None:
                    return
        finally:
            files.close()

    def _write(self, files: HistoryFiles, records: Sequence[EventRecord]) -> None:
        try:
            files.append(records)
        except Exception as error:  # whatever it is, the thread goes on: what is not written is a gap (fault 27)
            if not self._trouble:
                logger.exception("events are not written to %s", self._directory)
            self._trouble = f"{type(error).__name__}: {error}"
            self._dropped += len(records)
        else:
            self._trouble = ""
            self._written += len(records)

    def _read(self, files: HistoryFiles, task: _Read) -> Sequence[EventRecord]:
        known = self._place[1] if self._place is not None and self._place[0] == task.first else None
        try:
            records, place = files.read(task.first, task.before, _READ_RECORDS, known)
        except Exception:  # who reads is told of a gap; the thread goes on
            logger.exception("events in %s cannot be read", self._directory)
            return ()
        if records:
            self._place = records[-1].sequence + 1, place
        return records


def _answer(task: _Read, records: Sequence[EventRecord]) -> None:
    def answer() -> None:
        if not task.answer.done():
            task.answer.set_result(records)

    with contextlib.suppress(RuntimeError):  # the loop has closed, and nobody waits (fault 34)
        task.loop.call_soon_threadsafe(answer)
