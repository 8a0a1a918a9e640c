"""Follows a publisher of KV-cache events, and says what it hears. Knows the client and text."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from aiokvoffload.base import get_offload_block_hash, get_offload_group_idx
from aiokvoffload.events import EventRecord, GapRecord, Snapshot
from aiokvoffload.events.client import EventClient

QUIET_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TailOptions:
    """What is followed; docs/cli.md describes the options."""

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    after: int | None = None
    snapshot: bool = False
    limit: int | None = None


Line = EventRecord | GapRecord | Snapshot


async def tail(
    options: TailOptions,
    on_line: Callable[[Line], None],
    *,
    on_quiet: Callable[[], None] = lambda: None,
    quiet_s: float = QUIET_S,
) -> None:
    """Hand on what is heard, for ever or up to the limit.

    Args:
        options: what to follow.
        on_line: is given each line.
        on_quiet: called once, if there is no line for `quiet_s`: whoever has mistyped an endpoint would wait for ever.
        quiet_s: in seconds.

    Raises:
        ArgumentError: an endpoint is none.
        BrokenError: nobody answers.
        ClosedError: a snapshot needs a replay endpoint.
    """
    async with EventClient(
        options.endpoint, options.replay_endpoint, topic=options.topic, after=options.after
    ) as client:
        quiet = asyncio.get_running_loop().call_later(quiet_s, on_quiet)
        try:
            count = 0
            async for line in _lines(client, options):
                quiet.cancel()
                on_line(line)
                count += 1
                if count == options.limit:
                    return
        finally:
            quiet.cancel()


async def _lines(client: EventClient, options: TailOptions) -> AsyncIterator[Line]:
    since = -1
    if options.snapshot:
        snapshot = await client.snapshot()
        since = snapshot.sequence
        yield snapshot
    async for record in client:
        if isinstance(record, GapRecord) or record.sequence > since:
            yield record


def as_text(line: Line) -> str:
    """One line for people."""
    if isinstance(line, Snapshot):
        return str(line)
    if isinstance(line, GapRecord):
        return f"{line.first} to {line.last}  missed"
    event = line.event
    text = f"{line.sequence}  {event.kind.value:8} {event.tier}"
    if event.keys:
        first, noun = get_offload_block_hash(event.keys[0]).hex(), "key" if len(event.keys) == 1 else "keys"
        text += f"  group {get_offload_group_idx(event.keys[0])}, {len(event.keys)} {noun}, {first[:16]}"
    return text + (f"  ({event.reason.value})" if event.reason is not None else "")


def as_json(line: Line) -> str:
    """One JSON object in one line."""
    if isinstance(line, Snapshot):
        tiers = {tier.tier: [key.hex() for part in tier.parts for key in part] for tier in line.tiers}
        return json.dumps({"snapshot": tiers, "sequence": line.sequence})
    if isinstance(line, GapRecord):
        return json.dumps({"gap": [line.first, line.last]})
    event = line.event
    return json.dumps(
        {
            "sequence": line.sequence,
            "kind": event.kind.value,
            "medium": event.medium,
            "tier": event.tier,
            "reason": None if event.reason is None else event.reason.value,
            "keys": [key.hex() for key in event.keys],
        }
    )
