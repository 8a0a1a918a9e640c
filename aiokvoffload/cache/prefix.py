"""How far a hit reaches. Knows keys, groups and which keys are present; nothing of tiers or pools."""

from collections.abc import Sequence, Sized
from math import lcm
from typing import Protocol

from aiokvoffload.base import OffloadKey
from aiokvoffload.config import GroupConfig


class PresentKeys(Protocol):
    """Where keys are looked for; an index of slots is such."""

    def find_leading(self, keys: Sequence[OffloadKey], /) -> Sized:
        """As many as there are leading keys that are present."""
        ...

    def __contains__(self, key: object, /) -> bool: ...


def longest_common_position(
    keys_by_group: Sequence[Sequence[OffloadKey]],
    groups: Sequence[GroupConfig],
    present_by_group: Sequence[PresentKeys],
) -> int:
    """The longest position at which every full group has its prefix and every windowed group its window.

    Positions count in the unit of `GroupConfig.span`, and only those at which a chunk of every group ends are asked
    for: in between, a group would lack the end of a chunk. Each key is looked at once at most.

    Args:
        keys_by_group: for each group the keys of the whole sequence from its start, in chain order.
        groups: as many.
        present_by_group: for each group, where its keys are looked for.

    Returns:
        The position; 0 needs nothing and always fits.
    """
    windows, reach = [], []
    for keys, group, present in zip(keys_by_group, groups, present_by_group, strict=True):
        if group.window_chunks is None:
            reach.append(len(present.find_leading(keys)) * group.span)
        else:
            reach.append(len(keys) * group.span)
            windows.append(_Window(keys, group, present))
    step = lcm(*(group.span for group in groups))
    position = min(reach) // step * step
    while windows:
        shortest = min(window.longest_position(position) for window in windows) // step * step
        if shortest == position:
            break
        position = shortest
    return position


class _Window:
    """Looks for a run of present keys, from the end towards the start, each key once."""

    __slots__ = ("_keys", "_present", "_run_start", "_span", "_window_chunks")

    def __init__(self, keys: Sequence[OffloadKey], group: GroupConfig, present: PresentKeys) -> None:
        self._keys = keys
        self._present = present
        self._span = group.span
        self._window_chunks = group.window_chunks or 0
        self._run_start = len(keys)  # all keys from here to the last end asked for are known to be present

    def longest_position(self, limit: int) -> int:
        """The longest position up to `limit` whose window is all present; `limit` may only fall from call to call."""
        end = limit // self._span
        start = min(self._run_start, end)
        while start > max(0, end - self._window_chunks):
            start -= 1
            if self._keys[start] not in self._present:
                end = start
        self._run_start = start
        return end * self._span
