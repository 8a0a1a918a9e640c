"""Requests that end early, whenever that is, leave nothing: no block, slot, pin or task (I2, I7, fault 32)."""

import asyncio
import random

import aiokvoffload as kv
from aiokvoffload.cli.demo.engine import Engine
from aiokvoffload.cli.replay import count_slots_and_transfers
from tests.cli.demo.tiny import CONFIG, ask, cpu_config, paged, random_tokens

ABORTS, AT_A_TIME = 200, 8


async def abort_somewhere(engine: Engine, number: int, chance: random.Random) -> None:
    """Begin a request, wait for so many tokens or passes of the loop, and leave."""
    prompt = random_tokens("shared", 64) + random_tokens(number % 20, chance.randrange(1, 100))
    async with engine.generate(prompt, max_tokens=12) as answer:
        if number % 2:
            for _ in range(chance.randrange(12)):
                await anext(answer)
        else:
            for _ in range(chance.randrange(300)):
                await asyncio.sleep(0)


async def abort_in_turn(engine: Engine, numbers: "list[int]", chance: random.Random) -> None:
    while numbers:
        await abort_somewhere(engine, numbers.pop(), chance)


async def test_two_hundred_aborts_leave_no_block_slot_pin_or_task() -> None:
    model, chance = await paged(60), random.Random(7)  # noqa: S311 - to be the same every time
    expected = None
    async with kv.CPUOffloadingSpec(cpu_config(512 << 10)).open(model.kv_caches) as offload:
        async with Engine(model, CONFIG, offload=offload) as engine:
            expected, _ = await ask(engine, random_tokens("shared", 64))
            tasks = asyncio.all_tasks()
            numbers = list(range(ABORTS))
            await asyncio.gather(*(abort_in_turn(engine, numbers, chance) for _ in range(AT_A_TIME)))
            assert asyncio.all_tasks() == tasks
            statistics = engine.statistics()
            assert (statistics.open_requests, statistics.requests) == (0, ABORTS + 1)
            engine.pages.forget_idle()
            answer, _ = await ask(engine, random_tokens("shared", 64))
            assert answer == expected
            assert engine.statistics().pages.in_use == 0
        offload.check_integrity()
    assert count_slots_and_transfers(offload.statistics()) == 0


async def test_an_aborted_request_keeps_its_blocks_until_its_step_has_ended() -> None:
    """The device cannot be cancelled (I2): the blocks are free when the step has ended, not when its request has."""
    model = await paged(10)
    begun, goes_on = asyncio.Event(), asyncio.Event()
    loop, prefill = asyncio.get_running_loop(), model.prefill

    def slow(*args: object, **options: object) -> int:
        loop.call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(goes_on.wait(), loop).result()
        return prefill(*args, **options)  # type: ignore[arg-type]

    model.prefill = slow  # type: ignore[method-assign]
    service = kv.CPUOffloadingSpec(cpu_config()).open(model.kv_caches)
    async with service, Engine(model, CONFIG, offload=service) as engine:
        async with engine.generate([1] * 20, max_tokens=4):
            await begun.wait()
        assert (engine.statistics().open_requests, engine.statistics().pages.in_use) == (0, 3)
        waiting = asyncio.create_task(ask(engine, [2] * 76, 4))  # needs all ten
        goes_on.set()
        assert len((await waiting)[0]) == 4
        assert engine.statistics().pages.in_use == 0
