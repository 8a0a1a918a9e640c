"""Getting the outcome of other threads' work back onto the owner's. Knows nothing of what the work is."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)


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
