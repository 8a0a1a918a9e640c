"""Turns: one bounded piece of work per pass of the loop."""

import asyncio

import pytest

from aiokvoffload.service.pump import Lane, Progress, Pump, Turnstile


class Countdown:
    """A flow of a given number of steps that writes them down."""

    def __init__(self, name: str, steps: int, log: list[str]) -> None:
        self.name, self.steps, self.log = name, steps, log
        self.error: Exception | None = None
        self.parks = False

    def step(self) -> Progress:
        if self.parks:
            self.parks = False
            return Progress.PARKED
        if self.steps < 0:
            raise ValueError(self.name)
        self.log.append(self.name)
        self.steps -= 1
        return Progress.AGAIN if self.steps else Progress.DONE

    @property
    def walked(self) -> bool:
        return self.steps <= 0

    def fail(self, error: Exception) -> None:
        self.error = error


async def run_until(pump: Pump, log: list[str], count: int) -> None:
    task = asyncio.create_task(pump.run())
    for _ in range(100):
        if len(log) == count:
            break
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert len(log) == count


async def test_requests_take_turns_and_each_keeps_its_order() -> None:
    log: list[str] = []
    pump = Pump(lambda: True)
    first, second = Lane(), Lane()
    pump.push(first, Countdown("a", 2, log))
    pump.push(first, Countdown("b", 1, log))
    pump.push(second, Countdown("c", 2, log))
    await run_until(pump, log, 5)
    assert log == ["a", "c", "a", "c", "b"]


async def test_one_step_is_taken_per_pass_of_the_loop() -> None:
    """I10: whatever waits, the loop gets its turn between two steps."""
    log: list[str] = []
    pump = Pump(lambda: True)
    for name in "abc":
        pump.push(Lane(), Countdown(name, 1, log))
    task = asyncio.create_task(pump.run())
    steps_seen = []
    for _ in range(5):
        steps_seen.append(len(log))
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert steps_seen == [0, 0, 1, 2, 3]


async def test_a_pass_has_a_request_that_enters_or_a_step_and_both_get_on() -> None:
    """I10: a long chain's lookup and call take as long as a step does."""
    log: list[str] = []
    turnstile = Turnstile()
    pump = Pump(lambda: True, wait_turn=turnstile.wait_step)
    for _ in range(6):
        pump.push(Lane(), Countdown("step", 1, log))

    async def enter() -> None:
        await turnstile.wait_turn()
        log.append("enter")

    tasks = [asyncio.create_task(pump.run()), *(asyncio.create_task(enter()) for _ in range(6))]
    most_at_once, before = 0, 0
    while len(log) < 12:
        await asyncio.sleep(0)
        most_at_once, before = max(most_at_once, len(log) - before), len(log)
    tasks[0].cancel()
    await asyncio.wait(tasks)
    assert most_at_once == 1
    assert log == ["step", "enter"] * 6


async def test_an_expedited_lane_goes_first() -> None:
    log: list[str] = []
    pump = Pump(lambda: True)
    pump.push(Lane(), Countdown("a", 1, log))
    pump.push(Lane(expedited=True), Countdown("b", 1, log))
    await run_until(pump, log, 2)
    assert log == ["b", "a"]


async def test_a_parked_flow_waits_until_it_is_woken() -> None:
    log: list[str] = []
    pump = Pump(lambda: True)
    parked, other = Lane(), Lane()
    flow = Countdown("a", 1, log)
    flow.parks = True
    pump.push(parked, flow)
    pump.push(other, Countdown("b", 1, log))
    await run_until(pump, log, 1)
    assert (log, pump.waiting_flows) == (["b"], 1)
    pump.wake(parked)
    await run_until(pump, log, 2)
    assert (log, pump.waiting_flows) == (["b", "a"], 0)


async def test_an_error_in_one_flow_ends_that_flow_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Fault 27: the error is told, and the others go on."""
    log: list[str] = []
    pump = Pump(lambda: True)
    broken = Countdown("broken", -1, log)
    pump.push(Lane(), broken)
    pump.push(Lane(), Countdown("a", 1, log))
    await run_until(pump, log, 1)
    assert isinstance(broken.error, ValueError)
    assert "failed" in caplog.text


async def test_nothing_is_stepped_while_there_is_no_room() -> None:
    """I11: the bound on jobs in flight."""
    log: list[str] = []
    room = False
    pump = Pump(lambda: room)
    pump.push(Lane(), Countdown("a", 1, log))
    await run_until(pump, log, 0)
    room = True
    pump.room_changed()
    await run_until(pump, log, 1)


async def test_tasks_pass_the_turnstile_one_per_pass_of_the_loop() -> None:
    turnstile = Turnstile()
    passed: list[int] = []

    async def enter(number: int) -> None:
        await turnstile.wait_turn()
        passed.append(number)

    tasks = [asyncio.create_task(enter(number)) for number in range(4)]
    most_at_once, before = 0, 0
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        most_at_once, before = max(most_at_once, len(passed) - before), len(passed)
    assert passed == [0, 1, 2, 3]
    assert most_at_once == 1


async def test_a_cancelled_task_gives_its_turn_to_the_next() -> None:
    turnstile = Turnstile()
    _, cancelled, waiting = (asyncio.create_task(turnstile.wait_turn()) for _ in range(3))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait_for(waiting, 5)
    assert cancelled.cancelled()
