"""Events become results: asks the device what has ended and says so, on the thread that owns the jobs."""

from aiokvoffload.poller.lag import LagRecorder, LagStatistics
from aiokvoffload.poller.poller import Poller, PollerStatistics
from aiokvoffload.poller.watch import Tracked

__all__ = ["LagRecorder", "LagStatistics", "Poller", "PollerStatistics", "Tracked"]
