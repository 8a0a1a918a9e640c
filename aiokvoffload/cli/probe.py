"""How long an event loop was blocked, seen from outside.

Knows clocks and percentiles; knows nothing of what the loop does.
"""

import asyncio
import contextlib
import random
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

PERIOD_S = 0.002
_MAX_OUTSTANDING = 4096
"""Posts a blocked loop may owe before the probe stops posting: about 8 s worth."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of samples in microseconds; all zero without samples."""

    p50: float = 0.0
    p99: float = 0.0
    max: float = 0.0


class Reservoir:
    """A fair sample of a stream of numbers in bounded memory, and its exact maximum.

    Vitter's algorithm R (1985), with a generator of its own so that figures repeat.

    Args:
        capacity: samples kept.
    """

    def __init__(self, capacity: int = 8192) -> None:
        self.capacity = capacity
        self.count = 0
        self._max = 0.0
        self._kept: list[float] = []
        self._random = random.Random(0)  # noqa: S311 - not for cryptography

    def __repr__(self) -> str:
        return f"Reservoir({len(self._kept)} kept of {self.count} seen)"

    def add(self, value: float) -> None:
        """Count one number."""
        self.count += 1
        self._max = max(self._max, value)
        if len(self._kept) < self.capacity:
            self._kept.append(value)
        elif (index := self._random.randrange(self.count)) < self.capacity:
            self._kept[index] = value

    def percentiles(self) -> Percentiles:
        """Median, 99th percentile (nearest rank) and maximum."""
        if not self._kept:
            return Percentiles()
        ordered = sorted(self._kept)
        return Percentiles(ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100], self._max)


class LoopProbe:
    """Posts to the running loop every two milliseconds from a thread and measures when the loop got to it.

    It keeps posting while the loop is blocked: a pause of 100 ms shows as fifty late posts, not as one.
    Used as `with LoopProbe() as probe:` on the loop.
    """

    def __init__(self, period_s: float = PERIOD_S) -> None:
        self.blocked_us = Reservoir()
        self._period_s = period_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._post_until_stopped, name="aiokvoffload-probe", daemon=True)
        # Two counters with one writer each, so that neither needs a lock.
        self._posted = 0
        self._ran = 0

    def __repr__(self) -> str:
        return f"LoopProbe({self._posted} posted, {self._ran} ran)"

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not joined: the loop must not wait for a thread.
        self._stopping.set()

    def join(self) -> None:
        """Wait until the thread has ended; not to be called on the loop."""
        self._thread.join()

    def _post_until_stopped(self) -> None:
        while not self._stopping.wait(self._period_s):
            if self._posted - self._ran >= _MAX_OUTSTANDING:
                continue
            self._posted += 1
            with contextlib.suppress(RuntimeError):  # the loop was closed between
                self._loop.call_soon_threadsafe(self._run, time.perf_counter_ns())

    def _run(self, posted_ns: int) -> None:
        self._ran += 1
        self.blocked_us.add((time.perf_counter_ns() - posted_ns) / 1_000)
