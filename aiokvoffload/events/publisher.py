"""Speaks vLLM's KV-cache event protocol: a PUB socket for what happens, a ROUTER socket for what was missed.

Knows the bus and sockets; what a message looks like is `events.wire`. Nothing here waits for a peer: a PUB socket drops
what a slow one does not take, the numbers tell it so, and the ROUTER socket has what it asks for then. An idle
publisher repeats its latest message now and then, so that who missed that, or one before it, learns of it.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Self

from aiokvoffload.clock import Clock, SystemClock
from aiokvoffload.errors import ArgumentError, ClosedError, OffloadError
from aiokvoffload.events.bus import EventBus
from aiokvoffload.events.records import EventRecord, GapRecord
from aiokvoffload.events.replies import Turns, replay, snapshot_messages
from aiokvoffload.events.sockets import (
    Context,
    PubSocket,
    Socket,
    bind,
    check_arguments,
    close_all,
    open_pub_socket,
    open_router_socket,
    publish_now,
)
from aiokvoffload.events.subscription import Subscription
from aiokvoffload.events.wire import (
    END_SEQUENCE,
    SNAPSHOT_REQUEST,
    HashFormat,
    WireEncoder,
    WireFormat,
    pack_sequence,
    unpack_sequence,
)

logger = logging.getLogger(__name__)

_UNSENDABLE = (OffloadError, TypeError, ValueError, OverflowError, RecursionError)
"""What a message that cannot be written raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherConfig:
    """Where and how events are published.

    Attributes:
        endpoint: of the PUB socket, which is bound: `tcp://*:5557`, `ipc:///run/kv-events`.
        replay_endpoint: of the ROUTER socket, which is bound; there is no replay without it.
        topic: first frame of every message.
        wire_format: how events are written.
        hash_format: how block hashes are written.
        data_parallel_rank: of the engine, where there are several.
        high_water_mark: messages that ZeroMQ keeps for each peer that is slow; beyond it they are dropped.
        heartbeat_s: so long after the latest message it is sent again.

    Raises:
        ArgumentError: a bound is not positive, or a text or a format is none.
    """

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    wire_format: WireFormat = WireFormat.ARRAY
    hash_format: HashFormat = HashFormat.BYTES
    data_parallel_rank: int | None = None
    high_water_mark: int = 100_000
    heartbeat_s: float = 1.0

    def __post_init__(self) -> None:
        texts = {"endpoint": self.endpoint, "replay_endpoint": self.replay_endpoint or "", "topic": self.topic}
        check_arguments("PublisherConfig", texts=texts, high_water_mark=self.high_water_mark)
        for name, kind in (("wire_format", WireFormat), ("hash_format", HashFormat)):
            if not isinstance(getattr(self, name), kind):
                raise ArgumentError(f"PublisherConfig.{name} must be a {kind.__name__}, got {getattr(self, name)!r}")
        if not (isinstance(self.heartbeat_s, int | float) and self.heartbeat_s > 0):
            raise ArgumentError(f"PublisherConfig.heartbeat_s must be above 0, got {self.heartbeat_s!r}")


@dataclass(frozen=True, slots=True)
class PublisherStatistics:
    """Counts of a publisher: messages, messages sent again, answers to replays and snapshots, bad requests."""

    sent: int
    heartbeats: int
    replays: int
    snapshots: int
    refused_requests: int


class EventPublisher:
    """Publishes what a bus tells. Open it with `async with`, and close it before the service, or after.

    Args:
        bus: whose events.
        config: where to.
        clock: measures heartbeats.

    Attributes:
        endpoint: where the PUB socket is bound, once it is open.
        replay_endpoint: where the ROUTER socket is bound; empty without one.
    """

    def __init__(self, bus: EventBus, config: PublisherConfig, *, clock: Clock | None = None) -> None:
        self._bus, self._config, self._clock = bus, config, clock or SystemClock()
        self._encoder = WireEncoder(
            config.wire_format, config.hash_format, data_parallel_rank=config.data_parallel_rank
        )
        self._topic = config.topic.encode()
        self._context: Context | None = None
        self._latest: EventRecord | None = None
        self._publishing: PubSocket | None = None
        self._router: Socket | None = None
        self._subscription: Subscription | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.endpoint = self.replay_endpoint = ""
        self._sent = self._heartbeats = self._replays = self._snapshots = self._refused = 0

    async def __aenter__(self) -> Self:
        if self._context is not None:
            raise ClosedError("a publisher is opened once")
        self._context = context = Context()
        try:
            self._start(context)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the sockets; what ZeroMQ has not sent yet is dropped. Repeating it does nothing."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._subscription is not None:
            self._subscription.close()  # a task that was cancelled before its first step has not
        context, self._context = self._context, None
        if context is not None:
            await close_all(context, (self._publishing, self._router))

    def statistics(self) -> PublisherStatistics:
        """Counts so far."""
        return PublisherStatistics(self._sent, self._heartbeats, self._replays, self._snapshots, self._refused)

    def __repr__(self) -> str:
        return f"<EventPublisher {self.endpoint or 'closed'}: {self._sent} sent, {self._replays} replays>"

    def _start(self, context: Context) -> None:
        config = self._config
        self._publishing = publishing = open_pub_socket(context, high_water_mark=config.high_water_mark)
        self.endpoint = bind(publishing, config.endpoint)
        # From the latest record on, if there is one: who hears nothing else hears that again and again.
        latest = self._bus.latest
        after = latest - (self._bus.oldest <= latest)
        self._subscription = subscription = self._bus.subscribe(name="zmq", after=after)
        self._spawn(self._publish(publishing, subscription), "publish")
        self._spawn(self._beat(publishing, subscription), "heartbeat")
        if config.replay_endpoint is not None:
            self._router = router = open_router_socket(context, high_water_mark=config.high_water_mark)
            self.replay_endpoint = bind(router, config.replay_endpoint)
            self._spawn(self._answer_all(router), "replay")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=f"aiokvoffload-events-{name}"))

    async def _publish(self, socket: PubSocket, subscription: Subscription) -> None:
        """Send every record under its own number. A gap is a jump of the numbers: what is missing can be replayed."""
        turns = Turns()
        async with subscription:
            async for record in subscription:
                if not isinstance(record, GapRecord):
                    self._latest = record
                    self._send(socket, record)
                    self._sent += 1
                    await turns.spend(len(record.event.keys))

    async def _beat(self, socket: PubSocket, subscription: Subscription) -> None:
        while True:
            sent = self._sent
            await self._clock.sleep_until(self._clock.now_s() + self._config.heartbeat_s)
            # In full: an empty message under that number would pass for the one that was missed.
            if sent == self._sent and not subscription.lag and self._latest is not None:
                self._send(socket, self._latest)
                self._heartbeats += 1

    def _send(self, socket: PubSocket, record: EventRecord) -> None:
        try:
            publish_now(socket, (self._topic, pack_sequence(record.sequence), self._encode((record,))))
        except _UNSENDABLE:
            # One message that cannot be sent is a jump of the numbers; the others must follow (fault 27).
            logger.exception("message %d was not sent", record.sequence)

    def _encode(self, records: Sequence[EventRecord]) -> bytes:
        """The payload; without the metadata if those are what cannot be written: the keys must be told (fault 27)."""
        try:
            return self._encoder.encode(records, time.time())
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            logger.warning("the metadata of message %d cannot be sent: %s", records[0].sequence, error)
            return self._encoder.encode([record._replace(metadata=()) for record in records], time.time())

    async def _answer_all(self, router: Socket) -> None:
        while True:
            frames = await router.recv_multipart()
            try:
                await self._answer(router, frames)
            except _UNSENDABLE as error:
                self._refused += 1
                logger.warning("a request for past events was not served: %s", error)
                await self._reply(router, frames, END_SEQUENCE, b"")

    async def _answer(self, router: Socket, frames: Sequence[bytes]) -> None:
        request, turns = frames[-1], Turns()
        if request == SNAPSHOT_REQUEST:
            self._snapshots += 1
            async for sequence, records in snapshot_messages(self._bus):
                await self._reply(router, frames, sequence, self._encode(records))
                await turns.spend(sum(len(record.event.keys) for record in records))
        else:
            first = unpack_sequence(request)
            self._replays += 1
            async for record in replay(self._bus, first):
                await self._reply(router, frames, record.sequence, self._encode((record,)))
                await turns.spend(len(record.event.keys))
        await self._reply(router, frames, END_SEQUENCE, b"")

    async def _reply(self, router: Socket, frames: Sequence[bytes], sequence: int, payload: bytes) -> None:
        """Answer who asked; whoever does not read is answered no further than `high_water_mark` (I11)."""
        topic = (self._topic,) if self._config.wire_format is WireFormat.MAP else ()
        # The envelope is all that came before the request: the peer's name, and a delimiter if it sent one.
        await router.send_multipart((*frames[:-1], *topic, pack_sequence(sequence), payload))
