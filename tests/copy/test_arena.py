import logging

import numpy as np
import pytest

from aiokvoffload.copy.arena import ArenaOptions, HostArena, map_pools
from aiokvoffload.copy.memory_use import memory_use
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.device.host import HostDevice
from aiokvoffload.errors import ConfigError

ROW_BYTES = 4096


class StubbornDevice(HostDevice):
    """Pins `limit` ranges and then refuses."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.pinned: list[tuple[int, int]] = []
        self.calls = 0

    def pin(self, address: int, size_bytes: int) -> None:
        self.calls += 1
        if len(self.pinned) >= self.limit:
            raise OSError("ulimit -l is too small")
        self.pinned.append((address, size_bytes))

    def unpin(self, address: int, size_bytes: int) -> None:
        self.pinned.remove((address, size_bytes))


def test_memory_is_exact_zeroed_counted_and_gone_after_close() -> None:
    before, device = memory_use(), HostDevice()
    arena = HostArena(3, ROW_BYTES, device=device)
    rows = arena.rows()
    assert (rows.shape, int(rows.sum()), arena.address % 4096) == ((3, ROW_BYTES), 0, 0)
    rows[2, 5] = 7
    assert arena.rows()[2, 5] == 7
    during = memory_use()
    assert during.mapped_bytes - before.mapped_bytes == during.pinned_bytes - before.pinned_bytes == 3 * ROW_BYTES
    arena.close()
    arena.close()
    assert memory_use() == before
    device.close()


def test_big_memory_is_pinned_in_pieces_of_whole_rows() -> None:
    """Fault 37."""
    device = StubbornDevice(limit=9)
    arena = HostArena(5, ROW_BYTES, device=device, options=ArenaOptions(piece_bytes=2 * ROW_BYTES + 100))
    assert [size for _, size in device.pinned] == [2 * ROW_BYTES, 2 * ROW_BYTES, ROW_BYTES]
    assert arena.piece_bytes == 2 * ROW_BYTES
    arena.close()
    assert device.pinned == []
    device.close()


def test_refused_pinning_is_rolled_back_and_all_goes_on_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Fault 37: `ulimit -l` too small, or registration unsupported."""
    device = StubbornDevice(limit=1)
    pools = [PoolShape((group,), ROW_BYTES, 4) for group in range(3)]
    with caplog.at_level(logging.WARNING):
        arenas = map_pools(pools, device)
    assert [arena.pinned_bytes for arena in arenas] == [4 * ROW_BYTES, 0, 0]
    assert (len(caplog.records), device.calls) == (1, 2)
    assert "ulimit" in caplog.text
    for arena in arenas:
        arena.close()
    device.close()


def test_a_failure_in_a_later_piece_unpins_the_earlier_ones() -> None:
    device = StubbornDevice(limit=2)
    arena = HostArena(6, ROW_BYTES, device=device, options=ArenaOptions(piece_bytes=2 * ROW_BYTES))
    assert (device.pinned, arena.pinned_bytes) == ([], 0)
    arena.close()
    device.close()


def test_memory_that_cannot_be_mapped_is_a_clear_error_and_leaves_nothing() -> None:
    before, device = memory_use(), HostDevice()
    pools = [PoolShape((0,), ROW_BYTES, 4), PoolShape((1,), ROW_BYTES, 1 << 40)]
    with pytest.raises(ConfigError, match=f"cannot map {ROW_BYTES << 40} bytes"):
        map_pools(pools, device)
    assert memory_use() == before
    device.close()


def test_abandoned_memory_stays_readable_and_is_counted_apart() -> None:
    """I2."""
    before, device = memory_use(), HostDevice()
    arena = HostArena(1, ROW_BYTES, device=device)
    rows = arena.rows()
    arena.abandon()
    arena.close()
    rows[:] = np.uint8(9)
    after = memory_use()
    assert (after.mapped_bytes, after.pinned_bytes) == (before.mapped_bytes, before.pinned_bytes)
    assert after.abandoned_bytes - before.abandoned_bytes == ROW_BYTES
    device.close()


def test_more_memory_than_there_are_addresses_is_refused_by_name() -> None:
    """The C call would take the size modulo 2**64, and map one row."""
    before, device = memory_use(), HostDevice()
    with pytest.raises(ConfigError, match=f"cannot map {(1 << 64) + ROW_BYTES} bytes"):
        HostArena((1 << 52) + 1, ROW_BYTES, device=device)
    assert memory_use() == before
    device.close()


class FailingDevice(StubbornDevice):
    """Fails to pin in a way that is no refusal."""

    def pin(self, address: int, size_bytes: int) -> None:
        if len(self.pinned) >= self.limit:
            raise RuntimeError("can't start new thread")
        super().pin(address, size_bytes)


def test_whatever_is_raised_while_pinning_nothing_stays_mapped_or_pinned() -> None:
    before, device = memory_use(), FailingDevice(limit=3)
    with pytest.raises(RuntimeError, match="thread"):
        map_pools([PoolShape((group,), ROW_BYTES, 2) for group in range(5)], device)
    assert (memory_use(), device.pinned) == (before, [])
    device.close()


def test_memory_that_the_device_keeps_after_a_refusal_stays_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """I2."""
    before, device = memory_use(), StubbornDevice(limit=1)

    def refuse(address: int, size_bytes: int) -> None:
        raise OSError("busy")

    monkeypatch.setattr(device, "unpin", refuse)
    with pytest.raises(OSError, match="busy"):
        HostArena(2, ROW_BYTES, device=device, options=ArenaOptions(piece_bytes=ROW_BYTES))
    after = memory_use()
    assert (after.mapped_bytes, after.abandoned_bytes - before.abandoned_bytes) == (before.mapped_bytes, 2 * ROW_BYTES)
    device.close()
