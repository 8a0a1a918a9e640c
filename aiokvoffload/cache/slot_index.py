"""Which slot a key has. Knows nothing of what slots are for.

A dictionary is the fastest index that Python has, but it is rebuilt in one go when it fills up, and about once in every
turnover of a full one: 0.2 ms with 4,096 keys, 29 ms with 262,144. So a big index is many small dictionaries, whose
rebuilds come one at a time (I10); a small one is a single one, since finding the right dictionary costs 50 ns a key.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import cast

from aiokvoffload.base import OffloadKey
from aiokvoffload.cache.chains import SUFFIX_BYTES

MOST_KEYS_IN_ONE = 16_384
_NUM_SHARDS = 256
_SHARD_BYTE = -SUFFIX_BYTES - 1
_FIRST_LOOK = 16


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

    def find_leading(self, keys: Sequence[OffloadKey]) -> tuple[int, ...]:
        """The slots of the leading keys that have one.

        A tuple, since the garbage collector does not go through one of numbers again and again.
        """
        slots: tuple[int, ...] = ()
        if len(keys) == 0 or self.get(keys[0]) is None:
            return slots
        begin, look = 0, _FIRST_LOOK
        while begin < len(keys):
            # As many more as were found: finding many in one go is quicker than to look at each whether it is the last.
            found = self.find(keys[begin : begin + look])
            if None in found:
                return (*slots, *cast("list[int]", found[: found.index(None)]))
            slots = (*slots, *cast("list[int]", found))
            begin, look = begin + look, begin + look
        return slots

    @abstractmethod
    def absent(self, keys: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
        """The keys that have no slot, in the order given; `keys` itself if that is all of them."""

    @abstractmethod
    def put(self, keys: Sequence[OffloadKey], slots: Sequence[int]) -> None:
        """Give each key its slot."""

    @abstractmethod
    def remove(self, keys: Collection[OffloadKey]) -> list[int]:
        """Take their slots from keys; returns them.

        Raises:
            KeyError: one has none; those before it have lost theirs.
        """

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
    return _FlatIndex() if num_slots <= MOST_KEYS_IN_ONE else _ShardedIndex()


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

    def find_leading(self, keys: Sequence[OffloadKey]) -> tuple[int, ...]:
        # A plain loop, which takes two thirds of the time of what would call nothing but C.
        slot_of, slots = self._slots.get, []
        for key in keys:
            slot = slot_of(key)
            if slot is None:
                break
            slots.append(slot)
        return tuple(slots)

    def absent(self, keys: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
        slots = self._slots
        return keys if slots.keys().isdisjoint(keys) else [key for key in keys if key not in slots]

    def put(self, keys: Sequence[OffloadKey], slots: Sequence[int]) -> None:
        index = self._slots
        for key, slot in zip(keys, slots, strict=True):
            index[key] = slot

    def remove(self, keys: Collection[OffloadKey]) -> list[int]:
        return list(map(self._slots.pop, keys))

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
    """Many dictionaries, by the last byte of the hash in a key, which costs less to get at than Python's hash of it.

    Keys whose hashes all end alike share a dictionary, and only its rebuilds are longer for that.
    """

    __slots__ = ("_shards",)

    def __init__(self) -> None:
        self._shards: list[dict[OffloadKey, int]] = [{} for _ in range(_NUM_SHARDS)]

    def get(self, key: OffloadKey) -> int | None:
        return self._shards[key[_SHARD_BYTE]].get(key)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and key in self._shards[key[_SHARD_BYTE]]

    def find(self, keys: Sequence[OffloadKey]) -> list[int | None]:
        shards = self._shards
        return [shards[key[_SHARD_BYTE]].get(key) for key in keys]

    def absent(self, keys: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
        shards = self._shards
        absent = [key for key in keys if key not in shards[key[_SHARD_BYTE]]]
        return absent if len(absent) < len(keys) else keys

    def put(self, keys: Sequence[OffloadKey], slots: Sequence[int]) -> None:
        shards = self._shards
        for key, slot in zip(keys, slots, strict=True):
            shards[key[_SHARD_BYTE]][key] = slot

    def remove(self, keys: Collection[OffloadKey]) -> list[int]:
        shards = self._shards
        return [shards[key[_SHARD_BYTE]].pop(key) for key in keys]

    def items(self) -> Iterator[tuple[OffloadKey, int]]:
        for shard in self._shards:
            yield from shard.items()

    def part(self, number: int) -> dict[OffloadKey, int] | None:
        return self._shards[number] if number < _NUM_SHARDS else None

    def clear(self) -> Sequence[dict[OffloadKey, int]]:
        shards, self._shards = self._shards, [{} for _ in self._shards]
        return shards

    def __len__(self) -> int:
        return sum(map(len, self._shards))
