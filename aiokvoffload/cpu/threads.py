"""Getting the outcome of other threads' work back onto the owner's. Knows nothing of what the work is."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)

PASS_S = 0.0002
"""After so long in one pass of the loop what is left has to wait for the next (I10): behind a loop that was kept from
its work for a while there are a hundred calls, and after many of them somebody's transfer has ended."""


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
            self._loop.call_soon_threadsafe(self._hop, self._loop)
        except RuntimeError:  # the loop has closed: nobody is left to tell, and the device's work goes on (fault 34)
            self._hop_pending = False

    def run(self) -> None:
        """Make all pending calls, on the owner's thread."""
        while self._calls:
            self._call_next()

    def _hop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make those that one pass of the loop has time for."""
        try:
            # Before looking: what is posted from here on either is seen below or schedules a hop of its own.
            self._hop_pending = False
            until_s = time.perf_counter() + PASS_S
            while self._calls and time.perf_counter() < until_s:
                self._call_next()
        finally:  # an interrupt raised by a call ends this run of the loop; another run of it goes on
            if self._calls and not self._hop_pending:
                self._hop_pending = True
                loop.call_soon(self._hop, loop)

    def _call_next(self) -> None:
        call = self._calls.popleft()
        try:
            call()
        except Exception:  # one call's trouble must not keep back the others (fault 27)
            logger.exception("a call handed over to the owner's thread failed")
