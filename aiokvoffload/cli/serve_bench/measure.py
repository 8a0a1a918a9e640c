"""The benchmark from its model to its figures, one part after the other. Knows the order; the parts know how."""

import asyncio
import gc
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Protocol

from aiokvoffload.cli.copy_bench.measure import Ceiling
from aiokvoffload.cli.copy_bench.options import CopyOptions, Ways
from aiokvoffload.cli.demo.checkpoints import Checkpoint
from aiokvoffload.cli.demo.costs import ServeCosts, TierCosts, fit_tier
from aiokvoffload.cli.demo.engine import Engine
from aiokvoffload.cli.demo.model import PagedModel
from aiokvoffload.cli.demo.setup import load_model, use_cores
from aiokvoffload.cli.serve_bench.figures import HitFigure, LengthFigure, ServeBenchmark
from aiokvoffload.cli.serve_bench.options import HIT_PERCENTS, LAST_TOKENS, ServeBenchOptions
from aiokvoffload.cli.serve_bench.plain import PlainModel, PlainTimes
from aiokvoffload.cli.serve_bench.stage import Asked, Prompts, Stage, ask, settle
from aiokvoffload.cli.serve_bench.throughput import measure_decode, measure_storing
from aiokvoffload.cli.serve_bench.timing import Repeater, median_ms
from aiokvoffload.device import Device, open_device
from aiokvoffload.errors import InternalError
from aiokvoffload.service.service import OffloadingService


class Stages(Protocol):
    """Who is told how far it is."""

    def begin(self, what: str) -> None:
        """From now on it is this."""

    def advance(self) -> None:
        """One figure more is known."""


def count_stages(options: ServeBenchOptions) -> int:
    """How many figures it will be."""
    per_tier = len(options.prompt_tokens) + len(options.disk_tokens)
    optional = bool(options.decode_rows) + bool(options.storing_prompts)
    return 1 + 2 * len(options.prompt_tokens) + per_tier + optional


async def measure(options: ServeBenchOptions, stages: Stages) -> ServeBenchmark:
    """Measure everything.

    Raises:
        ArgumentError: there is no such model.
        ConfigError: there is no such device, or not so much memory.
        TierError: a tier does not keep what is stored.
    """
    use_cores()
    began_s = time.perf_counter()
    stages.begin(f"making {options.model}")
    checkpoint = await load_model(options.model, options.device)
    device = await asyncio.to_thread(open_device, options.device)
    try:
        return await _Run(options, stages, checkpoint, device).measure(began_s)
    finally:
        await asyncio.to_thread(device.close)


class _Run:
    def __init__(self, options: ServeBenchOptions, stages: Stages, checkpoint: Checkpoint, device: Device) -> None:
        self._options, self._stages, self._checkpoint, self._device = options, stages, checkpoint, device
        self._prompts = Prompts(checkpoint.model.config.vocab_size)
        self._repeater: Repeater[Asked] = Repeater(options.repeat, options.patience_s)

    async def measure(self, began_s: float) -> ServeBenchmark:
        options = self._options
        plain = await self._measure_plain()
        # The pages replace the model's attention, so plain Hugging Face had to come first.
        make = partial(
            PagedModel,
            num_blocks=options.gpu_blocks,
            block_tokens=options.block_tokens,
            decode_graphs=not options.eager,
        )
        model = await asyncio.to_thread(make, self._checkpoint.model)
        stage = Stage(options, self._device, model, self._prompts)
        ceiling_gbps = await self._measure_ceiling()
        lengths = await self._measure_lengths(stage, plain)
        cpu_bytes = options.cpu_bytes or options.stored_bytes(model.block_bytes, options.prompt_tokens)
        async with stage.open_cpu(cpu_bytes) as offload:
            hits = await self._measure_hits(stage, offload, "cpu", options.prompt_tokens)
            self._stages.begin("decoding beside loads and stores")
            decode = await measure_decode(stage, offload) if options.decode_rows else None
            self._stages.advance()
            self._stages.begin("with and without storing")
            storing = await measure_storing(stage, offload) if options.storing_prompts else None
            self._stages.advance()
        hits += await self._measure_disk(stage)
        return ServeBenchmark(
            model=options.model,
            revision=self._checkpoint.revision,
            device=self._device.name,
            seconds=time.perf_counter() - began_s,
            block_tokens=options.block_tokens,
            block_bytes=model.block_bytes,
            piece_tokens=options.piece_tokens,
            ceiling_gbps=ceiling_gbps,
            lengths=tuple(lengths),
            hits=tuple(hits),
            costs=fit_costs(options.model, lengths, hits),
            decode=decode,
            storing=storing,
        )

    async def _measure_plain(self) -> dict[int, list[PlainTimes]]:
        model, options = PlainModel(self._checkpoint.model), self._options
        repeater: Repeater[PlainTimes] = Repeater(options.repeat, options.patience_s)

        def once(tokens: int) -> PlainTimes:
            return model.measure(self._prompts.fresh(tokens), last_tokens=LAST_TOKENS)

        await asyncio.to_thread(once, options.prompt_tokens[0])  # kernels are loaded on first use
        found = {}
        for tokens in options.prompt_tokens:
            self._stages.begin(f"{tokens:,} tokens in plain Hugging Face")
            found[tokens] = await repeater.all(lambda tokens=tokens: asyncio.to_thread(once, tokens))  # type: ignore[misc]
            self._stages.advance()
        await asyncio.to_thread(gc.collect)
        await asyncio.to_thread(model.let_go)
        return found

    async def _measure_ceiling(self) -> dict[str, float]:
        self._stages.begin("contiguous copies")
        size = self._options.ceiling_bytes
        copies = CopyOptions(job_bytes=size, pool_bytes=2 * size, jobs=8, repeat=5, slot_bytes=(size,))
        ceiling = await asyncio.to_thread(Ceiling, self._device, copies)
        found = {ways.value: await ceiling.gigabytes_per_s(ways) for ways in Ways}
        self._stages.advance()
        return found

    async def _measure_lengths(self, stage: Stage, plain: dict[int, list[PlainTimes]]) -> list[LengthFigure]:
        found: list[LengthFigure] = []
        steps: Repeater[float] = Repeater(self._options.repeat, self._options.patience_s)
        async with stage.engine() as engine:
            await ask(engine, self._prompts.fresh(self._options.prompt_tokens[0]), max_tokens=2)
            for tokens in self._options.prompt_tokens:
                self._stages.begin(f"{tokens:,} tokens without offloading")
                asked = await self._repeater.all(lambda tokens=tokens: ask(engine, self._prompts.fresh(tokens)))  # type: ignore[misc]
                await stage.last_step_s(tokens)
                last_s = await steps.all(lambda tokens=tokens: stage.last_step_s(tokens))  # type: ignore[misc]
                found.append(
                    LengthFigure(
                        prompt_tokens=tokens,
                        plain_ms=median_ms([each.whole_s for each in plain[tokens]]),
                        plain_last_ms=median_ms([each.last_s for each in plain[tokens]]),
                        engine_ms=median_ms([each.first_token_s for each in asked]),
                        last_ms=median_ms(last_s),
                        measurements=len(asked),
                    )
                )
                self._stages.advance()
        return found

    async def _measure_disk(self, stage: Stage) -> list[HitFigure]:
        options = self._options
        if options.disk_dir is None or not options.disk_tokens:
            return []
        folder = await asyncio.to_thread(tempfile.TemporaryDirectory, prefix="bench-serve-", dir=options.disk_dir)
        try:
            cpu_bytes = options.stored_bytes(stage.model.block_bytes, options.disk_tokens)
            async with stage.open_disk(cpu_bytes, Path(folder.name)) as offload:
                return await self._measure_hits(stage, offload, "disk", options.disk_tokens)
        finally:
            await asyncio.to_thread(folder.cleanup)

    async def _measure_hits(
        self, stage: Stage, offload: OffloadingService, tier: str, lengths: tuple[int, ...]
    ) -> list[HitFigure]:
        found = []
        async with stage.engine(offload) as engine:
            for tokens in lengths:
                self._stages.begin(f"{tokens:,} tokens with offloading, {tier}")
                hits = TierHits(stage, engine, offload, tier=tier, prompt=self._prompts.fresh(tokens))
                found += await hits.measure(self._repeater)
                self._stages.advance()
        return found


class TierHits:
    """One prompt in a tier, and others that share some of it.

    Args:
        stage: the model.
        engine: over `offload`.
        offload: the service.
        tier: `cpu` or `disk`.
        prompt: to be put there.
    """

    def __init__(
        self, stage: Stage, engine: Engine, offload: OffloadingService, *, tier: str, prompt: list[int]
    ) -> None:
        self._stage, self._engine, self._offload = stage, engine, offload
        self._tier, self._prompt = tier, prompt

    async def measure(self, repeater: Repeater[Asked]) -> list[HitFigure]:
        """The prompt itself is the last that is a hit nowhere; what brings little new to the tier comes first then."""
        asked: dict[int, list[Asked]] = {0: []}
        if self._tier == "cpu" and repeater.times > 1:
            asked[0] += await repeater.once_less().all(lambda: self._ask(self._stage.prompts.fresh(len(self._prompt))))
        asked[0].append(await self._ask(self._prompt))
        for percent in reversed(HIT_PERCENTS):
            asked[percent] = await repeater.all(lambda percent=percent: self._ask_sharing(percent))  # type: ignore[misc]
        wanted = [
            percent for percent in sorted(asked) if percent or self._tier == "cpu"
        ]  # from nowhere is from nowhere
        return [self._figure(percent, asked[percent]) for percent in wanted]

    async def _ask_sharing(self, percent: int) -> Asked:
        block_tokens = self._stage.options.block_tokens
        shared = len(self._prompt) * percent // 100 // block_tokens * block_tokens
        asked = await self._ask(self._stage.prompts.sharing(self._prompt, shared))
        expected = min(shared, len(self._prompt) - block_tokens)
        if asked.tier_tokens != expected:
            raise InternalError(
                f"of a prompt of {len(self._prompt)} tokens, {expected} were to come from {self._tier}, but "
                f"{asked.tier_tokens} did: it was evicted meanwhile, or not kept"
            )
        return asked

    async def _ask(self, prompt: list[int]) -> Asked:
        self._engine.pages.forget_idle()
        if self._tier != "cpu":
            await self._offload.reset(tiers=["cpu"])
        asked = await ask(self._engine, prompt)
        await settle(self._offload)
        return asked

    def _figure(self, percent: int, asked: list[Asked]) -> HitFigure:
        tokens = asked[-1].tier_tokens
        return HitFigure(
            tier=self._tier if percent else "none",
            prompt_tokens=len(self._prompt),
            hit_percent=percent,
            loaded_tokens=tokens,
            loaded_bytes=tokens * self._stage.token_bytes,
            ttft_ms=median_ms([each.first_token_s for each in asked]),
            measurements=len(asked),
        )


def fit_costs(model: str, lengths: list[LengthFigure], hits: list[HitFigure]) -> ServeCosts:
    """The engine's model of this machine, from what was measured."""
    last_s = {each.prompt_tokens: each.last_ms / 1e3 for each in lengths}
    tiers: dict[str, TierCosts] = {}
    for tier in dict.fromkeys(hit.tier for hit in hits if hit.hit_percent):
        whole = [hit for hit in hits if hit.tier == tier and hit.hit_percent == 100]
        tiers[tier] = fit_tier([(hit.loaded_tokens, hit.ttft_ms / 1e3 - last_s[hit.prompt_tokens]) for hit in whole])
    compute, slowest_s = [], 0.0
    for each in lengths:  # a longer prompt takes no shorter, whatever the noise says
        slowest_s = max(slowest_s, each.engine_ms / 1e3)
        compute.append((each.prompt_tokens, slowest_s))
    return ServeCosts(model=model, step_s=median(last_s.values()), compute=tuple(compute), tiers=tiers)
