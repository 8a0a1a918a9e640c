"""What the benchmark runs on: the model, services with one tier or two, prompts, and requests with a time.

Knows engines and services; measures nothing but a request's time to its first token.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from aiokvoffload.base import TierShape
from aiokvoffload.cli.demo.batcher import Batcher
from aiokvoffload.cli.demo.engine import Engine, EngineConfig
from aiokvoffload.cli.demo.model import PagedModel
from aiokvoffload.cli.demo.pages import PagePool
from aiokvoffload.cli.serve_bench.options import LAST_TOKENS, ServeBenchOptions
from aiokvoffload.config import CPUOffloadingConfig
from aiokvoffload.cpu.spec import CPUOffloadingSpec
from aiokvoffload.device import Device
from aiokvoffload.errors import TierError
from aiokvoffload.service.service import OffloadingService
from aiokvoffload.tiering.config import TierConfig, TieringOffloadingConfig
from aiokvoffload.tiering.disk.config import DiskConfig
from aiokvoffload.tiering.disk.tier import DiskTier
from aiokvoffload.tiering.spec import TieringOffloadingSpec

IDLE_PERIOD_S = 0.002
STORE_DELAY_S = 600.0
"""A disk may be as slow as it likes: the benchmark waits until it has everything."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request's time to its first token, and how many tokens of its prompt came from a tier."""

    first_token_s: float
    tier_tokens: int


class Prompts:
    """Random prompts, every one a new one."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._random = np.random.default_rng(0)

    def fresh(self, tokens: int) -> list[int]:
        """Nobody has computed this one."""
        prompt: list[int] = self._random.integers(0, self._vocabulary, tokens).tolist()
        return prompt

    def sharing(self, prompt: list[int], tokens: int) -> list[int]:
        """As long as `prompt`, and the same up to `tokens`."""
        return [*prompt[:tokens], *self.fresh(len(prompt) - tokens)]


class Stage:
    """The model on its pages.

    Args:
        options: of the benchmark.
        device: where.
        model: with its pages.
        prompts: for it.
    """

    def __init__(self, options: ServeBenchOptions, device: Device, model: PagedModel, prompts: Prompts) -> None:
        self.options, self.device, self.model, self.prompts = options, device, model, prompts

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's KV."""
        return self.model.block_bytes // self.model.block_tokens

    def config(self) -> EngineConfig:
        """Of an engine that uses every block of a hit, as a server does."""
        return EngineConfig(
            piece_tokens=self.options.piece_tokens, max_rows=max(1, self.options.decode_rows), exact=False
        )

    def engine(self, offload: OffloadingService | None = None) -> Engine:
        """One over all pages; one at a time."""
        return Engine(self.model, self.config(), offload=offload, device=self.device)

    async def prepare_decode(self, rows: int, context_tokens: int, answer_tokens: int) -> None:
        """Have the model ready for so many answers, so that a measurement does not meet what is done once."""
        last = context_tokens + answer_tokens
        prepare = partial(self.model.prepare_decode, rows, first_tokens=context_tokens, last_tokens=last)
        await asyncio.to_thread(prepare)

    async def last_step_s(self, tokens: int) -> float:
        """Seconds of the last step alone of a prompt of so many tokens, everything before it in its pages."""
        batcher = Batcher(self.model, self.device, max_rows=1)
        running = asyncio.create_task(batcher.run())
        try:
            lease = await PagePool(self.model.num_blocks).lease([], -(-tokens // self.model.block_tokens))
            last = self.prompts.fresh(LAST_TOKENS)
            began_s = time.perf_counter()  # uvloop's own clock ticks in milliseconds
            await batcher.prefill(lease, last, start=tokens - LAST_TOKENS, width=LAST_TOKENS)
            ended_s = time.perf_counter()
            lease.release()
            return ended_s - began_s
        finally:
            running.cancel()
            await asyncio.wait([running])
            await batcher.aclose()

    def _cpu_config(self, cpu_bytes: int) -> CPUOffloadingConfig:
        return CPUOffloadingConfig(
            cpu_bytes=cpu_bytes,
            device=self.options.device,
            # What stores cost is to be seen: the default declines chunks that it has no use for.
            policy="lru",
            copy=self.options.copy,
        )

    @contextlib.asynccontextmanager
    async def open_cpu(self, cpu_bytes: int) -> AsyncIterator[OffloadingService]:
        """A service with CPU memory, all of it ready."""
        async with CPUOffloadingSpec(self._cpu_config(cpu_bytes)).open(self.model.kv_caches) as offload:
            await offload.wait_grown()
            yield offload

    @contextlib.asynccontextmanager
    async def open_disk(self, cpu_bytes: int, directory: Path) -> AsyncIterator[OffloadingService]:
        """A service with a disk below CPU memory."""
        disk = DiskConfig(
            directories=(directory,),
            disk_bytes=2 * cpu_bytes,
            namespace="aiokvoffload bench serve",
            max_pending_stores=1 << 20,
        )

        def make(shape: TierShape) -> DiskTier:
            return DiskTier(disk, shape)

        tier = TierConfig(make=make, max_store_delay_s=STORE_DELAY_S, load_timeout_s=60.0, store_timeout_s=120.0)
        config = TieringOffloadingConfig(
            cpu=self._cpu_config(cpu_bytes), tiers=(tier,), promotion_share=0.7, cascade_share=0.7, room_timeout_s=60.0
        )
        async with TieringOffloadingSpec(config).open(self.model.kv_caches) as offload:
            await offload.wait_grown()
            yield offload


async def ask(engine: Engine, prompt: list[int], *, max_tokens: int = 1) -> Asked:
    """One request to its end."""
    async with engine.generate(prompt, max_tokens=max_tokens) as generation:
        async for _ in generation:
            pass
        figures = generation.figures
        return Asked(figures.first_token_s, sum(figures.tier_tokens.values()))


async def settle(offload: OffloadingService) -> None:
    """Wait until nothing moves in any tier.

    Raises:
        TierError: a tier did not take what it was to keep.
    """
    while _is_busy(offload):  # noqa: ASYNC110 - nobody tells when a disk has written everything
        await asyncio.sleep(IDLE_PERIOD_S)
    for tier in offload.statistics().tiers:
        if not tier.storing or tier.dropped or tier.refused or tier.failed_stores:
            raise TierError(f"tier {tier.name} did not keep up, its times would mean nothing: {tier}")


def _is_busy(offload: OffloadingService) -> bool:
    statistics = offload.statistics()
    moving: Any = statistics.jobs_in_flight or statistics.waiting_flows
    return bool(moving) or any(
        tier.stores_waiting or tier.loads_waiting or tier.calls_in_flight for tier in statistics.tiers
    )
