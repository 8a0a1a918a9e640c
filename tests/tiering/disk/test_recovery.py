"""What becomes of rows of an earlier run, whatever goes wrong while they are read."""

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from aiokvoffload.base import LoadOutcome, StoreOutcome
from aiokvoffload.errors import TierError
from aiokvoffload.registry import BUILTIN
from aiokvoffload.testing.tier import tier_keys
from aiokvoffload.tiering.disk import recovery, rows
from aiokvoffload.tiering.disk.recovery import BATCH_ROWS
from aiokvoffload.tiering.disk.rows import ChainRun, connect, read_runs
from aiokvoffload.tiering.disk.slot_cache import SlotCache
from tests.tiering.disk.rig import disk_rig

NUM_KEYS = 2 * BATCH_ROWS
SIZES: dict[str, Any] = {"num_slots": NUM_KEYS + 100, "chunk_bytes": 64}
STORED, LOADED = StoreOutcome.STORED, LoadOutcome.LOADED


@pytest.mark.parametrize("policy", BUILTIN["policies"])
async def test_every_policy_takes_over_what_a_restart_finds_and_goes_on_from_there(tmp_path: Path, policy: str) -> None:
    async with disk_rig(tmp_path, policy=policy) as rig:
        for first in range(0, 32, 8):
            assert await rig.store(*range(first, first + 8)) == [STORED] * 8
    async with disk_rig(tmp_path, policy=policy) as rig:
        assert rig.tier.statistics().recovered == 32
        rig.tier.check_integrity()
        assert await rig.load(*range(32)) == [LOADED] * 32
        for first in range(100, 200, 8):
            await rig.store(*range(first, first + 8))
        rig.tier.check_integrity()
        (pool,) = rig.tier.statistics().pools
        assert pool.evictable >= 32


def unlucky(code: int = sqlite3.SQLITE_IOERR) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    return error


class Interrupted:
    """Rows are read up to the first batch, and then an error comes, as long as there is one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        self.error: Exception | None = error
        monkeypatch.setattr(recovery, "read_runs", self.read)

    def read(self, connection: sqlite3.Connection, batch_rows: int) -> Iterator[list[ChainRun]]:
        for runs in read_runs(connection, batch_rows):
            yield runs
            if self.error is not None:
                raise self.error


@pytest.fixture
async def warm(tmp_path: Path) -> Path:
    async with disk_rig(tmp_path, **SIZES) as rig:
        await rig.store(*range(NUM_KEYS))
    return tmp_path


@pytest.mark.parametrize("error", [unlucky(), unlucky(sqlite3.SQLITE_CANTOPEN), MemoryError(), OSError(24, "EMFILE")])
async def test_reading_that_the_system_did_not_let_end_is_tried_again(
    warm: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    interrupted = Interrupted(monkeypatch, error)
    rig = disk_rig(warm, **SIZES)
    await rig.tier.open()
    while not (trouble := rig.tier.statistics().trouble):
        await asyncio.sleep(0.001)
    assert trouble in (str(error), repr(error))
    assert rig.tier.statistics().recovering
    assert await rig.store(5000) == [STORED]
    await rig.store(*range(6000, 6200))  # into no slot that has a row
    rig.tier.check_integrity()
    interrupted.error = None
    await rig.tier.wait_recovered()
    assert not rig.tier.statistics().trouble
    assert (await rig.load(*range(NUM_KEYS))).count(LOADED) >= NUM_KEYS - 200  # but for those that made room
    await rig.tier.aclose()


async def test_rows_that_could_not_be_read_are_there_at_the_next_opening(
    warm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        Interrupted(patch, unlucky())
        rig = disk_rig(warm, **SIZES)
        await rig.tier.open()
        while not rig.tier.statistics().trouble:
            await asyncio.sleep(0.001)
        await rig.tier.aclose()
    async with disk_rig(warm, **SIZES) as rig:
        assert await rig.load(*range(NUM_KEYS)) == [LOADED] * NUM_KEYS


async def test_what_a_damaged_index_does_not_tell_is_forgotten_and_its_slots_are_used_again(
    warm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Interrupted(monkeypatch, sqlite3.DatabaseError("database disk image is malformed"))
    async with disk_rig(warm, **SIZES) as rig:
        assert rig.contains(*range(NUM_KEYS)).count(True) == BATCH_ROWS
        while rig.tier.statistics().pools[0].quarantined:
            await asyncio.sleep(0.001)
        rig.tier.check_integrity()


async def test_an_opening_for_which_there_is_no_second_connection_is_refused_and_costs_nothing(
    warm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []

    def connect_once(path: Path) -> sqlite3.Connection:
        opened.append(path)
        if len(opened) > 1:
            raise TierError(f"{path} cannot be opened: [Errno 24] Too many open files")
        return connect(path)

    with monkeypatch.context() as patch:
        patch.setattr(rows, "connect", connect_once)
        with pytest.raises(TierError, match="Too many open files"):
            await disk_rig(warm, **SIZES).tier.open()
    async with disk_rig(warm, **SIZES) as rig:
        assert rig.contains(*range(NUM_KEYS)) == [True] * NUM_KEYS


async def test_a_run_that_cannot_be_taken_over_costs_no_other_and_is_kept_for_later(
    warm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with disk_rig(warm, **SIZES) as rig:
        await rig.store(7001, 7002)
    adopt = SlotCache.adopt

    def fail_once(cache: SlotCache, run: ChainRun, chain_number: int) -> Sequence[bytes]:
        if tier_keys(7001)[0] not in run.keys:
            raise ValueError("a policy's mistake")
        return adopt(cache, run, chain_number)

    with monkeypatch.context() as patch:
        patch.setattr(SlotCache, "adopt", fail_once)
        async with disk_rig(warm, **SIZES) as rig:
            assert rig.contains(0, 7001, 7002) == [False, True, True]
            assert rig.tier.statistics().pools[0].quarantined == NUM_KEYS
    async with disk_rig(warm, **SIZES) as rig:
        assert rig.contains(0, NUM_KEYS - 1, 7001) == [True] * 3


async def test_a_reset_forgets_what_was_kept_for_later_too(warm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Sequence[bytes]:
        raise ValueError("a policy's mistake")

    monkeypatch.setattr(SlotCache, "adopt", fail)
    async with disk_rig(warm, **SIZES) as rig:
        await rig.tier.reset()
        while rig.tier.statistics().pools[0].quarantined:
            await asyncio.sleep(0.001)
        assert await rig.store(*range(NUM_KEYS)) == [STORED] * NUM_KEYS
