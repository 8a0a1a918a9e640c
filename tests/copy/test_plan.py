"""Plans against a model that copies byte by byte, and the merging of neighbours."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aiokvoffload.base import GPULoadStoreSpec
from aiokvoffload.copy.arena import ArenaOptions
from aiokvoffload.copy.direction import Direction
from aiokvoffload.copy.host_copy import copy_fragments
from aiokvoffload.copy.plan import plan_copies
from aiokvoffload.copy.slot_runs import slot_runs
from aiokvoffload.cpu.common import PoolShape
from tests.copy.memory import Memory, caches_of
from tests.interpreter import turns_given_away

PAGES = (32, 48, 16)
GROUPS = ([(0, 32), (1, 40)], [(1, 48)], [(2, 16)])
CHUNKS = (2, 3, 1)
NUM_BLOCKS, NUM_SLOTS = 24, 12


def make_memory() -> Memory:
    sizes = [blocks * sum(used for _, used in group) for blocks, group in zip(CHUNKS, GROUPS, strict=True)]
    assert sizes[0] == sizes[1], "groups 0 and 1 share a pool"
    pools = [PoolShape((0, 1), sizes[0], NUM_SLOTS), PoolShape((2,), sizes[2], NUM_SLOTS)]
    return Memory(caches_of([NUM_BLOCKS] * 3, PAGES, GROUPS), pools, CHUNKS)


@pytest.fixture(scope="module")
def memory() -> Iterator[Memory]:
    made = make_memory()
    yield made
    made.close()


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Direction, GPULoadStoreSpec, list[int]]:
    """A legal job over three groups; groups 0 and 1 share a tensor and a pool."""
    direction = draw(st.sampled_from(Direction))
    shared = draw(st.permutations(range(NUM_BLOCKS)))
    alone = draw(st.permutations(range(NUM_BLOCKS)))
    shared_slots = draw(st.permutations(range(NUM_SLOTS)))
    alone_slots = draw(st.permutations(range(NUM_SLOTS)))
    sizes, indices, blocks, slots = [], [], [], []
    for group, (ids, slot_ids, start) in enumerate(
        [(shared[:12], shared_slots, 0), (shared[12:], shared_slots, 6), (alone, alone_slots, 0)]
    ):
        per_chunk = CHUNKS[group]
        index = draw(st.integers(0, 40))
        size = draw(st.integers(0, 9))
        if direction is Direction.STORE:
            index, size = index * per_chunk, size // per_chunk * per_chunk
        num_chunks = -(-(index % per_chunk + size) // per_chunk) if size else 0
        num_chunks = min(num_chunks, 6)
        size = min(size, num_chunks * per_chunk - index % per_chunk) if size else 0
        sizes.append(size)
        indices.append(index)
        blocks += ids[:size]
        slots += slot_ids[start : start + num_chunks]
    return direction, GPULoadStoreSpec(blocks, sizes, indices), slots


def model_copy(memory: Memory, direction: Direction, blocks: GPULoadStoreSpec, slots: list[int]) -> None:
    """One fragment at a time, written from the definition of a slot."""
    block_position = chunk_position = 0
    for group, size in enumerate(blocks.group_sizes):
        per_chunk, skipped = CHUNKS[group], blocks.block_indices[group] % CHUNKS[group]
        rows = memory.arenas[1 if group == 2 else 0].rows()
        for position in range(size):
            slot = slots[chunk_position + (skipped + position) // per_chunk]
            block_bytes = sum(used for _, used in GROUPS[group])
            offset = (skipped + position) % per_chunk * block_bytes
            for tensor_idx, used in GROUPS[group]:
                gpu = memory.kv_caches.tensors[tensor_idx].tensor.numpy()[blocks.block_ids[block_position + position]]
                host = rows[slot, offset : offset + used]
                if direction is Direction.STORE:
                    host[:] = gpu[:used]
                else:
                    gpu[:used] = host
                offset += used
        block_position += size
        chunk_position += -(-(skipped + size) // per_chunk) if size else 0


def snapshot(memory: Memory) -> list[np.ndarray]:
    tensors = [entry.tensor.numpy().copy() for entry in memory.kv_caches.tensors]
    return [*tensors, *(arena.rows().copy() for arena in memory.arenas)]


def randomise(memory: Memory) -> None:
    random = np.random.default_rng(1)
    for entry in memory.kv_caches.tensors:
        entry.tensor.numpy()[:] = random.integers(0, 256, entry.tensor.shape)
    for arena in memory.arenas:
        rows = arena.rows()
        rows[:] = random.integers(0, 256, rows.shape)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(job=jobs())
def test_a_plan_moves_the_bytes_of_the_definition_and_no_others(
    memory: Memory, job: tuple[Direction, GPULoadStoreSpec, list[int]]
) -> None:
    """Faults 9, 46, 47: all tensors of a block, chunk sizes per group, sub-ranges of chunks."""
    direction, blocks, slots = job
    selection = memory.selector.select(direction, blocks, np.array(slots, dtype=np.int64))
    plan = plan_copies(direction, selection)
    assert plan.sizes.sum() == selection.size_bytes
    randomise(memory)
    copy_fragments(plan.dst_ptrs, plan.src_ptrs, plan.sizes)
    moved = snapshot(memory)
    randomise(memory)
    model_copy(memory, direction, blocks, slots)
    for got, wanted in zip(moved, snapshot(memory), strict=True):
        assert (got == wanted).all()


@pytest.fixture
def one_tensor() -> Iterator[Memory]:
    made = Memory(caches_of([64], [2048], [[(0, 2048)]]), [PoolShape((0,), 4096, 16)], [2])
    yield made
    made.close()


def runs(memory: Memory, blocks: list[int], slots: list[int]) -> list[int]:
    selection = memory.selector.select(Direction.LOAD, GPULoadStoreSpec(blocks), np.array(slots))
    return [int(size) for size in plan_copies(Direction.LOAD, selection).sizes]


def test_neighbours_on_both_sides_become_one_run(one_tensor: Memory) -> None:
    assert runs(one_tensor, [8, 9, 10, 11], [3, 4]) == [8192]
    assert runs(one_tensor, [8, 9, 10, 11], [3, 5]) == [4096, 4096]
    assert runs(one_tensor, [8, 9, 20, 21], [3, 4]) == [4096, 4096]
    assert runs(one_tensor, [9, 8, 7, 6], [3, 4]) == [2048] * 4


@pytest.mark.parametrize("direction", Direction)
def test_no_copy_runs_over_two_registrations_of_host_memory(direction: Direction) -> None:
    """The driver takes a range of host memory only if one registration holds all of it."""
    caches, pool = caches_of([64], [2048], [[(0, 2048)]]), PoolShape((0,), 4096, 16)
    memory = Memory(caches, [pool], [2], ArenaOptions(piece_bytes=4 * 4096))
    blocks, slots = GPULoadStoreSpec(range(16, 32)), np.arange(2, 10)
    selection = memory.selector.select(direction, blocks, slots)
    assert plan_copies(direction, selection).sizes.tolist() == [2 * 4096, 4 * 4096, 2 * 4096]
    assert slot_runs(selection, selection.parts[0]).sizes.tolist() == [2 * 4096, 4 * 4096, 2 * 4096]
    memory.close()


def test_a_run_knows_its_first_chunk(one_tensor: Memory) -> None:
    """Fault 10: what came before a run is sure, what it touches is not."""
    blocks = GPULoadStoreSpec([0, 1, 2, 3, 9, 8])
    plan = plan_copies(Direction.STORE, one_tensor.selector.select(Direction.STORE, blocks, np.array([3, 4, 5])))
    assert plan.sizes.tolist() == [8192, 2048, 2048]
    assert [plan.whole_chunks_before(run) for run in range(len(plan))] == [0, 2, 2]


@pytest.mark.parametrize("direction", Direction)
def test_where_a_chunk_is_one_block_a_run_knows_its_first_chunk_too(direction: Direction) -> None:
    memory = Memory(caches_of([8], [2048], [[(0, 2048)]]), [PoolShape((0,), 2048, 8)], [1])
    selection = memory.selector.select(direction, GPULoadStoreSpec([0, 5, 3]), np.array([3, 4, 6]))
    plan = plan_copies(direction, selection)
    assert [plan.whole_chunks_before(run) for run in range(len(plan))] == [0, 1, 2]
    memory.close()


def test_a_short_job_is_planned_without_giving_up_the_interpreter() -> None:
    """I10: a protected store is planned on the loop."""
    memory = Memory(caches_of([64] * 2, [2048] * 2, [[(0, 2048), (1, 2048)]]), [PoolShape((0,), 4096, 64)], [1])
    selection = memory.selector.select(Direction.STORE, GPULoadStoreSpec(range(26)), np.arange(26))
    assert turns_given_away(lambda: plan_copies(Direction.STORE, selection)) == 0
    memory.close()
