"""Whatever was done to what lies on disk, nobody gets wrong bytes, and the tier lives (I5)."""

import asyncio
import contextlib
import errno
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from aiokvoffload.base import EventKind, LoadOutcome, RemovalReason, StoreOutcome
from aiokvoffload.errors import TierError
from aiokvoffload.testing.tier import tier_keys
from aiokvoffload.tiering.disk.layout import HEADER_BYTES
from tests.tiering.disk.calls import ScriptedCalls
from tests.tiering.disk.rig import CHUNK_BYTES, disk_rig

LOADED, MISS, CORRUPT = LoadOutcome.LOADED, LoadOutcome.MISS, LoadOutcome.CORRUPT
NUMBERS = range(1, 9)
DATA, INDEX = "chunks-0.data", "index.sqlite3"
TWICE = "SELECT * FROM other UNION ALL SELECT * FROM other"
"""Rows as the tree of a damaged index may give them."""


@pytest.fixture
async def filled(tmp_path: Path) -> Path:
    """A directory with eight chunks, closed."""
    async with disk_rig(tmp_path / "disk") as rig:
        assert await rig.store(*NUMBERS) == [StoreOutcome.STORED] * 8
    return tmp_path / "disk"


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def change_index(path: Path, statement: str, *values: object) -> None:
    connection = sqlite3.connect(path / INDEX)
    connection.execute(statement, values)
    connection.commit()
    connection.close()


@pytest.mark.parametrize("seed", range(6))
async def test_one_flipped_byte_of_data_is_a_miss_counted_and_announced(filled: Path, seed: int) -> None:
    """Fault 6: right length, wrong bytes."""
    slot, offset = seed % 8, random.Random(seed).randrange(CHUNK_BYTES)  # noqa: S311
    await asyncio.to_thread(flip, filled / DATA, HEADER_BYTES + slot * CHUNK_BYTES + offset)
    async with disk_rig(filled) as rig:
        rig.tier.take_events()
        outcomes = await rig.load(*NUMBERS)
        assert sorted(map(outcomes.count, (LOADED, CORRUPT))) == [1, 7]
        bad = NUMBERS[outcomes.index(CORRUPT)]
        (event,) = rig.tier.take_events()
        assert (event.kind, event.reason, event.keys) == (
            EventKind.REMOVED,
            RemovalReason.FAILED,
            tuple(tier_keys(bad)),
        )
        assert rig.contains(bad) == [False]
        assert rig.tier.statistics().corrupt == 1
        assert await rig.load(bad) == [MISS]
        assert await rig.store(bad) == [StoreOutcome.STORED]
        assert await rig.load(*NUMBERS) == [LOADED] * 8


async def test_bytes_are_not_checked_where_that_is_switched_off(filled: Path) -> None:
    """The other side of fault 6: it is the check that catches it."""
    await asyncio.to_thread(flip, filled / DATA, HEADER_BYTES)
    async with disk_rig(filled, verify=False) as rig:
        with pytest.raises(AssertionError, match="wrong bytes"):
            await rig.load(*NUMBERS)


async def test_a_flipped_key_in_a_row_serves_nobody(filled: Path) -> None:
    """The key is part of what the checksum covers."""
    await asyncio.to_thread(
        change_index, filled, "UPDATE chunks SET key = ? WHERE key = ?", tier_keys(77)[0], tier_keys(3)[0]
    )
    async with disk_rig(filled) as rig:
        assert rig.contains(3, 77) == [False, True]
        assert await rig.load(77) == [CORRUPT]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE chunks SET checksum = zeroblob(16) WHERE slot = 2",
        "UPDATE chunks SET checksum = 'text' WHERE slot = 2",
        "UPDATE chunks SET key = 'text' WHERE slot = 2",
        "UPDATE chunks SET key = x'01' WHERE slot = 2",
        "UPDATE chunks SET key = x'000000000000000700000009' WHERE slot = 2",
        "UPDATE chunks SET pool = 7 WHERE slot = 2",
        "UPDATE chunks SET slot = 39 WHERE slot = 2",
        "UPDATE chunks SET slot = 4000 WHERE slot = 2",
        "UPDATE chunks SET slot = -1 WHERE slot = 2",
        "UPDATE chunks SET rank = 'text' WHERE slot = 2",
        "UPDATE chunks SET key = (SELECT key FROM chunks WHERE slot = 3) WHERE slot = 2",
    ],
)
async def test_a_row_that_was_tampered_with_costs_its_chunk_and_no_slot(filled: Path, statement: str) -> None:
    """Fault 43."""
    await asyncio.to_thread(change_index, filled, statement)
    async with disk_rig(filled) as rig:
        outcomes = await rig.load(*NUMBERS)
        assert outcomes.count(LOADED) >= 6
        assert await rig.store(*range(100, 140)) == [StoreOutcome.STORED] * 38 + [StoreOutcome.REFUSED] * 2
        (pool,) = rig.tier.statistics().pools
        assert pool.evictable == 38


@pytest.mark.parametrize("seed", range(20))
async def test_flipped_bytes_of_the_index_are_a_clear_error_or_misses(filled: Path, seed: int) -> None:
    """Never wrong bytes, never an exception that is not ours."""
    dice = random.Random(seed)  # noqa: S311
    size = await asyncio.to_thread(lambda: (filled / INDEX).stat().st_size)
    for _ in range(1 + seed):
        await asyncio.to_thread(flip, filled / INDEX, dice.randrange(size))
    with contextlib.suppress(TierError):
        async with disk_rig(filled) as rig:
            await rig.load(*NUMBERS)  # compares every byte of what is said to be loaded


@pytest.mark.parametrize("size_bytes", [0, 4096, HEADER_BYTES + CHUNK_BYTES + 100])
async def test_a_truncated_file_of_chunks_costs_what_was_cut_off(filled: Path, size_bytes: int) -> None:
    await asyncio.to_thread(lambda: _truncate(filled / DATA, size_bytes))
    async with disk_rig(filled) as rig:
        outcomes = await rig.load(*NUMBERS)
        assert outcomes.count(LOADED) == (1 if size_bytes > HEADER_BYTES else 0)
        assert outcomes.count(CORRUPT) == 8 - outcomes.count(LOADED)
        assert await rig.store(*NUMBERS) == [
            StoreOutcome.PRESENT if outcome is LOADED else StoreOutcome.STORED for outcome in outcomes
        ]


async def test_a_file_of_chunks_that_is_truncated_under_the_open_tier_costs_its_chunks(tmp_path: Path) -> None:
    async with disk_rig(tmp_path / "disk") as rig:
        await rig.store(*NUMBERS)
        await asyncio.to_thread(lambda: _truncate(tmp_path / "disk" / DATA, HEADER_BYTES + 2 * CHUNK_BYTES))
        outcomes = await rig.load(*NUMBERS)
        assert (outcomes.count(LOADED), outcomes.count(CORRUPT)) == (2, 6)
        assert rig.contains(*NUMBERS).count(True) == 2


@pytest.mark.parametrize("size_bytes", [0, 100, 4096, 8192])
async def test_a_truncated_index_is_an_empty_tier_or_a_clear_error(filled: Path, size_bytes: int) -> None:
    await asyncio.to_thread(lambda: _truncate(filled / INDEX, size_bytes))
    with contextlib.suppress(TierError):
        async with disk_rig(filled) as rig:
            assert await rig.load(*NUMBERS) == [MISS] * 8
            assert await rig.store(*NUMBERS) == [StoreOutcome.STORED] * 8


async def test_a_damaged_index_is_thrown_away_and_counted(filled: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What it knew is a cache: serving from nothing is better than not serving."""
    await asyncio.to_thread(_garble_leaf_pages, filled / INDEX)
    async with disk_rig(filled) as rig:
        assert rig.tier.statistics().lost_indexes == 1
        assert await rig.load(*NUMBERS) == [MISS] * 8
    assert "is damaged" in caplog.text


@pytest.mark.parametrize(
    "statements",
    [
        ("DROP TABLE chunks",),
        ("ALTER TABLE chunks RENAME COLUMN rank TO ronk",),
        ("DELETE FROM store",),
        ("UPDATE store SET description = CAST(x'80' AS TEXT)",),
        ("UPDATE store SET description = '[]'",),
        ("UPDATE store SET description = replace(description, '\"num_directories\": 1', '\"num_directories\": 0')",),
        ("UPDATE store SET created_s = 9e999",),
        ("ALTER TABLE chunks RENAME TO other", f"CREATE TABLE chunks AS {TWICE}"),
    ],
)
async def test_an_index_that_makes_no_sense_is_thrown_away(filled: Path, statements: tuple[str, ...]) -> None:
    """Whatever it is that makes none: a table, text, a number, the order of its tree."""
    for statement in statements:
        await asyncio.to_thread(change_index, filled, statement)
    async with disk_rig(filled) as rig:
        assert rig.tier.statistics().lost_indexes == 1
        assert await rig.load(*NUMBERS) == [MISS] * 8
        assert await rig.store(*NUMBERS) == [StoreOutcome.STORED] * 8


async def test_a_failing_disk_costs_no_index_at_the_opening(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    before = await asyncio.to_thread(_contents, filled)
    with monkeypatch.context() as patch:
        patch.setattr("aiokvoffload.tiering.disk.rows.RowStore.drop_senseless", fail)
        with pytest.raises(TierError, match="make room on its disk"):
            await disk_rig(filled).tier.open()
    assert (await asyncio.to_thread(_contents, filled))[INDEX] == before[INDEX]


async def test_an_index_that_is_gone_is_made_anew(filled: Path) -> None:
    await asyncio.to_thread((filled / INDEX).unlink)
    async with disk_rig(filled) as rig:
        assert await rig.load(*NUMBERS) == [MISS] * 8


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: (path / DATA).write_bytes(b"somebody's diary"),
        lambda path: (path / INDEX).write_bytes(b"somebody's diary" * 1000),
        lambda path: change_index(path, "PRAGMA application_id = 1"),
        lambda path: change_index(path, "PRAGMA user_version = 99"),
    ],
    ids=["data", "index", "other program", "other version"],
)
async def test_foreign_files_are_refused_and_left_alone(filled: Path, spoil: Callable[[Path], object]) -> None:
    await asyncio.to_thread(spoil, filled)
    before = await asyncio.to_thread(_contents, filled)
    with pytest.raises(TierError, match="remove"):
        await disk_rig(filled).tier.open()
    after = await asyncio.to_thread(_contents, filled)
    assert after[DATA] == before[DATA]
    assert after[INDEX] == before[INDEX]


@pytest.mark.parametrize("target", ["chunks-0.data", "/dev/full/chunks", "n" * 300])
async def test_a_link_that_leads_nowhere_is_refused_by_name(tmp_path: Path, target: str) -> None:
    await asyncio.to_thread((tmp_path / "chunks-0.data").symlink_to, target)
    with pytest.raises(TierError, match=r"chunks-0\.data cannot be used: .*remove it"):
        await disk_rig(tmp_path).tier.open()


async def test_a_link_to_a_file_that_cannot_be_reserved_is_not_removed(tmp_path: Path) -> None:
    calls = ScriptedCalls()
    calls.allocate_error = errno.ENOSPC
    link = tmp_path / "chunks-0.data"
    await asyncio.to_thread(link.symlink_to, tmp_path / "elsewhere")
    with pytest.raises(TierError, match="cannot reserve"):
        await disk_rig(tmp_path, calls=calls).tier.open()
    assert await asyncio.to_thread(link.is_symlink)


async def test_the_file_of_another_directory_is_refused(tmp_path: Path) -> None:
    """Stripes that were swapped would be a corrupt chunk each."""
    async with disk_rig(tmp_path / "a", tmp_path / "b") as rig:
        await rig.store(*NUMBERS)
    async with disk_rig(tmp_path / "c") as rig:
        await rig.store(*NUMBERS)
    await asyncio.to_thread(shutil.copy, tmp_path / "c" / DATA, tmp_path / "b" / DATA)
    with pytest.raises(TierError, match="name directories in the order in which they were filled"):
        await disk_rig(tmp_path / "a", tmp_path / "b").tier.open()


def _truncate(path: Path, size_bytes: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size_bytes)


def _garble_leaf_pages(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))


def _contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}
