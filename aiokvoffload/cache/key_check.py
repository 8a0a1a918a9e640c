"""Whether what a caller gives are keys of the tier's groups. Knows the form of keys, and nothing of who has them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from aiokvoffload.base import OffloadKey
from aiokvoffload.cache.chains import GROUP_SUFFIX, SUFFIX_BYTES, all_end_in, group_suffix
from aiokvoffload.errors import ArgumentError

_Value = TypeVar("_Value")
_UNORDERED = (set, frozenset)
_FEW = 20
"""Keys whose ends are looked at one by one in less time than it takes to prepare a look at all at once."""


def as_sequence(values: Iterable[_Value], name: str = "keys") -> Sequence[_Value]:
    """The values as something that nobody changes, and that is true unless it is empty, which an array is not.

    Calls that every request makes ask for a tuple themselves first, which is a call less.

    Raises:
        ArgumentError: they are not several values, or have no order: a chain of them would be any chain.
    """
    if type(values) is tuple:  # as most often
        return values
    if isinstance(values, _UNORDERED):
        raise ArgumentError(f"{name} must be a sequence, in order, got a {type(values).__name__}")
    try:
        return tuple(values)
    except TypeError:
        raise ArgumentError(f"{name} must be a sequence, got {values!r}") from None


class KeyCheck:
    """Checks keys of groups `0..num_groups - 1`."""

    __slots__ = ("_num_groups", "_only_suffix", "_suffixes")

    def __init__(self, num_groups: int) -> None:
        self._num_groups = num_groups
        self._suffixes = frozenset(map(group_suffix, range(num_groups)))
        self._only_suffix = group_suffix(0) if num_groups == 1 else None

    def require_keys(self, keys: Sequence[OffloadKey]) -> None:
        """Check that all are keys of known groups.

        Raises:
            ArgumentError: one is not; the message shows it.
        """
        if len(keys) > _FEW and self._end_alike(keys):
            return
        suffixes = self._suffixes
        for key in keys:
            if not isinstance(key, bytes) or len(key) <= SUFFIX_BYTES or key[GROUP_SUFFIX] not in suffixes:
                self.refuse(keys)

    def refuse(self, keys: Sequence[OffloadKey]) -> None:
        """Say which is the first that is no key of a known group, one by one.

        Raises:
            ArgumentError: there is one.
        """
        for index, key in enumerate(as_sequence(keys)):
            self.require_key(key, f"keys[{index}]")

    def require_key(self, key: OffloadKey, name: str = "key") -> None:
        """The same for one, which the message calls `name`."""
        if not isinstance(key, bytes) or len(key) <= SUFFIX_BYTES:
            raise ArgumentError(f"{name} must be bytes made by make_offload_key, got {key!r}")
        if key[GROUP_SUFFIX] not in self._suffixes:
            group_idx = int.from_bytes(key[GROUP_SUFFIX], "big")
            raise ArgumentError(f"{name} is of group {group_idx}, there are {self._num_groups} groups")

    def require_distinct(self, keys: Sequence[OffloadKey]) -> None:
        """Check that no key stands in `keys` twice."""
        if len(set(keys)) < len(keys):
            key, times = Counter(keys).most_common(1)[0]
            raise ArgumentError(f"keys must be distinct, got {key!r} {times} times")

    def _end_alike(self, keys: Sequence[OffloadKey]) -> bool:
        """Whether all are keys of one length and of the only group, by few looks."""
        length = len(keys[0]) if isinstance(keys[0], bytes) else 0
        if self._only_suffix is None or length <= SUFFIX_BYTES:
            return False
        for key in keys:
            # Other buffers can be laid end to end too, and are no keys: they may change, or cannot be hashed.
            if type(key) is not bytes or len(key) != length:
                return False
        return all_end_in(self._only_suffix, b"".join(keys), length)
