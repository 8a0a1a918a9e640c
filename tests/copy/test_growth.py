"""Arenas grow on a thread here, one piece each time the device is allowed to pin one."""

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from aiokvoffload.base import PoolGrowth
from aiokvoffload.copy import faulting, libc
from aiokvoffload.copy import growth as growth_module
from aiokvoffload.copy.arena import ArenaOptions, HostArena, map_pools
from aiokvoffload.copy.growth import ArenaGrowth
from aiokvoffload.copy.memory_use import memory_use
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.errors import ConfigError, InternalError
from aiokvoffload.testing.device import PinGateDevice

ROW_BYTES = 4096
GROWING = ArenaOptions(grows=True, piece_bytes=2 * ROW_BYTES)
WAIT_S = 10


class Watch:
    """Every state of a growth, in order, as its thread tells them."""

    def __init__(self, growth: ArenaGrowth) -> None:
        self._states: queue.Queue[PoolGrowth] = queue.Queue()
        growth.watch(self._states.put)

    def next(self) -> PoolGrowth:
        return self._states.get(timeout=WAIT_S)

    def last(self) -> PoolGrowth:
        while not (state := self.next()).ended:
            pass
        return state


def now(call: Callable[[], None]) -> None:
    call()


@contextmanager
def growing(
    device: PinGateDevice, *num_rows: int, interlude: Callable[[], None] | None = None
) -> Iterator[tuple[tuple[HostArena, ...], ArenaGrowth]]:
    """Arenas with their first pieces; afterwards nothing of them may be left."""
    before = memory_use()
    pools = [PoolShape((index,), ROW_BYTES, rows) for index, rows in enumerate(num_rows)]
    device.allow(len(pools))
    arenas = map_pools(pools, device, options=GROWING)
    growth = ArenaGrowth(arenas, interlude=interlude)
    yield arenas, growth
    growth.stop()
    device.allow(1)
    assert growth.join()
    for arena in arenas:
        arena.close()
    device.close()
    assert (memory_use(), device.pinned) == (before, [])


def test_rows_become_ready_piece_by_piece_and_all_of_them_in_the_end() -> None:
    """Fault 38."""
    device = PinGateDevice()
    with growing(device, 5) as ((arena,), growth):
        watch = Watch(growth)
        assert (watch.next(), arena.ready_bytes, arena.pinned_bytes) == (PoolGrowth((2,), False), 8192, 8192)
        growth.start(now)
        device.allow(1)
        assert watch.next() == PoolGrowth((4,), False)
        device.allow(1)
        assert (watch.next(), watch.next()) == (PoolGrowth((5,), False), PoolGrowth((5,), True))
        assert (arena.ready_rows, arena.pinned_bytes) == (5, arena.size_bytes)
        assert repr(growth) == "ArenaGrowth(ended, 20480 of 20480 bytes)"


def test_what_fits_into_the_first_piece_needs_no_thread() -> None:
    with growing(PinGateDevice(), 2) as (_, growth):
        threads = set(threading.enumerate())  # of which some may still be on their way out
        growth.start(now)
        assert growth.state == PoolGrowth((2,), True)
        assert set(threading.enumerate()) <= threads


@pytest.mark.parametrize(("after_s", "ready_rows"), [(0.0, 4), (60.0, 6)])
def test_the_interlude_interrupts_long_growth_and_follows_a_short_one(
    after_s: float, ready_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth_module, "INTERLUDE_AFTER_S", after_s)
    device, ready = PinGateDevice(), list[tuple[int, ...] | None]()
    with growing(device, 6, interlude=lambda: ready.append(growth.state.ready_slots)) as (_, growth):
        assert not growth.state.ended
        watch = Watch(growth)
        growth.start(now)
        device.allow(2)
        assert (watch.last().ready_slots, ready) == ((6,), [(ready_rows,)])


def test_a_growth_that_is_stopped_leaves_its_interlude_out() -> None:
    device, ran = PinGateDevice(), list[bool]()
    with growing(device, 6, interlude=lambda: ran.append(True)) as (_, growth):
        watch = Watch(growth)
        growth.start(now)
        assert device.wait_until_pinning(WAIT_S)
        growth.stop()
        device.allow(1)
        assert (watch.last().error, ran) == ("closed while it grew", [])


def test_arenas_grow_in_step() -> None:
    """A position needs a slot in each pool."""
    device = PinGateDevice()
    with growing(device, 4, 8) as (_, growth):
        watch = Watch(growth)
        growth.start(now)
        device.allow(4)
        states = [watch.next().ready_slots for _ in range(6)]
        assert states == [(2, 2), (2, 4), (2, 6), (4, 6), (4, 8), (4, 8)]


def test_a_later_refusal_leaves_a_smaller_pool_that_works_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Fault 37: `ulimit -l` holds less than was asked for."""
    device = PinGateDevice()
    with growing(device, 7) as ((arena,), growth), caplog.at_level(logging.WARNING):
        watch = Watch(growth)
        device.allow(2)
        device.refuse_after(2)
        growth.start(now)
        last = watch.last()
        assert (last.ready_slots, arena.pinned_bytes) == ((4,), 4 * ROW_BYTES)
        assert "cuMemHostRegister" in last.error
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "the cache stays at 16384 of 28672 bytes" in caplog.text
        arena.rows()[:4] = 3


def test_no_memory_for_more_leaves_a_smaller_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    device = PinGateDevice()
    with growing(device, 8) as ((arena,), growth):
        start = arena.address

        def fault(address: int, size_bytes: int) -> None:
            if address >= start + 4 * ROW_BYTES:
                raise OSError(12, "Cannot allocate memory")
            libc.populate(address, size_bytes)

        monkeypatch.setattr(faulting, "populate", fault)
        watch = Watch(growth)
        device.allow(9)
        growth.start(now)
        last = watch.last()
        assert last.ready_slots == (4,)
        assert "Cannot allocate memory" in last.error


def test_what_was_faulted_for_nothing_is_given_back() -> None:
    device = PinGateDevice()
    with growing(device, 4) as ((arena,), growth):
        watch = Watch(growth)
        device.refuse_after(1)
        device.allow(1)
        arena.rows()[:] = 7
        growth.start(now)
        watch.last()
        assert arena.rows().max(axis=1).tolist() == [7, 7, 0, 0]


def test_anything_that_goes_wrong_is_told_and_leaves_what_is_ready() -> None:
    device = PinGateDevice(refusal=RuntimeError("the driver has gone"))
    with growing(device, 4) as (_, growth):
        watch = Watch(growth)
        device.refuse_after(1)
        device.allow(1)
        growth.start(now)
        assert watch.last() == PoolGrowth((2,), True, "the driver has gone")


def test_a_stop_while_it_grows_adds_no_further_piece() -> None:
    device = PinGateDevice()
    with growing(device, 40) as ((arena,), growth):
        watch = Watch(growth)
        growth.start(now)
        assert device.wait_until_pinning(WAIT_S)
        growth.stop()
        device.allow(20)
        last = watch.last()
        assert (last.ready_slots, last.error) == ((4,), "closed while it grew")
        assert arena.ready_rows == 4


def test_a_thread_that_hangs_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 35: the memory must not be unmapped then."""
    monkeypatch.setattr(growth_module, "JOIN_S", 0.01)
    device = PinGateDevice()
    with growing(device, 4) as (_, growth):
        growth.start(now)
        assert device.wait_until_pinning(WAIT_S)
        growth.stop()
        assert not growth.join()
        monkeypatch.setattr(growth_module, "JOIN_S", WAIT_S)


def test_where_the_first_piece_cannot_be_pinned_all_grow_without(caplog: pytest.LogCaptureFixture) -> None:
    """Fault 37."""
    device = PinGateDevice()
    device.refuse_after(0)
    with caplog.at_level(logging.WARNING), growing(device, 6, 4) as (arenas, growth):
        watch = Watch(growth)
        growth.start(now)
        assert watch.last() == PoolGrowth((6, 4), True)
        assert [arena.pinned_bytes for arena in arenas] == [0, 0]
        assert (len(caplog.records), device.calls) == (1, 1)


def test_no_memory_for_the_first_piece_is_a_clear_error_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(faulting, "populate", refuse)
    before, device = memory_use(), PinGateDevice()
    for options, size_bytes in ((GROWING, 2 * ROW_BYTES), (ArenaOptions(), 4 * ROW_BYTES)):
        with pytest.raises(ConfigError, match=f"cannot have {size_bytes} bytes of CPU memory: Cannot allocate"):
            map_pools([PoolShape((0,), ROW_BYTES, 4)], device, options=options)
    assert (memory_use(), device.pinned) == (before, [])
    device.close()


def test_pieces_are_added_in_turn() -> None:
    device = PinGateDevice()
    with growing(device, 6) as ((arena,), _), pytest.raises(InternalError, match="out of turn"):
        arena.add(arena.pieces[2])


def test_a_piece_that_is_pinned_while_the_arena_is_abandoned_is_counted_nowhere() -> None:
    """I2: the memory is the straggler's for good."""
    before, device = memory_use(), PinGateDevice()
    device.allow(2)
    (arena,) = map_pools([PoolShape((0,), ROW_BYTES, 4)], device, options=GROWING)
    arena.abandon()
    arena.add(arena.pieces[1])
    after = memory_use()
    assert (after.mapped_bytes, after.pinned_bytes) == (before.mapped_bytes, before.pinned_bytes)
    device.close()
