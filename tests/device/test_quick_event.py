"""Events are used again, each for one mark at a time. What a real driver makes of them is in test_cuda.py."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiokvoffload.base import Stream
from aiokvoffload.device.quick_driver import QuickDriver
from aiokvoffload.device.quick_event import MOST_SPARE, QuickEvent, SpareEvents


class Driver:
    """Counts; a driver that refuses does so until `refuses` is taken back."""

    def __init__(self) -> None:
        self.living: set[int] = set()
        self.made = 0
        self.marks: list[tuple[int, int]] = []
        self.refuses = False

    @contextmanager
    def current(self) -> Iterator[None]:
        yield

    def create_event(self, *, timed: bool) -> int:
        assert timed
        self.made += 1
        self.living.add(self.made)
        return self.made

    def destroy_event(self, event: int) -> None:
        self.living.remove(event)

    def mark(self, event: int, stream: int) -> None:
        if self.refuses:
            raise OSError("CUDA_ERROR_LAUNCH_FAILED")
        self.marks.append((event, stream))


def stream(handle: int) -> Stream:
    return cast("Stream", SimpleNamespace(cuda_stream=handle))


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def spare(driver: Driver) -> SpareEvents:
    return SpareEvents(cast("QuickDriver", cast("Any", driver)))


def test_an_event_marks_something_else_only_when_its_mark_is_let_go_of(driver: Driver, spare: SpareEvents) -> None:
    first, second = QuickEvent(spare, stream(7)), QuickEvent(spare, stream(8))
    assert driver.marks == [(1, 7), (2, 8)]
    del first
    third = QuickEvent(spare, stream(9))
    assert driver.marks[2:] == [(1, 9)]
    assert (repr(second), repr(third), driver.made) == ("QuickEvent(0x2)", "QuickEvent(0x1)", 2)


def test_only_so_many_are_kept_and_none_after_the_end(driver: Driver, spare: SpareEvents) -> None:
    marks = [QuickEvent(spare, stream(7)) for _ in range(MOST_SPARE + 10)]
    late = QuickEvent(spare, stream(7))
    marks.clear()
    assert len(driver.living) == MOST_SPARE + 1
    spare.close()
    assert driver.living == {late.cuda_event}
    del late
    assert not driver.living


def test_one_given_while_the_others_are_given_back_is_not_forgotten(
    driver: Driver, spare: SpareEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector may let go of a mark on any thread, at any moment."""

    class Closing(list[int]):
        def append(self, event: int) -> None:
            monkeypatch.undo()
            spare.close()  # on another thread, between the question and the answer
            spare._spare.append(event)

    late = QuickEvent(spare, stream(7))
    monkeypatch.setattr(spare, "_spare", Closing())
    del late
    assert not driver.living


def test_one_that_could_not_be_recorded_is_not_lost(driver: Driver, spare: SpareEvents) -> None:
    driver.refuses = True
    with pytest.raises(OSError, match="LAUNCH_FAILED"):
        QuickEvent(spare, stream(7))
    driver.refuses = False
    assert QuickEvent(spare, stream(7)).cuda_event == 1
    spare.close()
    assert not driver.living


def test_a_driver_that_makes_none_leaves_nothing_to_give_back(
    driver: Driver, spare: SpareEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*, timed: bool) -> int:
        raise OSError("CUDA_ERROR_OUT_OF_MEMORY")

    monkeypatch.setattr(driver, "create_event", refuse)
    with pytest.raises(OSError, match="OUT_OF_MEMORY"):
        QuickEvent(spare, stream(7))
    assert repr(spare) == "SpareEvents(0)"
