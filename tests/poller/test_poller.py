"""Each job is announced once, in stream order, soon after its end and without much asking."""

import asyncio
import logging
from collections.abc import Callable

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokvoffload.base import Event
from aiokvoffload.device.host import HostEvent
from aiokvoffload.poller import Poller
from aiokvoffload.poller.poller import ANNOUNCED_PER_TURN, MOST_FIGURES_LATE
from aiokvoffload.poller.watch import MOST_PATIENCE_S, PATIENCE_S
from aiokvoffload.testing import ManualDevice
from tests.poller.stage import Job, Stage, pending

MIB = 1 << 20


def test_only_the_head_of_each_stream_is_asked_for() -> None:
    stage = Stage()
    events = [pending() for _ in range(4)]
    for number, event in enumerate(events):
        stage.poller.track(number % 2, Job(str(number), event))
    assert stage.poller.poll() == 0
    assert stage.device.queries == events[:2]
    events[3].complete()
    events[1].complete()
    assert stage.poller.poll() == 2
    assert stage.ended == ["1", "3"]
    assert repr(stage.poller) == "Poller([2, 0] in flight, 2 announced)"


def test_one_jobs_trouble_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """Faults 23 and 27."""
    stage = Stage()
    for name in ("bad", "good"):
        job = Job(name)
        stage.device.reach(job.end)
        stage.poller.track(0, job)
    with caplog.at_level(logging.CRITICAL):
        assert stage.poller.poll() == 2
    assert (stage.ended, stage.broken) == (["bad", "good"], [])


def test_a_device_that_refuses_to_answer_is_reported() -> None:
    stage = Stage()
    stage.poller.track(0, Job("lost", pending()))
    stage.device.break_down()
    stage.poller.poll()
    assert len(stage.broken) == 1
    assert stage.poller.poll() == 0
    assert len(stage.broken) == 1


async def test_what_has_ended_by_its_submission_is_announced_there() -> None:
    stage = Stage()
    stage.poller.start()
    job, running, behind, other = (Job(name) for name in ("one", "running", "behind", "other"))
    for each in (job, behind, other):
        stage.device.reach(each.end)
    stage.poller.track(0, job)
    stage.poller.look_at(0, job)
    assert stage.ended == ["one"]
    await stage.turns()
    stage.poller.track(0, running)
    stage.poller.look_at(0, running)
    await stage.sleep_in()
    stage.poller.track(0, behind)
    stage.poller.look_at(0, behind)  # the running one's end would be announced here, to those who wait for it
    stage.poller.track(1, other)
    asked = len(stage.device.queries)
    stage.poller.look_at(1, running)  # the other one is not what this submission is about
    assert (stage.ended, len(stage.device.queries)) == (["one"], asked)
    await stage.sleep_in()
    assert stage.ended == ["one", "other"]
    stage.device.reach(running.end)
    stage.alarm.ring()
    await stage.turns()
    assert stage.ended == ["one", "other", "running", "behind"]
    assert (stage.poller.statistics().announced, stage.poller.statistics().lag.samples) == (4, 4)
    stage.poller.stop()
    assert stage.broken == []


async def test_whoever_submits_in_a_row_is_told_of_one_end_at_once_and_waits_for_the_next() -> None:
    """I10: or nobody else would get a turn of the loop."""
    stage = Stage()
    stage.poller.start()
    for number in range(2 * MOST_FIGURES_LATE):
        jobs = [Job(f"{number} {name}") for name in ("first", "second")]
        for queue, job in enumerate(jobs):
            stage.device.reach(job.end)
            stage.poller.track(queue, job)
            stage.poller.look_at(queue, job)
        assert stage.ended[2 * number :] == [jobs[0].name]
        await stage.turns(1)
        assert stage.ended[2 * number :] == [job.name for job in jobs]
        assert len(stage.poller._ended) <= MOST_FIGURES_LATE + 1  # although there is never a quiet turn
    stage.poller.stop()
    assert stage.broken == []


async def test_a_device_that_refuses_to_answer_a_submission_is_reported() -> None:
    stage = Stage()
    stage.poller.start()
    job = Job("lost")
    stage.poller.track(0, job)
    stage.device.break_down()
    stage.poller.look_at(0, job)
    assert (len(stage.broken), stage.ended) == (1, [])
    stage.poller.stop()


async def test_an_idle_poller_asks_nothing_and_a_job_wakes_it() -> None:
    stage = Stage()
    stage.poller.start()
    await stage.turns(50)
    assert (stage.poller.statistics().polls, stage.alarm.due_s) == (0, None)
    job = Job("one")
    stage.poller.track(1, job)
    await stage.sleep_in()
    assert stage.poller.statistics().polls > 0
    stage.clock.advance(1e-4)
    stage.device.reach(job.end)
    stage.clock.advance(5e-5)
    stage.alarm.ring()
    await stage.turns()
    statistics = stage.poller.statistics()
    assert (stage.ended, stage.alarm.due_s) == (["one"], None)
    assert (statistics.lag.samples, statistics.alarms) == (1, 1)
    assert statistics.lag.max_s == pytest.approx(5e-5)
    polls = statistics.polls
    await stage.turns(50)
    assert stage.poller.statistics().polls == polls
    stage.poller.stop()
    assert stage.broken == []


async def test_whoever_cancels_all_tasks_of_the_loop_does_not_stop_the_polling() -> None:
    """I1, fault 27."""
    stage = Stage()
    stage.poller.start()
    job = Job("one")
    stage.poller.track(0, job)
    await stage.sleep_in()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    stage.device.reach(job.end)
    stage.alarm.ring()
    assert stage.ended == ["one"]
    stage.poller.stop()


class InterruptingDevice(ManualDevice):
    """The first question is interrupted as by Ctrl-C."""

    interrupts = 1

    def query(self, event: Event) -> bool:
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        return super().query(event)


def test_an_interrupt_ends_the_loops_run_and_not_the_polling() -> None:
    ended: list[str] = []
    poller: Poller[Job] = Poller(
        InterruptingDevice(), 1, on_ended=lambda job: ended.append(job.name), on_broken=lambda error: None
    )
    job = Job("one")
    assert isinstance(job.end, HostEvent)
    job.end.complete()

    async def wait() -> None:
        while not ended:
            await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.call_soon(poller.start)
    loop.call_soon(poller.track, 0, job)
    with pytest.raises(KeyboardInterrupt):
        loop.run_forever()
    loop.run_until_complete(wait())
    poller.stop()
    loop.close()


async def test_a_stopped_poller_asks_nothing() -> None:
    stage = Stage()
    stage.poller.start()
    stage.poller.track(0, Job("one", pending()))
    stage.poller.stop()
    stage.poller.track(0, Job("two", pending()))
    for _ in range(10):
        await asyncio.sleep(0)
    assert stage.device.queries == []

    assert stage.alarm.closed


async def begin(stage: Stage, job: Job, queue: int = 0) -> None:
    """Track a job that begins at once."""
    job.start = pending()
    stage.poller.track(queue, job)
    stage.device.reach(job.start)
    await stage.sleep_in()


async def transfer(stage: Stage, size_bytes: int, seconds: float, queue: int = 0) -> None:
    """One whole transfer, whose end is seen at once."""
    job = Job("lesson", size_bytes=size_bytes)
    await begin(stage, job, queue)
    begun_s = stage.device.completed_at(job.start or pending())
    stage.clock.advance(begun_s + seconds - stage.clock.now_s())
    stage.device.reach(job.end)
    stage.poller.poll()
    await stage.turns()


async def taught(stage: Stage, seconds_by_size: dict[int, float], lessons: int = 30) -> None:
    for _ in range(lessons):
        for size_bytes, seconds in seconds_by_size.items():
            await transfer(stage, size_bytes, seconds)
    stage.ended.clear()
    stage.clock.advance(1.0)


async def test_a_long_transfer_is_slept_through_until_shortly_before_its_end() -> None:
    stage = Stage()
    stage.poller.start()
    await taught(stage, {128 * MIB: 0.0025})
    job = Job("long", size_bytes=128 * MIB)
    before = stage.poller.statistics()
    began_s = stage.clock.now_s()
    await begin(stage, job)
    while stage.clock.now_s() < began_s + 0.0025:
        await stage.sleep_in()
        stage.alarm.ring()
        await stage.turns(1)
        stage.clock.advance(2e-6)
    stage.device.reach(job.end)
    await stage.turns()
    if stage.asleep():
        stage.alarm.ring()
    after = stage.poller.statistics()
    assert stage.ended == ["long"]
    assert after.alarms - before.alarms <= 4
    assert after.spins - before.spins <= 60
    stage.poller.stop()


@pytest.mark.parametrize(
    ("size_bytes", "seconds", "looks_early"), [(16 * MIB, 0.0003, True), (128 * MIB, 0.0025, False)]
)
async def test_a_transfer_is_asked_for_as_early_as_it_may_end_but_a_long_one_when_it_is_due(
    size_bytes: int, seconds: float, looks_early: bool
) -> None:
    stage = Stage()
    stage.poller.start()
    for _ in range(30):
        for factor in (0.95, 1.05):
            await transfer(stage, size_bytes, factor * seconds)
    job = Job("next", size_bytes=size_bytes)
    await begin(stage, job)
    begun_s = stage.device.completed_at(job.start or pending())
    first_look_s = stage.poller._watches[0].next_look_s(begun_s) - begun_s
    assert (first_look_s < 0.97 * seconds) is looks_early
    assert first_look_s < 1.02 * seconds
    stage.device.reach(job.end)
    stage.poller.poll()
    stage.poller.stop()


async def assert_asked_in_each_turn(stage: Stage) -> None:
    """The poller looks once in every turn of the loop, and does not sleep."""
    asked = len(stage.device.queries)
    for number in range(1, 4):
        await stage.turns(1)
        stage.clock.advance(1e-6)
        assert len(stage.device.queries) - asked == number
    assert not stage.asleep()


def awake_before_s(stage: Stage, job: Job) -> float:
    """How long before the job is first asked for the alarm is to ring."""
    (watch,) = (each for each in stage.poller._watches if each.jobs)
    assert stage.alarm.due_s is not None
    return watch.next_look_s(stage.device.completed_at(job.start or pending())) - stage.alarm.due_s


@pytest.mark.parametrize(
    ("size_bytes", "seconds", "awake_s"),
    [(16 * MIB, 0.0003, 0.000075), (40 * MIB, 0.0007, 0.0001), (64 * MIB, 0.0012, 0.0)],
)
async def test_the_loop_is_awake_for_the_end_of_a_transfer_that_comes_alone(
    size_bytes: int, seconds: float, awake_s: float
) -> None:
    """For a quarter of its time, up to 0.1 ms, unless it takes long."""
    stage = Stage()
    stage.poller.start()
    await taught(stage, {size_bytes: seconds})
    job = Job("alone", size_bytes=size_bytes)
    await begin(stage, job)
    late_s = stage.poller._lateness.usual_s(seconds)
    assert awake_before_s(stage, job) == pytest.approx(awake_s + late_s, abs=5e-6)
    if awake_s:
        stage.alarm.ring()
        await assert_asked_in_each_turn(stage)
    stage.device.reach(job.end)
    stage.poller.poll()
    stage.poller.stop()


async def test_in_a_stream_of_transfers_the_loop_sleeps_until_each_may_have_ended() -> None:
    """Waiting awake for each of them would take a quarter of the core."""
    stage = Stage()
    stage.poller.start()
    await taught(stage, {16 * MIB: 0.0003})
    await transfer(stage, 16 * MIB, 0.0003)
    stage.clock.advance(0.0001)
    job = Job("next", size_bytes=16 * MIB)
    await begin(stage, job)
    assert awake_before_s(stage, job) == pytest.approx(stage.poller._lateness.usual_s(0.0003), abs=5e-6)
    stage.device.reach(job.end)
    stage.poller.poll()
    stage.poller.stop()


async def test_what_comes_later_than_expected_is_waited_for_awake_only_once() -> None:
    stage = Stage()
    stage.poller.start()
    await taught(stage, {16 * MIB: 0.0003})
    job = Job("late", size_bytes=16 * MIB)
    await begin(stage, job)
    begun_s = stage.device.completed_at(job.start or pending())
    stage.clock.advance(begun_s + 0.0006 - stage.clock.now_s())
    stage.alarm.ring()
    await stage.sleep_in()
    spins = stage.poller.statistics().spins
    for _ in range(10):
        stage.alarm.ring()
        await stage.sleep_in()
    assert stage.poller.statistics().spins == spins
    stage.device.reach(job.end)
    stage.poller.poll()
    stage.poller.stop()


async def test_the_last_moment_is_waited_for_on_every_turn_so_others_get_theirs() -> None:
    """I10: no turn of the loop is longer than a look at each head."""
    stage = Stage()
    stage.poller.start()
    await taught(stage, {16 * MIB: 0.0003})
    job = Job("due", size_bytes=16 * MIB)
    await begin(stage, job)
    assert stage.alarm.due_s is not None
    stage.alarm.ring()
    assert 0.0002 < stage.clock.now_s() - stage.device.completed_at(job.start or pending()) < 0.00025
    await assert_asked_in_each_turn(stage)
    stage.device.reach(job.end)
    await stage.turns(1)
    assert stage.ended == ["due"]
    stage.poller.stop()


async def test_what_ended_while_those_told_before_it_kept_the_loop_is_seen_next() -> None:
    """The turn that tells them asks for the other one too, and has no time to plan when to ask again."""
    stage = Stage()
    stage.poller.start()
    for queue in (0, 1) * 10:
        await transfer(stage, 2 * MIB, 0.0001, queue)
    other, first = Job("other", size_bytes=2 * MIB), Job("first", size_bytes=2 * MIB)
    await begin(stage, other, 0)
    await begin(stage, first, 1)

    def submit_on() -> None:
        stage.clock.advance(0.0004)
        stage.device.reach(other.end)

    def tell(job: Job) -> None:
        stage.end(job)
        if job is first:
            asyncio.get_running_loop().call_soon(submit_on)

    stage.poller._on_ended = tell
    stage.device.reach(first.end)
    stage.alarm.ring()
    assert other.end in stage.device.queries
    alarms = stage.poller.statistics().alarms
    await stage.turns(3)
    assert stage.ended[-2:] == ["first", "other"]
    assert stage.poller.statistics().alarms == alarms
    stage.poller.stop()


async def test_whoever_has_spun_enough_sleeps_a_little_instead() -> None:
    """I10: a steady stream of short transfers may not take the core."""
    stage = Stage()
    stage.poller.start()
    await taught(stage, {16 * MIB: 0.0003})
    job = Job("due", size_bytes=16 * MIB)
    await begin(stage, job)
    stage.poller._allowance.left_s(stage.clock.now_s())
    stage.poller._allowance.spend(1.0)
    stage.alarm.ring()
    assert stage.alarm.due_s is not None
    assert 0.5 * PATIENCE_S < stage.alarm.due_s - stage.clock.now_s() < 1.01 * PATIENCE_S
    stage.device.reach(job.end)
    stage.alarm.ring()
    assert stage.ended == ["due"]
    stage.poller.stop()


async def test_what_is_late_is_asked_for_ever_less_often() -> None:
    """Nothing that has gone wrong may take the loop's core."""
    stage = Stage()
    stage.poller.start()
    await taught(stage, {2 * MIB: 5e-5})
    await begin(stage, Job("never", size_bytes=2 * MIB))
    asked, until_s = len(stage.device.queries), stage.clock.now_s() + 1.0
    gaps: list[float] = []
    while stage.clock.now_s() < until_s:
        await stage.sleep_in()
        assert stage.alarm.due_s is not None
        gaps.append(stage.alarm.due_s - stage.clock.now_s())
        stage.alarm.ring()
    assert gaps[-1] == pytest.approx(MOST_PATIENCE_S, rel=0.01)
    assert len(stage.device.queries) - asked < 1200
    stage.poller.stop()


async def test_alarms_that_always_come_late_do_not_make_it_look_without_a_pause() -> None:
    """On a busy machine they are later than the pauses are long; looking at once would keep it busy."""
    stage = Stage()
    stage.poller.start()
    await taught(stage, {2 * MIB: 5e-5})
    await begin(stage, Job("never", size_bytes=2 * MIB))
    for delay_s in (2**octave * 1e-6 for octave in range(10)):
        for _ in range(200):
            stage.poller._lateness.learn(delay_s, 3e-4)
    await stage.sleep_in()
    stage.alarm.ring(late_s=0.002)
    await stage.sleep_in()
    assert stage.alarm.due_s is not None
    assert stage.alarm.due_s - stage.clock.now_s() >= PATIENCE_S / 2
    stage.poller.stop()


async def test_a_job_that_has_not_begun_is_looked_at_with_patience() -> None:
    """Its stream waits for a kernel, say: it may begin at any time, and then takes all of its own time."""
    stage = Stage()
    stage.poller.start()
    await taught(stage, {2 * MIB: 5e-5, 128 * MIB: 0.0025})
    for size_bytes, least_s in ((2 * MIB, 3e-5), (128 * MIB, 0.002)):
        job = Job("waits", start=pending(), size_bytes=size_bytes)
        stage.poller.track(0, job)
        for _ in range(50):
            await stage.sleep_in()
            assert stage.alarm.due_s is not None
            assert least_s < stage.alarm.due_s - stage.clock.now_s() < 30 * PATIENCE_S
            stage.alarm.ring()
        stage.device.reach(job.end)
        stage.poller.poll()
        await stage.turns()
    stage.poller.stop()


async def test_a_new_head_is_looked_at_while_another_stream_sleeps_through_a_long_transfer() -> None:
    stage = Stage()
    stage.poller.start()
    await taught(stage, {2 * MIB: 5e-5, 128 * MIB: 0.0025})
    long = Job("long", size_bytes=128 * MIB)
    await begin(stage, long)
    short = Job("short", size_bytes=8 * MIB)
    await begin(stage, short, queue=1)
    assert stage.alarm.due_s is not None
    assert stage.alarm.due_s < stage.clock.now_s() + 1e-4
    stage.device.reach(short.end)
    stage.device.queries.clear()
    stage.alarm.ring()
    await stage.turns()
    assert stage.ended == ["short"]
    assert long.end not in stage.device.queries
    stage.poller.stop()


async def test_after_a_stall_what_is_behind_is_asked_for_at_once() -> None:
    stage = Stage()
    stage.poller.start()
    await taught(stage, {128 * MIB: 0.0025})
    jobs = [Job(str(number), size_bytes=128 * MIB) for number in range(3)]
    await begin(stage, jobs[0])
    for job in jobs[1:]:
        stage.poller.track(0, job)
    for job in jobs:
        stage.clock.advance(0.0025)
        stage.device.reach(job.end)
    stage.clock.advance(0.05)
    stage.alarm.ring()
    await stage.turns(10)
    assert stage.ended[-3:] == ["0", "1", "2"]
    stage.poller.stop()


async def test_both_directions_at_once_are_expected_to_take_longer_once_that_was_seen() -> None:
    stage = Stage()
    stage.poller.start()
    await taught(stage, {16 * MIB: 0.0003})
    other = Job("other", size_bytes=512 * MIB)
    await begin(stage, other, queue=1)
    for _ in range(40):
        await transfer(stage, 16 * MIB, 0.0004)
    job = Job("crowded", size_bytes=16 * MIB)
    await begin(stage, job)
    begun_s = stage.device.completed_at(job.start or pending())
    assert 0.00036 < stage.poller._watches[0].next_look_s(begun_s) - begun_s < 0.0004
    for each in (job, other):
        stage.device.reach(each.end)
    stage.poller.poll()
    await stage.turns()
    alone = Job("alone", size_bytes=16 * MIB)
    await begin(stage, alone)
    begun_s = stage.device.completed_at(alone.start or pending())
    assert 0.00025 < stage.poller._watches[0].next_look_s(begun_s) - begun_s < 0.0003
    stage.poller.stop()


async def test_what_ended_before_it_was_tracked_is_announced_without_a_turn_of_the_loop() -> None:
    stage = Stage()
    stage.poller.start()
    job = Job("quick")
    stage.device.reach(job.end)
    stage.poller.track(0, job)
    assert stage.ended == []
    stage.poller.look()
    assert stage.ended == ["quick"]
    stage.poller.look()
    await stage.turns()
    assert stage.alarm.due_s is None
    stage.poller.stop()


async def test_what_others_end_in_every_turn_does_not_keep_one_from_being_told() -> None:
    """I1. It was asked for once, too early, and no turn is quiet enough to plan when to ask again."""
    stage = Stage()
    stage.poller.start()
    one = Job("one")
    stage.poller.track(1, one)
    for turn in range(20):
        short = Job("short")
        stage.poller.track(0, short)
        stage.device.reach(short.end)
        await stage.turns(1)
        if turn == 0:
            assert one.end in stage.device.queries
            stage.device.reach(one.end)
        stage.clock.advance(1e-4)
    assert len(stage.ended) == 21
    assert stage.ended.index("one") < 5
    stage.poller.stop()


async def test_a_stream_whose_jobs_end_as_fast_as_they_are_told_leaves_others_their_turn() -> None:
    stage = Stage()
    stage.poller.start()
    one = Job("one")
    stage.poller.track(1, one)
    stage.device.reach(one.end)
    for _ in range(3):
        for _ in range(2 * ANNOUNCED_PER_TURN):
            short = Job("short")
            stage.poller.track(0, short)
            stage.device.reach(short.end)
        await stage.turns(1)
    assert len(stage.ended) == 3 * ANNOUNCED_PER_TURN
    assert stage.ended.index("one") == 1
    stage.poller.stop()


async def test_many_ends_at_once_are_announced_a_few_in_a_turn() -> None:
    """I10."""
    stage = Stage()
    stage.poller.start()
    for number in range(3 * ANNOUNCED_PER_TURN):
        job = Job(str(number))
        stage.device.reach(job.end)
        stage.poller.track(0, job)
    await stage.turns(1)
    assert 0 < len(stage.ended) <= ANNOUNCED_PER_TURN
    await stage.turns(5)
    assert stage.ended == [str(number) for number in range(3 * ANNOUNCED_PER_TURN)]
    stage.poller.stop()


async def test_whoever_waits_for_an_end_goes_on_before_the_figures_are_taken() -> None:
    stage = Stage()
    figures: list[int] = []
    told = asyncio.get_running_loop().create_future()

    async def wait() -> None:
        await told
        figures.append(stage.poller._lag.statistics().samples)

    def tell(job: Job) -> None:
        stage.end(job)
        told.set_result(job)

    stage.poller._on_ended = tell
    waiter = asyncio.ensure_future(wait())
    await stage.turns(1)
    stage.poller.start()
    job = Job("one")
    stage.device.reach(job.end)
    stage.poller.track(0, job)
    await waiter
    assert figures == [0]
    assert stage.poller.statistics().lag.samples == 1
    stage.poller.stop()


def test_of_a_mark_that_teaches_nothing_the_device_is_not_asked_for_the_time() -> None:
    """Its driver's lock may be somebody else's for half a millisecond, and the loop would wait for it."""
    stage = Stage()
    told: list[Job] = []
    stage.poller._on_ended = told.append  # `busy_s` stays `None`, as that of a mark behind which blocks are free
    mark = Job("released", start=pending())
    for event in (mark.start, mark.end):
        stage.device.reach(event)
    stage.device._times.clear()  # asked for one now, it raises
    stage.poller.track(0, mark)
    assert (stage.poller.poll(), told) == (1, [mark])
    assert stage.poller.statistics().lag.samples == 0
    stage.poller.track(0, Job("job"))
    stage.device.reach(stage.poller._watches[0].jobs[0].end)
    stage.poller._on_ended = stage.end
    assert stage.poller.poll() == 1
    assert stage.poller.statistics().lag.samples == 1


def test_stepped_polling_needs_no_loop_and_opens_no_alarm() -> None:
    stage = Stage()
    job = Job("one")
    stage.poller.track(0, job)
    stage.poller.look()
    assert stage.poller.poll() == 0
    stage.device.reach(job.end)
    assert stage.poller.poll() == 1
    assert (stage.alarms, stage.poller.statistics().polling_s) == ([], 0.0)
    assert stage.poller.statistics().lag.samples == 1


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("track"), st.integers(0, 2)),
        st.tuples(st.sampled_from(["start", "end"]), st.integers(0, 2)),
        st.tuples(st.sampled_from(["ring", "turn", "look", "poll", "wait"]), st.just(0)),
    ),
    max_size=60,
)


class Play:
    """Random doings on a device of three streams, each of which ends its work in order."""

    def __init__(self) -> None:
        self.stage = Stage(num_queues=3)
        self.tracked: list[list[Job]] = [[], [], []]
        self.running: list[list[Job]] = [[], [], []]

    async def act(self, action: str, queue: int) -> None:
        stage, running = self.stage, self.running[queue]
        if action == "track":
            job = Job(f"{queue}/{len(self.tracked[queue])}", start=pending(), size_bytes=1 << (queue * 9))
            self.tracked[queue].append(job)
            running.append(job)
            stage.poller.track(queue, job)
        elif action in {"start", "end"} and running:
            stage.device.reach(running[0].start)
            if action == "end":
                stage.device.reach(running.pop(0).end)
        elif action == "ring" and stage.alarm.due_s is not None:
            stage.alarm.ring(late_s=1e-5)
        elif action == "wait":
            stage.clock.advance(3e-5)
        elif action == "look":
            stage.poller.look()
        elif action == "poll":
            stage.poller.poll()
        else:
            await stage.turns(1)
        self.check()

    def check(self) -> None:
        for queue, tracked in enumerate(self.tracked):
            told = [name for name in self.stage.ended if name.startswith(f"{queue}/")]
            assert told == [job.name for job in tracked[: len(told)]]
            assert len(told) <= len(tracked) - len(self.running[queue])
        poller = self.stage.poller
        if any(poller._watches):
            assert poller._turn_pending is not None or self.stage.alarm.due_s is not None, "nothing would ever ask"

    async def end(self) -> None:
        for queue in range(3):
            while self.running[queue]:
                await self.act("end", queue)
        for _ in range(100):
            await self.stage.turns(10)
            if self.stage.alarm.due_s is not None:
                self.stage.alarm.ring()
        assert sorted(self.stage.ended) == sorted(job.name for tracked in self.tracked for job in tracked)
        assert self.stage.alarm.due_s is None
        assert self.stage.broken == []


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@settings(max_examples=60)
@given(actions=ACTIONS)
def test_every_job_is_announced_exactly_once_and_in_stream_order(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], actions: list[tuple[str, int]]
) -> None:
    """I1."""

    async def play() -> None:
        game = Play()
        game.stage.poller.start()
        for action, queue in actions:
            await game.act(action, queue)
        await game.end()
        game.stage.poller.stop()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(play())
