from collections.abc import Iterator

import numpy as np
import pytest

from aiokvoffload.base import GPULoadStoreSpec
from aiokvoffload.copy.direction import Direction
from aiokvoffload.copy.hazards import HazardTable
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.errors import ArgumentError
from tests.copy.memory import Memory, caches_of
from tests.interpreter import turns_given_away

STORE, LOAD = Direction.STORE, Direction.LOAD


@pytest.fixture(scope="module")
def memory() -> Iterator[Memory]:
    """Groups 0 and 1 share tensor 0 and a pool of 4 slots; chunks of two blocks."""
    kv_caches = caches_of([8, 8, 8], [64] * 3, [[(0, 64), (1, 64)], [(0, 64), (2, 64)]])
    made = Memory(kv_caches, [PoolShape((0, 1), 256, 4)], [2, 2])
    yield made
    made.close()


@pytest.mark.parametrize(
    ("direction", "blocks", "slots", "message"),
    [
        (STORE, GPULoadStoreSpec([0, 1]), [0], r"src.group_sizes must give one size for each of 2 groups, got \(2,\)"),
        (
            STORE,
            GPULoadStoreSpec([0, 8], [2, 0]),
            [0],
            r"src.block_ids of group 0 must be in \[0, 8\), got 8 at index 1",
        ),
        (LOAD, GPULoadStoreSpec([9], [0, 1]), [0], r"dst.block_ids of group 1 must be in \[0, 8\), got 9 at index 0"),
        (STORE, GPULoadStoreSpec([3, 3], [2, 0]), [0], "src.block_ids must not name a block twice, got 3"),
        (LOAD, GPULoadStoreSpec([3, 5, 5, 6], [2, 2]), [0, 1], "dst.block_ids must not name a block twice, got 5"),
        (STORE, GPULoadStoreSpec([3], [1, 0]), [0], "src must cover whole chunks of 2 blocks in group 0, got 1 blocks"),
        (STORE, GPULoadStoreSpec([3, 4], [2, 0], [1, 0]), [0], "got 2 blocks from index 1"),
        (LOAD, GPULoadStoreSpec([3, 4], [2, 0], [1, 0]), [0], "src.chunk_ids must hold the 2 chunks.*got 1"),
        (STORE, GPULoadStoreSpec([], [0, 0]), [0], "dst.chunk_ids must hold the 0 chunks.*got 1"),
        (STORE, GPULoadStoreSpec([3, 4], [2, 0]), [4], r"dst.chunk_ids must be in \[0, 4\), got 4 at index 0"),
        (STORE, GPULoadStoreSpec([0, 1, 2, 3], [2, 2]), [1, 1], "dst.chunk_ids must not name a slot twice, got 1"),
        (LOAD, GPULoadStoreSpec([0, 1, 2, 3], [4, 0]), [1, 1], "src.chunk_ids must not name a slot twice, got 1"),
    ],
)
def test_what_does_not_fit_is_refused_by_argument_value_and_limit(
    memory: Memory, direction: Direction, blocks: GPULoadStoreSpec, slots: list[int], message: str
) -> None:
    """Fault 48."""
    with pytest.raises(ArgumentError, match=message):
        memory.selector.select(direction, blocks, np.array(slots, dtype=np.int64))


def test_negative_ids_that_were_written_into_a_spec_afterwards_are_refused(memory: Memory) -> None:
    blocks = GPULoadStoreSpec([0, 1], [2, 0])
    blocks.block_ids[0] = -1
    with pytest.raises(ArgumentError, match="got -1 at index 0"):
        memory.selector.select(STORE, blocks, np.array([0]))


def test_two_groups_may_read_one_slot_of_their_pool(memory: Memory) -> None:
    selection = memory.selector.select(LOAD, GPULoadStoreSpec([0, 1, 2, 3], [2, 2]), np.array([1, 1]))
    assert selection.slots.tolist() == [1, 1]


def test_a_selection_owns_its_ids(memory: Memory) -> None:
    """Fault 39."""
    blocks, slots = GPULoadStoreSpec([0, 1], [2, 0]), np.array([1])
    selection = memory.selector.select(STORE, blocks, slots)
    blocks.block_ids[:] = slots[:] = 3
    assert (selection.block_ids.tolist(), selection.chunk_ids.tolist(), selection.slots.tolist()) == ([0, 1], [1], [1])
    assert (selection.size_bytes, memory.selector.fragments_per_chunk(0)) == (256, 4)


@pytest.mark.parametrize("direction", [STORE, LOAD])
@pytest.mark.parametrize("count", [26, 200])
def test_a_job_is_checked_without_giving_up_the_interpreter(direction: Direction, count: int) -> None:
    """I10: a thread that computes would keep it for 5 ms, within the call."""
    memory = Memory(caches_of([count], [64], [[(0, 64)]]), [PoolShape((0,), 64, count)], [1])
    hazards = HazardTable([STORE, LOAD], num_slots=count, num_physical_blocks=count)
    blocks, slots = GPULoadStoreSpec(range(count)), np.arange(count)[::-1].copy()
    hazards.enter(1, int(direction is STORE), memory.selector.select(direction, blocks, slots), [0, 0])

    def check() -> None:
        hazards.enter(2, int(direction is LOAD), memory.selector.select(direction, blocks, slots), [0, 0])

    assert turns_given_away(check) == 0
    memory.close()


@pytest.mark.parametrize("count", [2, 64, 65, 600])
def test_a_block_named_twice_is_found_among_few_and_many(count: int) -> None:
    memory = Memory(caches_of([count], [64], [[(0, 64)]]), [PoolShape((0,), 64, count)], [1])
    ids = list(range(count))
    ids[-1] = ids[0]
    with pytest.raises(ArgumentError, match="must not name a block twice, got 0"):
        memory.selector.select(STORE, GPULoadStoreSpec(ids), np.arange(count))
    memory.close()
