"""Arenas that grow while they are in use: one background thread for all arenas of a worker.

Knows which piece is next and what to do when one cannot be had; knows nothing of who uses the rows.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from aiokvoffload.base import PoolGrowth
from aiokvoffload.copy.arena import HostArena, Piece
from aiokvoffload.copy.faulting import PageFaulter

logger = logging.getLogger(__name__)

JOIN_S = 30.0
"""How long a close waits for the thread; a piece takes milliseconds."""
PAUSE_S = 0.0005
"""Between two pieces. The driver has one lock: a loop that wants to record an event waited for several registrations
in a row, 10 ms at the median, where one followed the other at once (I10)."""
INTERLUDE_AFTER_S = 5.0
"""A few dozen GiB are ready by then; more takes minutes, which what the interlude is for should not wait for."""


class ArenaGrowth:
    """Makes all pieces of arenas ready that are not, in parts that are equal for each arena.

    Args:
        arenas: those with their first pieces ready, or all of them.
        interlude: what the thread does between two pieces, after some seconds, or after the last one.

    Attributes:
        state: how far it has come; a new record after each change, to be read from any thread.
    """

    def __init__(self, arenas: Sequence[HostArena], *, interlude: Callable[[], None] | None = None) -> None:
        self._arenas = tuple(arenas)
        self._interlude = interlude
        self._missing = _in_step(self._arenas)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._callbacks: list[Callable[[PoolGrowth], None]] = []
        self.state = PoolGrowth(self._ready_rows(), ended=not self._missing and interlude is None)

    def start(self, post: Callable[[Callable[[], None]], None]) -> None:
        """Begin to grow, if anything is missing or to be done besides.

        Args:
            post: has its argument called on the thread of those who watch.
        """
        if not self.state.ended:
            tell = partial(post, self._tell)
            self._thread = threading.Thread(target=self._run, args=(tell,), name="aiokvoffload-growth", daemon=True)
            self._thread.start()

    def watch(self, callback: Callable[[PoolGrowth], None]) -> None:
        """Call `callback(state)` now and after each change."""
        self._callbacks.append(callback)
        callback(self.state)

    def stop(self) -> None:
        """Grow no further; does not wait for the piece that is being made ready."""
        self._stopping.set()

    def join(self) -> bool:
        """Wait until nothing grows any more; after a `stop` that takes about as long as pinning one piece.

        Returns:
            False if the thread hangs in the kernel or the driver: the memory must stay where it is.
        """
        if self._thread is None:
            return True
        self._thread.join(JOIN_S)
        return not self._thread.is_alive()

    def _run(self, tell: Callable[[], None]) -> None:
        error = ""
        try:
            self._grow(tell)
            self._run_interlude()
        except Exception as failure:  # noqa: BLE001 - what is ready stays usable, and whoever waits must be told (I1)
            error = str(failure)
            self._give_back()
            logger.warning("CPU memory does not grow further, the cache stays at %s: %s", self._portion(), error)
        ready_rows = self._ready_rows()
        if not error and any(piece.stop_row > piece.arena.ready_rows for piece in self._missing):
            error = "closed while it grew"
        self.state = PoolGrowth(ready_rows, ended=True, error=error)
        tell()

    def _grow(self, tell: Callable[[], None]) -> None:
        began_s = time.monotonic()
        with (
            PageFaulter(stopping=self._stopping) as faulter,
            closing(faulter.fault_in_turn(self._missing)) as faulted,
        ):
            for piece in faulted:
                piece.arena.add(piece)
                self.state = PoolGrowth(self._ready_rows(), ended=False)
                tell()
                self._stopping.wait(PAUSE_S)
                if time.monotonic() - began_s > INTERLUDE_AFTER_S:
                    self._run_interlude()

    def _run_interlude(self) -> None:
        interlude, self._interlude = self._interlude, None
        if interlude is not None and not self._stopping.is_set():
            interlude()

    def _give_back(self) -> None:
        for arena in self._arenas:
            arena.give_back_rest()

    def _portion(self) -> str:
        ready_bytes = sum(arena.ready_bytes for arena in self._arenas)
        return f"{ready_bytes} of {sum(arena.size_bytes for arena in self._arenas)} bytes"

    def _tell(self) -> None:
        for callback in self._callbacks:
            callback(self.state)

    def _ready_rows(self) -> tuple[int, ...]:
        return tuple(arena.ready_rows for arena in self._arenas)

    def __repr__(self) -> str:
        return f"ArenaGrowth({'ended' if self.state.ended else 'growing'}, {self._portion()})"


def _in_step(arenas: Sequence[HostArena]) -> list[Piece]:
    """What is missing, so that all arenas are half ready at the same time: a position needs a slot in each."""
    missing = [piece for arena in arenas for piece in arena.pieces if piece.stop_row > arena.ready_rows]
    return sorted(missing, key=lambda piece: piece.stop_row / piece.arena.num_rows)
