"""A collector for a registry of `prometheus_client`, which asks from whatever thread it likes.

Knows how to have the loop's thread take the snapshot: everything that is counted belongs to it, and read from elsewhere
a dictionary may change while it is walked.
"""

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import Future

from aiokvoffload.errors import ArgumentError, ClosedError, ModeError
from aiokvoffload.metrics.catalogue import FIGURES
from aiokvoffload.metrics.families import family_of
from aiokvoffload.metrics.prometheus import Collector, Metric
from aiokvoffload.service.results import ServiceStatistics
from aiokvoffload.service.service import OffloadingService

logger = logging.getLogger(__name__)


class MetricsCollector(Collector):
    """All figures of a service, for `registry.register(...)`. Made on the service's loop, asked from any thread.

    Each collection is a snapshot of its own. It never raises: before the service is open there are no values, and once
    its loop is closed, or does not answer in time, there are the last ones.

    Args:
        service: whose figures they are.
        timeout_s: how long a thread that asks waits for the loop; the loop itself never waits.

    Raises:
        ArgumentError: the time is none.
        ModeError: no loop is running on this thread.
    """

    def __init__(self, service: OffloadingService, *, timeout_s: float = 1.0) -> None:
        if not (isinstance(timeout_s, int | float) and timeout_s >= 0):
            raise ArgumentError(f"timeout_s must be at least 0 seconds, got {timeout_s!r}")
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            raise ModeError("MetricsCollector: make it on the thread of the service's running loop") from None
        self._service = service
        self._timeout_s = timeout_s
        self._latest: ServiceStatistics | None = None
        self._collections = self._unanswered = 0

    def describe(self) -> Iterator[Metric]:
        """The families without their values: a registry asks for the names when it is given the collector."""
        return (family_of(figure, None) for figure in FIGURES)

    def collect(self) -> Iterator[Metric]:
        """The families with the values of one snapshot."""
        statistics = self.snapshot()
        return (family_of(figure, statistics) for figure in FIGURES)

    def snapshot(self) -> ServiceStatistics | None:
        """The counts now, or the last that could be had; `None` if there never were any."""
        self._collections += 1
        if _running_loop() is self._loop:
            return self._take()
        taken: Future[ServiceStatistics | None] = Future()
        try:
            self._loop.call_soon_threadsafe(lambda: taken.set_result(self._take()))
            return taken.result(self._timeout_s)
        except (RuntimeError, TimeoutError):  # the loop is closed; it is blocked, or stopped
            self._unanswered += 1
            return self._latest

    def _take(self) -> ServiceStatistics | None:
        try:
            self._latest = self._service.statistics()
        except ClosedError:  # not open yet
            return None
        except Exception:  # whatever a plug-in's statistics raise, it must not reach the loop (fault 52)
            logger.warning("the statistics could not be had", exc_info=True)
        return self._latest

    def __repr__(self) -> str:
        return f"<MetricsCollector {self._collections} collections, {self._unanswered} unanswered>"


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
