"""What fails underneath fails one key, one call, or the opening; it is counted, and the tier lives."""

import asyncio
import errno
import logging
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from aiokvoffload.base import LoadOutcome, StoreOutcome, TierShape
from aiokvoffload.errors import AbandonedError, ClosedError, ConfigError, TierError
from aiokvoffload.testing.pages import fill, holds, page_buffers
from aiokvoffload.testing.tier import tier_keys
from aiokvoffload.tiering.disk.calls import Step
from aiokvoffload.tiering.disk.config import DiskConfig
from aiokvoffload.tiering.disk.layout import HEADER_BYTES
from aiokvoffload.tiering.disk.tier import DiskTier
from tests.tiering.disk.calls import NoDirectCalls, ScriptedCalls
from tests.tiering.disk.rig import CHUNK_BYTES, disk_rig

LOADED, MISS, FAILED = LoadOutcome.LOADED, LoadOutcome.MISS, LoadOutcome.FAILED
STORED = StoreOutcome.STORED


@pytest.fixture
def calls() -> Iterator[ScriptedCalls]:
    calls = ScriptedCalls()
    yield calls
    calls.gate.set()


class TestOpening:
    async def test_another_namespace_is_refused_and_named(self, tmp_path: Path) -> None:
        """Fault 7."""
        async with disk_rig(tmp_path, namespace="model-a") as rig:
            await rig.store(1)
        with pytest.raises(TierError, match="namespace 'model-a', not 'model-b'"):
            await disk_rig(tmp_path, namespace="model-b").tier.open()
        async with disk_rig(tmp_path, namespace="model-a") as rig:
            assert await rig.load(1) == [LOADED]

    async def test_another_layout_of_equal_size_is_refused(self, tmp_path: Path) -> None:
        """Fault 7: two workers with half of the bytes each are not one with all of them."""
        async with disk_rig(tmp_path):
            pass
        with pytest.raises(TierError, match=r"chunk_bytes \(8192,\), not \(4096,\)"):
            await disk_rig(tmp_path, chunk_bytes=4096, num_workers=2).tier.open()
        with pytest.raises(TierError, match="num_workers 1, not 2"):
            await disk_rig(tmp_path, num_workers=2).tier.open()
        with pytest.raises(TierError, match="num_directories 1, not 2"):
            await disk_rig(tmp_path, tmp_path / "more").tier.open()

    async def test_a_second_owner_is_refused_and_told_who_the_first_is(self, tmp_path: Path) -> None:
        """Fault 8."""
        async with disk_rig(tmp_path):
            with pytest.raises(TierError, match=f"in use by process {os.getpid()}"):
                await disk_rig(tmp_path).tier.open()
        async with disk_rig(tmp_path):
            pass

    async def test_an_owner_in_another_process_is_told_too(self, tmp_path: Path) -> None:
        """Fault 8."""
        code = (
            "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
        )
        owner = await asyncio.to_thread(
            subprocess.Popen,
            [sys.executable, "-c", code, str(tmp_path / "lock")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert owner.stdout is not None
        await asyncio.to_thread(owner.stdout.readline)
        with pytest.raises(TierError, match="in use by another process"):
            await disk_rig(tmp_path).tier.open()
        await asyncio.to_thread(owner.communicate, b"\n")

    async def test_one_directory_given_twice_is_refused(self, tmp_path: Path) -> None:
        await asyncio.to_thread((tmp_path / "link").symlink_to, tmp_path / "disk")
        with pytest.raises(TierError, match="in use"):
            await disk_rig(tmp_path / "disk", tmp_path / "link").tier.open()

    async def test_a_full_disk_at_the_opening_is_a_clear_error_and_leaves_no_file(
        self, tmp_path: Path, calls: ScriptedCalls
    ) -> None:
        """Faults 31, 42."""
        calls.allocate_error = errno.ENOSPC
        with pytest.raises(TierError, match=r"cannot reserve \d+ bytes: No space left on device; make room"):
            await disk_rig(tmp_path, calls=calls).tier.open()
        assert "chunks-0.data" not in await asyncio.to_thread(os.listdir, tmp_path)
        calls.allocate_error = 0
        async with disk_rig(tmp_path, calls=calls) as rig:
            assert await rig.store(1) == [STORED]

    async def test_a_file_that_cannot_grow_as_asked_is_as_long_as_it_was(self, tmp_path: Path) -> None:
        """Fault 42: a failed reservation keeps what it got, and so would the disk be full from then on."""

        class Greedy(ScriptedCalls):
            def allocate(self, descriptor: int, size_bytes: int) -> None:
                os.truncate(descriptor, size_bytes - CHUNK_BYTES)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        async with disk_rig(tmp_path) as rig:
            await rig.store(1)
        with pytest.raises(TierError, match="cannot reserve"):
            await disk_rig(tmp_path, num_slots=80, calls=Greedy()).tier.open()
        assert (await asyncio.to_thread((tmp_path / "chunks-0.data").stat)).st_size == HEADER_BYTES + 40 * CHUNK_BYTES
        async with disk_rig(tmp_path) as rig:
            assert await rig.load(1) == [LOADED]

    async def test_more_than_the_device_has_is_refused_before_anything_is_made(self, tmp_path: Path) -> None:
        """Fault 42: neither memory for each slot, nor an index that pins the layout of a tier that never was."""
        with pytest.raises(TierError, match=r"\d+ free bytes, and chunks need 8192\d{15} more there: make room"):
            await disk_rig(tmp_path, num_slots=10**15).tier.open()
        assert await asyncio.to_thread(os.listdir, tmp_path) == ["lock"]
        async with disk_rig(tmp_path, chunk_bytes=4096) as rig:
            assert await rig.store(1) == [STORED]

    async def test_directories_of_one_device_need_its_room_together(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Fault 42: each alone would fit, and the first one's file would stay."""
        free_blocks = 30
        monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=1, f_bfree=free_blocks, f_frsize=8192))
        with pytest.raises(TierError, match="need 458752 more"):
            await disk_rig(tmp_path / "a", tmp_path / "b").tier.open()
        assert await asyncio.to_thread(os.listdir, tmp_path / "a") == ["lock"]
        free_blocks = 56
        async with disk_rig(tmp_path / "a", tmp_path / "b"):
            pass
        free_blocks = 0  # what is there already needs no more
        async with disk_rig(tmp_path / "a", tmp_path / "b"):
            pass

    async def test_a_device_that_does_not_say_what_is_free_is_taken_as_it_is(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=0, f_bfree=0, f_frsize=4096))
        async with disk_rig(tmp_path) as rig:
            assert await rig.store(1) == [STORED]

    @pytest.mark.parametrize("directory", ["/proc/nowhere", "/dev/null"])
    async def test_a_directory_that_cannot_be_is_a_clear_error(self, directory: str) -> None:
        """Fault 42."""
        with pytest.raises(TierError, match=f"directory {directory} cannot be used"):
            await disk_rig(Path(directory)).tier.open()

    async def test_a_directory_that_may_not_be_written_is_a_clear_error(self, tmp_path: Path) -> None:
        """Fault 42: EACCES, which the superuser is spared."""

        class Forbidden(ScriptedCalls):
            def write(self, *_: object) -> int:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        with pytest.raises(TierError, match="Permission denied"):
            await disk_rig(tmp_path, calls=Forbidden()).tier.open()

    async def test_direct_io_that_fails_at_the_first_write_gives_way_to_the_page_cache(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Fault 40."""
        async with disk_rig(tmp_path, calls=NoDirectCalls(), chunk_bytes=5000) as rig:
            assert not rig.tier.statistics().is_direct
            assert await rig.store(1, 2) == [STORED] * 2
            assert await rig.load(1, 2) == [LOADED] * 2
        assert [record.levelno for record in caplog.records] == [logging.WARNING]

    async def test_an_opening_that_nobody_waits_for_lets_go_of_the_directory(
        self, tmp_path: Path, calls: ScriptedCalls
    ) -> None:
        """Fault 32."""
        allocating, go_on = threading.Event(), threading.Event()

        class Slow(ScriptedCalls):
            def allocate(self, descriptor: int, size_bytes: int) -> None:
                allocating.set()
                go_on.wait()
                super().allocate(descriptor, size_bytes)

        opening = asyncio.create_task(disk_rig(tmp_path, calls=Slow()).tier.open())
        await asyncio.to_thread(allocating.wait)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        go_on.set()
        rig = disk_rig(tmp_path)
        while True:
            try:
                await rig.tier.open()
            except TierError as error:
                if "in use" not in str(error):
                    raise
            else:
                break
        assert await rig.store(1) == [STORED]
        await rig.tier.aclose()

    async def test_a_refused_opening_leaves_no_file_open(self, tmp_path: Path) -> None:
        """Though the files of the pools before the one that is refused were open."""
        await asyncio.to_thread((tmp_path / "chunks-1.data").write_bytes, b"somebody else's")
        config = DiskConfig(directories=(tmp_path,), disk_bytes=1 << 20, namespace="tests")
        before = await asyncio.to_thread(os.listdir, "/proc/self/fd")
        for _ in range(3):
            with pytest.raises(TierError, match=r"chunks-1\.data is another tier's"):
                await DiskTier(config, TierShape((4096, 8192), 1)).open()
        assert len(await asyncio.to_thread(os.listdir, "/proc/self/fd")) == len(before)

    @pytest.mark.parametrize("given", range(5))
    async def test_too_few_threads_are_a_clear_error_and_everything_is_given_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: int
    ) -> None:
        """Of five: one that opens, two that read and write, and one each that reads and writes rows."""
        start, left = threading.Thread.start, given

        def start_some(thread: threading.Thread) -> None:
            nonlocal left
            if not left:
                raise RuntimeError("can't start new thread")
            left -= 1
            start(thread)

        rig = disk_rig(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start_some)
            with pytest.raises(TierError, match=f"tier 'disk' in {tmp_path}: thread .* cannot be started"):
                await rig.tier.open()
        await rig.tier.aclose()
        async with rig:
            assert await rig.store(1) == [STORED]

    async def test_a_budget_for_less_than_two_slots_is_refused(self, tmp_path: Path) -> None:
        config = DiskConfig(directories=(tmp_path,), disk_bytes=4096, namespace="tests")
        with pytest.raises(ConfigError, match="disk_bytes=4096 leaves 0 slots"):
            await DiskTier(config, TierShape((4096, 8192), 1)).open()

    async def test_an_unknown_policy_is_refused_and_leaves_the_directory_to_others(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="unknown name 'belady'"):
            await disk_rig(tmp_path, policy="belady").tier.open()
        async with disk_rig(tmp_path):
            pass


class TestFailures:
    async def test_a_bad_block_fails_its_chunk_and_no_neighbour(self, tmp_path: Path, calls: ScriptedCalls) -> None:
        """Faults 10, 42: EIO in the middle of one merged read."""
        async with disk_rig(tmp_path, calls=calls) as rig:
            await rig.store(*range(8))
            calls.read_errors[HEADER_BYTES + 3 * CHUNK_BYTES + 100] = errno.EIO
            outcomes = await rig.load(*range(8))
            assert (outcomes.count(LOADED), outcomes.count(FAILED)) == (7, 1)
            assert rig.contains(*range(8)).count(True) == 7
            assert rig.tier.statistics().failed_loads == 1

    async def test_writes_that_fail_leave_no_trace_and_their_slots_free(
        self, tmp_path: Path, calls: ScriptedCalls
    ) -> None:
        """Faults 31, 42, I4."""
        async with disk_rig(tmp_path, calls=calls) as rig:
            for error in (errno.EIO, errno.ENOSPC, errno.EDQUOT):
                calls.write_error = error
                assert await rig.store(1, 2) == [StoreOutcome.FAILED] * 2
            assert rig.contains(1, 2) == [False] * 2
            assert rig.tier.statistics().pools[0].free == 40
            calls.write_error = 0
            assert await rig.store(1, 2) == [STORED] * 2
            assert rig.tier.statistics().failed_stores == 6

    @pytest.mark.parametrize("most_bytes", [4096, 5000, 12288])
    async def test_short_reads_and_writes_are_continued(
        self, tmp_path: Path, calls: ScriptedCalls, most_bytes: int
    ) -> None:
        calls.most_bytes = most_bytes
        async with disk_rig(tmp_path, calls=calls, chunk_bytes=20_000, num_workers=2) as rig:
            assert await rig.store(*range(4)) == [STORED] * 4
            assert await rig.load(*range(4)) == [LOADED] * 4

    async def test_buffers_that_begin_on_no_page_are_served_too(self, tmp_path: Path) -> None:
        """Fault 40: unaligned addresses."""
        async with disk_rig(tmp_path) as rig:
            views = [[row[0][100 : 100 + CHUNK_BYTES]] for row in page_buffers(2, CHUNK_BYTES + 200)]
            fill(views, 1, 2)
            assert await rig.tier.store(tier_keys(1, 2), views) == [STORED] * 2
            fill(views, 0, 0)
            assert await rig.tier.load(tier_keys(1, 2), views) == [LOADED] * 2
            assert holds(views, 1, 2) == [True, True]

    async def test_an_index_that_cannot_grow_stops_stores_and_no_load_until_it_can(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Faults 31, 42: a full disk while the write-ahead log grows."""
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        async with disk_rig(tmp_path, chunk_bytes=4096, num_slots=8) as rig:
            await rig.store(1)
            resource.setrlimit(resource.RLIMIT_FSIZE, (HEADER_BYTES + 8 * 4096, limits[1]))
            try:
                outcomes = [await rig.store(number) for number in range(100, 200)]
                assert outcomes[-1] == [StoreOutcome.FAILED]
                assert rig.tier.statistics().trouble
                assert rig.tier.statistics().failed_commits
                with pytest.raises(TierError):
                    await rig.tier.probe()
                there = [number for number in range(100, 200) if rig.contains(number)[0]]
                assert await rig.load(*there) == [LOADED] * len(there)
                rig.tier.check_integrity()
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            while await rig.store(300) != [STORED]:
                await asyncio.to_thread(threading.Event().wait, 0.01)
            assert not rig.tier.statistics().trouble
            await rig.tier.probe()
        async with disk_rig(tmp_path, chunk_bytes=4096, num_slots=8) as rig:
            assert await rig.load(300) == [LOADED]

    async def test_a_close_while_the_index_cannot_be_written_ends_and_loses_rows_only(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Fault 31: no dead-lock on the error path."""
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            async with disk_rig(tmp_path, chunk_bytes=4096, num_slots=8) as rig:
                resource.setrlimit(resource.RLIMIT_FSIZE, (HEADER_BYTES + 8 * 4096, limits[1]))
                for number in range(100, 160):
                    await rig.store(number)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert "changes of rows are lost" in caplog.text
        async with disk_rig(tmp_path, chunk_bytes=4096, num_slots=8) as rig:
            there = [number for number in range(100, 160) if rig.contains(number)[0]]
            assert await rig.load(*there) == [LOADED] * len(there)

    async def test_what_waits_for_an_index_that_cannot_be_written_ends_with_a_close(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Faults 31, 53, I1: the reset says that it is not for good, the store that it failed."""
        calls = ScriptedCalls()
        rig = disk_rig(tmp_path, calls=calls, close_timeout_s=0.1)
        await rig.tier.open()
        await rig.store(1)

        def refuse(step: Step) -> None:
            if step is Step.ROWS_CHANGED:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        calls.on_step = refuse
        resetting, storing = asyncio.create_task(rig.tier.reset()), asyncio.create_task(rig.store(2))
        await asyncio.sleep(0)
        await rig.tier.aclose()
        with pytest.raises(TierError, match="old keys may come back"):
            await resetting
        assert await storing in ([StoreOutcome.FAILED], [StoreOutcome.REFUSED])
        rig.tier.check_integrity()

    async def test_a_directory_removed_underneath_ends_with_the_tier(self, tmp_path: Path) -> None:
        """Fault 42: what is open serves on, and the next opening begins anew."""
        directory = tmp_path / "disk"
        async with disk_rig(directory) as rig:
            await rig.store(1, 2)
            await asyncio.to_thread(shutil.rmtree, directory)
            assert await rig.load(1, 2) == [LOADED] * 2
            assert await rig.store(3) in ([STORED], [StoreOutcome.FAILED])
        async with disk_rig(directory) as rig:
            assert await rig.load(1) == [MISS]
            assert await rig.store(1) == [STORED]

    async def test_stores_beyond_the_bound_are_dropped_and_counted(self, tmp_path: Path, calls: ScriptedCalls) -> None:
        """Fault 26: a disk that is slower than its stores."""
        async with disk_rig(tmp_path, calls=calls, max_pending_stores=5) as rig:
            calls.gate.clear()
            first = asyncio.create_task(rig.store(1, 2, 3))
            await asyncio.to_thread(calls.begun.wait)
            second = asyncio.create_task(rig.store(4, 5, 6))
            third = asyncio.create_task(rig.store(7))
            assert await third == [StoreOutcome.REFUSED]
            calls.gate.set()
            assert await first == [STORED] * 3
            assert await second == [STORED, STORED, StoreOutcome.REFUSED]
            assert rig.tier.statistics().dropped == 2
            assert await rig.store(6, 7) == [STORED] * 2

    async def test_an_unexpected_error_in_a_thread_fails_its_chunks_and_nobody_hangs(
        self, tmp_path: Path, calls: ScriptedCalls, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Fault 27."""

        def explode(_: object) -> None:
            raise ZeroDivisionError

        async with disk_rig(tmp_path, calls=calls) as rig:
            calls.on_step = explode
            assert await rig.store(1) == [StoreOutcome.FAILED]
            calls.on_step = lambda _: None
            assert await rig.store(1) == [STORED]
        assert "a job on an I/O thread failed" in caplog.text


class TestHanging:
    async def test_a_hung_read_keeps_its_slot_and_its_caller_and_nobody_else(
        self, tmp_path: Path, calls: ScriptedCalls
    ) -> None:
        """Fault 25, I2: whoever has a deadline stops waiting, the call itself goes on."""
        async with disk_rig(tmp_path, calls=calls) as rig:
            await rig.store(1, 2)
            calls.gate.clear()
            loading = asyncio.create_task(rig.load(1))
            await asyncio.to_thread(calls.begun.wait)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(loading), 0.01)
            assert rig.tier.statistics().pools[0].pinned == 1
            rig.tier.check_integrity()
            calls.gate.set()
            assert await loading == [LOADED]

    async def test_a_close_with_a_hung_read_ends_at_its_time_out_and_says_what_it_left(
        self, tmp_path: Path, calls: ScriptedCalls
    ) -> None:
        """Faults 25, 35: the directory stays locked until the thread is back."""
        rig = disk_rig(tmp_path, calls=calls, close_timeout_s=0.1)
        await rig.tier.open()
        await rig.store(1, 2)
        calls.gate.clear()
        loading = asyncio.create_task(rig.load(1))
        await asyncio.to_thread(calls.begun.wait)
        with pytest.raises(AbandonedError, match=r"after 0\.1 s there was left: 1 calls, 0 reads and 0 writes"):
            await rig.tier.aclose()
        await rig.tier.aclose()
        with pytest.raises(ClosedError):
            await rig.load(2)
        with pytest.raises(TierError, match="in use"):
            await disk_rig(tmp_path).tier.open()
        calls.gate.set()
        assert await loading == [LOADED]
        await rig.tier.wait_ended()
        async with disk_rig(tmp_path) as again:
            assert await again.load(1, 2) == [LOADED] * 2

    async def test_a_hung_write_is_abandoned_too_and_its_key_is_not_there_afterwards(
        self, tmp_path: Path, calls: ScriptedCalls
    ) -> None:
        """Faults 25, 43: bytes that came too late have no row."""
        rig = disk_rig(tmp_path, calls=calls, close_timeout_s=0.1)
        await rig.tier.open()
        await rig.store(1)
        calls.gate.clear()
        storing = asyncio.create_task(rig.store(2))
        await asyncio.to_thread(calls.begun.wait)
        with pytest.raises(AbandonedError):
            await rig.tier.aclose()
        calls.gate.set()
        await storing
        await rig.tier.wait_ended()
        async with disk_rig(tmp_path) as again:
            assert again.contains(1, 2) == [True, False]
