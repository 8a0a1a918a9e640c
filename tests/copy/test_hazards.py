import numpy as np

from aiokvoffload.copy.direction import Direction
from aiokvoffload.copy.hazards import HazardTable
from aiokvoffload.copy.selection import Selection

STORE, OTHER_STORE, LOAD, EXPEDITED = range(4)


class Story:
    """Enters jobs one after the other; nothing ends unless told."""

    def __init__(self) -> None:
        directions = [Direction.STORE, Direction.STORE, Direction.LOAD, Direction.LOAD]
        self.table = HazardTable(directions, num_slots=8, num_physical_blocks=8)
        self.ended = [0] * 4
        self.number = 0

    def enter(self, stream: int, slots: list[int], blocks: list[int]) -> list[int]:
        self.number += 1
        ids = np.array(slots, dtype=np.int64), np.array(blocks, dtype=np.int64)
        selection = Selection(ids[1], ids[0], (), ids[1], ids[0], 0)
        return self.table.enter(self.number, stream, selection, self.ended)


def test_a_load_waits_for_the_store_into_its_slot() -> None:
    story = Story()
    assert story.enter(STORE, [0], [0]) == []
    assert story.enter(LOAD, [0], [1]) == [1]
    assert story.enter(EXPEDITED, [0], [2]) == [1]


def test_a_store_waits_for_loads_out_of_its_slot_on_every_stream() -> None:
    """Fault 14."""
    story = Story()
    story.enter(LOAD, [0], [1])
    story.enter(EXPEDITED, [0], [2])
    assert story.enter(STORE, [0], [3]) == [1, 2]


def test_two_reads_are_no_hazard() -> None:
    story = Story()
    story.enter(LOAD, [0], [1])
    assert story.enter(EXPEDITED, [0], [2]) == []
    story.enter(STORE, [1], [4])
    assert story.enter(OTHER_STORE, [2], [4]) == []


def test_two_writes_are_a_hazard() -> None:
    story = Story()
    story.enter(LOAD, [0], [1])
    assert story.enter(EXPEDITED, [2], [1]) == [1]
    story.enter(STORE, [1], [4])
    assert story.enter(OTHER_STORE, [1], [5]) == [3]


def test_one_stream_keeps_its_own_order_and_what_has_ended_is_no_hazard() -> None:
    story = Story()
    story.enter(STORE, [0], [0])
    assert story.enter(STORE, [0], [1]) == []
    story.ended[STORE] = 2
    assert story.enter(LOAD, [0], [2]) == []


def test_the_newest_conflict_of_a_stream_stands_for_the_older_ones() -> None:
    story = Story()
    for slot in range(4):
        story.enter(STORE, [slot], [slot])
    story.ended[STORE] = 1
    assert story.enter(LOAD, [0, 1, 2], [5, 6, 7]) == [3]
    assert story.enter(LOAD, [0], [4]) == []
    assert story.enter(LOAD, [], []) == []
