"""What waits for its turn with one tier: loads before stores, and no store that would wait too long (fault 26)."""

import math
from collections import deque

from aiokvoffload.tiering.chain.calls import TierCall, merge

_WEIGHT_OF_EARLIER = 0.8
"""Of keys and seconds of stores before the latest one, in what a key takes. Both are summed up and then divided: a call
of one key is mostly the price of a call, and would make a queue that goes in large calls look too long by far."""


class TierQueues:
    """Two queues, each with a bound on how many of it run.

    Args:
        max_loads: loads at a time.
        max_stores: stores at a time.
        max_store_delay_s: a store that would wait longer is refused.

    Attributes:
        loads: those that wait.
        stores: those that wait.
        running_loads: how many run.
        running_stores: how many run.
        refused_store_keys: keys of stores that would have waited too long.
    """

    def __init__(self, *, max_loads: int, max_stores: int, max_store_delay_s: float) -> None:
        self.loads: deque[TierCall] = deque()
        self.stores: deque[TierCall] = deque()
        self.running_loads = self.running_stores = 0
        self._max_loads, self._max_stores = max_loads, max_stores
        self._max_store_delay_s = max_store_delay_s
        self._stored_keys = self._store_s = 0.0
        self._queued_store_keys = 0
        self.refused_store_keys = 0

    @property
    def store_delay_s(self) -> float:
        """How long a store that came now would wait, as stores went lately."""
        key_store_s = self._store_s / self._stored_keys if self._stored_keys else 0.0
        return self._queued_store_keys * key_store_s / self._max_stores

    def admit_store(self, call: TierCall) -> bool:
        """Let a store wait, unless that would take too long."""
        if self.store_delay_s > self._max_store_delay_s:
            self.refused_store_keys += len(call.keys)
            return False
        self.stores.append(call)
        self._queued_store_keys += len(call.keys)
        return True

    def admit_every_store(self) -> None:
        """A close waits for all that is owed, and has an end of its own: none waits too long any more."""
        self._max_store_delay_s = math.inf

    def next_load(self) -> TierCall | None:
        """A load that may begin now; it counts as running."""
        if not self.loads or self.running_loads >= self._max_loads:
            return None
        self.running_loads += 1
        return self.loads.popleft()

    def next_store(self) -> TierCall | None:
        """A store that may begin now; it counts as running."""
        if self.loads or not self.stores or self.running_stores >= self._max_stores:
            return None
        self.running_stores += 1
        calls = [self.stores.popleft()]
        num_keys = len(calls[0].keys)
        # What has piled up in small pieces goes in one.
        while self.stores and calls[0].can_go_with(self.stores[0], num_keys):
            calls.append(self.stores.popleft())
            num_keys += len(calls[-1].keys)
        self._queued_store_keys -= num_keys
        return merge(calls)

    def load_ended(self) -> None:
        """A running load has ended."""
        self.running_loads -= 1

    def store_ended(self, num_keys: int, seconds: float) -> None:
        """A running store of so many keys has ended after so long."""
        self.running_stores -= 1
        self._stored_keys = _WEIGHT_OF_EARLIER * self._stored_keys + num_keys
        self._store_s = _WEIGHT_OF_EARLIER * self._store_s + seconds

    def take_waiting(self, *, loads: bool = True, stores: bool = True) -> list[TierCall]:
        """Empty the queues; what runs goes on."""
        taken: list[TierCall] = []
        if loads:
            taken += self.loads
            self.loads.clear()
        if stores:
            taken += self.stores
            self.stores.clear()
            self._queued_store_keys = 0
        return taken

    @property
    def idle(self) -> bool:
        """Whether nothing waits or runs."""
        return not (self.loads or self.stores or self.running_loads or self.running_stores)

    def __repr__(self) -> str:
        return (
            f"TierQueues({len(self.loads)} loads and {len(self.stores)} stores waiting, "
            f"{self.running_loads} and {self.running_stores} running)"
        )
