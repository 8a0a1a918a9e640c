"""For plug-in authors and our own tests: a device and a clock that the test moves, fakes, contract test classes."""

from aiokvoffload.testing.clock import ManualClock
from aiokvoffload.testing.device import ManualDevice, PinGateDevice
from aiokvoffload.testing.worker import MockOffloadingWorker, SubmittedJob

__all__ = ["ManualClock", "ManualDevice", "MockOffloadingWorker", "PinGateDevice", "SubmittedJob"]
