"""Tokens per second: of answers beside loads and stores, and of prompts with and without storing them."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from statistics import median

from aiokvoffload.cli.demo.engine import Engine
from aiokvoffload.cli.demo.generation import Generation
from aiokvoffload.cli.serve_bench.figures import DecodeFigure, StoringFigure
from aiokvoffload.cli.serve_bench.stage import Stage, ask, settle
from aiokvoffload.cli.serve_bench.traffic import IN_FLIGHT, Moved, Traffic
from aiokvoffload.errors import InternalError
from aiokvoffload.service.service import OffloadingService

WARM_UP_SHARE = 0.25
"""Of a window, before it: copies and steps get into their pace."""
DECODE_TURNS = 7
"""Windows beside copies. Where answers outgrow a graph's size, steps become a fifth slower at once: the ratios of the
windows around that are wrong, and the median of so many is not."""
STORING_ANSWER_TOKENS, STORING_TURNS = 8, 5
STEP_PERIOD_S = 0.0005
"""Between two looks at whether another step has begun."""


async def measure_decode(stage: Stage, offload: OffloadingService) -> DecodeFigure:
    """Continue as many answers as a batch has, with and without copies, in turns.

    A step takes longer the longer the answers are, so each window beside copies is compared with those around it.
    """
    options, beside = stage.options, []
    loaded, stored = [], []
    await stage.prepare_decode(options.decode_rows, options.decode_context_tokens, options.answer_tokens)
    async with stage.engine(offload) as engine:
        lease = await engine.pages.lease([], 2 * IN_FLIGHT * options.traffic_blocks)
        async with _answers(stage, engine) as answers:
            alone = [await _window(engine, answers, options.window_s)]
            for turn in range(DECODE_TURNS):
                if turn and _is_near_end(answers):
                    break
                async with Traffic(offload, lease.block_ids, name=f"traffic-{turn}") as traffic:
                    await asyncio.sleep(WARM_UP_SHARE * options.window_s)
                    before, began_s = traffic.moved(), time.perf_counter()
                    beside.append(await _window(engine, answers, options.window_s))
                    rates = _rates(before, traffic.moved(), time.perf_counter() - began_s)
                loaded.append(rates[0])
                stored.append(rates[1])
                alone.append(await _window(engine, answers, options.window_s))
        lease.release()
    await settle(offload)
    around = [(before + after) / 2 for before, after in itertools.pairwise(alone)]
    drops = tuple(100 * (1 - each / other) for each, other in zip(beside, around, strict=True))
    return DecodeFigure(
        rows=options.decode_rows,
        context_tokens=options.decode_context_tokens,
        alone_tokens_per_s=median(around),
        beside_tokens_per_s=median(beside),
        drop_percent=median(drops),
        drops_percent=drops,
        load_gbps=median(loaded),
        store_gbps=median(stored),
    )


@contextlib.asynccontextmanager
async def _answers(stage: Stage, engine: Engine) -> AsyncIterator[list[Generation]]:
    """A full batch of them, each with its first token; aborted at the end."""
    async with contextlib.AsyncExitStack() as stack:
        answers = [
            engine.generate(
                stage.prompts.fresh(stage.options.decode_context_tokens), max_tokens=stage.options.answer_tokens
            )
            for _ in range(stage.options.decode_rows)
        ]
        for answer in answers:
            await stack.enter_async_context(answer)
        for answer in answers:
            await anext(answer)
        yield answers


def _is_near_end(answers: list[Generation]) -> bool:
    """Whether less is left of them than they have come to: another turn might not be the same throughout."""
    return any(2 * answer.figures.answer_tokens > answer.max_tokens for answer in answers)


async def _window(engine: Engine, answers: list[Generation], window_s: float) -> float:
    """Tokens per second of all answers, from the end of one step to the end of another."""
    await asyncio.sleep(WARM_UP_SHARE * window_s)
    first, began_s = await _next_step(engine)
    await asyncio.sleep(window_s)
    last, ended_s = await _next_step(engine)
    if any(answer.task is None or answer.task.done() for answer in answers):
        raise InternalError("answers ended before their throughput was measured")
    return (last - first) / (ended_s - began_s)


async def _next_step(engine: Engine) -> tuple[int, float]:
    """Rows computed so far, and the time, just after another step has begun."""
    rows = before = engine.statistics().batcher.decode_rows
    while rows == before:
        await asyncio.sleep(STEP_PERIOD_S)
        rows = engine.statistics().batcher.decode_rows
    return rows, time.perf_counter()


def _rates(before: Moved, after: Moved, seconds: float) -> tuple[float, float]:
    return (after.loaded - before.loaded) / seconds / 1e9, (after.stored - before.stored) / seconds / 1e9


async def measure_storing(stage: Stage, offload: OffloadingService) -> StoringFigure:
    """Serve new prompts, some at a time, by an engine that stores and one that does not, in turns."""
    without, with_storing = [], []
    for rows in range(1, stage.options.storing_prompts + 1):
        await stage.prepare_decode(rows, stage.options.storing_tokens, STORING_ANSWER_TOKENS)
    await _tokens_per_s(stage, None)
    for _ in range(STORING_TURNS):
        without.append(await _tokens_per_s(stage, None))
        with_storing.append(await _tokens_per_s(stage, offload))
    return StoringFigure(
        prompts=stage.options.storing_prompts,
        prompt_tokens=stage.options.storing_tokens,
        without_tokens_per_s=median(without),
        with_tokens_per_s=median(with_storing),
        cost_percent=100 * (1 - median(with_storing) / median(without)),
    )


async def _tokens_per_s(stage: Stage, offload: OffloadingService | None) -> float:
    options = stage.options
    prompts = [stage.prompts.fresh(options.storing_tokens) for _ in range(options.storing_prompts)]
    async with stage.engine(offload) as engine:
        await ask(engine, stage.prompts.fresh(options.storing_tokens))  # a thread of its own makes plans of its own
        began_s = time.perf_counter()
        await asyncio.gather(*(ask(engine, prompt, max_tokens=STORING_ANSWER_TOKENS) for prompt in prompts))
        seconds = time.perf_counter() - began_s
    if offload is not None:
        await settle(offload)
    return len(prompts) * (options.storing_tokens + STORING_ANSWER_TOKENS) / seconds
