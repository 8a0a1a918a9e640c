"""Least frequently used, with dynamic aging, so that what was popular once does not stay for ever.

Source: M. Arlitt, L. Cherkasova, J. Dilley, R. Friedrich and T. Jin, "Evaluating Content Management Techniques for Web
Proxy Caches", 1999: LFU-DA, which is their GDSF for keys of one size and cost.
"""

from collections.abc import Sequence, Set
from typing import Any

from aiokvoffload.base import OffloadKey, Residents
from aiokvoffload.cache.policies.layers import LayeredPolicy
from aiokvoffload.cache.policies.recency import RecencyList
from aiokvoffload.cache.policies.runs import Victims

_MOST_USES = 127
_LAYERS = 256
"""A priority is at most `_MOST_USES` above the age, so that its remainder says which it is."""


class LFUPolicy(LayeredPolicy):
    """A key's priority is its number of uses plus the cache's age when it was last used.

    The age is the priority of what left last. So a key must be used more often than those that leave now, not than
    those that ever were. Among equals, the chain used longest ago goes first.

    Args:
        residents: the pool whose keys it orders.
    """

    __slots__ = ("_age", "_uses")

    def __init__(self, residents: Residents) -> None:
        super().__init__(residents)
        self._uses = bytearray(residents.capacity)  # by slot
        self._age = 0

    def access(
        self, resident: Sequence[OffloadKey], slots: Sequence[int], absent: Sequence[OffloadKey], chain: int
    ) -> None:
        """Count a use of what is resident, and give it its new priority."""
        if slots:
            self.remove(slots)
            self._drop_empty_layers()
            uses = self._uses
            for slot in slots:
                uses[slot] = min(uses[slot] + 1, _MOST_USES)
            self.add_each(resident, slots, self._priorities(slots), chain)
        if slots or absent:
            self.renew(chain)

    def place(self, keys: Sequence[OffloadKey], slots: Sequence[int], chain: int) -> None:
        """Put the slots in as used once; what continues a chain must not outlive what it continues."""
        for slot in slots:
            self._uses[slot] = 1
        self.renew(chain)
        layers = [number for number, layer in self.layers.items() if chain in layer.chains]
        newest = (self._age + 1) % _LAYERS
        self.layers[min([*layers, newest], key=self._rank)].add(keys, slots, chain)

    def evict(self, count: int, protected: Set[OffloadKey], chain: int) -> Victims:
        """Take from the lowest priorities."""
        keys: list[OffloadKey] = []
        slots: list[int] = []
        for layer in self.in_order():
            if len(slots) == count:
                break
            more_keys, more_slots = layer.evict(count - len(slots), protected, chain)
            keys += more_keys
            slots += more_slots
        if slots:
            # Where what goes first may not leave, the age is ahead of it: it must not fall behind again.
            ahead = (self.layer_of(slots[-1]) - self._age) % _LAYERS
            self._age += ahead if ahead <= _MOST_USES else 0
            self._drop_empty_layers()
        return keys, slots

    def in_order(self) -> list[RecencyList]:
        """The layers, the lowest priority in front."""
        return [self.layers[number] for number in sorted(self.layers, key=self._rank)]

    def _rank(self, layer: int) -> int:
        """The order of layers; those below the age are of keys that could not leave."""
        return (layer - self._age + _LAYERS - _MOST_USES - 1) % _LAYERS

    def _priorities(self, slots: Sequence[int]) -> list[int]:
        return [(self._age + self._uses[slot]) % _LAYERS for slot in slots]

    def _drop_empty_layers(self) -> None:
        for number in [number for number, layer in self.layers.items() if not layer]:
            del self.layers[number]

    def clear(self) -> Sequence[dict[Any, Any]]:
        """Forget every key and the age."""
        self._age = 0
        return super().clear()

    def __repr__(self) -> str:
        return f"LFUPolicy({len(self)} slots in {len(self.layers)} priorities, age {self._age})"
