"""A held stream waits until it is told to go on."""

import asyncio
from functools import partial

import torch

from aiokvoffload.device import open_device
from aiokvoffload.testing.gate import hold


async def test_a_held_stream_goes_on_when_told() -> None:
    device = open_device("host")
    held, free = device.create_stream(), device.create_stream()
    word = torch.zeros(1)
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
