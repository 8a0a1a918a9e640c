"""What is copied between: tensors with random blocks, slots, and a worker over both.

Knows which bytes belong where, and checks them; takes no time.
"""

import asyncio
from collections.abc import Sequence

import numpy as np
import torch

from aiokvoffload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
    Ids,
    Transfer,
)
from aiokvoffload.cli.blocks import WORD_BYTES, allocating
from aiokvoffload.cli.copy_bench.engines import SwitchedEngine
from aiokvoffload.cli.copy_bench.options import CopyOptions, Shape, SlotOrder
from aiokvoffload.cli.copy_bench.slot_orders import SlotChooser
from aiokvoffload.cli.trace import TraceRequest
from aiokvoffload.cpu.common import CPULoadStoreSpec, PoolShape
from aiokvoffload.cpu.gpu_worker import CPUOffloadingWorker
from aiokvoffload.device import Device
from aiokvoffload.errors import InternalError, TransferError

POISON = 0xEE
STORE_HALF, LOAD_HALF = 0, 1
RANDOM_WORDS = 16 << 20


async def random_tensors(device: Device, options: CopyOptions, shape: Shape) -> list[torch.Tensor]:
    """Blocks of one shape in GPU memory, a tensor for each layer.

    Raises:
        ConfigError: there is not so much memory.
    """
    size = (options.pool_bytes // shape.slot_bytes * shape.blocks_per_chunk, shape.fragment_bytes)
    with allocating(f"pools of {options.pool_bytes:,} bytes"):
        tensors = [_empty_bytes(size, device.torch_device) for _ in range(shape.num_tensors)]
        for words, _ in tensors:
            # A part at a time: a thread cannot be cancelled, and the end of the process waits for what it still does.
            for start in range(0, len(words), RANDOM_WORDS):
                await asyncio.to_thread(words[start : start + RANDOM_WORDS].random_)
    return [blocks for _, blocks in tensors]


def _empty_bytes(size: tuple[int, int], torch_device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor as words, since as many random bytes take five times as long one by one, and as what it is."""
    num_bytes = size[0] * size[1]
    words = torch.empty(-(-num_bytes // WORD_BYTES), dtype=torch.int64, device=torch_device)
    return words, words.view(torch.uint8)[:num_bytes].view(size)


class BenchMemory:
    """One shape's memory and worker; the worker is to be closed.

    Args:
        device: where.
        options: how much.
        shape: of a chunk.
        tensors: of `random_tensors`.
        requests: of the trace that ages the pool, if slots are to be those of an aged one.

    Attributes:
        worker: awaited.
        engine: of the worker.
        device: where.
        job_slots: slots of one job.

    Raises:
        ConfigError: there is not so much memory.
    """

    def __init__(
        self,
        device: Device,
        options: CopyOptions,
        shape: Shape,
        tensors: list[torch.Tensor],
        requests: Sequence[TraceRequest] = (),
    ) -> None:
        self.device, self._shape, self._requests = device, shape, requests
        self._num_slots = options.pool_bytes // shape.slot_bytes
        self._num_blocks = self._num_slots * shape.blocks_per_chunk
        self.job_slots = options.job_bytes // shape.slot_bytes
        self._tensors = tensors
        self.engine = SwitchedEngine(options.engines, options.copy)
        self.worker = CPUOffloadingWorker(
            CanonicalKVCaches(
                [CanonicalKVCacheTensor(tensor, shape.fragment_bytes) for tensor in self._tensors],
                [[CanonicalKVCacheRef(index, shape.fragment_bytes) for index in range(shape.num_tensors)]],
            ),
            [PoolShape((0,), shape.slot_bytes, self._num_slots)],
            blocks_per_chunk=[shape.blocks_per_chunk],
            device=device,
            engine=self.engine.make,
            copy=options.copy,
        )
        self._random = np.random.default_rng(0)
        self._job_ids = iter(range(1 << 62))
        self.order(options.slots[0])

    def order(self, slots: SlotOrder) -> None:
        """Take slots in this order from now on."""
        self._chooser = SlotChooser(slots, self._num_slots, self.job_slots, self._requests)

    def choose(self, half: int) -> tuple[Ids, Ids]:
        """Blocks at random, and slots in order, for one job out of one half of the memory."""
        count = self._num_blocks // 2
        blocks = self._random.permutation(count)[: self.job_slots * self._shape.blocks_per_chunk] + half * count
        return blocks, self._chooser.choose(half)

    def store(self, blocks: GPULoadStoreSpec, slots: CPULoadStoreSpec) -> Transfer:
        """Submit one job."""
        return self.worker.submit_store(next(self._job_ids), blocks, slots, protect_source=False)

    def load(self, blocks: GPULoadStoreSpec, slots: CPULoadStoreSpec) -> Transfer:
        """Submit one job."""
        return self.worker.submit_load(next(self._job_ids), slots, blocks)

    async def verify(self) -> None:
        """Store and load one job each into poisoned memory, and compare every byte.

        Raises:
            InternalError: there is a wrong one.
            TransferError: a copy failed.
        """
        blocks, slots = self.choose(STORE_HALF)
        self.engine.rows[slots] = POISON
        await succeed(self.store(GPULoadStoreSpec(blocks), CPULoadStoreSpec(slots)))
        self._compare(blocks, slots, "stored")
        blocks, slots = self.choose(LOAD_HALF)
        self.engine.rows[slots] = self._random.integers(0, 256, (1, self.engine.rows.shape[1]), dtype=np.uint8)
        self.engine.rows[slots, : self._shape.slot_bytes // 2] ^= (slots % 251).astype(np.uint8)[:, None]
        for tensor in self._tensors:
            tensor[torch.from_numpy(blocks)] = POISON
        await succeed(self.load(GPULoadStoreSpec(blocks), CPULoadStoreSpec(slots)))
        self._compare(blocks, slots, "loaded")

    def _compare(self, blocks: Ids, slots: Ids, what: str) -> None:
        rows = torch.from_numpy(blocks).to(self.device.torch_device)
        size = (len(slots), self._shape.blocks_per_chunk, self._shape.fragment_bytes)
        chunks = torch.stack([tensor[rows].reshape(size) for tensor in self._tensors], dim=2)
        held = torch.from_numpy(self.engine.rows[slots, : self._shape.slot_bytes]).to(self.device.torch_device)
        if not torch.equal(chunks.reshape(len(slots), -1), held):
            raise InternalError(f"the engine {self.engine.name} has {what} wrong bytes")

    async def aclose(self) -> None:
        """Give everything back."""
        self.engine.rows = np.empty((0, 0), dtype=np.uint8)
        await self.worker.aclose()
        self._tensors.clear()


async def succeed(transfer: Transfer) -> None:
    """Wait for a transfer.

    Raises:
        TransferError: it failed.
    """
    result = await transfer
    if not result.success:
        raise TransferError(f"a benchmarked copy failed: {result.error}")
