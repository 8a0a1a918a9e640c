"""What all arenas of the process hold of its memory, and what must never be collected. Knows numbers only."""

import threading
from dataclasses import dataclass


@dataclass(slots=True)
class MemoryUse:
    """Bytes of all arenas of this process.

    Attributes:
        mapped_bytes: mapped, and not closed or abandoned.
        pinned_bytes: the part of them that is pinned.
        abandoned_bytes: leaked for good because a copy may still touch them (I2).
    """

    mapped_bytes: int = 0
    pinned_bytes: int = 0
    abandoned_bytes: int = 0


_use = MemoryUse()
_use_lock = threading.Lock()
_kept_for_good: list[object] = []


def memory_use() -> MemoryUse:
    """A copy of the counts."""
    with _use_lock:
        return MemoryUse(_use.mapped_bytes, _use.pinned_bytes, _use.abandoned_bytes)


def keep_for_good(*objects: object) -> None:
    """Never collect `objects`: a copy that was abandoned may still touch their memory (I2)."""
    _kept_for_good.extend(objects)


def count_memory(*, mapped: int = 0, pinned: int = 0, abandoned: int = 0) -> None:
    """Add to the counts."""
    with _use_lock:
        _use.mapped_bytes += mapped
        _use.pinned_bytes += pinned
        _use.abandoned_bytes += abandoned
