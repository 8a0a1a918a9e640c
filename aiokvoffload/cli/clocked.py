"""Time spent inside a manager, measured from outside it.

Knows the manager's contract and a clock; changes nothing of what the manager does.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

from aiokvoffload.base import OffloadingManager

_UNTIMED = {"check_integrity", "statistics"}
"""For whoever looks at a manager; serving requests does without."""


class ManagerClock:
    """Wraps a manager so that the time inside its methods adds up.

    Calls that a manager makes to itself are inside the outer call already and are not counted twice.

    Args:
        pause_s: seconds slept before each call, which are not counted.
    """

    def __init__(self, pause_s: float = 0.0) -> None:
        self.spent_ns = 0
        self._pause_s = pause_s

    def __repr__(self) -> str:
        return f"ManagerClock({self.spent_ns / 1e6:.1f} ms)"

    def wrap(self, manager: OffloadingManager) -> OffloadingManager:
        """A manager that does the same and is timed."""
        methods = {name: getattr(manager, name) for name in OffloadingManager.__abstractmethods__}
        namespace = {
            name: staticmethod(method if name in _UNTIMED else self.timed(method)) for name, method in methods.items()
        }
        # Built from the contract, so that a method added to it cannot be forgotten here.
        clocked: OffloadingManager = type("ClockedManager", (OffloadingManager,), namespace)()
        return clocked

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, with its duration added to `spent_ns`."""
        now_ns = time.perf_counter_ns  # not to be looked up between two looks at it, where caches are cold

        @functools.wraps(call)
        def measured(*args: Any, **kwargs: Any) -> Any:
            if self._pause_s:
                time.sleep(self._pause_s)
            started_ns = now_ns()
            try:
                return call(*args, **kwargs)
            finally:
                ended_ns = now_ns()
                self.spent_ns += ended_ns - started_ns

        return measured
