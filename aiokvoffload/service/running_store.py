"""A write of CPU slots between prepare and complete: what a second store of its keys joins, and what loads wait for."""

from collections.abc import Callable, Sequence

from aiokvoffload.base import OffloadKey


class RunningStore:
    """A store from the GPU, or a promotion from a lower tier. Ends once; tells everyone who asked which keys failed.

    Args:
        keys: what it brings, for a promotion.
        source: name of the tier that it comes from; empty for the GPU.
    """

    __slots__ = ("_waiting", "failed_keys", "keys", "source")

    def __init__(self, keys: Sequence[OffloadKey] = (), source: str = "") -> None:
        self.keys, self.source = keys, source
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
