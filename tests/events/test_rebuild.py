"""A subscriber that is late, slow, cut off and back again knows exactly what every tier holds (I9, faults 49 and 50).

Schedules are random; the service, its manager and its tiers are the real ones; transfers and tiers fail on command.
"""

import asyncio
import random
from abc import ABC, abstractmethod
from typing import Any

import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokvoffload.base import LookupResult, OffloadKey, ReqContext
from aiokvoffload.events import EventBus, GapRecord, ResidentKeys, Subscription
from aiokvoffload.events.client import EventClient
from aiokvoffload.events.publisher import EventPublisher, PublisherConfig
from tests.service.conftest import keys_of
from tests.tiering.stage import DeepStage, settle

CHAINS = [keys_of(6, name=f"chain-{number}") for number in range(6)]
EVERY_KEY = [key for chain in CHAINS for key in chain]
LOOPBACK = "tcp://127.0.0.1:*"


def truth(stage: DeepStage) -> dict[str, set[OffloadKey]]:
    """What each tier says when it is asked for every key, one by one."""
    nobody = ReqContext("")
    held = {"cpu": {key for key in EVERY_KEY if stage.primary.lookup(key, nobody) is LookupResult.HIT}}
    for tier in stage.memories:
        held[tier.name] = {key for key, has in zip(EVERY_KEY, tier.contains(EVERY_KEY), strict=True) if has}
    return held


class Churn:
    """What happens to the tiers: stores, loads and promotions, evictions, failures, resets."""

    def __init__(self, stage: DeepStage, chance: random.Random) -> None:
        self.stage, self.chance, self.requests = stage, chance, 0

    async def step(self) -> None:
        actions = (self.store, self.store, self.store, self.load, self.load, self.reset, self.fail_a_tier, self.tear)
        await self.chance.choice(actions)()

    async def store(self) -> None:
        chain = self.chance.choice(CHAINS)
        keys = chain[: self.chance.randint(1, len(chain))]
        self.requests += 1
        async with self.stage.service.request(f"store-{self.requests}") as request:
            await self.end_transfers(request.store(keys, range(len(keys))))

    async def load(self) -> None:
        chain = self.chance.choice(CHAINS)
        self.requests += 1
        async with self.stage.service.request(f"load-{self.requests}") as request:
            if hits := request.lookup(chain):
                await self.end_transfers(request.load(chain[:hits], range(hits)))

    async def end_transfers(self, handle: Any) -> None:
        """End copies as they come; the first chunk of some fails."""
        while not handle.done():
            for job_id in self.stage.worker.in_flight:
                self.stage.worker.finish(job_id, failed_indices=[0] if self.chance.random() < 0.2 else ())
            await asyncio.sleep(0)

    async def reset(self) -> None:
        names = ["cpu", *(tier.name for tier in self.stage.tiers)]
        if self.chance.random() < 0.4:
            await self.stage.service.reset(tiers=self.chance.sample(names, self.chance.randint(1, len(names))))

    async def fail_a_tier(self) -> None:
        self.chance.choice(self.stage.tiers).failing = self.chance.random() < 0.3
        self.stage.clock.advance(10)  # one that is out of service is asked again

    async def tear(self) -> None:
        self.chance.choice(self.stage.tiers).torn_keys = set(self.chance.sample(EVERY_KEY, 2))


class Router(ABC):
    """What follows the events and builds its own picture."""

    def __init__(self, chance: random.Random) -> None:
        self.view, self.chance = ResidentKeys(), chance
        self.gaps = self.resumptions = 0

    async def step(self) -> None:
        await self.chance.choice((self.read, self.read, self.read, self.cut, self.stall))()

    async def stall(self) -> None:  # noqa: B027 - that is the step
        """Do nothing."""

    @abstractmethod
    async def read(self) -> None: ...

    @abstractmethod
    async def cut(self) -> None: ...

    @abstractmethod
    async def catch_up(self, latest: int) -> None: ...


class LocalRouter(Router):
    def __init__(self, bus: EventBus, chance: random.Random) -> None:
        super().__init__(chance)
        self.bus = bus
        self.subscription: Subscription | None = None

    async def read(self, most: int = 3) -> None:
        if self.subscription is None:
            after = None if self.view.sequence < 0 else self.view.sequence
            self.resumptions += after is not None
            self.subscription = self.bus.subscribe(after=after, max_pending=4)
            if after is None:
                self.view.load(await self.bus.snapshot())
        for _ in range(most):
            if self.subscription.lag:
                await self.take(await anext(self.subscription))

    async def take(self, record: Any) -> None:
        self.view.apply(record)
        if isinstance(record, GapRecord):
            self.gaps += 1
            self.view.load(await self.bus.snapshot())

    async def cut(self) -> None:
        if self.subscription is not None:
            self.subscription.close()
            self.subscription = None

    async def catch_up(self, latest: int) -> None:
        while self.view.sequence < latest:
            await self.read(most=1000)
        await self.cut()


class WireRouter(Router):
    def __init__(self, publisher: EventPublisher, chance: random.Random) -> None:
        super().__init__(chance)
        self.publisher = publisher
        self.client: EventClient | None = None
        self.following: asyncio.Task[None] | None = None

    async def read(self) -> None:
        if self.client is None:
            after = None if self.view.sequence < 0 else self.view.sequence
            self.resumptions += after is not None
            self.client = EventClient(self.publisher.endpoint, self.publisher.replay_endpoint, after=after)
            await self.client.__aenter__()
            self.following = asyncio.create_task(self.follow(self.client, from_snapshot=after is None))

    async def follow(self, client: EventClient, *, from_snapshot: bool) -> None:
        if from_snapshot:
            self.view.load(await client.snapshot())
        async for record in client:
            self.view.apply(record)
            if isinstance(record, GapRecord):
                self.gaps += 1
                self.view.load(await client.snapshot())

    async def cut(self) -> None:
        if self.client is not None and self.following is not None:
            self.following.cancel()
            await asyncio.wait([self.following])
            assert self.following.cancelled()
            await self.client.aclose()
            self.client = None

    async def catch_up(self, latest: int) -> None:
        await self.read()
        while self.view.sequence < latest:
            await asyncio.sleep(0.001)  # the kernel carries the messages
        await self.cut()


async def play(seed: int, *, steps: int, over_wire: bool, max_events: int) -> Router:
    chance = random.Random(seed)  # noqa: S311 - no secret
    stage = DeepStage(num_slots=8, tier_chunks=12, num_tiers=2, max_events=max_events)
    config = PublisherConfig(endpoint=LOOPBACK, replay_endpoint=LOOPBACK, heartbeat_s=0.005)
    async with stage, EventPublisher(stage.service.events, config) as publisher:
        bus = stage.service.events
        routers: list[Router] = [WireRouter(publisher, chance) if over_wire else LocalRouter(bus, chance)]
        churn = Churn(stage, chance)
        for _ in range(steps):
            actors: list[Churn | Router] = [churn, churn, *routers]
            await chance.choice(actors).step()
            await settle(chance.randint(0, 5))
        for tier in stage.tiers:
            tier.failing = False
        await stage.drained()
        await settle()
        (router,) = routers
        await router.catch_up(bus.latest)
        while router.view.sequence < bus.latest:  # a tier that came back was given what it had missed meanwhile
            await router.catch_up(bus.latest)
        held = truth(stage)
        assert router.view.is_exact
        assert {name: set(router.view.keys(name)) for name in held} == held
        late = ResidentKeys()
        late.load(await bus.snapshot())
        assert {name: set(late.keys(name)) for name in held} == held
        stage.service.check_integrity()
    return router


SEEDS = st.integers(0, 2**32 - 1)
LOOPS = st.sampled_from([asyncio.new_event_loop, uvloop.new_event_loop])


@settings(max_examples=60)
@given(SEEDS, LOOPS, st.sampled_from([1, 3, 1000]))
def test_in_process_the_picture_is_exact_whatever_happened(seed: int, loop: Any, max_events: int) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(play(seed, steps=60, over_wire=False, max_events=max_events))


@settings(max_examples=20)
@given(SEEDS, LOOPS)
def test_over_the_wire_the_picture_is_exact_whatever_happened(seed: int, loop: Any) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(play(seed, steps=60, over_wire=True, max_events=1000))


def test_the_schedules_have_gaps_and_resumptions_in_them() -> None:
    """Without them the tests above would prove little."""
    with asyncio.Runner() as runner:
        routers = [runner.run(play(seed, steps=80, over_wire=False, max_events=1000)) for seed in range(10)]
    assert sum(router.gaps for router in routers) > 3
    assert sum(router.resumptions for router in routers) > 10
