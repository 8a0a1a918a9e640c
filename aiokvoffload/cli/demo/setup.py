"""What both processes of the demo set up: a paged model, a service with CPU memory and a disk, an engine over them."""

import asyncio
import contextlib
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from aiokvoffload.base import TierShape
from aiokvoffload.cli.demo.checkpoints import Checkpoint, load_checkpoint
from aiokvoffload.cli.demo.engine import Engine, EngineConfig
from aiokvoffload.cli.demo.generation import RequestFigures
from aiokvoffload.cli.demo.model import PagedModel
from aiokvoffload.config import CPUOffloadingConfig
from aiokvoffload.cpu.spec import CPUOffloadingSpec
from aiokvoffload.device import open_device
from aiokvoffload.events import EventRecord
from aiokvoffload.service.service import OffloadingService
from aiokvoffload.tiering.config import TierConfig, TieringOffloadingConfig
from aiokvoffload.tiering.disk.config import DiskConfig
from aiokvoffload.tiering.disk.tier import DiskTier
from aiokvoffload.tiering.spec import TieringOffloadingSpec

BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large everything is; the same in both processes.

    Attributes:
        gpu_blocks: blocks of KV in GPU memory.
        stored_blocks: blocks that CPU memory and the disk have room for, each.
        piece_tokens: of a prompt that are computed in one step.
        rows: answers that one step continues.
    """

    gpu_blocks: int
    stored_blocks: int
    piece_tokens: int
    rows: int

    def namespace(self, checkpoint: Checkpoint) -> str:
        """What the disk's directory is for."""
        return f"aiokvoffload demo: {checkpoint.revision}, blocks of {BLOCK_TOKENS}, pieces of {self.piece_tokens}"

    def engine_config(self) -> EngineConfig:
        """Of an engine whose answers do not depend on what was cached."""
        return EngineConfig(piece_tokens=self.piece_tokens, max_rows=self.rows)


GIL_TURN_S = 0.0002


def use_cores() -> None:
    """Let the model's steps use all cores but one, which is the loop's: threads that wait for a core wait in turns.

    And the interpreter in short turns: by default a step that wants to go on waits 5 ms for a busy loop to give way.
    """
    torch.set_num_threads(max(1, (os.cpu_count() or 1) - 1))
    sys.setswitchinterval(GIL_TURN_S)


async def load_model(name: str, device_name: str, *, with_text: bool = True) -> Checkpoint:
    """The model of that name, on that kind of device; on a thread, since it takes long.

    Args:
        name: of the model.
        device_name: as `open_device` wants it.
        with_text: whether text will be made into tokens or back.
    """
    device = open_device(device_name)
    try:
        checkpoint = await asyncio.to_thread(load_checkpoint, name, device.torch_device)
        if with_text:
            await asyncio.to_thread(checkpoint.text.prepare)
        return checkpoint
    finally:
        device.close()


@dataclass(frozen=True, slots=True)
class Storage:
    """Where blocks go from GPU memory: CPU memory, and a disk if it has a directory.

    Attributes:
        cpu_bytes: of CPU memory.
        directory: of the disk tier.
        disk_bytes: what it has room for.
    """

    cpu_bytes: int
    directory: Path | None = None
    disk_bytes: int = 0


async def place(checkpoint: Checkpoint, sizes: Sizes) -> PagedModel:
    """The model with its pages, to be computed in shapes that never change."""
    make = partial(PagedModel, num_blocks=sizes.gpu_blocks, block_tokens=BLOCK_TOKENS, decode_rows=sizes.rows)
    return await asyncio.to_thread(make, checkpoint.model)


def storage_of(model: PagedModel, sizes: Sizes, directory: Path) -> Storage:
    """Room for all of the demo's blocks, in each tier."""
    size_bytes = sizes.stored_blocks * model.block_bytes
    return Storage(size_bytes, directory, 2 * size_bytes)


@contextlib.asynccontextmanager
async def open_service(
    model: PagedModel, storage: Storage, *, device: str, namespace: str
) -> AsyncIterator[OffloadingService]:
    """CPU memory, and a disk maybe, below the model's pages; all that the disk has is known when it is open.

    Args:
        model: whose pages they are.
        storage: where blocks go.
        device: where the pages lie.
        namespace: what makes blocks of equal keys the same bytes.
    """
    cpu = CPUOffloadingConfig(cpu_bytes=storage.cpu_bytes, device=device)
    if storage.directory is None:
        async with CPUOffloadingSpec(cpu).open(model.kv_caches) as offload:
            yield offload
        return
    tiers: list[DiskTier] = []
    disk = DiskConfig(directories=(storage.directory,), disk_bytes=storage.disk_bytes, namespace=namespace)

    def make_tier(shape: TierShape) -> DiskTier:
        tiers.append(DiskTier(disk, shape))
        return tiers[-1]

    config = TieringOffloadingConfig(cpu=cpu, tiers=(TierConfig(make=make_tier),))
    async with TieringOffloadingSpec(config).open(model.kv_caches) as offload:
        await tiers[0].wait_recovered()
        yield offload


async def count_events(offload: OffloadingService, counts: Counter[str]) -> None:
    """Count the keys of every event by tier and kind, until the service is closed."""
    async for record in offload.events.subscribe():
        if isinstance(record, EventRecord):
            counts[f"{record.event.tier} {record.event.kind.value}"] += len(record.event.keys)


async def ask(engine: Engine, prompt: Sequence[int], *, max_tokens: int, stop: Sequence[int]) -> "Answer":
    """One request to its end."""
    async with engine.generate(prompt, max_tokens=max_tokens, stop=stop) as generation:
        return Answer([token async for token in generation], generation.figures)


@dataclass(frozen=True, slots=True)
class Answer:
    """The tokens of an answer, and where those of its prompt came from."""

    tokens: list[int]
    figures: RequestFigures


@dataclass(frozen=True, slots=True)
class Job:
    """What the second process is to do: ask these prompts, with nothing but the disk to find them on.

    Attributes:
        model: name of the model.
        device: where it runs.
        directory: where the disk tier lies.
        sizes: as in the first process.
        prompts: token ids.
        answer_tokens: most tokens of an answer.
    """

    model: str
    device: str
    directory: str
    sizes: Sizes
    prompts: list[list[int]]
    answer_tokens: int
