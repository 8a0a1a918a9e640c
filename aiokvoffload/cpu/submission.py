"""The thread that puts jobs onto the device: driver calls are too slow for a loop.

Knows lanes, each with work in order, and before each step looks for the first lane that can do one, so that urgent work
overtakes a long job within it. Knows nothing of what the steps are.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from aiokvoffload.copy.engine import Step
from aiokvoffload.errors import BrokenError

logger = logging.getLogger(__name__)

BUSY_S = 0.00003
"""After so long the thread gives the GIL away, at the next step's end."""
MAX_BUSY_S = 0.0005
BUSY_SHARE = 0.1
"""Beside a thread that keeps the GIL a pause lasts 5 ms; so much of it may be used then, or the device would wait."""
PAUSE_S = 0.00005
"""For so long. From a thread that never waits the interpreter takes the GIL only every 5 ms, and a loop that wants it
would be blocked for so long (I10)."""
RETRY_S = 0.0001
"""Between two looks at work that has to wait for the device or for another thread."""
JOIN_S = 5.0
"""How long a stop waits for the thread; it is a daemon, so a stuck one cannot keep the process."""
LIVENESS_S = 0.5
"""How often a flush makes sure that there is a thread left to wait for."""


class Work(Protocol):
    """Something to be done in steps."""

    def ready(self) -> bool:
        """Whether it may begin."""
        ...

    def run(self) -> Iterator[Step]:
        """Do it; yields after each step what it came to."""
        ...


class _Barrier:
    """Work that only tells that its turn has come."""

    def __init__(self) -> None:
        self.passed = threading.Event()

    def ready(self) -> bool:
        return True

    def run(self) -> Iterator[Step]:
        self.passed.set()
        yield Step.DONE


class _Lane:
    """Work of one lane, in order. Belongs to the thread."""

    def __init__(self) -> None:
        self.waiting: deque[Work] = deque()
        self._steps: Iterator[Step] | None = None

    @property
    def busy(self) -> bool:
        return self._steps is not None or bool(self.waiting)

    def step(self) -> Step:
        """Do one step, if one can be done."""
        try:
            if self._steps is None:
                if not self.waiting or not self.waiting[0].ready():
                    return Step.WAITS
                self._steps = self.waiting.popleft().run()
            return next(self._steps)
        except StopIteration:
            self._steps = None
            return Step.DONE
        except BaseException:  # SystemExit too: whoever waits for later work would hang (fault 27)
            logger.exception("work on the submission thread failed")
            self._steps = None
            return Step.DONE


class SubmissionThread:
    """Runs work of several lanes on one daemon thread.

    Args:
        name: what it submits.
        num_lanes: how many there are. Lane 0 goes before all others.
    """

    def __init__(self, name: str, num_lanes: int) -> None:
        self._given: queue.SimpleQueue[tuple[int, Work] | None] = queue.SimpleQueue()
        self._lanes = tuple(_Lane() for _ in range(num_lanes))
        self._stopping = self._abandoned = False
        self._thread = threading.Thread(target=self._run, name=f"aiokvoffload-{name}", daemon=True)
        self._thread.start()

    def put(self, lane: int, work: Work) -> None:
        """Do `work` after everything put into its lane before.

        Raises:
            BrokenError: the thread has ended.
        """
        self._require_alive()
        self._given.put((lane, work))

    def flush(self, lane: int) -> None:
        """Block until everything put into a lane so far has been done.

        Raises:
            BrokenError: the thread has ended.
        """
        barrier = _Barrier()
        self.put(lane, barrier)
        while not barrier.passed.wait(LIVENESS_S):
            self._require_alive()

    def _require_alive(self) -> None:
        if not self._thread.is_alive():
            raise BrokenError("the submission thread has ended")

    def stop(self, *, join: bool = True) -> None:
        """End after what has been put; without `join` end at once, and do not wait for that."""
        self._abandoned = not join
        self._given.put(None)
        if join:
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        step, resumed_at_s, busy_s = Step.WAITS, 0.0, BUSY_S
        while not self._abandoned:
            busy = any(lane.busy for lane in self._lanes)
            if self._stopping and not busy:
                return
            now_s = time.perf_counter()
            kept_gil = step in (Step.PREPARED, Step.DONE)
            if kept_gil and busy and now_s - resumed_at_s > busy_s:
                time.sleep(PAUSE_S)
                paused_s = time.perf_counter() - now_s
                busy_s = min(MAX_BUSY_S, max(BUSY_S, paused_s * BUSY_SHARE))
                resumed_at_s = now_s + paused_s
            elif not kept_gil:
                resumed_at_s = now_s
            self._accept(block=not busy, timeout_s=RETRY_S if busy and step is Step.WAITS else None)
            step = self._step()

    def _accept(self, *, block: bool, timeout_s: float | None) -> None:
        """Take what has been put; wait for it if there is nothing else to do, or nothing that could be done now."""
        try:
            self._take(self._given.get(block=block or timeout_s is not None, timeout=timeout_s))
            while not self._given.empty():
                self._take(self._given.get())
        except queue.Empty:
            return

    def _take(self, given: tuple[int, Work] | None) -> None:
        if given is None:
            self._stopping = True
        else:
            self._lanes[given[0]].waiting.append(given[1])

    def _step(self) -> Step:
        """One step of the first lane that can do one."""
        for lane in self._lanes:
            if lane.busy and (step := lane.step()) is not Step.WAITS:
                return step
        return Step.WAITS

    def __repr__(self) -> str:
        waiting = self._given.qsize() + sum(len(lane.waiting) for lane in self._lanes)
        return f"SubmissionThread({'alive' if self._thread.is_alive() else 'ended'}, {waiting} waiting)"
