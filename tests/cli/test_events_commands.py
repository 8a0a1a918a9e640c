"""What follows events at a terminal, what measures them, and what a whole replay tells."""

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from aiokvoffload.base import EventKind, OffloadingEvent, OffloadKey, RemovalReason, make_offload_key
from aiokvoffload.cli.app import app
from aiokvoffload.cli.events_bench import EventsBenchmark, EventsOptions, FanOut, events_benchmark, events_tables
from aiokvoffload.cli.events_tail import Line, TailOptions, as_json, as_text, tail
from aiokvoffload.cli.replay import ReplayOptions, replay
from aiokvoffload.cli.replay_disk import ReplayDisk
from aiokvoffload.cli.trace import read_trace
from aiokvoffload.cli.traces import SAMPLE_TRACE
from aiokvoffload.events import EventBus, EventRecord, GapRecord, ResidentKeys, Snapshot, Subscription, TierSnapshot
from aiokvoffload.events.client import EventClient
from aiokvoffload.events.publisher import EventPublisher, PublisherConfig
from aiokvoffload.service.service import OffloadingService
from tests.loopback import kept_port

LOOPBACK = "tcp://127.0.0.1:*"
KEY = make_offload_key(bytes(range(32)), 1)
STORED = EventRecord(7, OffloadingEvent(EventKind.STORED, (KEY,), "CPU", "cpu"))
CLEARED = EventRecord(8, OffloadingEvent(EventKind.CLEARED, (), "DISK", "disk", RemovalReason.RESET))


def test_lines_say_what_was_told() -> None:
    empty = EventRecord(9, OffloadingEvent(EventKind.STORED, (), "GPU", "gpu"))  # nothing keeps a publisher from it
    assert as_text(empty) == "9  stored   gpu"
    lines: list[Line] = [STORED, CLEARED, GapRecord(2, 4), Snapshot(9, (TierSnapshot("CPU", "cpu", ((KEY,),)),))]
    assert [as_text(line) for line in lines] == [
        "7  stored   cpu  group 1, 1 key, 0001020304050607",
        "8  cleared  disk  (reset)",
        "2 to 4  missed",
        "snapshot at 9: cpu 1",
    ]
    told = [json.loads(as_json(line)) for line in lines]
    about_all = {"sequence": 7, "kind": "stored", "medium": "CPU", "tier": "cpu", "reason": None}
    assert told[0] == {**about_all, "keys": [KEY.hex()]}
    assert (told[1]["reason"], told[2]) == ("reset", {"gap": [2, 4]})
    assert told[3] == {"snapshot": {"cpu": [KEY.hex()]}, "sequence": 9}


async def test_following_begins_behind_a_number_and_ends_at_the_limit() -> None:
    bus = EventBus(first_sequence=7)
    config = PublisherConfig(endpoint=LOOPBACK, replay_endpoint=LOOPBACK)
    heard: list[Line] = []
    async with EventPublisher(bus, config) as publisher:
        bus.publish([STORED.event, CLEARED.event, STORED.event])
        options = TailOptions(endpoint=publisher.endpoint, replay_endpoint=publisher.replay_endpoint, after=6, limit=2)
        await tail(options, heard.append)
    assert heard == [STORED, CLEARED]


async def test_who_hears_nothing_is_told_so_once_and_who_hears_something_is_not() -> None:
    heard: list[Line] = []
    quiet = asyncio.Event()
    waiting = asyncio.create_task(
        tail(TailOptions(endpoint="tcp://127.0.0.1:9"), heard.append, on_quiet=quiet.set, quiet_s=0.05)
    )
    await asyncio.wait_for(quiet.wait(), 10)
    quiet.clear()
    await asyncio.sleep(0.2)
    assert not quiet.is_set()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    bus = EventBus()
    async with EventPublisher(bus, PublisherConfig(endpoint=LOOPBACK, replay_endpoint=LOOPBACK)) as publisher:
        bus.publish([STORED.event])
        options = TailOptions(endpoint=publisher.endpoint, replay_endpoint=publisher.replay_endpoint, after=-1, limit=1)
        await tail(options, heard.append, on_quiet=quiet.set, quiet_s=1.0)
    await asyncio.sleep(1.2)
    assert (len(heard), quiet.is_set()) == (1, False)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["events", "tcp://127.0.0.1:9", "--snapshot"], "--snapshot and --after need --replay"),
        (["events", "nowhere"], "endpoint 'nowhere' cannot be connected to"),
        (["events", "tcp://127.0.0.1:9", "--replay", "tcp://127.0.0.1:9", "--after", "9" * 20], "after must be a"),
        (["replay", "--events-replay", "tcp://127.0.0.1:*"], "--events-replay belongs to --events"),
    ],
)
def test_what_cannot_be_followed_is_one_line_and_status_2(arguments: list[str], reason: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert reason in result.output
    assert len(result.output.splitlines()) == 1


async def test_the_benchmark_measures_every_phase_and_nobody_misses_anything() -> None:
    options = EventsOptions(keys_per_s=20_000, subscribers=2, seconds=0.05, repeat=1)
    result = await events_benchmark(options)
    told = json.loads(result.to_json())
    assert told["paced"]["dropped"] == told["unpaced"]["dropped"] == 0
    assert [each["policy"] for each in told["stalled"]] == [None, "drop_oldest", "disconnect", "block"]
    assert all(each["keys_per_s"] > 0 for each in told["stalled"])
    assert min(told["alone_us"], told["wire_records_per_s"], told["paced"]["keys_per_s"]) > 0
    assert len(events_tables(result).renderables) == 2


def test_the_tables_need_no_more_than_80_columns() -> None:
    many = FanOut(200_000, 199_999, 0.41, 12.34, 1_234, 12_345)
    benchmark = EventsBenchmark(16, 8, 1.23, many, replace(many, asked_keys_per_s=None), 8_000, ())
    console = Console(width=80)
    with console.capture() as capture:
        console.print(events_tables(benchmark))
    assert re.search(r"as fast as it goes .* over the wire ", capture.get(), re.DOTALL)


# After a whole replay


class Watched(ReplayDisk):
    """A replay's memory and disk, with somebody who listens from the beginning."""

    service: OffloadingService
    records: Subscription

    def open(self, *arguments: Any) -> OffloadingService:
        Watched.service = super().open(*arguments)
        Watched.records = Watched.service.events.subscribe()
        return Watched.service


def held_by(service: OffloadingService) -> dict[str, set[OffloadKey]]:
    """What the tiers' own indexes say."""
    backend = service._backend
    assert backend is not None
    held: dict[str, set[OffloadKey]] = {}
    for part in backend.manager.resident_keys():
        held.setdefault(part.tier, set()).update(part.keys)
    return held


async def over_the_wire(records: Sequence[EventRecord]) -> ResidentKeys:
    """What a client makes of these records that comes when all is over."""
    bus, view = EventBus(first_sequence=records[0].sequence), ResidentKeys()
    config = PublisherConfig(endpoint=LOOPBACK, replay_endpoint=LOOPBACK)
    async with EventPublisher(bus, config) as publisher:
        bus.publish(record.event for record in records)
        first = records[0].sequence - 1
        async with EventClient(publisher.endpoint, publisher.replay_endpoint, after=first) as client:
            while view.sequence < bus.latest:
                view.apply(await anext(client))
    return view


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
async def test_after_a_replay_a_subscriber_knows_what_every_tier_holds(
    warm: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9, fault 49: with evictions, promotions and a disk, which may have chunks from an earlier run."""
    monkeypatch.setattr("aiokvoffload.cli.replay.ReplayDisk", Watched)
    requests = read_trace(SAMPLE_TRACE, limit=60)
    options = ReplayOptions(
        device="host", chunk_bytes=4096, cpu_chunks=150, disk_dir=tmp_path, disk_bytes=600 * 4096, verify=True
    )
    if warm:
        await replay(requests, options)
    report = await replay(requests, options)
    assert report.ok
    assert report.disk is not None
    assert (report.disk.warm_chunks > 0) is warm
    records = [record async for record in Watched.records]
    assert RemovalReason.EVICTED in {record.event.reason for record in records if isinstance(record, EventRecord)}
    local = ResidentKeys()
    for record in records:
        local.apply(record)
    held = held_by(Watched.service)
    assert held["cpu"]
    assert held["disk"]
    assert local.is_exact
    assert {tier: set(local.keys(tier)) for tier in held} == held
    distant = await over_the_wire([record for record in records if isinstance(record, EventRecord)])
    assert distant.is_exact
    assert {tier: set(distant.keys(tier)) for tier in held} == held


async def test_a_replay_can_be_followed() -> None:
    with kept_port() as port:
        endpoint = f"tcp://127.0.0.1:{port}"
        async with EventClient(endpoint) as client:
            hearing = asyncio.ensure_future(anext(client))
            while not hearing.done():
                await replay(read_trace(SAMPLE_TRACE, limit=5), ReplayOptions(device="host", events=endpoint))
            assert isinstance(await hearing, EventRecord)
