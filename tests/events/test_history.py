"""A history on disk: bounded, checked, and honest about where it begins and what is missing."""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from aiokvoffload.base import EventKind, OffloadingEvent, RemovalReason, make_offload_key
from aiokvoffload.errors import ArgumentError, BusyError, ClosedError
from aiokvoffload.events import ChunkMetadata, EventBus, EventRecord, GapRecord, ResidentKeys
from aiokvoffload.events.history import EventHistory
from aiokvoffload.events.history_files import HistoryFiles
from tests.events.wire_stage import nested_deeply

TIERS = [("CPU", "cpu"), ("DISK", "disk")]


def stored(number: int, tier: str = "cpu") -> OffloadingEvent:
    return OffloadingEvent(EventKind.STORED, (make_offload_key(b"%032d" % number, 0),), tier.upper(), tier)


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def remove_oldest(directory: Path) -> None:
    min(directory.glob("*.events")).unlink()


def damage_end(directory: Path, damage: str) -> None:
    (segment,) = directory.glob("*.events")
    content = bytearray(segment.read_bytes())
    if damage == "torn":
        del content[-5:]
    else:
        content[-5] ^= 1
    segment.write_bytes(content)


async def read_all(bus: EventBus, after: int, **options: object) -> list[EventRecord | GapRecord]:
    async with bus.subscribe(after=after, **options) as records:  # type: ignore[arg-type]
        records.close()
        return [record async for record in records]


async def test_who_resumes_behind_the_memory_is_given_what_the_disk_has(tmp_path: Path) -> None:
    async with EventHistory(tmp_path) as history:
        bus = EventBus(4)
        bus.use_archive(history)
        metadata = ChunkMetadata(token_ids=(1, 2), block_size=2, parent_hash=b"p", lora_id=1, lora_name="a")
        bus.attach_metadata({stored(0).keys[0]: metadata})
        bus.publish(stored(number) for number in range(1000))
        bus.publish([OffloadingEvent(EventKind.CLEARED, (), "CPU", "cpu", RemovalReason.RESET)])
        records = await read_all(bus, -1)
        assert records[0] == EventRecord(0, stored(0), (metadata,))
        assert [record.sequence for record in records] == list(range(1001))  # type: ignore[union-attr]
        assert history.statistics().written == 1001


async def test_a_subscriber_resumes_across_a_restart_and_knows_what_is_void(tmp_path: Path) -> None:
    async with EventHistory(tmp_path) as history:
        bus = EventBus(100, first_sequence=500)
        bus.use_archive(history)
        bus.begin_tiers(TIERS)
        bus.publish([stored(1), stored(2, "disk")])
    async with EventHistory(tmp_path) as history:
        assert history.last == 503
        later = EventBus(100, first_sequence=10)  # the clock was set back
        later.use_archive(history)
        later.begin_tiers(TIERS)
        later.publish([stored(2, "disk")])
        view = ResidentKeys()
        records = await read_all(later, 502)
        for record in records:
            view.apply(record)
        first = 503 + 1_000_000
        assert records[:2] == [EventRecord(503, stored(2, "disk")), GapRecord(504, first - 1)]
        assert [record.sequence for record in records[2:]] == [first, first + 1, first + 2]  # type: ignore[union-attr]
        assert view.is_exact
        assert (view.keys("cpu"), view.keys("disk")) == (set(), set(stored(2).keys))


async def test_it_is_told_where_the_history_begins(tmp_path: Path) -> None:
    """I11: the oldest records go, and whoever wants them is told."""
    async with EventHistory(tmp_path, max_bytes=20_000) as history:
        bus = EventBus(4)
        bus.use_archive(history)
        bus.publish(stored(number) for number in range(2000))
        gap, *records = await read_all(bus, 9)
        assert isinstance(gap, GapRecord)
        assert (gap.first, gap.last + 1) == (10, history.statistics().first)
        assert [record.sequence for record in records] == list(range(gap.last + 1, 2000))  # type: ignore[union-attr]
        assert size_of(tmp_path) <= 20_000


async def test_media_that_are_not_wanted_leave_no_gap(tmp_path: Path) -> None:
    async with EventHistory(tmp_path) as history:
        bus = EventBus(4)
        bus.use_archive(history)
        bus.publish(stored(number, "disk" if number % 3 else "cpu") for number in range(900))
        records = await read_all(bus, -1, media=["CPU"])
        assert [record.sequence for record in records] == list(range(0, 900, 3))  # type: ignore[union-attr]


@pytest.mark.parametrize("damage", ["torn", "flipped"])
async def test_a_torn_or_wrong_record_ends_its_segment_and_is_a_gap(tmp_path: Path, damage: str) -> None:
    """Faults 6 and 36."""
    async with EventHistory(tmp_path) as history:
        bus = EventBus(100)
        bus.use_archive(history)
        bus.publish(stored(number) for number in range(10))
    damage_end(tmp_path, damage)
    async with EventHistory(tmp_path) as history:
        assert history.last == 8
        later = EventBus(2, first_sequence=5_000_000)
        later.use_archive(history)
        later.publish(stored(number) for number in range(3))
        records = await read_all(later, 7)
        assert records[0] == EventRecord(8, stored(8))
        assert records[1] == GapRecord(9, 4_999_999)


async def test_what_the_disk_does_not_take_is_left_out_and_told(tmp_path: Path) -> None:
    """Faults 31 and 42, I11: publishing never waits and never fails."""
    async with EventHistory(tmp_path, max_waiting=3) as history:
        bus = EventBus(2)
        bus.use_archive(history)
        bus.publish(stored(number) for number in range(5000))
        records = await read_all(bus, -1)
        told = sum(r.last - r.first + 1 if isinstance(r, GapRecord) else 1 for r in records)
        assert told == 5000
        assert history.statistics().dropped > 0


async def test_a_directory_that_cannot_be_written_drops_records_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 42."""
    async with EventHistory(tmp_path) as history:
        bus = EventBus(2)
        bus.use_archive(history)

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr("aiokvoffload.events.history_files.HistoryFiles._write", full)
            bus.publish(stored(number) for number in range(4))
            await history.read(0, 4)  # behind the writes
        assert "No space left" in history.statistics().trouble
        bus.publish([stored(4), stored(5), stored(6)])
        assert await read_all(bus, -1) == [GapRecord(0, 3), *(EventRecord(n, stored(n)) for n in (4, 5, 6))]
        assert (history.statistics().trouble, history.statistics().dropped) == ("", 4)


async def test_two_owners_of_one_directory_and_wrong_use_are_refused(tmp_path: Path) -> None:
    """Fault 8."""
    async with EventHistory(tmp_path) as history:
        with pytest.raises(BusyError, match="in use by another history"):
            async with EventHistory(tmp_path):
                pass
        bus = EventBus()
        bus.publish([stored(0)])
        with pytest.raises(ArgumentError, match="begins with the first record"):
            bus.use_archive(history)
        with pytest.raises(ClosedError, match="opened once"):
            await history.__aenter__()
    assert await history.read(0, 9) == ()
    history.append(EventRecord(1, stored(1)))
    with pytest.raises(ArgumentError, match="max_bytes must be at least 1"):
        EventHistory(tmp_path, max_bytes=0)
    with pytest.raises(ArgumentError, match="directory must be a path, got 5"):
        EventHistory(5)  # type: ignore[arg-type]
    with pytest.raises(ClosedError, match="not open"):
        EventHistory(tmp_path).statistics()


KILLED = """
import asyncio, sys
from pathlib import Path
from tests.events.test_history import EventBus, EventHistory, stored

async def main():
    async with EventHistory(Path(sys.argv[1])) as history:
        bus = EventBus(100)
        bus.use_archive(history)
        number = 0
        while True:
            bus.publish(stored(number + each) for each in range(64))
            number += 64
            if number == 6400:
                await history.read(0, 1)
                print("written", flush=True)
            await asyncio.sleep(0)

asyncio.run(main())
"""


def publish_until_killed(directory: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as child:  # noqa: S603
        assert child.stdout is not None
        assert child.stdout.readline() == b"written\n"
        child.kill()


async def test_what_was_written_survives_a_kill(tmp_path: Path) -> None:
    """Fault 36."""
    await asyncio.to_thread(publish_until_killed, tmp_path)
    async with EventHistory(tmp_path) as history:
        assert history.last >= 6399
        bus = EventBus(2)
        bus.use_archive(history)
        records = await read_all(bus, 6000)
        assert records[0] == EventRecord(6001, stored(6001))
        last = [record for record in records if isinstance(record, EventRecord)][-1]
        assert last.sequence == history.last


@pytest.mark.parametrize("token", [1 << 70, nested_deeply()], ids=["large", "nested"])
async def test_metadata_that_cannot_be_written_costs_no_record(tmp_path: Path, token: Any) -> None:
    """Fault 27: all records that were written in one go with it were lost."""
    async with EventHistory(tmp_path) as history:
        bus = EventBus(1)
        bus.use_archive(history)
        bus.attach_metadata({stored(1).keys[0]: ChunkMetadata(token_ids=(token,))})
        bus.publish(stored(number) for number in range(3))
        records = await read_all(bus, -1)
    assert [record for record in records if isinstance(record, GapRecord)] == []
    assert history.statistics().dropped == 0


async def test_a_file_that_somebody_removed_costs_its_records_and_no_others(tmp_path: Path) -> None:
    """I11: nothing was written any more but empty segments, and the bound was not kept."""
    max_bytes = 40_000
    async with EventHistory(str(tmp_path), max_bytes=max_bytes) as history:
        bus = EventBus(10)
        bus.use_archive(history)
        for turn in range(20):
            bus.publish(stored(number) for number in range(100))
            await history.read(0, 1)
            if turn == 0:
                remove_oldest(tmp_path)
        assert (history.statistics().dropped, history.statistics().trouble) == (0, "")
    assert size_of(tmp_path) <= max_bytes


async def test_what_is_no_file_of_ours_is_left_alone(tmp_path: Path) -> None:
    others = [tmp_path / f"{5:020d}.events", tmp_path / "7.events"]
    for other in others:
        other.mkdir()
    async with EventHistory(tmp_path) as history:
        assert history.last == -1
    assert all(other.is_dir() for other in others)


async def test_a_history_that_could_not_open_lets_go_of_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt said that another process had it open."""
    with monkeypatch.context() as patched:
        patched.setattr(HistoryFiles, "_find_last", lambda _: os.stat(tmp_path / "missing"))
        with pytest.raises(FileNotFoundError):
            await EventHistory(tmp_path).__aenter__()
    async with EventHistory(tmp_path):
        pass


def gate_openings(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Openings stop once they have the directory: `(stopped, may_go_on)`."""
    stopped, may_go_on = threading.Event(), threading.Event()
    find_last = HistoryFiles._find_last

    def wait_and_find(files: HistoryFiles) -> int:
        stopped.set()
        may_go_on.wait(10)
        return find_last(files)

    monkeypatch.setattr(HistoryFiles, "_find_last", wait_and_find)
    return stopped, may_go_on


@pytest.mark.parametrize("times", [1, 2])
async def test_a_cancelled_opening_lets_go_of_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Fault 8: the thread opened it all the same, and nobody ever closed it."""
    stopped, may_go_on = gate_openings(monkeypatch)
    history = EventHistory(tmp_path)
    opening = asyncio.create_task(history.__aenter__())
    await asyncio.to_thread(stopped.wait, 10)
    for _ in range(times):
        opening.cancel()
        await asyncio.sleep(0)
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await history.aclose()
    async with EventHistory(tmp_path):
        pass
    with pytest.raises(ClosedError, match="opened once"):
        await history.__aenter__()


async def test_a_history_that_is_closed_while_it_opens_is_not_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped, may_go_on = gate_openings(monkeypatch)
    history = EventHistory(tmp_path)
    opening = asyncio.create_task(history.__aenter__())
    await asyncio.to_thread(stopped.wait, 10)
    closing = asyncio.create_task(history.aclose())
    await asyncio.sleep(0)
    may_go_on.set()
    with pytest.raises(ClosedError, match="closed while it was being opened"):
        await opening
    await closing
    async with EventHistory(tmp_path):
        pass


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("lock", "pipe"),
        ("lock", "link to a pipe"),
        (f"{5:020d}.events", "pipe"),
        (f"{5:020d}.events", "link to a pipe"),
        (f"{5:020d}.events", "link to nothing"),
    ],
)
async def test_a_pipe_among_its_files_is_refused_by_name(tmp_path: Path, name: str, kind: str) -> None:
    """Opening it, to read or to write a segment of that number, waited for good, and so did the close."""
    directory, elsewhere = tmp_path / "history", tmp_path / "elsewhere"
    directory.mkdir()
    if kind != "link to nothing":
        os.mkfifo(directory / name if kind == "pipe" else elsewhere)
    if kind != "pipe":
        (directory / name).symlink_to(elsewhere)
    with pytest.raises(ArgumentError, match=rf"{name} is neither a file nor a folder"):
        await EventHistory(directory).__aenter__()
    (directory / name).unlink()
    async with EventHistory(directory):
        pass


async def test_a_pipe_that_comes_later_costs_records_and_no_wait(tmp_path: Path) -> None:
    async with EventHistory(tmp_path) as history:
        os.mkfifo(tmp_path / f"{0:020d}.events")
        history.append(EventRecord(0, stored(0)))
        history.append(EventRecord(1, stored(1)))
        assert await history.read(0, 2) == []
        history.append(EventRecord(2, stored(2)))
        assert await history.read(0, 3) == [EventRecord(2, stored(2))]
        (tmp_path / f"{2:020d}.events").unlink()
        os.mkfifo(tmp_path / f"{2:020d}.events")
        assert await history.read(0, 3) == []
