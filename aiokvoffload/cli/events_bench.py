"""What events cost: whoever publishes, several subscribers on one core, and the data path beside one that stalls.

Knows the bus and the service's front door. Everything runs on one loop, so a share of its thread is a share of a core.
"""

import asyncio
import gc
import json
import statistics
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass

from rich.console import Group
from rich.table import Table

from aiokvoffload.base import EventKind, OffloadingEvent, make_offload_key
from aiokvoffload.cli.store_cycles import store_cycles
from aiokvoffload.events import EventBus, EventRecord, SlowPolicy, Subscription
from aiokvoffload.events.client import EventClient
from aiokvoffload.events.publisher import EventPublisher, PublisherConfig

_ALONE_RECORDS = 20_000
_UNPACED_SHARE = 64
"""Records published at a time where nothing paces them."""
_TICK_S = 0.001
_LOOPBACK = "tcp://127.0.0.1:*"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsOptions:
    """What is measured; docs/cli.md describes the options."""

    keys_per_s: int = 200_000
    keys_per_record: int = 16
    subscribers: int = 8
    seconds: float = 2.0
    repeat: int = 5


@dataclass(frozen=True, slots=True)
class FanOut:
    """Subscribers that all read everything.

    Attributes:
        asked_keys_per_s: how fast was published; `None` is as fast as it goes.
        keys_per_s: keys published a second, all of which every subscriber was given unless some were dropped.
        thread_share: processor time of the loop's thread over the time.
        publish_us: microseconds of a call of `publish` for each record, median.
        dropped: records that subscribers missed.
        max_lag: most records that a subscriber was behind.
    """

    asked_keys_per_s: int | None
    keys_per_s: float
    thread_share: float
    publish_us: float
    dropped: int
    max_lag: int


@dataclass(frozen=True, slots=True)
class Stalled:
    """The data path of a service, beside subscribers that never read.

    Attributes:
        policy: what those asked for; `None` is nobody.
        keys_per_s: keys stored a second, each pushing another one out; the median of all turns.
        held_bytes: memory that the bus held after the records of two histories, beyond what it held when it was made.
    """

    policy: str | None
    keys_per_s: float
    held_bytes: int


@dataclass(frozen=True, slots=True)
class EventsBenchmark:
    """One run of `events_benchmark`."""

    keys_per_record: int
    subscribers: int
    alone_us: float
    paced: FanOut
    unpaced: FanOut
    wire_records_per_s: float
    stalled: tuple[Stalled, ...]

    def to_json(self) -> str:
        """The record as one JSON object."""
        return json.dumps(asdict(self), indent=2)


async def events_benchmark(options: EventsOptions) -> EventsBenchmark:
    """Measure all of it."""
    events = make_events(options.keys_per_record)
    gc.collect()
    gc.freeze()
    return EventsBenchmark(
        options.keys_per_record,
        options.subscribers,
        alone_us=publish_alone(events, options.repeat),
        paced=await _fan_out(events, options, keys_per_s=options.keys_per_s),
        unpaced=await _fan_out(events, options, keys_per_s=None),
        wire_records_per_s=await _over_wire(events, options.seconds),
        stalled=await _beside_stalled(events, options),
    )


def make_events(keys_per_record: int, count: int = 4096) -> list[OffloadingEvent]:
    """Events of distinct keys."""
    return [
        OffloadingEvent(
            EventKind.STORED,
            tuple(make_offload_key(b"%016d%016d" % (number, index), 0) for index in range(keys_per_record)),
            "CPU",
            "cpu",
        )
        for number in range(count)
    ]


def publish_alone(events: Sequence[OffloadingEvent], repeat: int) -> float:
    """Microseconds a record, one call for each, with nobody there; the median of some turns."""
    turns = []
    singles = [[event] for event in events]
    for _ in range(repeat):
        bus = EventBus()
        began_ns = time.perf_counter_ns()
        for number in range(_ALONE_RECORDS):
            bus.publish(singles[number % len(singles)])
        turns.append((time.perf_counter_ns() - began_ns) / 1e3 / _ALONE_RECORDS)
    return statistics.median(turns)


async def _count(subscription: Subscription) -> int:
    return sum([1 async for record in subscription if isinstance(record, EventRecord)])


async def _fan_out(events: Sequence[OffloadingEvent], options: EventsOptions, *, keys_per_s: int | None) -> FanOut:
    bus = EventBus()
    readers = [asyncio.create_task(_count(bus.subscribe())) for _ in range(options.subscribers)]
    await asyncio.sleep(0)
    publishing = _Publishing(bus, events)
    began_s, thread_began_s = time.perf_counter(), time.thread_time()
    while (passed_s := time.perf_counter() - began_s) < options.seconds:
        if keys_per_s is None:
            publishing.publish(_UNPACED_SHARE)
            await asyncio.sleep(0)
        else:
            publishing.publish(int(passed_s * keys_per_s / options.keys_per_record) - publishing.published)
            await asyncio.sleep(_TICK_S)
    thread_s, passed_s = time.thread_time() - thread_began_s, time.perf_counter() - began_s
    bus.close()
    await asyncio.gather(*readers)
    return FanOut(
        keys_per_s,
        publishing.published * options.keys_per_record / passed_s,
        thread_s / passed_s,
        publishing.us_per_record(),
        bus.statistics().dropped,
        publishing.max_lag,
    )


class _Publishing:
    """Publishes events one call each, and measures that."""

    def __init__(self, bus: EventBus, events: Sequence[OffloadingEvent]) -> None:
        self._bus, self._events = bus, events
        self._spent_us: list[float] = []
        self.published = self.max_lag = 0

    def publish(self, count: int) -> None:
        if count < 1:
            return
        self.max_lag = max([self.max_lag, *(each.lag for each in self._bus.statistics().subscriptions)])
        share = [self._events[(self.published + number) % len(self._events)] for number in range(count)]
        began_ns = time.perf_counter_ns()
        for event in share:
            self._bus.publish((event,))
        self._spent_us.append((time.perf_counter_ns() - began_ns) / 1e3 / count)
        self.published += count

    def us_per_record(self) -> float:
        return statistics.median(self._spent_us) if self._spent_us else 0.0


async def _over_wire(events: Sequence[OffloadingEvent], seconds: float) -> float:
    """Records a second from a publisher to one client on the same loop, through the loopback interface."""
    bus = EventBus()
    config = PublisherConfig(endpoint=_LOOPBACK, replay_endpoint=_LOOPBACK, heartbeat_s=0.01)
    async with _client_of(bus, config) as client:
        publishing, began_s, read = _Publishing(bus, events), time.perf_counter(), 0
        while time.perf_counter() - began_s < seconds:
            publishing.publish(_UNPACED_SHARE)
            while read < publishing.published:
                record = await anext(client)
                read += 1 if isinstance(record, EventRecord) else record.last - record.first + 1
        passed_s = time.perf_counter() - began_s
    return read / passed_s


@asynccontextmanager
async def _client_of(bus: EventBus, config: PublisherConfig) -> AsyncIterator[EventClient]:
    async with (
        EventPublisher(bus, config) as publisher,
        EventClient(publisher.endpoint, publisher.replay_endpoint, after=bus.latest) as client,
    ):
        yield client


async def _beside_stalled(events: Sequence[OffloadingEvent], options: EventsOptions) -> tuple[Stalled, ...]:
    policies = (None, *SlowPolicy)
    rates = await store_cycles([_stall(policy, options.subscribers) for policy in policies], turns=options.repeat)
    return tuple(
        Stalled(
            None if policy is None else policy.value,
            rate,
            _held_bytes(events, _stall(policy, options.subscribers)),
        )
        for policy, rate in zip(policies, rates, strict=True)
    )


def _stall(policy: SlowPolicy | None, subscribers: int) -> Callable[[EventBus], list[Subscription]]:
    """What subscribes so many times and never reads."""

    def stall(bus: EventBus) -> list[Subscription]:
        return [] if policy is None else [bus.subscribe(policy=policy) for _ in range(subscribers)]

    return stall


def _held_bytes(events: Sequence[OffloadingEvent], stall: Callable[[EventBus], list[Subscription]]) -> int:
    tracemalloc.start()
    try:
        bus = EventBus()
        stalled = stall(bus)
        before, _ = tracemalloc.get_traced_memory()
        for number in range(20_000):
            bus.publish((events[number % len(events)],))
        held, _ = tracemalloc.get_traced_memory()
        for subscription in stalled:
            subscription.close()
        return held - before
    finally:
        tracemalloc.stop()


def events_tables(benchmark: EventsBenchmark) -> Group:
    """The figures for people."""
    fan_out = Table(title=f"{benchmark.subscribers} subscribers, records of {benchmark.keys_per_record} keys, one loop")
    for column in ("published", "keys/s", "thread", "µs/record", "most behind", "dropped"):
        fan_out.add_column(column, justify="left" if column == "published" else "right")
    fan_out.add_row("with no subscriber", "", "", f"{benchmark.alone_us:.2f}", "", "")
    for each in (benchmark.paced, benchmark.unpaced):
        paced = "as fast as it goes" if each.asked_keys_per_s is None else f"{each.asked_keys_per_s:,} keys/s"
        fan_out.add_row(
            paced,
            f"{each.keys_per_s:,.0f}",
            f"{each.thread_share:.0%}",
            f"{each.publish_us:.2f}",
            f"{each.max_lag:,}",
            f"{each.dropped:,}",
        )
    wire = f"{benchmark.wire_records_per_s * benchmark.keys_per_record:,.0f}"
    fan_out.add_row("over the wire", wire, "", "", "", "")
    stalled = Table(title="stores beside subscribers that never read")
    for column in ("policy", "keys stored/s", "held by the bus, bytes"):
        stalled.add_column(column, justify="left" if column == "policy" else "right")
    for one in benchmark.stalled:
        stalled.add_row(one.policy or "no subscriber", f"{one.keys_per_s:,.0f}", f"{one.held_bytes:,}")
    return Group(fan_out, stalled)
