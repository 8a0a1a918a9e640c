"""The kernel's own view, from /proc, says what the calls have done."""

import ctypes
import errno
import mmap
from pathlib import Path

import numpy as np
import pytest

from aiokvoffload.copy import libc
from aiokvoffload.copy.libc import HUGE_PAGE_BYTES, map_memory, populate, prefer_node, touch, unmap_memory

SIZE_BYTES = 5 * mmap.PAGESIZE


def resident_bytes(address: int) -> int | None:
    """Bytes of the mapping at `address` that have pages; `None` if there is none."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.startswith(f"{address:x}-"):
            return next(int(entry.split()[1]) << 10 for entry in lines if entry.startswith("Rss:"))
    return None


def mapped_bytes(address: int) -> int:
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, stop = (int(number, 16) for number in line.split()[0].split("-"))
        if start == address:
            return stop - start
    return 0


def test_memory_begins_at_a_huge_page_and_is_no_longer_than_asked_for() -> None:
    address = map_memory(SIZE_BYTES)
    assert (address % HUGE_PAGE_BYTES, mapped_bytes(address)) == (0, SIZE_BYTES)
    assert resident_bytes(address) == 0
    unmap_memory(address, SIZE_BYTES)
    assert mapped_bytes(address) == 0


@pytest.mark.parametrize("give_pages", [populate, touch])
def test_all_pages_are_there_afterwards_and_zero(give_pages: object) -> None:
    assert callable(give_pages)
    address = map_memory(SIZE_BYTES)
    give_pages(address, SIZE_BYTES)
    assert resident_bytes(address) == SIZE_BYTES
    unmap_memory(address, SIZE_BYTES)


def test_a_kernel_that_cannot_populate_has_its_pages_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.EINVAL, "not before Linux 5.14")

    address = map_memory(SIZE_BYTES)
    monkeypatch.setattr(libc, "advise", refuse)
    populate(address, SIZE_BYTES)
    assert resident_bytes(address) == SIZE_BYTES
    unmap_memory(address, SIZE_BYTES)


def test_memory_that_is_not_there_is_an_error_with_its_number() -> None:
    with pytest.raises(OSError, match="memory") as error:
        populate(1 << 40, mmap.PAGESIZE)
    assert error.value.errno in {errno.ENOMEM, errno.EFAULT}
    with pytest.raises(OSError, match="memory"):
        map_memory(1 << 62)


def test_a_file_is_shared_by_all_that_map_it(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    path.write_bytes(bytes(SIZE_BYTES))
    with path.open("r+b") as file:
        address = map_memory(SIZE_BYTES, file.fileno())
        other = np.memmap(path, dtype=np.uint8, mode="r+")
        other[7] = 9
        touch(address + mmap.PAGESIZE, mmap.PAGESIZE)
        assert ctypes.string_at(address + 7, 1) == b"\x09"
        unmap_memory(address, SIZE_BYTES)


def test_a_node_that_does_not_exist_is_refused() -> None:
    address = map_memory(SIZE_BYTES)
    with pytest.raises(OSError, match=r"."):
        prefer_node(address, SIZE_BYTES, 1000)
    unmap_memory(address, SIZE_BYTES)
