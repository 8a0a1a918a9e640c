"""How the chunks of one call are divided among threads."""

from typing import Any, cast

import pytest

from aiokvoffload.testing.tier import tier_keys
from aiokvoffload.tiering.disk.batches import LoadBatch, PoolStorage, StoreBatch
from aiokvoffload.tiering.disk.calls import DiskCalls
from aiokvoffload.tiering.disk.checksum import Checksummer
from aiokvoffload.tiering.disk.layout import DiskPool


class QueuedCalls(DiskCalls):
    """As many at once as it takes."""

    at_once = 64


class DirectFile:
    """Of which only this is asked."""

    is_direct = True


def storage_of(chunk_bytes: int, calls: DiskCalls) -> PoolStorage:
    pool = DiskPool(0, (0,), chunk_bytes, 1, 1000, 1)
    return PoolStorage(pool, [cast("Any", DirectFile())], Checksummer("tests"), calls)


@pytest.mark.parametrize(
    ("calls", "chunk_kib", "count", "jobs"),
    [
        (QueuedCalls(), 64, 64, 4),
        (QueuedCalls(), 64, 1000, 32),
        (QueuedCalls(), 64, 16, 1),
        (QueuedCalls(), 1024, 8, 4),
        (QueuedCalls(), 4096, 8, 8),
        (DiskCalls(), 64, 64, 8),
        (DiskCalls(), 64, 3, 3),
        (DiskCalls(), 1024, 8, 8),
    ],
)
def test_a_thread_gets_enough_to_be_worth_its_waking_and_no_more_than_keeps_others_from_it(
    calls: DiskCalls, chunk_kib: int, count: int, jobs: int
) -> None:
    """I10: every job takes the GIL a few times; eight threads share these calls."""
    storage = storage_of(chunk_kib << 10, calls)
    batch = LoadBatch(storage, range(count), tier_keys(*range(count)), [[]] * count, expected=None)
    assert len(batch.jobs(8, lambda: None)) == jobs


def test_what_could_not_be_written_is_told_from_what_was() -> None:
    """I4: a failed store leaves no trace, and fails none of its neighbours (fault 10)."""
    keys = tier_keys(1, 2, 3)
    batch = StoreBatch(storage_of(4096, DiskCalls()), [7, 8, 9], keys, [[]] * 3)
    batch.checksums = [b"a", None, b"c"]
    written, checksums, failed = batch.written()
    assert (written.slots, written.keys) == ([7, 9], [keys[0], keys[2]])
    assert (checksums, failed) == ([b"a", b"c"], [keys[1]])
    batch.checksums[1] = b"b"
    written, checksums, failed = batch.written()
    assert (written.slots, written.keys, checksums, failed) == ([7, 8, 9], keys, [b"a", b"b", b"c"], ())
