"""What a worker takes of the machine is given back whatever goes wrong on the way."""

import threading
from collections.abc import Callable

import pytest
import torch

from aiokvoffload.base import Stream
from aiokvoffload.copy import growth as growth_module
from aiokvoffload.copy.arena import FILLED, ArenaOptions
from aiokvoffload.copy.engine import CopyEngine
from aiokvoffload.copy.host_engine import HostEngine
from aiokvoffload.copy.memory_use import memory_use
from aiokvoffload.cpu import machinery
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.cpu.machinery import Machinery
from aiokvoffload.device.host import HostDevice, HostStream
from aiokvoffload.errors import BrokenError, ConfigError
from aiokvoffload.poller import PollerStatistics
from aiokvoffload.poller.lag import LagRecorder
from aiokvoffload.testing import PinGateDevice
from aiokvoffload.testing.memory import make_kv_caches


class PoorDevice(HostDevice):
    """Makes `streams` streams, notes which it gets back, and fails from then on."""

    def __init__(self, streams: int) -> None:
        self.streams = streams + 1  # its own default stream is the first
        self.returned: list[Stream] = []
        self.closed = False
        super().__init__()

    def create_stream(self, *, priority: int = 0) -> HostStream:
        if not self.streams:
            raise RuntimeError("can't start new thread")
        self.streams -= 1
        return super().create_stream(priority=priority)

    def destroy_stream(self, stream: Stream) -> None:
        self.returned.append(stream)
        super().destroy_stream(stream)

    def close(self) -> None:
        self.closed = True
        super().close()


POLLED = PollerStatistics(0, 0, LagRecorder().statistics())


def build(device: HostDevice, options: ArenaOptions = FILLED) -> Machinery:
    return Machinery(
        make_kv_caches([torch.zeros((4, 64), dtype=torch.uint8)]),
        [PoolShape((0,), 64, 4)],
        blocks_per_chunk=[1],
        device=device,
        owns_device=True,
        engine=None,
        options=options,
    )


@pytest.mark.parametrize("streams", [0, 2, 3])
def test_a_stream_that_cannot_be_had_costs_nothing(streams: int) -> None:
    before, device = memory_use(), PoorDevice(streams)
    with pytest.raises(RuntimeError, match="thread"):
        build(device)
    assert (len(device.returned), device.closed, memory_use()) == (streams, True, before)


@pytest.mark.parametrize("step", ["SubmissionThread", "Selector", "lay_out", "choose_engine", "map_pools"])
def test_no_step_that_fails_leaves_anything(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError(step)

    monkeypatch.setattr(machinery, step, fail)
    before, device = memory_use(), PoorDevice(10)
    with pytest.raises(MemoryError):
        build(device)
    assert (device.closed, memory_use()) == (True, before)


class LateEngines:
    """A first engine that is there at once, and a better one that is made when the test says so."""

    def __init__(self, device: HostDevice, error: Exception | None = None) -> None:
        self.first, self.better = HostEngine(device), HostEngine(device)
        self.better.name = "better"
        self.allowed = threading.Event()
        self._error = error

    def choose(self, *_: object) -> tuple[CopyEngine, Callable[[], CopyEngine]]:
        return self.first, self._make

    def _make(self) -> CopyEngine:
        assert self.allowed.wait(10)
        if self._error is not None:
            raise self._error
        return self.better


@pytest.mark.parametrize("error", [None, ConfigError("no memory for stages"), RuntimeError("no compiler"), OSError()])
def test_a_better_engine_is_used_once_it_is_there_and_not_waited_for(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Kernels are compiled and copies timed for it, for a second or more: no first chunk waits for that.

    Whatever that raises costs the faster engine and nothing else: the memory is there, and grows.
    """
    device = HostDevice()
    engines = LateEngines(device, error)
    monkeypatch.setattr(machinery, "choose_first", engines.choose)
    built = build(device, ArenaOptions(grows=True))
    ended = threading.Event()
    built.growth.watch(lambda growth: ended.set() if growth.ended else None)
    built.growth.start(lambda tell: tell())
    assert (built.statistics(POLLED).engine, built.growth.state.ended) == ("host", False)
    engines.allowed.set()
    assert ended.wait(10)
    found = built.statistics(POLLED)
    assert (found.engine, found.growth_error) == ("host" if error else "better", "")
    assert {handler._engine for handler in built.handlers} == {engines.first if error else engines.better}
    reason = f"{type(error).__name__}: {error}" if error else ""
    assert found.engine_error == reason
    told = f"no faster engine can be had, copies go on by host: {reason}"
    assert [record.getMessage() for record in caplog.records] == ([told] if error else [])
    built.free()


def test_a_close_waits_for_an_engine_that_is_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it opens for the handlers must not come after they have been closed."""
    device = HostDevice()
    engines = LateEngines(device)
    monkeypatch.setattr(machinery, "choose_first", engines.choose)
    built = build(device, ArenaOptions(grows=True))
    built.growth.start(lambda tell: tell())
    closing = threading.Thread(target=built.free)
    closing.start()
    engines.allowed.set()
    closing.join(10)
    assert built.growth.state.ended
    assert {handler._engine for handler in built.handlers} <= {engines.first, engines.better}


def test_memory_whose_pinning_hangs_is_abandoned_and_not_unmapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """I2, fault 35: a hung driver call makes no close hang, and touches no memory that is somebody else's."""
    monkeypatch.setattr(growth_module, "JOIN_S", 0.01)
    before, device = memory_use(), PinGateDevice()
    device.allow(1)
    options = ArenaOptions(grows=True, piece_bytes=4096)
    machinery = Machinery(
        make_kv_caches([torch.zeros((4, 64), dtype=torch.uint8)]),
        [PoolShape((0,), 64, 4)],
        blocks_per_chunk=[1],
        device=device,
        owns_device=True,
        engine=None,
        options=options,
    )
    ended = threading.Event()
    machinery.growth.watch(lambda growth: ended.set() if growth.ended else None)
    machinery.growth.start(lambda tell: tell())
    assert device.wait_until_pinning(10)
    with pytest.raises(BrokenError, match="the thread that pins memory hangs"):
        machinery.free()
    after = memory_use()
    assert after.abandoned_bytes == before.abandoned_bytes + 4 * 4096
    assert (after.mapped_bytes, after.pinned_bytes) == (before.mapped_bytes, before.pinned_bytes)
    device.allow(4)
    assert ended.wait(10)
    assert memory_use() == after
