"""Streams of CUDA that wait for each other by one event."""

import functools
from typing import Any

import pytest
import torch

from aiokvoffload.device.open import open_device

_sleep: Any = torch.cuda._sleep
LATE_CYCLES = 20_000_000
"""Some ten milliseconds."""


@pytest.mark.gpu
def test_later_work_waits_for_what_the_other_stream_had_been_given_by_then() -> None:
    """Each round records the same event: a wait of an earlier round must keep to its own mark."""
    device = open_device("cuda")
    handover, streams = device.create_handover(), [device.create_stream() for _ in range(2)]
    numbers = torch.zeros(1, dtype=torch.int64, device=device.torch_device)
    torch.cuda.synchronize()
    for each in range(10):
        before, after = streams[each % 2], streams[(each + 1) % 2]
        with device.use(before):
            _sleep(LATE_CYCLES)
            numbers.mul_(3).add_(each)
        handover.between(before, after)
    device.record(after).synchronize()
    assert numbers.item() == functools.reduce(lambda number, each: 3 * number + each, range(10), 0)
    handover.close()
    device.close()


@pytest.mark.gpu
def test_it_does_not_wait_for_what_comes_later() -> None:
    device = open_device("cuda")
    handover, before, after = device.create_handover(), device.create_stream(), device.create_stream()
    handover.between(before, after)
    with device.use(before):
        _sleep(100 * LATE_CYCLES)
    late, early = device.record(before), device.record(after)
    early.synchronize()
    assert not device.query(late)
    late.synchronize()
    handover.close()
    device.close()
