"""How many keys one step may handle, so that a step stays short on the machine it runs on (I10)."""

TARGET_S = 0.0002
"""What a step should take: a pass of the loop has room for it beside a caller's own call and the poller's."""
MIN_KEYS = 32
"""Below this a step's fixed cost is most of it."""


class RunSize:
    """Follows what full runs took; short ones say little about the cost of a key.

    Args:
        max_keys: most keys of a run, whatever it takes.
    """

    __slots__ = ("_max_keys", "keys")

    def __init__(self, max_keys: int) -> None:
        self._max_keys = max(1, max_keys)
        self.keys = self._max_keys

    def learn(self, num_keys: int, seconds: float) -> None:
        """A run of `num_keys` took `seconds`: go a quarter of the way to the size that would have taken the target."""
        if num_keys < self.keys or seconds <= 0:
            return
        wanted = num_keys * TARGET_S / seconds
        self.keys = min(self._max_keys, max(MIN_KEYS, round(self.keys + (wanted - self.keys) / 4)))

    def __repr__(self) -> str:
        return f"<RunSize {self.keys} of at most {self._max_keys} keys>"
