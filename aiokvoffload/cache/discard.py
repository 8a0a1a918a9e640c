"""Letting go of big containers without stopping the event loop."""

from typing import Any

import numpy as np

_FREED_AT_ONCE = (tuple, np.ndarray)


class DiscardPile:
    """Containers that nobody reads any more, emptied little by little, and so are dictionaries among their values.

    Tuples among the values are freed in one go, and count as what is in them and in arrays within them. Its length is
    that of the containers: what lies deeper is counted when it is reached.

    Python frees a dictionary of a million keys in one go, which takes some 50 ms; a reset would stop the loop that
    long (I10).

    Attributes:
        containers: those not emptied yet; to be read only.
    """

    __slots__ = ("containers",)

    def __init__(self) -> None:
        self.containers: list[dict[Any, Any]] = []

    def add(self, container: dict[Any, Any]) -> None:
        """Hand over a container; the caller uses it no more."""
        self.containers.append(container)

    def shed(self, count: int) -> None:
        """Free up to `count` entries."""
        while self.containers and count > 0:
            container = self.containers[-1]
            if not container:
                self.containers.pop()
            while container and count > 0:
                _, value = container.popitem()
                count -= 1 + _count_within(value)
                if isinstance(value, dict):
                    self.containers.append(value)
                    break

    def __len__(self) -> int:
        return sum(map(len, self.containers))

    def __repr__(self) -> str:
        return f"DiscardPile({len(self)} entries left)"


def _count_within(value: object) -> int:
    """What is in a tuple or array, and in those within it; others are looked at by their first, as all are alike."""
    if not isinstance(value, _FREED_AT_ONCE) or not len(value):
        return 0
    return sum(map(_count_within, value)) if isinstance(value[0], _FREED_AT_ONCE) else len(value)
