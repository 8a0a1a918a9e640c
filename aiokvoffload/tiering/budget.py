"""How many slots of each pool a purpose may take at a time. Counts; knows no slot."""

from aiokvoffload.errors import InternalError


class SlotBudget:
    """A bound for each pool (I11).

    Args:
        limits: most slots of each pool.
        pool_of_group: for each KV-cache group its pool.
    """

    __slots__ = ("_limits", "_pool_of_group", "_used")

    def __init__(self, limits: list[int], pool_of_group: dict[int, int]) -> None:
        self._limits = limits
        self._pool_of_group = pool_of_group
        self._used = [0] * len(limits)

    @property
    def used(self) -> int:
        """Slots taken, over all pools."""
        return sum(self._used)

    def left(self, group_idx: int) -> int:
        """How many more may be taken of the pool of a group."""
        pool = self._pool_of_group[group_idx]
        return self._limits[pool] - self._used[pool]

    def take(self, group_idx: int, count: int) -> None:
        """Take some of those that are left."""
        self._used[self._pool_of_group[group_idx]] += count

    def give(self, group_idx: int, count: int) -> None:
        """Give back what was taken.

        Raises:
            InternalError: it was not.
        """
        pool = self._pool_of_group[group_idx]
        self._used[pool] -= count
        if self._used[pool] < 0:
            raise InternalError(f"{count} slots of pool {pool} are given back that were not taken: {self!r}")

    def __repr__(self) -> str:
        return f"SlotBudget({self._used} of {self._limits})"
