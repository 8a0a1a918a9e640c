"""The engine answers the same, to the last bit of its KV, whatever was loaded, from where, and who came in between."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import torch

import aiokvoffload as kv
from aiokvoffload.cli.demo.engine import Engine, EngineConfig, Hit
from aiokvoffload.cli.demo.model import PagedModel
from aiokvoffload.device import Device, open_device
from aiokvoffload.errors import ArgumentError, BusyError, ClosedError
from tests.cli.demo.tiny import (
    CONFIG,
    PIECE_TOKENS,
    ask,
    cpu_config,
    kv_bytes,
    paged,
    random_tokens,
    talk_all,
    tiny_llama,
)

CONVERSATIONS, TURNS = 20, 4
QUARTER_BLOCKS = 110
"""A conversation ends at 64 + 4 * (13 + 8) tokens, 19 blocks; twenty share the first 8 of them."""


@pytest.fixture
def host() -> Iterator[Device]:
    device = open_device("host")
    yield device
    device.close()


def plain_answer(prompt: list[int], max_tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": max_tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    output = tiny_llama().generate(ids, attention_mask=torch.ones_like(ids), **options)
    answer: list[int] = output[0, len(prompt) :].tolist()
    return answer


async def reference(host: Device) -> tuple[list[list[list[int]]], dict[kv.OffloadKey, torch.Tensor]]:
    """The answers of an engine without offloading and with room for all, and the bytes under each of its keys."""
    model = await paged(1000)
    async with Engine(model, CONFIG, device=host) as engine:
        talks = await talk_all(engine, CONVERSATIONS, turns=TURNS)
        return [each.answers for each in talks], kv_bytes(model, engine)


@contextlib.asynccontextmanager
async def served(model: PagedModel, config: EngineConfig) -> AsyncIterator[Engine]:
    async with kv.CPUOffloadingSpec(cpu_config()).open(model.kv_caches) as offload:
        async with Engine(model, config, offload=offload) as engine:
            yield engine
        offload.check_integrity()


async def assert_same_bytes(engine: Engine, model: PagedModel, expected: dict[kv.OffloadKey, torch.Tensor]) -> None:
    found = kv_bytes(model, engine)
    assert found
    for key, data in found.items():
        assert data.equal(expected[key])


async def test_the_engine_answers_as_hugging_face_does(host: Device) -> None:
    prompt = random_tokens("a prompt", 150)
    expected = await asyncio.to_thread(plain_answer, prompt, 20)
    for exact in (True, False):
        config = EngineConfig(piece_tokens=PIECE_TOKENS, max_rows=4, exact=exact)
        async with Engine(await paged(40, exact=exact), config, device=host) as engine:
            answer, figures = await ask(engine, prompt, 20)
        assert answer == expected
        assert figures.computed_tokens == 150


async def test_twenty_conversations_answer_alike_with_and_without_offloading(host: Device) -> None:
    answers, data = await reference(host)
    model = await paged(QUARTER_BLOCKS)
    async with kv.CPUOffloadingSpec(cpu_config()).open(model.kv_caches) as offload:
        async with Engine(model, CONFIG, offload=offload) as engine:
            talks = await talk_all(engine, CONVERSATIONS, turns=TURNS)
            await assert_same_bytes(engine, model, data)
        offload.check_integrity()
    assert [each.answers for each in talks] == answers
    assert sum(each.tier_tokens["cpu"] for each in talks) > 500


async def test_twenty_conversations_answer_alike_before_and_after_a_restart(host: Device, tmp_path: Path) -> None:
    answers, data = await reference(host)
    disk = kv.DiskConfig(directories=(tmp_path,), disk_bytes=64 << 20, namespace="tiny llama, float32")
    tiers: list[kv.DiskTier] = []

    def make(shape: kv.TierShape) -> kv.DiskTier:
        tiers.append(kv.DiskTier(disk, shape))
        return tiers[-1]

    config = kv.TieringOffloadingConfig(cpu=cpu_config(4 << 20), tiers=(kv.TierConfig(make=make),))
    from_disk = []
    for turns in (TURNS - 1, TURNS):  # the second time in pages that hold nothing, like those of a new process
        model = await paged(QUARTER_BLOCKS)
        async with kv.TieringOffloadingSpec(config).open(model.kv_caches) as offload:
            await tiers[-1].wait_recovered()
            async with Engine(model, CONFIG, offload=offload) as engine:
                talks = await talk_all(engine, CONVERSATIONS, turns=turns)
                await assert_same_bytes(engine, model, data)
            offload.check_integrity()
        assert [each.answers for each in talks] == [each[:turns] for each in answers]
        from_disk.append(sum(each.tier_tokens["disk"] for each in talks))
    assert from_disk[1] > 500 > from_disk[0]


async def test_a_hit_is_used_in_whole_pieces_where_bytes_must_not_depend_on_it(host: Device) -> None:
    prompt = random_tokens("a prompt", PIECE_TOKENS + 20)
    used = []
    for exact in (True, False):
        model = await paged(20, exact=exact)
        config = EngineConfig(piece_tokens=PIECE_TOKENS, max_rows=4, exact=exact)
        async with served(model, config) as engine:
            await ask(engine, prompt)
            await ask(engine, prompt)
            engine.pages.forget_idle()
            _, figures = await ask(engine, prompt)
            used.append((figures.gpu_tokens, figures.tier_tokens, figures.computed_tokens))
    assert used == [(0, {"cpu": 32}, 20), (0, {"cpu": 48}, 4)]


async def test_an_answer_is_kept_where_its_last_bits_do_not_matter() -> None:
    model, prompt = await paged(20, exact=False), random_tokens("a prompt", 40)
    config = EngineConfig(piece_tokens=PIECE_TOKENS, exact=False)
    async with served(model, config) as engine:
        answer, _ = await ask(engine, prompt, 18)
        _, figures = await ask(engine, prompt + answer)
    assert figures.gpu_tokens == 56  # the last token of an answer is never computed


async def test_what_is_not_worth_loading_is_computed() -> None:
    hits: list[Hit] = []

    def never(hit: Hit) -> bool:
        hits.append(hit)
        return False

    model, prompt = await paged(20), random_tokens("a prompt", 100)
    config = EngineConfig(piece_tokens=PIECE_TOKENS, max_rows=4, worth_loading=never)
    async with served(model, config) as engine:
        await ask(engine, prompt)
        engine.pages.forget_idle()
        _, figures = await ask(engine, prompt)
    assert hits == [(100, 0, 96)]
    assert (figures.tier_tokens, figures.computed_tokens) == ({}, 100)


async def test_a_stop_token_ends_the_answer_and_is_no_part_of_it(host: Device) -> None:
    prompt = random_tokens("a prompt", 20)
    async with Engine(await paged(20), CONFIG, device=host) as engine:
        whole, _ = await ask(engine, prompt)
        async with engine.generate(prompt, max_tokens=8, stop=[whole[3]]) as answer:
            assert [token async for token in answer] == whole[: whole.index(whole[3])]


async def test_what_cannot_be_served_is_refused_at_once(host: Device) -> None:
    config = EngineConfig(piece_tokens=PIECE_TOKENS, max_rows=4, max_requests=1)
    engine = Engine(await paged(10), config, device=host)
    with pytest.raises(ClosedError, match="not open"):
        engine.generate([1], max_tokens=1)
    async with engine:
        with pytest.raises(ArgumentError, match=r"fit the 80 tokens of KV .*, got a prompt of 79 and max_tokens of 2"):
            engine.generate([1] * 79, max_tokens=2)
        with pytest.raises(ArgumentError, match="a token at least"):
            engine.generate([], max_tokens=2)
        async with engine.generate([1] * 40, max_tokens=8):
            with pytest.raises(BusyError, match="the limit is 1"):
                engine.generate([1], max_tokens=1)
    with pytest.raises(ArgumentError, match="multiple of a block's 8, got 12"):
        Engine(await paged(10), EngineConfig(piece_tokens=12), device=host)
    with pytest.raises(ArgumentError, match="decode_rows must be at least max_rows = 8, got 4"):
        Engine(await paged(10), EngineConfig(piece_tokens=PIECE_TOKENS), device=host)
    with pytest.raises(ArgumentError, match="device must be given"):
        Engine(await paged(10), CONFIG)


async def test_leaving_the_engine_aborts_what_is_open_and_says_so(host: Device) -> None:
    async with Engine(await paged(40), CONFIG, device=host) as engine:
        answer = engine.generate([1] * 40, max_tokens=200)
        assert await anext(answer) >= 0
    with pytest.raises(ClosedError, match="aborted"):
        _ = [token async for token in answer]
    assert engine.statistics().pages.in_use == 0


async def test_a_step_that_fails_fails_its_requests_and_no_other(host: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    model = await paged(40)
    async with Engine(model, CONFIG, device=host) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(model, "prefill", lambda *_, **__: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                await ask(engine, [1] * 40)
        assert len((await ask(engine, [1] * 40))[0]) == 8
        assert engine.statistics().pages.in_use == 0
