"""Turns: the same copies in the same order, and room for others' in between."""

import numpy as np
import pytest
import torch

from aiokvoffload.base import GPULoadStoreSpec, Stream
from aiokvoffload.config import CopyConfig
from aiokvoffload.copy.arena import HostArena
from aiokvoffload.copy.choice import choose_engine
from aiokvoffload.copy.direction import Direction
from aiokvoffload.copy.engine import Lane, RunCopies
from aiokvoffload.copy.layout import lay_out
from aiokvoffload.copy.routes import make_routes
from aiokvoffload.copy.selection import Selector
from aiokvoffload.copy.turns import Turns
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.device.base import Device
from aiokvoffload.device.open import open_device
from aiokvoffload.errors import ConfigError
from aiokvoffload.testing import ManualDevice
from aiokvoffload.testing.memory import make_kv_caches

ROW_BYTES = 4096


class Rows:
    """One tensor of random rows, a slot for each, and a lane whose turns are short."""

    def __init__(self, device: Device, *, num_rows: int, row_bytes: int, turn_bytes: int, engine: str) -> None:
        self.device, self.num_rows = device, num_rows
        self.tensor = torch.randint(0, 256, (num_rows, row_bytes), dtype=torch.uint8, device=device.torch_device)
        layout = lay_out(make_kv_caches([self.tensor]), device.torch_device)
        pool = PoolShape((0,), row_bytes, num_rows)
        self.arena = HostArena(num_rows, pool.row_bytes, device=device)
        self.selector = Selector(make_routes(layout, [pool], [self.arena], [1]), layout.num_physical_blocks, num_rows)
        self.engine = choose_engine(device, layout, [self.arena], CopyConfig(engine=engine))
        self.turns = Turns(device, turn_bytes)
        self.streams = {direction: device.create_stream() for direction in Direction}

    def enqueue(self, direction: Direction, rows: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> Stream:
        lane = Lane(direction, self.streams[direction], None, self.turns)
        selection = self.selector.select(direction, GPULoadStoreSpec(rows), rows[::-1].copy())
        self.copies = self.engine.plan(selection, lane)
        self.device.wait(self.copies.first_stream, self.device.record())
        for _ in self.copies.enqueue(ordered=True):
            pass
        return lane.stream

    def close(self) -> None:
        self.turns.close()
        self.arena.close()
        self.device.close()


@pytest.mark.parametrize("turn_bytes", [1, ROW_BYTES, 3 * ROW_BYTES + 1, 1 << 30])
def test_every_byte_comes_there_and_back_whatever_a_turn_is(turn_bytes: int) -> None:
    device = ManualDevice()
    rows = Rows(device, num_rows=300, row_bytes=ROW_BYTES, turn_bytes=turn_bytes, engine="batched")
    original, order = rows.tensor.clone(), np.random.default_rng(0).permutation(300)
    for direction in Direction:
        rows.enqueue(direction, order)
        device.run_all()
        if direction is Direction.STORE:
            rows.tensor.zero_()
    assert torch.equal(rows.tensor, original)
    rows.close()


def test_a_step_copies_as_much_as_a_turn_may_and_no_more() -> None:
    device = ManualDevice()
    rows = Rows(device, num_rows=20, row_bytes=ROW_BYTES, turn_bytes=2 * ROW_BYTES, engine="batched")
    rows.enqueue(Direction.STORE, np.arange(0, 14, 2))  # no two are adjacent
    assert isinstance(rows.copies, RunCopies)
    assert list(rows.copies._steps()) == [
        *((start, start + 2, 2 * ROW_BYTES) for start in (0, 2, 4)),
        (6, 7, ROW_BYTES),
    ]
    device.run_all()
    rows.close()


def test_after_a_turn_copies_go_on_in_a_stream_that_waits_for_what_was_before() -> None:
    device = ManualDevice()
    turns, main, order = Turns(device, 10), device.create_stream(), list[int]()
    streams = []
    for number in range(5):
        streams.append(turns.next(main, 6))
        device.enqueue(streams[-1], lambda number=number: order.append(number))  # type: ignore[misc]
    turns.rejoin(main)
    device.enqueue(main, lambda: order.append(5))
    assert [stream is main for stream in streams] == [True, True, False, False, True]
    device.run_all()
    assert order == [0, 1, 2, 3, 4, 5]
    turns.close()
    device.close()


def test_a_job_ends_in_the_stream_that_it_began_in_and_turns_go_on_over_jobs() -> None:
    """Small jobs together would else keep others out as long as a large one."""
    device = ManualDevice()
    turns, main = Turns(device, 10), device.create_stream()
    homes = []
    for _ in range(6):
        homes.append(turns.next(main, 6) is main)
        turns.rejoin(main)
    assert homes == [True, True, False, True, True, False]
    turns.close()
    device.close()


def test_no_second_stream_is_made_before_it_is_wanted() -> None:
    device = ManualDevice()
    turns, main = Turns(device, 1 << 20), device.create_stream()
    assert turns.next(main, 1 << 10) is main
    before = repr(device)
    turns.rejoin(main)
    turns.close()
    assert repr(device) == before
    device.close()


def test_turns_of_no_size_are_refused_and_none_at_all_is_a_choice() -> None:
    with pytest.raises(ConfigError, match="turn_bytes"):
        CopyConfig(turn_bytes=-1)
    assert CopyConfig(turn_bytes=0).turn_bytes == 0


@pytest.mark.gpu
def test_a_small_copy_of_somebody_else_comes_in_between_on_cuda() -> None:
    """A gigabyte on its way to the host takes 20 ms, and a model's next token must not wait for it."""
    device = open_device("cuda")
    rows = Rows(device, num_rows=512, row_bytes=2 << 20, turn_bytes=16 << 20, engine="batched")
    token, arrived = torch.arange(64, device="cuda"), torch.zeros(64, dtype=torch.int64).pin_memory()
    other = device.create_stream()
    overtaken = 0
    for _ in range(5):
        torch.cuda.synchronize()
        end = device.record(rows.enqueue(Direction.STORE, np.arange(512)))
        with device.use(other):
            arrived.copy_(token, non_blocking=True)
            device.record(other).synchronize()
        overtaken += not end.query()
        end.synchronize()
    assert overtaken >= 4
    assert torch.equal(arrived, token.cpu())
    rows.close()
