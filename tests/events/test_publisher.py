"""Publisher and client over real sockets, read by code that knows the protocol and not the library."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import zmq.asyncio

from aiokvoffload.base import EventKind, OffloadingEvent, OffloadKey, RemovalReason, ResidentPart, make_offload_key
from aiokvoffload.errors import ArgumentError, BrokenError, BusyError, ClosedError
from aiokvoffload.events import ChunkMetadata, EventBus, EventRecord, GapRecord, ResidentKeys
from aiokvoffload.events.client import EventClient
from aiokvoffload.events.publisher import EventPublisher, PublisherConfig
from aiokvoffload.events.wire import SNAPSHOT_REQUEST, HashFormat, WireBatch, WireFormat
from aiokvoffload.testing import ManualClock
from tests.events.wire_stage import Follower, ask, listen, nested_deeply, read_message

LOOPBACK = "tcp://127.0.0.1:*"


def key_of(number: int, group_idx: int = 0) -> OffloadKey:
    return make_offload_key(b"hash-%027d" % number, group_idx)


def stored(*numbers: int, medium: str = "CPU", tier: str = "cpu") -> OffloadingEvent:
    return OffloadingEvent(EventKind.STORED, tuple(map(key_of, numbers)), medium, tier)


def removed(*numbers: int) -> OffloadingEvent:
    keys = tuple(map(key_of, numbers))
    return OffloadingEvent(EventKind.REMOVED, keys, "CPU", "cpu", RemovalReason.EVICTED)


class Rig:
    """A bus on the wire; the clock moves its heartbeats."""

    def __init__(self, bus: EventBus | None = None, **options: object) -> None:
        self.bus = bus or EventBus(100)
        self.clock = ManualClock()
        config = PublisherConfig(endpoint=LOOPBACK, replay_endpoint=LOOPBACK, **options)  # type: ignore[arg-type]
        self.publisher = EventPublisher(self.bus, config, clock=self.clock)
        self.context = zmq.asyncio.Context()

    async def __aenter__(self) -> "Rig":
        await self.publisher.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.publisher.aclose()
        await asyncio.to_thread(self.context.destroy, 0)

    async def beat(self) -> None:
        await self.clock.wait_for_sleeper()
        self.clock.advance(1.0)

    @asynccontextmanager
    async def client(self, **options: object) -> AsyncIterator[EventClient]:
        """A client that is known to listen."""
        publisher = self.publisher
        options = {"replay_endpoint": publisher.replay_endpoint, **options}
        async with EventClient(publisher.endpoint, **options) as client:  # type: ignore[arg-type]
            yield client


async def listening(rig: Rig, socket: zmq.asyncio.Socket) -> None:
    """Beat until the subscription has arrived; what beats came is read."""
    while not await socket.poll(10):
        await rig.beat()
    while await socket.poll(0):
        await socket.recv_multipart()


async def test_a_message_is_topic_number_and_batch() -> None:
    async with Rig(topic="kv-events", data_parallel_rank=3) as rig:
        socket = await listen(rig.context, rig.publisher.endpoint, b"kv")
        rig.bus.publish([stored(0)])
        await listening(rig, socket)
        rig.bus.publish([stored(1, 2), removed(1)])
        first, second = [read_message(await socket.recv_multipart()) for _ in range(2)]
        assert (first.topic, first.sequence, second.sequence, first.rank) == (b"kv-events", 1, 2, 3)
        hashes = [key_of(1)[:-4], key_of(2)[:-4]]
        assert first.events == [
            ["BlockStored", hashes, None, [], 0, None, "CPU", None, None, 0, None, None, "LOCAL", "cpu"]
        ]
        assert second.events == [["BlockRemoved", hashes[:1], "CPU", 0, "LOCAL", "cpu", "evicted"]]
        socket.close()


async def test_maps_have_the_same_fields_by_name_and_replays_their_topic() -> None:
    async with Rig(topic="t", wire_format=WireFormat.MAP, hash_format=HashFormat.INT64) as rig:
        rig.bus.publish([stored(1)])
        ((topic, _, payload),) = await ask(rig.context, rig.publisher.replay_endpoint, bytes(8))
        (event,) = read_message([topic, bytes(8), payload]).events
        assert (topic, event["type"], event["medium"], event["group_idx"]) == (b"t", "BlockStored", "CPU", 0)
        assert event["block_hashes"] == [int.from_bytes(key_of(1)[-12:-4], "big")]


async def test_a_replay_begins_at_the_number_asked_for_and_ends_with_minus_one() -> None:
    async with Rig() as rig:
        rig.bus.publish(stored(number) for number in range(5))
        answers = await ask(rig.context, rig.publisher.replay_endpoint, (3).to_bytes(8, "big"))
        assert [int.from_bytes(sequence, "big") for sequence, _ in answers] == [3, 4]
        assert await ask(rig.context, rig.publisher.replay_endpoint, (5).to_bytes(8, "big")) == []


async def test_a_request_that_is_none_is_answered_with_nothing_and_the_next_is_served() -> None:
    """Fault 27."""
    async with Rig() as rig:
        rig.bus.publish([stored(0)])
        assert await ask(rig.context, rig.publisher.replay_endpoint, b"?") == []
        assert await ask(rig.context, rig.publisher.replay_endpoint, SNAPSHOT_REQUEST) == []  # no service is open
        assert len(await ask(rig.context, rig.publisher.replay_endpoint, bytes(8))) == 1
        assert rig.publisher.statistics().refused_requests == 2


async def test_chunks_with_metadata_are_told_as_chains() -> None:
    async with Rig() as rig:
        keys = [key_of(number) for number in range(4)]
        head = ChunkMetadata(token_ids=(1, 2), block_size=2)
        tail = ChunkMetadata(token_ids=(3, 4), block_size=2, parent_hash=keys[0][:-4])
        other = ChunkMetadata(token_ids=(9, 9), block_size=2, lora_name="adapter")
        rig.bus.attach_metadata({keys[0]: head, keys[1]: tail, keys[3]: other})
        rig.bus.publish([stored(0, 1, 2, 3)])
        ((_, payload),) = await ask(rig.context, rig.publisher.replay_endpoint, bytes(8))
        told = [event[1:8] for event in read_message([b"", bytes(8), payload]).events]
        assert told == [
            [[keys[0][:-4], keys[1][:-4]], None, [1, 2, 3, 4], 2, None, "CPU", None],
            [[keys[2][:-4]], None, [], 0, None, "CPU", None],
            [[keys[3][:-4]], None, [9, 9], 2, None, "CPU", "adapter"],
        ]


async def test_a_client_reads_what_is_published_with_its_metadata() -> None:
    async with Rig(EventBus(10, first_sequence=5)) as rig:
        rig.bus.publish([stored(0)])
        async with rig.client() as client:
            assert await heard(rig, client) == EventRecord(5, stored(0))
            metadata = ChunkMetadata(token_ids=(5,), block_size=1)
            rig.bus.attach_metadata({key_of(1): metadata})
            rig.bus.publish([stored(1)])
            assert await anext(client) == EventRecord(6, stored(1), (metadata,))


async def heard(rig: Rig, client: EventClient) -> EventRecord | GapRecord:
    """What comes next, if only because the latest message is sent again; the kernel carries it."""
    waiting = asyncio.ensure_future(anext(client))
    while not waiting.done():
        await rig.beat()
        await asyncio.sleep(0.001)
    return await waiting


async def test_a_client_replays_what_it_missed_before_it_goes_on() -> None:
    """Fault 50: what a socket dropped is in the history."""
    async with Rig() as rig:
        rig.bus.publish(stored(number) for number in range(6))
        async with rig.client(after=2) as client:
            assert [(await anext(client)).sequence for _ in range(3)] == [3, 4, 5]  # type: ignore[union-attr]


async def test_messages_that_come_after_their_replay_are_no_other_publishers() -> None:
    """I9: a publisher's replay may be ahead of what it sends."""
    async with Rig() as rig:
        rig.bus.publish(stored(number) for number in range(4))
        async with rig.client(after=2) as client:
            assert await anext(client) == EventRecord(3, stored(3))
            await client._hear(WireBatch(0, 0.0, (stored(0),), ((),)))
            rig.bus.publish([stored(4)])
            assert await heard(rig, client) == EventRecord(4, stored(4))


async def test_what_nobody_has_any_more_is_a_gap() -> None:
    """I9."""
    async with Rig(EventBus(2)) as rig:
        rig.bus.publish(stored(number) for number in range(6))
        async with rig.client(after=1) as client:
            assert await anext(client) == GapRecord(2, 3)
            assert await anext(client) == EventRecord(4, stored(4))


@pytest.mark.parametrize("missed", [1, 2])
async def test_who_missed_the_last_messages_learns_of_them_though_nothing_happens(missed: int) -> None:
    """I9: an idle publisher's silence says nothing."""
    async with Rig() as rig:
        rig.bus.publish(stored(number) for number in range(4))
        async with rig.client(after=2) as client:
            assert await anext(client) == EventRecord(3, stored(3))
            client.position = 3 - missed  # as if they had been lost on the way
            told = [await heard(rig, client), *([await anext(client)] if missed == 2 else [])]
            assert told == [EventRecord(number, stored(number)) for number in range(4 - missed, 4)]
            assert rig.publisher.statistics().heartbeats > 0


async def test_a_client_without_a_replay_is_told_of_every_jump() -> None:
    async with Rig() as rig:
        rig.bus.publish([stored(0), stored(1)])
        while rig.publisher.statistics().sent < 2:  # to nobody
            await asyncio.sleep(0)
        async with rig.client(replay_endpoint=None) as client:
            client.position = -1
            assert await heard(rig, client) == GapRecord(0, 0)
            assert await anext(client) == EventRecord(1, stored(1))
            with pytest.raises(ClosedError, match="replay_endpoint"):
                await client.snapshot()


async def test_a_snapshot_over_the_wire_says_which_tier_holds_what() -> None:
    parts = [ResidentPart("CPU", "cpu", [key_of(1), key_of(2, 1)]), ResidentPart("DISK", "disk", [])]

    def source() -> Iterator[ResidentPart]:
        return iter(parts)

    bus = EventBus(10, first_sequence=7)
    bus.use_source(source)
    async with Rig(bus) as rig, rig.client() as client:
        snapshot = await client.snapshot()
        assert client.position == snapshot.sequence  # else what was published before the first message would be missed
        assert (snapshot.sequence, sorted(tier.tier for tier in snapshot.tiers)) == (6, ["cpu", "disk"])
        view = ResidentKeys()
        view.load(snapshot)
        assert (view.keys("cpu"), view.keys("disk")) == ({key_of(1), key_of(2, 1)}, set())
        follower = Follower()
        for _, payload in await ask(rig.context, rig.publisher.replay_endpoint, SNAPSHOT_REQUEST):
            for event in read_message([b"", bytes(8), payload]).events:
                follower.apply(event)
        assert follower.held == {("CPU", 0): {key_of(1)[:-4]}, ("CPU", 1): {key_of(2)[:-4]}}


async def test_who_is_not_there_is_said_in_time() -> None:
    async with EventClient("tcp://127.0.0.1:9", "tcp://127.0.0.1:9", timeout_s=0.05) as client:
        with pytest.raises(BrokenError, match=r"did not answer in 0\.05 s"):
            await client.snapshot()


async def test_an_address_in_use_and_a_wrong_one_are_named() -> None:
    async with Rig() as rig:
        with pytest.raises(ArgumentError, match="cannot be bound"):
            async with EventPublisher(rig.bus, PublisherConfig(endpoint=rig.publisher.endpoint)):
                pass
        with pytest.raises(ArgumentError, match="cannot be connected to"):
            async with EventClient("nowhere"):
                pass
        port = "must have a port of at most 65535, got 99999"  # of which ZeroMQ would make 34463
        with pytest.raises(ArgumentError, match=port):
            async with EventPublisher(rig.bus, PublisherConfig(endpoint="tcp://*:99999")):
                pass
        with pytest.raises(ArgumentError, match=port):
            async with EventClient("tcp://127.0.0.1:99999"):
                pass
    with pytest.raises(ArgumentError, match=r"wire_format must be a WireFormat, got 'map'"):
        PublisherConfig(endpoint=LOOPBACK, wire_format="map")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"heartbeat_s must be above 0, got 0"):
        PublisherConfig(endpoint=LOOPBACK, heartbeat_s=0)


@pytest.mark.parametrize("payload", [b"?", b"\x91" * 200_000], ids=["no message", "nested"])
async def test_a_message_that_cannot_be_read_is_a_gap_and_the_next_is_heard(payload: bytes) -> None:
    """Fault 27."""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.PUB)
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind(LOOPBACK)
    endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    async with EventClient(endpoint) as client:
        hearing = asyncio.ensure_future(anext(client))
        while not hearing.done():
            await socket.send_multipart([b"", (7).to_bytes(8, "big"), payload])
            await asyncio.sleep(0.001)
        assert await hearing == GapRecord(7, 7)
        await socket.send_multipart(
            [b"", (8).to_bytes(8, "big"), b"\x92\xcb\0\0\0\0\0\0\0\0\x91\x91\xb0AllBlocksCleared"]
        )
        record = await anext(client)
        assert isinstance(record, EventRecord)
        assert (record.sequence, record.event.kind) == (8, EventKind.CLEARED)
    socket.close()
    await asyncio.to_thread(context.term)


async def test_a_client_that_outlives_the_server_knows_what_is_void() -> None:
    """I9: the numbers go on, and the next process begins with what it is sure of."""
    view, tiers = ResidentKeys(), [("CPU", "cpu")]
    first = EventBus(10, first_sequence=1000)
    async with Rig(first) as rig:
        config = PublisherConfig(
            endpoint=rig.publisher.endpoint, replay_endpoint=rig.publisher.replay_endpoint, heartbeat_s=0.01
        )
        first.begin_tiers(tiers)
        first.publish([stored(1)])
        client = EventClient(config.endpoint, config.replay_endpoint, after=999)
        await client.__aenter__()
        while view.sequence < first.latest:
            view.apply(await anext(client))
    assert (view.keys("cpu"), view.is_exact) == ({key_of(1)}, True)
    second = EventBus(10, first_sequence=2000)
    second.begin_tiers(tiers)
    second.publish([stored(2)])
    async with EventPublisher(second, config):
        told = [await anext(client) for _ in range(3)]
        for record in told:
            view.apply(record)
    assert told[0] == GapRecord(1002, 1999)
    assert (view.keys("cpu"), view.is_exact) == ({key_of(2)}, True)
    await client.aclose()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"high_water_mark": 1 << 40}, r"high_water_mark must be .* above 0, at most 2147483647, got 1099511627776"),
        ({"high_water_mark": -1}, "high_water_mark must be .* got -1"),
        ({"topic": b"x"}, "topic must be text, got b'x'"),
        ({"endpoint": 5}, "endpoint must be text, got 5"),
    ],
)
def test_what_zeromq_would_refuse_half_way_is_refused_at_once(options: dict[str, Any], reason: str) -> None:
    """A socket whose bound ZeroMQ refused was never closed, and closing the context waited for it for ever."""
    for make in (PublisherConfig, EventClient):
        with pytest.raises(ArgumentError, match=reason):
            make(**{"endpoint": LOOPBACK, **options})


@pytest.mark.parametrize("options", [{"after": "x"}, {"after": 1 << 63}, {"timeout_s": -1}])
def test_a_client_names_the_number_that_is_none(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ArgumentError, match=rf"EventClient.{name} must be"):
        EventClient(LOOPBACK, **options)


async def test_a_publisher_that_could_not_open_leaves_no_subscriber() -> None:
    """It was never read again, and its lag grew in the metrics for as long as the service lived."""
    bus = EventBus()
    async with Rig() as rig:
        config = PublisherConfig(endpoint=LOOPBACK, replay_endpoint=rig.publisher.replay_endpoint)
        with pytest.raises(ArgumentError, match="cannot be bound"):
            async with EventPublisher(bus, config):
                pass
    assert bus.statistics().subscribers == 0


@pytest.mark.parametrize("token", [1 << 70, nested_deeply()], ids=["large", "nested"])
async def test_metadata_that_cannot_be_written_hides_no_key_and_ends_no_answers(token: Any) -> None:
    """Fault 27: the task that answers died of it, and nobody was answered any more."""
    bus = EventBus(10)
    bus.attach_metadata({key_of(1): ChunkMetadata(token_ids=(token,), block_size=1)})
    bus.publish([stored(1), stored(2)])
    async with Rig(bus) as rig, rig.client() as client:
        replayed = [batch.events for _ in range(2) async for batch in client.replay(0)]
    assert replayed == 2 * [(stored(1),), (stored(2),)]


async def test_frames_that_are_no_message_are_no_reason_to_hear_no_more() -> None:
    """Fault 27: whatever else is published there ended the iteration with what unpacking it raised."""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.PUB)
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind(LOOPBACK)
    async with EventClient(socket.getsockopt_string(zmq.LAST_ENDPOINT)) as client:
        hearing = asyncio.ensure_future(anext(client))
        while not hearing.done():
            for frames in ([b"?"], [b"", b"short", b"?"], 5 * [b"?"], [b"", (7).to_bytes(8, "big"), b"?"]):
                await socket.send_multipart(frames)
            await asyncio.sleep(0.001)
        assert await hearing == GapRecord(7, 7)
    socket.close()
    await asyncio.to_thread(context.term)


async def test_an_answer_that_is_none_is_said_to_be() -> None:
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind(LOOPBACK)
    async with EventClient(LOOPBACK[:-1] + "1", socket.getsockopt_string(zmq.LAST_ENDPOINT)) as client:
        asking = asyncio.ensure_future(client.snapshot())
        name, *_ = await socket.recv_multipart()
        await socket.send_multipart([name, b"?"])
        with pytest.raises(BrokenError, match="answers no events"):
            await asking
    socket.close()
    await asyncio.to_thread(context.term)


async def test_closing_a_client_ends_what_another_task_waits_for() -> None:
    """ZeroMQ cancels who waits at a socket that is closed, which looked like a cancellation of the task."""
    async with Rig() as rig:
        client = EventClient(rig.publisher.endpoint, LOOPBACK[:-1] + "1")
        await client.__aenter__()
        hearing, asking = asyncio.ensure_future(anext(client, None)), asyncio.ensure_future(client.snapshot())
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match="read by another task"):
            await anext(client)
        await client.aclose()
        assert await hearing is None
        with pytest.raises(ClosedError, match="was closed before"):
            await asking


async def test_who_resumes_at_a_number_that_a_publisher_never_had_is_told() -> None:
    """It heard nothing until the numbers had come that far, which is never."""
    async with Rig(EventBus(10)) as rig, rig.client(after=1_000) as client:
        hearing = asyncio.ensure_future(anext(client))
        while not hearing.done():
            rig.bus.publish([stored(1)])
            await asyncio.sleep(0.001)
        assert await hearing == GapRecord(1_001, 1_001)
        assert isinstance(await anext(client), EventRecord)
