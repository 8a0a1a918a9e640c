import asyncio
import time

from aiokvoffload.cli.probe import LoopProbe, Percentiles, Reservoir


def test_percentiles_are_exact_while_everything_fits() -> None:
    reservoir = Reservoir(capacity=1000)
    for value in range(1, 101):
        reservoir.add(value)
    assert reservoir.percentiles() == Percentiles(p50=51, p99=100, max=100)


def test_a_full_reservoir_is_bounded_fair_and_keeps_the_maximum() -> None:
    reservoir = Reservoir(capacity=1000)
    for value in range(100_000, 0, -1):
        reservoir.add(value)
    assert repr(reservoir) == "Reservoir(1000 kept of 100000 seen)"
    found = reservoir.percentiles()
    assert 45_000 < found.p50 < 55_000
    assert 98_000 < found.p99 < found.max == 100_000


def test_figures_repeat() -> None:
    first, second = Reservoir(capacity=10), Reservoir(capacity=10)
    for value in range(1000):
        first.add(value)
        second.add(value)
    assert first.percentiles() == second.percentiles()


def test_no_samples_read_as_zero() -> None:
    assert Reservoir().percentiles() == Percentiles(0, 0, 0)


async def samples(probe: LoopProbe, count: int) -> None:
    """Until the probe has measured `count` times more; each turn of the loop is one it can be measured in."""
    wanted = probe.blocked_us.count + count
    while probe.blocked_us.count < wanted:
        await asyncio.sleep(0)


async def test_a_blocked_loop_shows_as_many_late_posts() -> None:
    with LoopProbe(period_s=0.001) as probe:
        await samples(probe, 5)
        before, posted = probe.blocked_us.count, probe._posted
        while probe._posted < posted + 12:  # the block that is to be seen
            time.sleep(0.001)  # noqa: ASYNC251
        time.sleep(0.05)  # noqa: ASYNC251
        await samples(probe, 1)
        assert probe.blocked_us.count - before > 10
    assert probe.blocked_us.percentiles().max > 40_000


async def test_a_stopped_probe_posts_nothing_more_and_its_thread_ends() -> None:
    with LoopProbe(period_s=0.001) as probe:
        await samples(probe, 1)
    await asyncio.to_thread(probe.join)
    await asyncio.sleep(0)
    text = repr(probe)
    await asyncio.sleep(0)
    assert text == repr(probe)


def test_a_loop_that_closes_under_the_probe_does_not_break_it() -> None:
    async def leave() -> LoopProbe:
        with LoopProbe(period_s=0.0001) as probe:
            await samples(probe, 1)
        return probe

    asyncio.run(leave()).join()
