"""Memory is faulted by fakes here: which ranges, in which order, and what happens when one cannot be had."""

import threading
from collections.abc import Generator
from typing import NamedTuple

import pytest

from aiokvoffload.copy.faulting import STEP_BYTES, PageFaulter


class Range(NamedTuple):
    address: int
    size_bytes: int


class Pages:
    """Counts what is faulted; refuses addresses from `limit` on."""

    def __init__(self, limit: int | None = None) -> None:
        self.steps: list[tuple[int, int]] = []
        self.limit = limit

    def fault(self, address: int, size_bytes: int) -> None:
        if self.limit is not None and address + size_bytes > self.limit:
            raise OSError(12, "Cannot allocate memory")
        self.steps.append((address, size_bytes))


def in_turn(faulter: PageFaulter, *sizes: int) -> Generator[Range, None, None]:
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return faulter.fault_in_turn([Range(start, size) for start, size in zip(starts, sizes, strict=True)])


def test_every_byte_is_faulted_once_in_small_steps() -> None:
    pages = Pages()
    sizes = (3 * STEP_BYTES + 4096, STEP_BYTES, 2 * STEP_BYTES)
    with PageFaulter(fault=pages.fault) as faulter:
        done = list(in_turn(faulter, *sizes))
    assert [each.size_bytes for each in done] == list(sizes)
    assert max(size for _, size in pages.steps) == STEP_BYTES
    ordered = sorted(pages.steps)
    assert [address for address, _ in ordered] == [sum(s for _, s in ordered[:i]) for i in range(len(ordered))]
    assert sum(size for _, size in ordered) == sum(sizes)


def test_the_next_range_is_being_faulted_while_one_is_used() -> None:
    reached = threading.Event()

    def fault(address: int, _: int) -> None:
        if address >= 2 * STEP_BYTES:
            reached.set()

    with PageFaulter(fault=fault) as faulter:
        ranges = in_turn(faulter, 2 * STEP_BYTES, 2 * STEP_BYTES)
        next(ranges)
        assert reached.wait(10)
        ranges.close()


@pytest.mark.parametrize("size_bytes", [STEP_BYTES, 2 * STEP_BYTES])
def test_memory_that_cannot_be_had_costs_only_its_own_range(size_bytes: int) -> None:
    pages = Pages(limit=2 * size_bytes)
    with PageFaulter(fault=pages.fault) as faulter:
        ranges = in_turn(faulter, *[size_bytes] * 4)
        assert [next(ranges).address, next(ranges).address] == [0, size_bytes]
        with pytest.raises(OSError, match="allocate"):
            next(ranges)


@pytest.mark.parametrize("size_bytes", [STEP_BYTES, 2 * STEP_BYTES])
def test_a_stop_ends_it_within_a_step(size_bytes: int) -> None:
    stopping, pages = threading.Event(), Pages()
    with PageFaulter(fault=pages.fault, stopping=stopping) as faulter:
        ranges = in_turn(faulter, *[size_bytes] * 9)
        next(ranges)
        stopping.set()
        assert list(ranges) == []
    assert sum(size for _, size in pages.steps) <= 2 * size_bytes


def test_closing_it_waits_for_what_is_being_faulted() -> None:
    """Or memory would be unmapped under the thread that faults it."""
    inside, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def fault(address: int, _: int) -> None:
        if address >= 2 * STEP_BYTES:
            inside.set()
            go_on.wait(10)
            ended.set()

    with PageFaulter(fault=fault) as faulter:
        ranges = in_turn(faulter, 2 * STEP_BYTES, 2 * STEP_BYTES)
        next(ranges)
        inside.wait(10)
        closing = threading.Thread(target=ranges.close)
        closing.start()
        assert not ended.is_set()
        go_on.set()
        closing.join(10)
        assert ended.is_set()


def test_small_ranges_need_no_thread() -> None:
    names: list[str] = []
    with PageFaulter(fault=lambda *_: names.append(threading.current_thread().name)) as faulter:
        list(in_turn(faulter, 4096, 4096))
    assert names == [threading.current_thread().name] * 2
    assert repr(faulter).startswith("PageFaulter(")
