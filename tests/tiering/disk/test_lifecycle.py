"""What a restart finds, what a close leaves, and what cancelling and resetting change."""

import asyncio
import os
import random
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiokvoffload.base import EventKind, LoadOutcome, StoreOutcome, TierShape, make_offload_key
from aiokvoffload.testing.pages import fill, holds, page_buffers
from aiokvoffload.testing.tier import tier_keys
from aiokvoffload.tiering.disk import recovery
from aiokvoffload.tiering.disk.config import DiskConfig
from aiokvoffload.tiering.disk.layout import HEADER_BYTES
from aiokvoffload.tiering.disk.ranks import Ranks
from aiokvoffload.tiering.disk.recovery import BATCH_ROWS
from aiokvoffload.tiering.disk.rows import ChainRun, read_runs
from aiokvoffload.tiering.disk.tier import DiskTier
from tests.tiering.disk.calls import ScriptedCalls
from tests.tiering.disk.rig import CHUNK_BYTES, DiskRig, disk_rig

STORED, LOADED, MISS = StoreOutcome.STORED, LoadOutcome.LOADED, LoadOutcome.MISS


def hold_reading(monkeypatch: pytest.MonkeyPatch, *, after_batches: int) -> threading.Event:
    """Rows of an earlier run are read up to so many batches, and no further until the event is set."""
    gate = threading.Event()

    def read_runs_slowly(connection: sqlite3.Connection, batch_rows: int) -> Iterator[list[ChainRun]]:
        for index, runs in enumerate(read_runs(connection, batch_rows)):
            if index == after_batches:
                gate.wait()
            yield runs

    monkeypatch.setattr(recovery, "read_runs", read_runs_slowly)
    return gate


async def reopen_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, num_keys: int
) -> tuple[DiskRig, threading.Event]:
    """A tier that has keys of an earlier run, none of whose rows is read before the event is set."""
    async with disk_rig(tmp_path) as rig:
        await rig.store(*range(num_keys))
    gate = hold_reading(monkeypatch, after_batches=0)
    rig = disk_rig(tmp_path)
    await rig.tier.open()
    return rig, gate


class TestRestart:
    async def test_what_was_stored_is_there_again_counted_and_announced(self, tmp_path: Path) -> None:
        """Fault 41: usage does not begin at zero."""
        async with disk_rig(tmp_path) as rig:
            await rig.store(*range(10))
        async with disk_rig(tmp_path) as rig:
            assert await rig.load(*range(10)) == [LOADED] * 10
            assert rig.tier.statistics().recovered == 10
            assert rig.tier.statistics().pools[0].free == 30
            stored = [event for event in rig.tier.take_events() if event.kind is EventKind.STORED]
            assert sorted(key for event in stored for key in event.keys) == tier_keys(*range(10))

    async def test_the_order_of_leaving_is_that_of_storing_each_chain_tail_first(self, tmp_path: Path) -> None:
        async with disk_rig(tmp_path, num_slots=8) as rig:
            await rig.store(1, 2, 3)
            await rig.store(11, 12, 13, 14)
        async with disk_rig(tmp_path, num_slots=8) as rig:
            await rig.store(21)
            assert rig.contains(1, 2, 3, 11) == [True, True, False, True]
            await rig.store(22, 23)
            assert rig.contains(1, 2, 11, 12, 13, 14) == [False, False, True, True, True, True]

    async def test_bytes_on_disk_are_bounded_for_good(self, tmp_path: Path) -> None:
        """Faults 41, I11: whatever is stored, however often it is opened."""
        for first in (0, 500):
            async with disk_rig(tmp_path) as rig:
                for number in range(first, first + 200, 8):
                    await rig.store(*range(number, number + 8))
            size = await asyncio.to_thread((tmp_path / "chunks-0.data").stat)
            assert size.st_size == HEADER_BYTES + 40 * CHUNK_BYTES
            assert size.st_blocks * 512 <= size.st_size + CHUNK_BYTES
            index = await asyncio.to_thread(lambda: (tmp_path / "index.sqlite3").stat().st_size)
            assert index <= 1 << 20

    @pytest.mark.parametrize("num_slots", [20, 80])
    async def test_another_budget_keeps_what_fits(self, tmp_path: Path, num_slots: int) -> None:
        async with disk_rig(tmp_path, num_slots=40) as rig:
            await rig.store(*range(38))
        async with disk_rig(tmp_path, num_slots=num_slots) as rig:
            kept = rig.contains(*range(38)).count(True)
            assert kept == min(38, num_slots - 1)
            await rig.load(*range(38))
            await rig.store(*range(100, 110))
            assert rig.tier.statistics().pools[0].capacity == num_slots
            assert rig.contains(*range(100, 110)) == [True] * 10

    async def test_rows_are_known_little_by_little_while_the_tier_serves(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Fault 44."""
        num_keys = 3 * BATCH_ROWS
        async with disk_rig(tmp_path, num_slots=num_keys + 200, chunk_bytes=64) as rig:
            await rig.store(*range(num_keys))
        gate = hold_reading(monkeypatch, after_batches=1)
        rig = disk_rig(tmp_path, num_slots=num_keys + 200, chunk_bytes=64)
        await rig.tier.open()
        while not rig.contains(0)[0]:
            await asyncio.sleep(0)
        assert rig.tier.statistics().recovering
        assert rig.contains(*range(num_keys)) == [number < BATCH_ROWS for number in range(num_keys)]
        assert await rig.load(0, num_keys - 1) == [LOADED, MISS]
        assert await rig.store(num_keys + 1) == [STORED]
        rig.tier.check_integrity()
        gate.set()
        await rig.tier.wait_recovered()
        assert await rig.load(*range(num_keys), num_keys + 1) == [LOADED] * (num_keys + 1)
        await rig.tier.aclose()

    async def test_a_close_while_rows_are_read_leaves_no_log_either(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A copy of such a directory can be read where nothing may be written."""
        rig, gate = await reopen_unread(tmp_path, monkeypatch, num_keys=10)
        await rig.store(20)
        closing = asyncio.create_task(rig.tier.aclose())
        while any(thread.name == "aiokvoffload-disk-rows" for thread in threading.enumerate()):
            await asyncio.sleep(0)
        gate.set()
        await closing
        assert sorted(await asyncio.to_thread(os.listdir, tmp_path)) == ["chunks-0.data", "index.sqlite3", "lock"]
        async with disk_rig(tmp_path) as rig:
            assert await rig.load(*range(10), 20) == [LOADED] * 11

    async def test_a_key_stored_anew_before_its_row_was_read_has_one_slot_in_the_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Fault 43."""
        rig, gate = await reopen_unread(tmp_path, monkeypatch, num_keys=20)
        assert await rig.store(19) == [STORED]
        gate.set()
        await rig.tier.wait_recovered()
        assert await rig.load(*range(20)) == [LOADED] * 20
        await rig.tier.aclose()
        (pool,) = rig.tier.statistics().pools
        assert (pool.free, pool.evictable, pool.quarantined) == (20, 20, 0)

    async def test_it_can_be_closed_while_rows_are_being_read(self, tmp_path: Path) -> None:
        async with disk_rig(tmp_path, num_slots=4000, chunk_bytes=64) as rig:
            await rig.store(*range(3000))
        rig = disk_rig(tmp_path, num_slots=4000, chunk_bytes=64)
        await rig.tier.open()
        await rig.tier.aclose()
        rig.tier.check_integrity()
        async with disk_rig(tmp_path, num_slots=4000, chunk_bytes=64) as rig:
            assert rig.contains(*range(3000)) == [True] * 3000


class TestClose:
    async def test_a_clean_close_leaves_nothing_to_recover_and_nothing_readable_to_others(self, tmp_path: Path) -> None:
        """Fault 36."""
        directory = tmp_path / "new" / "disk"
        async with disk_rig(directory) as rig:
            await rig.store(1, 2)

        def modes() -> dict[str, int]:
            return {path.name: stat.S_IMODE(path.stat().st_mode) for path in (directory, *directory.iterdir())}

        assert await asyncio.to_thread(modes) == {
            "disk": 0o700,
            "lock": 0o600,
            "chunks-0.data": 0o600,
            "index.sqlite3": 0o600,
        }

    async def test_files_beside_the_index_are_nobody_elses_to_read(self, tmp_path: Path) -> None:
        async with disk_rig(tmp_path) as rig:
            await rig.store(1)
            wal = await asyncio.to_thread(lambda: stat.S_IMODE((tmp_path / "index.sqlite3-wal").stat().st_mode))
            assert wal == 0o600

    async def test_a_close_waits_for_stores_that_wait_for_slots(self, tmp_path: Path) -> None:
        """I2: a cascade under way at a close ends, and conservation holds."""
        rig = disk_rig(tmp_path, num_slots=4)
        await rig.tier.open()
        stores = [asyncio.create_task(rig.store(*range(first, first + 3))) for first in range(0, 60, 3)]
        await asyncio.sleep(0)
        await asyncio.gather(rig.tier.aclose(), rig.tier.aclose())
        assert all([await store for store in stores])
        rig.tier.check_integrity()
        (pool,) = rig.tier.statistics().pools
        assert pool.free + pool.evictable == pool.capacity

    @pytest.mark.parametrize("turns", range(5))
    async def test_a_close_that_is_over_before_a_late_loop_hears_of_it_abandons_nothing(
        self, tmp_path: Path, turns: int
    ) -> None:
        rig = disk_rig(tmp_path, close_timeout_s=0.05)
        await rig.tier.open()
        await rig.tier.wait_recovered()
        closing = asyncio.create_task(rig.tier.aclose())
        for _ in range(turns):
            await asyncio.sleep(0)
        late_s = time.monotonic() + 0.3
        while time.monotonic() < late_s:  # not asleep, for which tests are told off
            pass
        await closing

    async def test_an_opened_tier_is_not_opened_again(self, tmp_path: Path) -> None:
        async with disk_rig(tmp_path) as rig:
            with pytest.raises(Exception, match="opened before"):
                await rig.tier.open()


class TestCancellation:
    async def test_a_cancelled_load_holds_its_slots_until_the_read_ends(self, tmp_path: Path) -> None:
        """Fault 32, I2."""
        calls = ScriptedCalls()
        async with disk_rig(tmp_path, calls=calls) as rig:
            await rig.store(1, 2)
            calls.gate.clear()
            loading = asyncio.create_task(rig.load(1, 2))
            await asyncio.to_thread(calls.begun.wait)
            loading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await loading
            assert rig.tier.statistics().pools[0].pinned == 2
            rig.tier.check_integrity()
            calls.gate.set()
            assert await rig.load(1, 2) == [LOADED] * 2

    async def test_a_cancelled_store_goes_on_and_its_bytes_are_there(self, tmp_path: Path) -> None:
        """Fault 32, I2."""
        calls = ScriptedCalls()
        async with disk_rig(tmp_path, calls=calls) as rig:
            calls.gate.clear()
            views = page_buffers(2, CHUNK_BYTES)
            fill(views, 1, 2)
            storing = asyncio.create_task(rig.tier.store(tier_keys(1, 2), views))
            await asyncio.to_thread(calls.begun.wait)
            storing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await storing
            joined = asyncio.create_task(rig.store(1))
            await asyncio.sleep(0)
            calls.gate.set()
            assert await joined == [StoreOutcome.PRESENT]
            assert await rig.load(1, 2) == [LOADED] * 2

    async def test_a_store_cancelled_while_it_waits_for_slots_keeps_nobody_waiting(self, tmp_path: Path) -> None:
        async with disk_rig(tmp_path, num_slots=2) as rig:
            stores = [asyncio.create_task(rig.store(number)) for number in range(30)]
            await asyncio.sleep(0)
            for store in stores[::2]:
                store.cancel()
            await asyncio.gather(*stores, return_exceptions=True)
            while rig.tier.statistics().pools[0].writing:  # cancelled or not, a write holds its slot until it ends
                await asyncio.sleep(0)
            assert await rig.store(100) == [STORED]


class TestReset:
    async def test_a_reset_is_for_good(self, tmp_path: Path) -> None:
        """Fault 53: no restart brings an old key back."""
        async with disk_rig(tmp_path) as rig:
            await rig.store(*range(10))
            assert await rig.tier.reset() == 10
            assert await rig.store(1) == [STORED]
        async with disk_rig(tmp_path) as rig:
            assert rig.contains(*range(10)) == [number == 1 for number in range(10)]

    async def test_a_reset_during_recovery_forgets_what_was_not_read_yet_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Fault 53."""
        async with disk_rig(tmp_path, num_slots=4000, chunk_bytes=64) as rig:
            await rig.store(*range(3000))
        gate = hold_reading(monkeypatch, after_batches=1)
        rig = disk_rig(tmp_path, num_slots=4000, chunk_bytes=64)
        await rig.tier.open()
        await rig.tier.reset()
        gate.set()
        await rig.tier.wait_recovered()
        assert not any(rig.contains(*range(3000)))
        assert await rig.store(*range(100)) == [STORED] * 100
        rig.tier.check_integrity()
        await rig.tier.aclose()
        async with disk_rig(tmp_path, num_slots=4000, chunk_bytes=64) as rig:
            assert rig.contains(*range(3000)).count(True) == 100
            (pool,) = rig.tier.statistics().pools
            assert pool.free + pool.evictable == pool.capacity

    async def test_what_is_under_way_at_a_reset_leaves_no_trace_and_conservation_intact(self, tmp_path: Path) -> None:
        """Fault 53, I7: a load of the old epoch, a store of it, and a store of the new one, of one key."""
        calls = ScriptedCalls()
        async with disk_rig(tmp_path, calls=calls) as rig:
            await rig.store(1, 2)
            calls.gate.clear()
            loading, storing = asyncio.create_task(rig.load(1, 2)), asyncio.create_task(rig.store(3, 4))
            await asyncio.to_thread(calls.begun.wait)
            assert await rig.tier.reset() == 2
            rig.tier.check_integrity()
            again = asyncio.create_task(rig.store(1, 3))
            await asyncio.sleep(0)
            rig.tier.check_integrity()
            calls.gate.set()
            await loading
            assert await storing == [StoreOutcome.REFUSED] * 2
            assert await again == [STORED] * 2
            assert rig.contains(1, 2, 3, 4) == [True, False, True, False]


class TestGroups:
    async def test_groups_of_different_sizes_have_pools_of_their_own(self, tmp_path: Path) -> None:
        """Fault 46."""
        config = DiskConfig(directories=(tmp_path,), disk_bytes=64 * (4096 + 8192 + 4096), namespace="tests", threads=2)
        tier = DiskTier(config, TierShape((4096, 8192, 4096), 1))
        await tier.open()
        keys = [make_offload_key(b"chunk", group_idx) for group_idx in range(3)]
        views = [page_buffers(1, size)[0] for size in (4096, 8192, 4096)]
        fill(views, 1, 2, 3)
        assert await tier.store(keys, views) == [STORED] * 3
        fill(views, 0, 0, 0)
        assert await tier.load(keys[::-1], views[::-1]) == [LOADED] * 3
        assert holds(views, 1, 2, 3) == [True] * 3
        assert [pool.capacity for pool in tier.statistics().pools] == [128, 64]
        tier.check_integrity()
        await tier.aclose()

    async def test_several_directories_share_the_chunks(self, tmp_path: Path) -> None:
        directories = [tmp_path / name for name in "abc"]
        async with disk_rig(*directories, num_slots=40) as rig:
            await rig.store(*range(38))
        sizes = [(path / "chunks-0.data").stat().st_size for path in directories]
        assert sizes == [HEADER_BYTES + slots * CHUNK_BYTES for slots in (14, 13, 13)]
        async with disk_rig(*directories, num_slots=40) as rig:
            assert await rig.load(*range(38)) == [LOADED] * 38


class TestManyCalls:
    @pytest.mark.parametrize("policy", ["lru", "arc"])
    async def test_slots_add_up_whatever_is_called_at_once(self, tmp_path: Path, policy: str) -> None:
        """I5, I7."""

        async def lane(rig: DiskRig, dice: random.Random) -> None:
            for _ in range(25):
                first = dice.randrange(60)
                numbers = range(first, first + dice.randrange(1, 9))
                await (rig.store(*numbers) if dice.random() < 0.6 else rig.load(*numbers))
                if dice.random() < 0.05:
                    await rig.tier.reset()
                rig.tier.check_integrity()

        async with disk_rig(tmp_path, num_slots=24, policy=policy) as rig:
            await asyncio.gather(*(lane(rig, random.Random(seed)) for seed in range(6)))  # noqa: S311


def test_ranks_rise_whatever_the_clock_does() -> None:
    times_ms = iter((1000, 1000, 500, 2000))
    ranks = Ranks(0, now_ns=lambda: next(times_ms) * 1_000_000)
    taken = [rank for _ in range(4) for rank in ranks.take(3)]
    assert taken == sorted(set(taken))
    assert taken[-1] >> 20 == 2000
