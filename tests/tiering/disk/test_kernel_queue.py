"""Many transfers in one call of the kernel's: each is wholly done, or said not to be."""

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from aiokvoffload.base import LoadOutcome, StoreOutcome
from aiokvoffload.testing.pages import fill, holds, page_buffers
from aiokvoffload.tiering.disk import kernel_queue
from aiokvoffload.tiering.disk.calls import QUEUE_DEPTH, DiskCalls, QueuedCalls
from aiokvoffload.tiering.disk.kernel_queue import READ, WRITE, KernelQueue, Piece
from tests.tiering.disk.rig import disk_rig

PAGE = 4096


@pytest.fixture
def queue() -> Iterator[KernelQueue]:
    try:
        queue = KernelQueue(4)
    except OSError as error:
        pytest.skip(f"no asynchronous I/O on this system: {error}")
    yield queue
    queue.close()


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, 40 * PAGE)
    yield descriptor
    os.close(descriptor)


def pieces_of(descriptor: int, views: Sequence[Sequence[memoryview]], offsets: Sequence[int]) -> list[Piece]:
    return [Piece(descriptor, buffers, offset) for buffers, offset in zip(views, offsets, strict=True)]


def test_more_pieces_than_its_depth_each_of_several_buffers_come_back_as_they_were(
    queue: KernelQueue, descriptor: int
) -> None:
    offsets = [2 * PAGE * place for place in (7, 0, 11, 3, 4, 18, 9, 5, 1)]
    written, read = page_buffers(9, PAGE, num_workers=2), page_buffers(9, PAGE, num_workers=2)
    fill(written, *range(9))
    assert queue.move(WRITE, pieces_of(descriptor, written, offsets)) == [True] * 9
    assert queue.move(READ, pieces_of(descriptor, read, offsets)) == [True] * 9
    assert holds(read, *range(9)) == [True] * 9
    assert os.pread(descriptor, PAGE, 2 * PAGE * 18) == bytes(written[5][0])


def test_what_fails_or_comes_short_is_not_done_and_its_neighbours_are(queue: KernelQueue, descriptor: int) -> None:
    """Fault 10."""
    views = page_buffers(5, 2 * PAGE)
    pieces = pieces_of(descriptor, views, [0, 39 * PAGE, 2 * PAGE, 80 * PAGE, 4 * PAGE])
    pieces[2] = Piece(-1, views[2], 0)
    assert queue.move(READ, pieces) == [True, False, False, False, True]


def test_memory_that_can_only_be_read_is_left_to_others(queue: KernelQueue, descriptor: int) -> None:
    views = [[memoryview(bytes(PAGE))], [memoryview(bytearray(PAGE))]]
    assert queue.move(WRITE, pieces_of(descriptor, views, [0, PAGE])) == [False, False]


def test_closing_gives_the_kernel_its_ring_back() -> None:
    before = rings()
    calls = QueuedCalls()
    calls.open()
    if calls.at_once == 1:
        pytest.skip("no asynchronous I/O on this system")
    assert rings() == before + 1
    calls.close()
    assert rings() == before


def rings() -> int:
    with open("/proc/self/maps") as maps:
        return sum("[aio]" in line for line in maps)


def test_threads_at_once_each_get_a_queue_of_their_own(tmp_path: Path) -> None:
    calls, right = QueuedCalls(), list[bool]()
    calls.open()
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    together = threading.Barrier(4)

    def work(number: int) -> None:
        views = page_buffers(8, PAGE)
        fill(views, *range(8 * number, 8 * number + 8))
        pieces = pieces_of(descriptor, views, [PAGE * (8 * number + index) for index in range(8)])
        together.wait()
        done = calls.write_many(pieces)
        right.append(all(done) == (calls.at_once > 1))
        right.append(all(done) == (os.pread(descriptor, PAGE, pieces[7].offset) == bytes(views[7][0])))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(descriptor)
    calls.close()
    assert right == [True] * 8


class HalfCalls(QueuedCalls):
    """Of many pieces every other one is not done.

    Attributes:
        most: pieces in one call.
    """

    at_once = QUEUE_DEPTH

    def __init__(self) -> None:
        super().__init__()
        self.most = {READ: 0, WRITE: 0}

    def open(self) -> None:
        pass

    def read_many(self, pieces: Sequence[Piece]) -> Sequence[bool]:
        self.most[READ] = max(self.most[READ], len(pieces))
        return [index % 2 > 0 and self.read(*piece) > 0 for index, piece in enumerate(pieces)]

    def write_many(self, pieces: Sequence[Piece]) -> Sequence[bool]:
        self.most[WRITE] = max(self.most[WRITE], len(pieces))
        return [index % 2 > 0 and self.write(*piece) > 0 for index, piece in enumerate(pieces)]


async def scatter(*directories: Path, calls: DiskCalls, num_workers: int = 1) -> None:
    """Store in slots that are far from each other, and load from such."""
    async with disk_rig(*directories, num_slots=400, num_workers=num_workers, calls=calls) as rig:
        if not rig.tier.statistics().is_direct:
            pytest.skip("no direct I/O on this file system")
        assert set(await rig.store(*range(370))) == {StoreOutcome.STORED}
        assert set(await rig.load(*range(0, 370, 2))) == {LoadOutcome.LOADED}
        for first in range(400, 480, 20):  # in the place of odd ones
            assert set(await rig.store(*range(first, first + 20))) == {StoreOutcome.STORED}
        assert set(await rig.load(*range(400, 480))) == {LoadOutcome.LOADED}
        assert rig.tier.statistics().corrupt == 0


@pytest.mark.parametrize("make_calls", [DiskCalls, QueuedCalls])
async def test_scattered_chunks_come_back_as_they_were(tmp_path: Path, make_calls: type[DiskCalls]) -> None:
    """I5."""
    await scatter(tmp_path / "a", tmp_path / "b", tmp_path / "c", calls=make_calls(), num_workers=2)


async def test_what_was_not_done_at_once_is_done_one_by_one(tmp_path: Path) -> None:
    calls = HalfCalls()
    await scatter(tmp_path, calls=calls)
    assert min(calls.most.values()) > 1


async def test_a_system_without_such_calls_is_served_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_queue, "_NUMBERS", {})
    calls = QueuedCalls()
    await scatter(tmp_path, calls=calls)
    assert calls.at_once == 1
