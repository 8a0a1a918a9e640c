"""GAP: Gittins index over age and popularity. Keeps the keys whose slots are worth most, by what reuse was seen.

What a slot is worth is in `gittins`, what is learned in `reuse`; here is who stays.
"""

from array import array
from collections.abc import Iterable, Sequence, Set
from itertools import accumulate, compress, repeat
from operator import and_
from typing import Any

from aiokvoffload.base import Admission, OffloadKey, Residents
from aiokvoffload.cache.policies.ghosts import CountTable, fingerprints
from aiokvoffload.cache.policies.gittins import EPOCHS_PER_TURNOVER
from aiokvoffload.cache.policies.layers import LayeredPolicy
from aiokvoffload.cache.policies.reuse import ReuseModel, bucket_of
from aiokvoffload.cache.policies.runs import Victims

_MOST_USES = 127
LEVEL_OF = [max(0, uses.bit_length() - 1) for uses in range(_MOST_USES + 1)]
"""A key's level by its uses: 1, 2 to 3, 4 to 7 and so on; used once more often means little where it is often."""
NUM_LEVELS = LEVEL_OF[-1] + 1
_ONE_MORE = bytes(min(uses + 1, _MOST_USES) for uses in range(256))
_LEVELS = bytes(LEVEL_OF[min(uses, _MOST_USES)] for uses in range(256))
"""The same levels for `translate`, which does many at once."""
_GHOSTS_PER_SLOT = 2
_TICKS_PER_USE = 8
"""The clock's ticks for a use of a key that is known; one that is not makes one. So a scan, which says nothing about
the keys that are known, does not make them old."""
_SPARED_TAIL_BIT = 1 << 8

_Value = tuple[float, int]
"""What the oldest slot of a level is worth, and since when it is unused, for levels that are worth the same."""
_Behind = tuple[int, Sequence[OffloadKey], Sequence[int]]
"""A chain, and what is resident of it behind what is missing."""
_NONE_BEHIND: _Behind = -1, (), ()
_NO_KEYS: tuple[list[int], bytes] = [], b""
"""Fingerprints and uses."""
_NOTHING: _Value = (float("inf"), -1)


class GAPPolicy(LayeredPolicy):
    """Keys lie in levels by their uses, in each by last use.

    The victim is the oldest of the level whose oldest is worth least; a new key that is worth less than that is
    refused, and with it the rest of its chain.

    Args:
        residents: the pool whose keys it orders; it remembers at most four times as many keys as that has slots.
        seed: changes which keys are sampled.
    """

    __slots__ = (
        "_behind", "_epoch", "_gain", "_ghosts", "_looked_up", "_model", "_placing", "_seed", "_tag_of", "_ticks",
        "_ticks_per_epoch", "_uses", "_valued_by", "_values",
    )  # fmt: skip

    def __init__(self, residents: Residents, *, seed: int = 0) -> None:
        super().__init__(residents)
        capacity = residents.capacity
        self._seed = seed
        self._ticks = self._epoch = 0
        self._ticks_per_epoch = max(1, capacity * _TICKS_PER_USE // EPOCHS_PER_TURNOVER)
        # This and the next one by slot; not numpy's, which needs more time to begin than most calls' few slots take.
        self._uses = bytearray(capacity)
        self._tag_of = array("I", bytes(array("I").itemsize * capacity))
        self._ghosts = CountTable(_GHOSTS_PER_SLOT * capacity)
        self._model = ReuseModel(capacity, NUM_LEVELS)
        self._looked_up: tuple[Sequence[OffloadKey], list[int], bytes] = (), *_NO_KEYS
        self._behind = _NONE_BEHIND
        self._gain = 1.0
        self._value_anew()
        self._placing = _NO_KEYS

    def access(
        self, resident: Sequence[OffloadKey], slots: Sequence[int], absent: Sequence[OffloadKey], chain: int
    ) -> None:
        """Count a use of all, and learn from those that are sampled."""
        tags, uses = self._look_up(absent) if absent else _NO_KEYS
        counts = bytes(map(self._uses.__getitem__, slots)).translate(_ONE_MORE)
        if slots and absent:
            # The first of all is absent: what is resident lies behind it, and is of no use without it.
            uses = bytes(map(max, uses, repeat(max(counts))))
        self._looked_up = absent, tags, uses
        new_count = uses.count(1)
        self._ticks += _TICKS_PER_USE * (len(slots) + len(uses) - new_count) + new_count
        epoch = self._ticks // self._ticks_per_epoch
        self._model.advance(epoch)
        if epoch != self._epoch or self._model.values is not self._valued_by:
            self._epoch = epoch
            self._value_anew()
        if slots:
            levels = counts.translate(_LEVELS)
            self.remove(slots)
            self.add_each(resident, slots, levels, chain, stamp=self._epoch)
            for slot, count in zip(slots, counts, strict=True):
                self._uses[slot] = count
            self._observe_sampled(map(self._tag_of.__getitem__, slots), levels, is_resident=True)
        if slots or absent:
            self.renew(chain)
        self._behind = (chain, resident, slots) if absent else _NONE_BEHIND
        if absent:
            self._observe_sampled(tags, uses.translate(_LEVELS), is_resident=False)

    def _observe_sampled(self, tags: Iterable[int], levels: bytes, *, is_resident: bool) -> None:
        mask = self._model.sample_mask
        for tag, level in zip(tags, levels, strict=True):
            if not tag & mask:
                self.observe(tag, level, is_resident=is_resident)

    def _value_anew(self) -> None:
        self._valued_by = self._model.values
        self._values = [_NOTHING] * NUM_LEVELS

    def observe(self, tag: int, level: int, *, is_resident: bool) -> int | None:
        """A sampled key is used; returns how many epochs after its last use, if that is known."""
        return self._model.observe(tag, level)

    def admit(
        self,
        keys: Sequence[OffloadKey],
        room: int,
        protected: Set[OffloadKey],
        chain: int,
        *,
        may_decline: bool = True,
    ) -> Admission | None:
        """Admit the leading part that is worth more than what leaves for it, or that fits if none may be declined."""
        looked_up, tags, uses = self._looked_up
        if looked_up is not keys and looked_up != keys:
            tags, uses = self._look_up(keys)
        if self._behind[0] != chain:
            self._behind = _NONE_BEHIND
        self._gain = 1 + len(self._behind[2]) / len(keys)
        accepted = min(room, len(keys))
        victims: Victims = [], []
        if accepted < len(keys):
            levels = uses.translate(_LEVELS) if may_decline else bytes((NUM_LEVELS,)) * len(keys)
            victims = self._replace(levels, accepted, protected, chain)
            accepted += len(victims[1])
            if victims[1]:
                gone = victims[1]
                self._remember([self._tag_of[slot] for slot in gone], [self._uses[slot] for slot in gone])
            if accepted < len(keys):
                self._remember(tags[accepted:][::-1], uses[accepted:][::-1])
        self._placing = tags[:accepted], uses[:accepted]
        return Admission(accepted, *victims) if accepted else None

    def place(self, keys: Sequence[OffloadKey], slots: Sequence[int], chain: int) -> None:
        """Put the slots into their levels."""
        tags, uses = self._placing
        self._placing = _NO_KEYS  # these are no other call's
        for slot, tag, count in zip(slots, tags, uses, strict=True):
            self._tag_of[slot] = tag
            self._uses[slot] = count
        self.add_each(keys, slots, uses.translate(_LEVELS), chain, stamp=self._epoch)
        _, behind_keys, behind = self._behind
        if behind:  # used in this epoch too
            self.remove(behind)
            levels = bytes(map(self.layer_of, behind))
            self.add_each(behind_keys, behind, levels, chain, stamp=self._epoch)

    def remove(self, slots: Sequence[int]) -> None:
        """Take slots out of their levels."""
        self._behind = _NONE_BEHIND
        super().remove(slots)

    def evict(self, count: int, protected: Set[OffloadKey], chain: int) -> Victims:
        """Take those that are worth least."""
        return self._replace(bytes((NUM_LEVELS,)) * count, 0, protected, chain)

    def value(self, level: int, used_at: int) -> float:
        """What a slot is worth whose key is of this level and was used last in this epoch."""
        return self._model.values[level][bucket_of(self._epoch - used_at)]

    def _look_up(self, keys: Sequence[OffloadKey]) -> tuple[list[int], bytes]:
        """Fingerprints, and uses with this one; a key was used whenever one behind it was, remembered or not."""
        tags = fingerprints(keys, self._seed)
        before = self._ghosts.find(tags)
        if before.count(0) == len(before):
            return tags, b"\1" * len(tags)
        most: Iterable[int] = accumulate(reversed(before), max)
        return tags, bytes(most)[::-1].translate(_ONE_MORE)

    def _replace(self, levels: bytes, begin: int, protected: Set[OffloadKey], chain: int) -> Victims:
        """Take victims for new keys of these levels from `begin` on, while they are worth less."""
        victims: Victims = [], []
        values = self._oldest_values(chain)
        while begin < len(levels) and values:
            worst = min(values, key=values.__getitem__)
            if values[worst][0] > self._value_of_new(levels[begin]):
                break
            # Those behind are of the same level or less popular ones, which must be asked for again.
            alike = levels.count(levels[begin], begin)
            keys, slots = self.layers[worst].evict_oldest(alike, protected, chain)
            victims[0].extend(keys)
            victims[1].extend(slots)
            begin += len(slots)
            if begin < len(levels):
                if (used_at := self.layers[worst].oldest_stamp(chain)) is None:
                    del values[worst]
                else:
                    values[worst] = self._value_at(worst, used_at)
        return victims

    def _oldest_values(self, chain: int) -> dict[int, _Value]:
        """What the oldest slot of each level is worth, but for slots of `chain`."""
        values: dict[int, _Value] = {}
        known = self._values
        for level, layer in self.layers.items():
            used_at = layer.oldest_stamp(chain)
            if used_at is not None:  # of an epoch, the answer stays the same
                values[level] = known[level] if known[level][1] == used_at else self._value_at(level, used_at)
        return values

    def _value_at(self, level: int, used_at: int) -> _Value:
        value = self._values[level] = self.value(level, used_at), used_at
        return value

    def _value_of_new(self, level: int) -> float:
        return float("inf") if level == NUM_LEVELS else self._gain * self.value(level, self._epoch)

    def _remember(self, tags: Sequence[int], uses: Sequence[int]) -> None:
        """Remember uses of keys that are not resident: the first's and half of the others', who vouch for the rest."""
        is_kept = list(map(and_, tags, repeat(_SPARED_TAIL_BIT)))
        is_kept[0] = True
        self._ghosts.put(list(compress(tags, is_kept)), list(compress(uses, is_kept)))

    def seed(self, residents: Any) -> None:
        """Take over an order, as that of one chain that was used once."""
        keys = list(residents.values())[::-1]
        if keys:
            self._placing = fingerprints(keys, self._seed), b"\1" * len(keys)
            super().seed(residents)

    def clear(self) -> Sequence[dict[Any, Any]]:
        """Forget every key and what was learned."""
        self._ghosts.clear()
        self._model.clear()
        self._ticks = self._epoch = 0
        self._looked_up = (), *_NO_KEYS
        self._behind = _NONE_BEHIND
        self._value_anew()
        return super().clear()

    def __repr__(self) -> str:
        sizes = ", ".join(str(len(self.layers[level])) if level in self.layers else "0" for level in range(NUM_LEVELS))
        return f"{type(self).__name__}({sizes} slots by level, epoch {self._epoch})"
