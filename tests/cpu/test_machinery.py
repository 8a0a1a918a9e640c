"""What a worker takes of the machine is given back whatever goes wrong on the way."""

import pytest
import torch

from aiokvoffload.base import Stream
from aiokvoffload.copy.memory_use import memory_use
from aiokvoffload.cpu import machinery
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.cpu.machinery import Machinery
from aiokvoffload.device.host import HostDevice, HostStream
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


def build(device: HostDevice) -> Machinery:
    return Machinery(
        make_kv_caches([torch.zeros((4, 64), dtype=torch.uint8)]),
        [PoolShape((0,), 64, 4)],
        blocks_per_chunk=[1],
        device=device,
        owns_device=True,
        engine=None,
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
