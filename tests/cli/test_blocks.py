import asyncio

import pytest
import torch

from aiokvoffload.cli.blocks import AllocatorStatistics, BlockAllocator, as_kv_caches, in_short, make_pool
from aiokvoffload.errors import ArgumentError, ConfigError, InternalError


async def turn() -> None:
    """Let every task that can run do so once."""
    await asyncio.sleep(0)


async def test_a_request_gets_all_its_blocks_or_waits() -> None:
    allocator = BlockAllocator(4)
    first = await allocator.allocate(3)
    waiting = asyncio.create_task(allocator.allocate(2))
    await turn()
    assert allocator.statistics() == AllocatorStatistics(free=1, in_use=3, waiting=1)
    allocator.free(first)
    assert len(set(await waiting)) == 2
    assert repr(allocator) == "BlockAllocator(2 free of 4, 0 waiting)"


async def test_a_small_request_does_not_overtake_a_large_one() -> None:
    allocator = BlockAllocator(4)
    held = await allocator.allocate(2)
    large = asyncio.create_task(allocator.allocate(4))
    small = asyncio.create_task(allocator.allocate(1))
    await turn()
    assert not small.done()
    allocator.free(held)
    allocator.free(await large)
    assert len(await small) == 1


async def test_a_cancelled_wait_lets_the_next_one_in_and_takes_nothing() -> None:
    allocator = BlockAllocator(4)
    await allocator.allocate(2)
    large = asyncio.create_task(allocator.allocate(4))
    small = asyncio.create_task(allocator.allocate(1))
    await turn()
    large.cancel()
    assert len(await small) == 1
    assert allocator.statistics() == AllocatorStatistics(free=1, in_use=3, waiting=0)


async def test_blocks_granted_to_a_wait_that_is_cancelled_in_the_same_turn_go_back() -> None:
    allocator = BlockAllocator(2)
    held = await allocator.allocate(2)
    waiting = asyncio.create_task(allocator.allocate(2))
    await turn()
    allocator.free(held)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert allocator.statistics() == AllocatorStatistics(free=2, in_use=0, waiting=0)


async def test_blocks_freed_right_after_a_cancellation_do_not_reach_the_cancelled() -> None:
    allocator = BlockAllocator(2)
    held = await allocator.allocate(2)
    waiting = asyncio.create_task(allocator.allocate(2))
    await turn()
    waiting.cancel()
    allocator.free(held)
    await asyncio.gather(waiting, return_exceptions=True)
    assert allocator.statistics() == AllocatorStatistics(free=2, in_use=0, waiting=0)


async def test_more_blocks_than_there_are_is_an_error_and_zero_is_legal() -> None:
    allocator = BlockAllocator(2)
    with pytest.raises(ArgumentError, match="3 blocks are asked for, the pool has 2"):
        await allocator.allocate(3)
    assert await allocator.allocate(0) == []


async def test_freeing_twice_is_noticed() -> None:
    allocator = BlockAllocator(2)
    blocks = await allocator.allocate(1)
    allocator.free(blocks)
    with pytest.raises(InternalError, match="not in use"):
        allocator.free(blocks)


def test_a_pool_has_one_contiguous_tensor_per_layer() -> None:
    kv_caches = as_kv_caches(make_pool(torch.device("cpu"), num_tensors=4, num_blocks=3, chunk_bytes=128))
    assert [tuple(tensor.tensor.shape) for tensor in kv_caches.tensors] == [(3, 4)] * 4
    assert all(tensor.tensor.is_contiguous() for tensor in kv_caches.tensors)
    assert [ref.page_size_bytes for ref in kv_caches.group_data_refs[0]] == [32] * 4


@pytest.mark.parametrize("chunk_bytes", [0, 33, -32])
def test_a_chunk_that_is_not_whole_words_of_every_layer_is_an_error(chunk_bytes: int) -> None:
    with pytest.raises(ArgumentError, match="multiple of 32"):
        make_pool(torch.device("cpu"), num_tensors=4, num_blocks=1, chunk_bytes=chunk_bytes)


def test_a_pool_that_no_memory_can_hold_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match="do not fit into memory"):
        make_pool(torch.device("cpu"), num_tensors=4, num_blocks=1 << 40, chunk_bytes=1 << 20)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
            "allocate 65 bytes. Error code 12 (Cannot allocate memory)\nat ...",
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 65 bytes",
        ),
        ("CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has", "CUDA out of memory"),
    ],
)
def test_what_torch_says_of_a_lack_of_memory_is_one_sentence(said: str, shown: str) -> None:
    assert in_short(RuntimeError(said)) == shown
