"""Page-aligned buffers as a pinned pool has them, without torch."""

import mmap
from collections.abc import Sequence

import numpy as np


def page_buffers(count: int, size_bytes: int, *, num_workers: int = 1) -> list[list[memoryview]]:
    """For each of `count` chunks one zeroed buffer of `size_bytes` per worker, each of which begins on a page."""
    row_bytes = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = memoryview(mmap.mmap(-1, max(1, count * num_workers) * row_bytes))
    rows = [memory[start : start + size_bytes] for start in range(0, count * num_workers * row_bytes, row_bytes)]
    return [rows[index * num_workers : (index + 1) * num_workers] for index in range(count)]


def fill(views: Sequence[Sequence[memoryview]], *seeds: int) -> None:
    """Write into each chunk bytes that are its own: by its seed, by worker, and different at every offset."""
    for seed, buffers in zip(seeds, views, strict=True):
        for rank, buffer in enumerate(buffers):
            buffer[:] = payload(seed, rank, len(buffer))


def payload(seed: int, rank: int, size_bytes: int) -> bytes:
    """What `fill` writes for one worker of one chunk."""
    return np.random.default_rng((seed, rank)).bytes(size_bytes)


def holds(views: Sequence[Sequence[memoryview]], *seeds: int) -> list[bool]:
    """Whether each chunk holds exactly what `fill` wrote for its seed."""
    return [
        all(buffer == payload(seed, rank, len(buffer)) for rank, buffer in enumerate(buffers))
        for seed, buffers in zip(seeds, views, strict=True)
    ]
