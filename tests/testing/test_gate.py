"""A held stream waits until it is told to go on, on every device there is."""

import asyncio
from functools import partial

import pytest
import torch

from aiokvoffload.device import open_device
from aiokvoffload.testing.gate import hold


@pytest.mark.parametrize("device_name", ["host", pytest.param("cuda", marks=pytest.mark.gpu)])
async def test_a_held_stream_goes_on_when_told(device_name: str) -> None:
    device = open_device(device_name)
    held, free = device.create_stream(), device.create_stream()
    word = torch.zeros(1, device=device.torch_device)
    device.wait(held, device.record())
    go_on = hold(device, held)
    device.enqueue(held, partial(_write_one, word))
    behind = device.record(held)
    await asyncio.to_thread(device.record(free).synchronize)
    assert not behind.query()
    go_on()
    await asyncio.to_thread(behind.synchronize)
    assert word.item() == 1.0
    await asyncio.to_thread(device.close)


def _write_one(word: torch.Tensor) -> None:
    word.fill_(1.0)
