"""Getting work off the owner's thread and its outcome back onto it. Knows nothing of what the work is."""

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable

from aiokvoffload.errors import BrokenError

logger = logging.getLogger(__name__)

PAUSE_S = 0.00005
"""Between two pieces of work. From a thread that never waits the interpreter takes the GIL only every 5 ms, and a loop
that wants it would be blocked for so long (I10)."""
JOIN_S = 5.0
"""How long a stop waits for the thread; it is a daemon, so a stuck one cannot keep the process."""
LIVENESS_S = 0.5
"""How often a flush makes sure that there is a thread left to wait for."""


class SubmissionThread:
    """Runs what it is given, in order, on one daemon thread: driver calls that are too slow for a loop."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="aiokvoffload-submission", daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], None]) -> None:
        """Run `work` after everything put before.

        Raises:
            BrokenError: the thread has ended.
        """
        self._require_alive()
        self._work.put(work)

    def flush(self) -> None:
        """Block until everything put so far has run.

        Raises:
            BrokenError: the thread has ended.
        """
        done = threading.Event()
        self.put(done.set)
        while not done.wait(LIVENESS_S):
            self._require_alive()

    def _require_alive(self) -> None:
        if not self._thread.is_alive():
            raise BrokenError("the submission thread has ended")

    def stop(self, *, join: bool = True) -> None:
        """End after what has been put; without `join` do not wait for that."""
        self._work.put(None)
        if join:
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except BaseException:  # SystemExit too: whoever waits for later work would hang (fault 27)
                logger.exception("work on the submission thread failed")
            work = None  # an idle thread must not keep the last job alive
            if not self._work.empty():
                time.sleep(PAUSE_S)

    def __repr__(self) -> str:
        return f"SubmissionThread({'alive' if self._thread.is_alive() else 'ended'}, {self._work.qsize()} waiting)"


class Handover:
    """Carries calls from other threads to the owner's, one hop to its loop for all that are pending.

    Without a loop they stay until the owner calls `run`.
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hop_pending = False

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on the owner is the thread of `loop`."""
        self._loop = loop

    def post(self, call: Callable[[], None]) -> None:
        """Have the owner call `call()`. From any thread."""
        self._calls.append(call)
        if self._loop is None or self._hop_pending:
            return
        self._hop_pending = True
        try:
            self._loop.call_soon_threadsafe(self.run)
        except RuntimeError:  # the loop has closed: nobody is left to tell, and the device's work goes on (fault 34)
            self._hop_pending = False

    def run(self) -> None:
        """Make all pending calls, on the owner's thread."""
        # Before looking: what is posted from here on either is seen below or schedules a hop of its own.
        self._hop_pending = False
        while self._calls:
            call = self._calls.popleft()
            try:
                call()
            except Exception:  # one call's trouble must not keep back the others (fault 27)
                logger.exception("a call handed over to the owner's thread failed")
