"""Which slot a key has. Knows nothing of what slots are for.

A dictionary is the fastest index that Python has, but it is rebuilt in one go when it fills up, and about once in every
turnover of a full one: 0.2 ms with 4,096 keys, 29 ms with 262,144. So a big index is many small dictionaries, whose
rebuilds come one at a time (I10); a small one is a single one, since finding the right dictionary costs 80 ns a key.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from itertools import repeat
from operator import contains

from aiokvoffload.base import OffloadKey

MOST_KEYS_IN_ONE = 16_384
_KEYS_PER_SHARD = 4_096


class SlotIndex(ABC):
    """The slot of every key that has one. Calls take many keys, since a Python call for each would cost most."""

    __slots__ = ()

    @abstractmethod
    def get(self, key: OffloadKey) -> int | None:
        """The slot of one key."""

    @abstractmethod
    def __contains__(self, key: object) -> bool: ...

    @abstractmethod
    def find(self, keys: Sequence[OffloadKey]) -> list[int | None]:
        """The slot of each key."""

    @abstractmethod
    def find_leading(self, keys: Sequence[OffloadKey]) -> list[int]:
        """The slots of the leading keys that have one."""

    @abstractmethod
    def has_none_of(self, keys: Collection[OffloadKey]) -> bool:
        """Whether no key has a slot."""

    @abstractmethod
    def put(self, keys: Sequence[OffloadKey], slots: Sequence[int]) -> None:
        """Give each key its slot."""

    @abstractmethod
    def remove(self, keys: Collection[OffloadKey]) -> list[int | None]:
        """Take their slots from keys; returns them, with `None` for a key that had none."""

    @abstractmethod
    def items(self) -> Iterator[tuple[OffloadKey, int]]:
        """Keys and slots, in no particular order."""

    @abstractmethod
    def part(self, number: int) -> dict[OffloadKey, int] | None:
        """One of the dictionaries, not to be changed, or `None` behind the last; a key is always in the same one."""

    @abstractmethod
    def clear(self) -> Sequence[dict[OffloadKey, int]]:
        """Forget all at once; returns the dictionaries, for the caller to empty little by little."""

    @abstractmethod
    def __len__(self) -> int: ...


def make_slot_index(num_slots: int) -> SlotIndex:
    """The index that fits a pool of so many slots."""
    return _FlatIndex() if num_slots <= MOST_KEYS_IN_ONE else _ShardedIndex(num_slots // _KEYS_PER_SHARD)


class _FlatIndex(SlotIndex):
    """One dictionary."""

    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots: dict[OffloadKey, int] = {}

    def get(self, key: OffloadKey) -> int | None:
        return self._slots.get(key)

    def __contains__(self, key: object) -> bool:
        return key in self._slots

    def find(self, keys: Sequence[OffloadKey]) -> list[int | None]:
        return list(map(self._slots.get, keys))

    def find_leading(self, keys: Sequence[OffloadKey]) -> list[int]:
        return list(iter(map(self._slots.get, keys).__next__, None))

    def has_none_of(self, keys: Collection[OffloadKey]) -> bool:
        return self._slots.keys().isdisjoint(keys)

    def put(self, keys: Sequence[OffloadKey], slots: Sequence[int]) -> None:
        self._slots.update(zip(keys, slots, strict=True))

    def remove(self, keys: Collection[OffloadKey]) -> list[int | None]:
        return list(map(self._slots.pop, keys, repeat(None)))

    def items(self) -> Iterator[tuple[OffloadKey, int]]:
        return iter(self._slots.items())

    def part(self, number: int) -> dict[OffloadKey, int] | None:
        return self._slots if number == 0 else None

    def clear(self) -> Sequence[dict[OffloadKey, int]]:
        slots, self._slots = self._slots, {}
        return [slots]

    def __len__(self) -> int:
        return len(self._slots)


class _ShardedIndex(SlotIndex):
    """Many dictionaries, by the hash that a key caches: what its bytes begin with is the caller's choice."""

    __slots__ = ("_mask", "_shards")

    def __init__(self, num_shards: int) -> None:
        self._mask = (1 << (num_shards - 1).bit_length()) - 1
        self._shards: list[dict[OffloadKey, int]] = [{} for _ in range(self._mask + 1)]

    def get(self, key: OffloadKey) -> int | None:
        return self._shards[hash(key) & self._mask].get(key)

    def __contains__(self, key: object) -> bool:
        return key in self._shards[hash(key) & self._mask]

    def find(self, keys: Sequence[OffloadKey]) -> list[int | None]:
        shards, mask = self._shards, self._mask
        return [shards[hash(key) & mask].get(key) for key in keys]

    def find_leading(self, keys: Sequence[OffloadKey]) -> list[int]:
        shards, mask = self._shards, self._mask
        slots = []
        for key in keys:
            slot = shards[hash(key) & mask].get(key)
            if slot is None:
                break
            slots.append(slot)
        return slots

    def has_none_of(self, keys: Collection[OffloadKey]) -> bool:
        shards, mask = self._shards, self._mask
        return not any(map(contains, [shards[hash(key) & mask] for key in keys], keys))

    def put(self, keys: Sequence[OffloadKey], slots: Sequence[int]) -> None:
        shards, mask = self._shards, self._mask
        for shard, key, slot in zip([shards[hash(key) & mask] for key in keys], keys, slots, strict=True):
            shard[key] = slot

    def remove(self, keys: Collection[OffloadKey]) -> list[int | None]:
        shards, mask = self._shards, self._mask
        return [shards[hash(key) & mask].pop(key, None) for key in keys]

    def items(self) -> Iterator[tuple[OffloadKey, int]]:
        for shard in self._shards:
            yield from shard.items()

    def part(self, number: int) -> dict[OffloadKey, int] | None:
        return self._shards[number] if number <= self._mask else None

    def clear(self) -> Sequence[dict[OffloadKey, int]]:
        shards, self._shards = self._shards, [{} for _ in self._shards]
        return shards

    def __len__(self) -> int:
        return sum(map(len, self._shards))
