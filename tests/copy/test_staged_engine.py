"""Copies in stages, on a device in the test's hand and on a real one: every byte, and what may overtake what."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokvoffload.base import GPULoadStoreSpec, Ids
from aiokvoffload.config import CopyConfig
from aiokvoffload.copy import segments
from aiokvoffload.copy.arena import HostArena
from aiokvoffload.copy.choice import choose_engine
from aiokvoffload.copy.direct_engine import DirectEngine
from aiokvoffload.copy.direction import Direction
from aiokvoffload.copy.engine import MANY_BLOCKS, CopyEngine, Lane, PartialCopyError, Step
from aiokvoffload.copy.layout import lay_out
from aiokvoffload.copy.routes import make_routes
from aiokvoffload.copy.segments import FIRST_PAIRS, MANY_CHUNKS
from aiokvoffload.copy.selection import GroupPart, Selection, Selector
from aiokvoffload.copy.slot_runs import SlotRuns, slot_runs
from aiokvoffload.copy.staged_engine import NUM_SEGMENTS, StagedCopies
from aiokvoffload.copy.turns import Turns
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.device.base import Device
from aiokvoffload.device.host import HostDevice
from aiokvoffload.device.open import open_device
from aiokvoffload.testing import ManualDevice
from aiokvoffload.testing.memory import make_kv_caches

SMALL_STAGING_BYTES = 512 << 10
TURN_BYTES = 300 << 10


class Bench:
    """Tensors with random bytes, slots, and one lane for each direction."""

    def __init__(self, device: Device, page_bytes: list[int], *, blocks_per_chunk: int, num_slots: int) -> None:
        self.device, self.blocks_per_chunk, self.num_slots = device, blocks_per_chunk, num_slots
        num_blocks = 2 * num_slots * blocks_per_chunk
        self.tensors = [
            torch.randint(0, 256, (num_blocks, size), dtype=torch.uint8, device=device.torch_device)
            for size in page_bytes
        ]
        self.layout = lay_out(make_kv_caches(self.tensors), device.torch_device)
        self.chunk_bytes = blocks_per_chunk * sum(page_bytes)
        pool = PoolShape((0,), self.chunk_bytes, num_slots)
        self.arena = HostArena(num_slots, pool.row_bytes, device=device)
        routes = make_routes(self.layout, [pool], [self.arena], [blocks_per_chunk])
        self.selector = Selector(routes, self.layout.num_physical_blocks, num_slots)
        self.engine: CopyEngine
        self.lanes: dict[Direction, Lane] = {}

    def use(self, name: str) -> None:
        """Open lanes of this engine."""
        config = CopyConfig(engine=name)
        self.engine = choose_engine(self.device, self.layout, [self.arena], config)
        assert self.engine.name == name
        for direction in Direction:
            staging = self.engine.open_staging(direction, SMALL_STAGING_BYTES)
            turns = Turns(self.device, TURN_BYTES)
            self.lanes[direction] = Lane(direction, self.device.create_stream(), staging, turns)

    def select(self, direction: Direction, blocks: Ids, slots: Ids, skipped: int = 0) -> Selection:
        return self.selector.select(direction, GPULoadStoreSpec(blocks, None, [skipped]), slots)

    def copy(self, selection: Selection, direction: Direction) -> None:
        """Enqueue one job, and let the device run what it waits for."""
        lane = self.lanes[direction]
        copies = self.engine.plan(selection, lane)
        self.device.wait(copies.first_stream, self.device.record())
        for step in copies.enqueue(ordered=True):
            if step is Step.WAITS and isinstance(self.device, ManualDevice):
                self.device.step()
        end = self.device.record(lane.stream)
        if isinstance(self.device, ManualDevice):
            self.device.run_all()
        end.synchronize()

    def blocks_of(self, block_ids: Ids) -> torch.Tensor:
        """Bytes of these blocks, one behind the other."""
        rows = torch.from_numpy(block_ids).to(self.device.torch_device)
        return torch.cat([tensor[rows] for tensor in self.tensors], dim=1).cpu()

    def close(self) -> None:
        for lane in self.lanes.values():
            if lane.staging is not None:
                lane.staging.close()
        self.lanes.clear()
        self.tensors.clear()
        del self.engine, self.layout
        self.arena.close()
        self.device.close()


@contextlib.contextmanager
def benched(
    device: Device, page_bytes: list[int], *, name: str = "staged", blocks_per_chunk: int = 2, num_slots: int = 8
) -> Iterator[Bench]:
    bench = Bench(device, page_bytes, blocks_per_chunk=blocks_per_chunk, num_slots=num_slots)
    bench.use(name)
    try:
        yield bench
    finally:
        bench.close()


@pytest.mark.parametrize("direction", list(Direction))
def test_a_job_without_blocks_begins_in_the_stream_that_it_ends_in(direction: Direction) -> None:
    """I1: its end could come before its beginning, and the time between the two be an error of the device."""
    with benched(ManualDevice(), [64]) as bench:
        none = np.empty(0, dtype=np.int64)
        copies = bench.engine.plan(bench.select(direction, none, none), bench.lanes[direction])
        assert copies.first_stream is bench.lanes[direction].stream
        assert copies.sources_stream is None


def check_both_ways(bench: Bench, slots: Ids, skipped: int, left_out: int) -> None:
    """Store chunks into poisoned slots, look at them, and load a part of the blocks elsewhere."""
    random = np.random.default_rng(0)
    count = len(slots) * bench.blocks_per_chunk
    blocks = random.permutation(count)
    rows = bench.arena.rows()
    rows[:] = 0xEE
    bench.copy(bench.select(Direction.STORE, blocks, slots), Direction.STORE)
    stored = torch.from_numpy(rows[slots, : bench.chunk_bytes].copy())
    assert torch.equal(stored.reshape(count, -1), bench.blocks_of(blocks))
    others = np.setdiff1d(np.arange(bench.num_slots), slots)
    assert bool((rows[others] == 0xEE).all())
    part = blocks[skipped : count - left_out]
    targets = count + random.permutation(count)[: len(part)]
    untouched = np.setdiff1d(np.arange(len(bench.tensors[0])), targets)
    before = bench.blocks_of(untouched)
    bench.copy(bench.select(Direction.LOAD, targets, slots, skipped), Direction.LOAD)
    assert torch.equal(bench.blocks_of(targets), bench.blocks_of(part))
    assert torch.equal(bench.blocks_of(untouched), before)


@settings(max_examples=30)
@given(
    st.sampled_from(["staged", "direct"]),
    st.lists(st.integers(1, 30_000), min_size=1, max_size=3),
    st.integers(1, 3),
    st.data(),
)
def test_every_byte_comes_there_and_back_and_no_other_is_touched(
    name: str, page_bytes: list[int], blocks_per_chunk: int, data: st.DataObject
) -> None:
    """Fault 47: sub-ranges too."""
    order, count = data.draw(st.permutations(range(8))), data.draw(st.integers(1, 8))
    skipped, left_out = (data.draw(st.integers(0, blocks_per_chunk - 1)) for _ in range(2))
    if skipped + left_out >= count * blocks_per_chunk:
        skipped = left_out = 0
    with benched(ManualDevice(), page_bytes, name=name, blocks_per_chunk=blocks_per_chunk) as bench:
        check_both_ways(bench, np.array(order[:count]), skipped, left_out)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["staged", "direct", "batched", "torch", "auto"])
@pytest.mark.parametrize(
    "page_bytes", [[16], [6, 10], [1 << 11] * 40, [4097], [123_457, 3], [2 << 20], [576, 64, 1024], [72 << 10] * 3]
)
def test_every_byte_comes_there_and_back_on_cuda(name: str, page_bytes: list[int]) -> None:
    """Jobs larger than the ring, blocks larger than a segment, and every alignment."""
    bench = Bench(open_device("cuda"), page_bytes, blocks_per_chunk=3, num_slots=40)
    config = CopyConfig(engine=name)
    bench.engine = choose_engine(bench.device, bench.layout, [bench.arena], config)
    for direction in Direction:
        staging = bench.engine.open_staging(direction, SMALL_STAGING_BYTES)
        turns = Turns(bench.device, TURN_BYTES)
        bench.lanes[direction] = Lane(direction, bench.device.create_stream(), staging, turns)
    for slots in (np.arange(40), np.random.default_rng(1).permutation(40)[:33]):
        check_both_ways(bench, slots, 1, 2)
    bench.close()


@pytest.mark.parametrize("page_bytes", [[300_000], [150_001, 1, 200_000]])
@pytest.mark.parametrize("slots", [np.arange(8), np.array([6, 2, 3, 4, 0])])
def test_a_block_larger_than_a_segment_takes_several(page_bytes: list[int], slots: Ids) -> None:
    """A segment begins inside a block, and so inside a slot."""
    with benched(ManualDevice(), page_bytes, blocks_per_chunk=2, num_slots=8) as bench:
        staging = bench.lanes[Direction.STORE].staging
        assert staging is not None
        assert sum(page_bytes) > 2 * staging.segment_bytes
        check_both_ways(bench, slots, 1, 1)


def test_describing_many_blocks_is_a_step_that_enqueues_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """I10: whoever waits for the GIL gets it before the copies are enqueued; and nothing counts as copied by that."""
    with benched(ManualDevice(), [16], num_slots=2 * MANY_BLOCKS) as bench:
        slots, lane = np.arange(MANY_BLOCKS + MANY_BLOCKS // 2), bench.lanes[Direction.STORE]
        assert lane.staging is not None
        selection = bench.select(Direction.STORE, np.arange(2 * len(slots)), slots)
        steps = list(bench.engine.plan(selection, lane).enqueue(ordered=True))
        assert steps == [Step.DONE, Step.PREPARED, Step.PREPARED, Step.DONE]  # a short segment, and one of many blocks
        monkeypatch.setattr(lane.staging.backend, "move_tiles", Mock(side_effect=[None, OSError("refused")]))
        with pytest.raises(PartialCopyError) as failure:
            list(bench.engine.plan(selection, lane).enqueue(ordered=True))
        assert failure.value.runs_enqueued == 1
        bench.device.run_all()  # type: ignore[attr-defined]


def test_a_kernel_for_many_blocks_is_launched_in_a_step_of_its_own() -> None:
    """I10."""
    with benched(ManualDevice(), [16], name="direct", num_slots=MANY_BLOCKS) as bench:
        lane = bench.lanes[Direction.LOAD]
        for num_slots, steps in ((MANY_BLOCKS // 2, [Step.DONE]), (MANY_BLOCKS, [Step.PREPARED, Step.DONE])):
            selection = bench.select(Direction.LOAD, np.arange(2 * num_slots), np.arange(num_slots))
            assert list(bench.engine.plan(selection, lane).enqueue(ordered=True)) == steps
        bench.device.run_all()  # type: ignore[attr-defined]


@pytest.mark.parametrize("direction", list(Direction))
def test_a_long_job_is_planned_piece_by_piece(direction: Direction, monkeypatch: pytest.MonkeyPatch) -> None:
    """I10: its first copy is enqueued before anything is known of the last one's runs."""
    spans = []

    def watched(selection: Selection, part: GroupPart, span: range, *, cuts: Ids) -> SlotRuns:
        spans.append(span)
        return slot_runs(selection, part, span, cuts=cuts)

    monkeypatch.setattr(segments, "slot_runs", watched)
    with benched(ManualDevice(), [512], blocks_per_chunk=1, num_slots=3 * MANY_CHUNKS) as bench:
        everything = np.arange(3 * MANY_CHUNKS)
        selection = bench.select(direction, everything, everything)
        steps = bench.engine.plan(selection, bench.lanes[direction]).enqueue(ordered=True)
        assert not spans
        assert next(steps) in (Step.DONE, Step.GAVE_WAY)
        assert (len(spans), spans[0].start) == (1, 0)
        assert spans[0].stop <= FIRST_PAIRS * 512  # the bus has nothing to do before the first segment
        assert Step.PREPARED not in list(steps)
        assert [span.start for span in spans[1:]] == [span.stop for span in spans[:-1]]
        assert max(len(span) for span in spans) <= MANY_CHUNKS * 512
        assert spans[-1].stop == len(everything) * 512
        bench.device.run_all()  # type: ignore[attr-defined]


@pytest.mark.parametrize("direction", list(Direction))
def test_a_job_larger_than_the_ring_flows_through_it_and_a_segment_is_emptied_before_it_is_filled_again(
    direction: Direction,
) -> None:
    """Fault 5: however far the first stage's stream gets, it stops at the segment that the second has not read."""
    with benched(ManualDevice(), [60_000], num_slots=16) as bench:
        lane = replace(bench.lanes[direction], turns=None)  # so that each stage has one stream
        assert lane.staging is not None
        copies = bench.engine.plan(bench.select(direction, np.arange(32), np.arange(16)), lane)
        assert [step for step in copies.enqueue(ordered=True) if step is Step.WAITS] == []
        device = bench.device
        assert isinstance(device, ManualDevice)
        filled = 0
        while run_first(device, lane):
            filled += 1
        # A store's descriptors are uploaded in the first stage.
        assert filled == NUM_SEGMENTS + (direction is Direction.STORE)
        device.run_all()


def run_first(device: ManualDevice, lane: Lane) -> bool:
    """Run one piece of work of the first stage's stream, and none of the second's."""
    assert lane.staging is not None
    device.settle()
    work = lane.staging.stream.take_work()  # type: ignore[attr-defined]
    if work is not None:
        work()
        device.settle()
    return work is not None


def test_blocks_are_free_when_the_first_stage_has_read_them() -> None:
    with benched(HostDevice(), [512]) as bench:
        store, load = (
            bench.engine.plan(bench.select(each, np.arange(2), np.array([0])), bench.lanes[each]) for each in Direction
        )
        assert store.sources_stream is store.first_stream
        assert store.first_stream is not bench.lanes[Direction.STORE].stream
        assert load.sources_stream is None


@pytest.mark.parametrize("refused", range(8))
def test_a_piece_that_is_refused_says_which_chunks_were_whole_and_spoils_nothing_later(refused: int) -> None:
    """I4: what was enqueued before it ends, and the ring goes on."""
    with benched(ManualDevice(), [60_000], num_slots=16) as bench:
        device, lane = bench.device, bench.lanes[Direction.STORE]
        assert isinstance(device, ManualDevice)
        slots, blocks = np.arange(16), np.arange(32)
        copies = bench.engine.plan(bench.select(Direction.STORE, blocks, slots), lane)
        steps = copies.enqueue(ordered=True)
        with pytest.raises(PartialCopyError) as caught:  # noqa: PT012 - it is refused somewhere within
            for _ in range(refused):
                next(steps)
            device.refuse_next_copy()
            list(steps)
        device.run_all()
        whole = copies.whole_chunks_before(caught.value.runs_enqueued)
        assert 0 <= whole <= 16
        rows = bench.arena.rows()
        stored = torch.from_numpy(rows[:whole, : bench.chunk_bytes].copy())
        assert torch.equal(stored.reshape(2 * whole, 60_000), bench.blocks_of(blocks[: 2 * whole]))
        check_both_ways(bench, slots[::-1].copy(), 0, 0)


def test_chunks_of_a_job_that_was_enqueued_are_all_whole() -> None:
    with benched(HostDevice(), [512]) as bench:
        for name in ("staged", "direct"):
            engine = bench.engine if name == "staged" else DirectEngine(bench.engine)
            copies = engine.plan(
                bench.select(Direction.STORE, np.arange(4), np.array([3, 1])), bench.lanes[Direction.STORE]
            )
            assert copies.whole_chunks_before(0) == 0
            assert copies.whole_chunks_before(1 if name == "direct" else 99) == 2
            assert isinstance(copies, StagedCopies) == (name == "staged")
