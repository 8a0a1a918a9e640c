"""Whether files will fit on their devices, asked before any is made or extended. Knows sizes, and opens nothing."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from aiokvoffload.errors import TierError
from aiokvoffload.tiering.disk.layout import DiskPool


def require_room(paths: Sequence[Path], pools: Sequence[DiskPool]) -> None:
    """Check that the directories' devices have the bytes by which the files of all pools are still to grow.

    Reserving them would show it too, but not before there is an index, memory for each slot, and a disk that is full.

    Raises:
        TierError: a device has not, or what has a file's name there is none.
    """
    missing_bytes: Counter[int] = Counter()
    for stripe, path in enumerate(paths):
        device = path.stat().st_dev
        missing_bytes[device] += sum(_missing_bytes(path, pool, stripe) for pool in pools)
        free_bytes = _free_bytes(path)
        if free_bytes is not None and missing_bytes[device] > free_bytes:
            raise TierError(
                f"directory {path} is on a device with {free_bytes} free bytes, and chunks need "
                f"{missing_bytes[device]} more there: make room, or lower disk_bytes"
            )


def _missing_bytes(path: Path, pool: DiskPool, stripe: int) -> int:
    file = path / pool.file_name
    try:
        return max(0, pool.file_bytes(stripe) - size_of(file))
    except OSError as error:  # a link that leads nowhere, or back to itself
        raise TierError(f"{file} cannot be used: {error.strerror}; remove it, or name another directory") from error


def size_of(file: Path) -> int:
    """0 if it is not there, or not any more: whoever closes a tier takes the index's log away meanwhile."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _free_bytes(path: Path) -> int | None:
    """What the superuser's share is part of, for whom reserving would work; `None` where nobody says."""
    device = os.statvfs(path)
    return device.f_bfree * device.f_frsize if device.f_blocks else None
