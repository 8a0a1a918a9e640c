"""A store between prepare and complete: what a second store of its keys joins, and what a load of them waits for."""

from collections.abc import Callable

from aiokvoffload.base import OffloadKey


class RunningStore:
    """Ends once; tells everyone who asked which keys failed."""

    __slots__ = ("_waiting", "failed_keys")

    def __init__(self) -> None:
        self.failed_keys: frozenset[OffloadKey] | None = None
        self._waiting: list[Callable[[RunningStore], None]] = []

    def on_end(self, callback: Callable[["RunningStore"], None]) -> None:
        """Call `callback(self)` when the store ends. Only for a store that has not ended."""
        self._waiting.append(callback)

    def end(self, failed_keys: frozenset[OffloadKey]) -> None:
        """The store is over; all its other keys are readable."""
        self.failed_keys = failed_keys
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback(self)
