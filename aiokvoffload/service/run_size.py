"""How many keys one step may handle, so that a step stays short on the machine it runs on (I10)."""

from collections.abc import Sequence

TARGET_S = 0.0002
"""What a step should take: a pass of the loop has room for it beside a caller's own call and the poller's."""
MIN_KEYS = 32
"""Below this a step's fixed cost is most of it."""
MIN_KEYS_THERE = 128
"""The same for what a thread enqueues: handing it over, and the job's end, cost the loop as much as a hundred keys."""


class RunSize:
    """Follows what full runs took; short ones say little about the cost of a key.

    Args:
        max_keys: most keys of a run, whatever it takes.
        min_keys: least keys of a long call's run, unless `max_keys` is less.
    """

    __slots__ = ("_max_keys", "_min_keys", "keys")

    def __init__(self, max_keys: int, min_keys: int = MIN_KEYS) -> None:
        self._max_keys, self._min_keys = max(1, max_keys), min_keys
        self.keys = self._max_keys

    def learn(self, num_keys: int, seconds: float) -> None:
        """A run of `num_keys` took `seconds`: go a quarter of the way to the size that would have taken the target.

        Args:
            num_keys: of the run.
            seconds: processor time of this thread. What it waited for a lock of the interpreter or of the driver would
                have been waited for by a short run too: it must not make runs shorter, and so more of them.
        """
        if num_keys < self.keys or seconds <= 0:
            return
        wanted = num_keys * TARGET_S / seconds
        self.keys = min(self._max_keys, max(self._min_keys, round(self.keys + (wanted - self.keys) / 4)))

    def __repr__(self) -> str:
        return f"<RunSize {self.keys} of at most {self._max_keys} keys>"


class RunSizes:
    """One size for each group and way of enqueueing.

    Args:
        max_keys: most keys of a run.
        max_fragments: most fragments (one block in one tensor) of a run that the loop enqueues itself. A submission
            thread's are not the loop's to pay for.
        fragments_per_key: of each group.
    """

    __slots__ = ("_here", "_there")

    def __init__(self, max_keys: int, max_fragments: int, fragments_per_key: Sequence[int]) -> None:
        self._here = [RunSize(min(max_keys, max_fragments // fragments)) for fragments in fragments_per_key]
        self._there = [RunSize(max_keys, MIN_KEYS_THERE) for _ in fragments_per_key]

    def of(self, group_idx: int, *, enqueued_here: bool) -> RunSize:
        """The size for runs of a group that the loop enqueues itself, or that a thread does."""
        return (self._here if enqueued_here else self._there)[group_idx]

    @property
    def most_keys(self) -> int:
        """Keys of the longest run, of all groups."""
        return max(size.keys for size in (*self._here, *self._there))

    def __repr__(self) -> str:
        return (
            f"<RunSizes {[size.keys for size in self._here]} here, {[size.keys for size in self._there]} on a thread>"
        )
