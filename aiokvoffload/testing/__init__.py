"""For plug-in authors and our own tests: a device and a clock that the test moves, fakes, contract test classes.

Each name is imported when it is first used: what tests tiers does without torch.
"""

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiokvoffload.testing.clock import ManualClock
    from aiokvoffload.testing.device import ManualDevice, PinGateDevice
    from aiokvoffload.testing.worker import MockOffloadingWorker, SubmittedJob

# Else a contract that fails in an author's own tests would not say what came back.
if "pytest" in sys.modules:
    importlib.import_module("pytest").register_assert_rewrite(
        *(f"aiokvoffload.testing.{name}" for name in ("contract", "policy", "tier", "tier_faults"))
    )

__all__ = ["ManualClock", "ManualDevice", "MockOffloadingWorker", "PinGateDevice", "SubmittedJob"]

# Type checkers read the imports above; this function would let them take any name for one of these.
if not TYPE_CHECKING:

    def __getattr__(name):
        if name in __all__:
            for home in ("clock", "device", "worker"):
                module = importlib.import_module(f"aiokvoffload.testing.{home}")
                if hasattr(module, name):
                    return globals().setdefault(name, getattr(module, name))
        raise AttributeError(f"module 'aiokvoffload.testing' has no attribute {name!r}")
