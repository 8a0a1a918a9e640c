"""A model of random weights that computes a step in a millisecond, and conversations that it can have."""

import asyncio
import functools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

import aiokvoffload as kv
from aiokvoffload.cli.demo.engine import Engine, EngineConfig
from aiokvoffload.cli.demo.generation import RequestFigures
from aiokvoffload.cli.demo.model import PagedModel

VOCABULARY, BLOCK_TOKENS, PIECE_TOKENS, ROWS = 97, 8, 32, 4
CONFIG = EngineConfig(piece_tokens=PIECE_TOKENS, max_rows=ROWS)


def tiny_llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
    )
    model: Any = transformers.LlamaForCausalLM(config)
    return model.eval()


async def paged(num_blocks: int, *, exact: bool = True) -> PagedModel:
    """The tiny model in pages, made on a thread because transformers looks at files."""
    rows = ROWS if exact else None
    make = functools.partial(PagedModel, num_blocks=num_blocks, block_tokens=BLOCK_TOKENS, decode_rows=rows)
    return await asyncio.to_thread(lambda: make(tiny_llama()))


def cpu_config(cpu_bytes: int = 64 << 20) -> kv.CPUOffloadingConfig:
    return kv.CPUOffloadingConfig(cpu_bytes=cpu_bytes, device="host")


def random_tokens(seed: object, count: int) -> list[int]:
    return random.Random(str(seed)).choices(range(VOCABULARY), k=count)  # noqa: S311 - to be the same every time


async def ask(engine: Engine, prompt: Sequence[int], max_tokens: int = 8) -> tuple[list[int], RequestFigures]:
    async with engine.generate(prompt, max_tokens=max_tokens) as answer:
        return [token async for token in answer], answer.figures


@dataclass
class Talk:
    """What a conversation has come to: all its tokens, and the answers alone."""

    tokens: list[int]
    answers: list[list[int]] = field(default_factory=list)
    tier_tokens: Counter[str] = field(default_factory=Counter)


async def talk(engine: Engine, number: int, *, turns: int) -> Talk:
    state = Talk(random_tokens("a long system prompt", 64))
    for turn in range(turns):
        state.tokens += random_tokens((number, turn), 13)
        answer, figures = await ask(engine, state.tokens)
        state.tokens += answer
        state.answers.append(answer)
        state.tier_tokens.update(figures.tier_tokens)
    return state


async def talk_all(engine: Engine, conversations: int, *, turns: int) -> list[Talk]:
    return await asyncio.gather(*(talk(engine, number, turns=turns) for number in range(conversations)))


def kv_bytes(model: PagedModel, engine: Engine) -> dict[kv.OffloadKey, torch.Tensor]:
    """What lies in GPU memory under each key that can be found there: bytes of all layers."""
    found = engine.pages._block_of.items()
    return {key: torch.stack([layer[block_id] for layer in model._pages]) for key, block_id in found}
