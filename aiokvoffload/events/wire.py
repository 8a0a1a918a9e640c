"""vLLM's KV-cache event protocol as bytes: one record of the bus is one message, under the record's own number.

A message is `(topic, sequence as 8 bytes big-endian, payload)`, the payload a msgpack array `[ts, events,
data_parallel_rank]`. Its events were arrays with their type's name in front until the middle of 2026, and are maps with
a `type` since (vllm-project/vllm#42892); both are written and read here. Fields behind those that vLLM has are this
library's: readers leave out what they do not know. Knows bytes; knows no socket.
"""

import enum
import struct
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from aiokvoffload.base import (
    EventKind,
    OffloadingEvent,
    OffloadKey,
    RemovalReason,
    get_offload_block_hash,
    get_offload_group_idx,
    make_offload_key,
)
from aiokvoffload.errors import ArgumentError
from aiokvoffload.events.records import ChunkMetadata, EventRecord

try:
    import msgspec
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "events on the wire need msgspec: pip install 'aiokvoffload[events]'", name="msgspec"
    ) from error

MOST_SEQUENCE = (1 << 63) - 1
END_SEQUENCE = -1
"""Ends what a replay answers."""
SNAPSHOT_REQUEST = b"snapshot/1"
"""Asks for all resident keys instead of a replay; 10 bytes, so that no sequence number looks like it."""

_SEQUENCE = struct.Struct(">q")
_LOCAL = "LOCAL"
_HASH_MASK = (1 << 64) - 1

# Where fields stand in an event that is an array; 0 is the type's name.
_STORED_FIELDS = (
    *("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
    *("extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality", "ownership"),
)
_REMOVED_FIELDS = ("type", "block_hashes", "medium", "group_idx", "locality", "ownership", "reason")
_CLEARED_FIELDS = ("type", "medium", "ownership", "reason")
_FIELDS = {"BlockStored": _STORED_FIELDS, "BlockRemoved": _REMOVED_FIELDS, "AllBlocksCleared": _CLEARED_FIELDS}


class WireFormat(enum.Enum):
    """How events are written."""

    ARRAY = "array"
    """As vLLM wrote them until the middle of 2026; a replay answers `(sequence, payload)`."""
    MAP = "map"
    """As it writes them since; a replay answers `(topic, sequence, payload)`."""


class HashFormat(enum.Enum):
    """How block hashes are written."""

    BYTES = "bytes"
    """In full: keys can be made of them again."""
    INT64 = "int64"
    """Their last 8 bytes as a number, as vLLM does by default."""


class WireBatch(NamedTuple):
    """One message, decoded.

    Attributes:
        sequence: its number.
        timestamp_s: when it was sent, in seconds since 1970.
        events: what happened; with `HashFormat.INT64` the hashes in the keys are the 8 bytes that were sent.
        metadata: for each event of each key what was attached to it, or nothing.
        is_readable: whether it is known what it said.
    """

    sequence: int
    timestamp_s: float
    events: tuple[OffloadingEvent, ...]
    metadata: tuple[tuple[ChunkMetadata | None, ...], ...]
    is_readable: bool = True

    @property
    def records(self) -> Iterator[EventRecord]:
        """The events as records; those of one message have one number."""
        for event, metadata in zip(self.events, self.metadata, strict=True):
            yield EventRecord(self.sequence, event, metadata)


def pack_sequence(sequence: int) -> bytes:
    """8 bytes, big-endian; `END_SEQUENCE` is all ones.

    Raises:
        ArgumentError: it has no room there.
    """
    try:
        return _SEQUENCE.pack(sequence)
    except struct.error:
        raise ArgumentError(f"a sequence number is one of 8 bytes, at most {MOST_SEQUENCE}, got {sequence!r}") from None


def unpack_sequence(frame: bytes) -> int:
    """The number in a frame.

    Raises:
        ArgumentError: it is not 8 bytes.
    """
    if len(frame) != _SEQUENCE.size:
        raise ArgumentError(f"a sequence number is 8 bytes, got {len(frame)}")
    return int(_SEQUENCE.unpack(frame)[0])


class WireEncoder:
    """Writes payloads.

    Args:
        wire_format: how events are written.
        hash_format: how block hashes are written.
        data_parallel_rank: of the engine, where there are several.
    """

    def __init__(
        self,
        wire_format: WireFormat = WireFormat.ARRAY,
        hash_format: HashFormat = HashFormat.BYTES,
        *,
        data_parallel_rank: int | None = None,
    ) -> None:
        self._as_map = wire_format is WireFormat.MAP
        self._as_numbers = hash_format is HashFormat.INT64
        self._rank = data_parallel_rank
        self._pack = msgspec.msgpack.Encoder().encode

    def encode(self, records: Sequence[EventRecord], timestamp_s: float) -> bytes:
        """The payload of one message."""
        events = [event for record in records for event in self._events(record)]
        return self._pack([timestamp_s, events] if self._rank is None else [timestamp_s, events, self._rank])

    def _events(self, record: EventRecord) -> Iterator[Any]:
        event = record.event
        match event.kind:
            case EventKind.CLEARED:
                reason = None if event.reason is None else event.reason.value
                yield self._shape("AllBlocksCleared", event.medium, event.tier, reason)
            case EventKind.REMOVED:
                yield self._removed(event)
            case EventKind.STORED:
                metadata = record.metadata or (None,) * len(event.keys)
                for run in _chains(event.keys, metadata):
                    yield self._stored(event, run)

    def _removed(self, event: OffloadingEvent) -> Any:
        reason = None if event.reason is None else event.reason.value
        group_idx = get_offload_group_idx(event.keys[0])
        hashes = [self._hash(get_offload_block_hash(key)) for key in event.keys]
        return self._shape("BlockRemoved", hashes, event.medium, group_idx, _LOCAL, event.tier, reason)

    def _stored(self, event: OffloadingEvent, run: Sequence[tuple[OffloadKey, ChunkMetadata | None]]) -> Any:
        head = run[0][1] or ChunkMetadata()
        return self._shape(
            "BlockStored",
            [self._hash(get_offload_block_hash(key)) for key, _ in run],
            None if head.parent_hash is None else self._hash(head.parent_hash),
            [token for _, metadata in run if metadata is not None for token in metadata.token_ids],
            head.block_size,
            head.lora_id,
            event.medium,
            head.lora_name,
            None,
            get_offload_group_idx(run[0][0]),
            None,
            None,
            _LOCAL,
            event.tier,
        )

    def _hash(self, block_hash: bytes) -> bytes | int:
        return int.from_bytes(block_hash, "big") & _HASH_MASK if self._as_numbers else block_hash

    def _shape(self, kind: str, *values: Any) -> Any:
        if not self._as_map:
            return [kind, *values]
        return dict(zip(_FIELDS[kind], (kind, *values), strict=True))

    def __repr__(self) -> str:
        return f"WireEncoder({'maps' if self._as_map else 'arrays'}, {'int64' if self._as_numbers else 'bytes'})"


def decode(sequence: int, payload: bytes) -> WireBatch:
    """Read a payload, of this library's or of another publisher that speaks the protocol, in either form.

    Raises:
        ArgumentError: it is none.
    """
    try:
        timestamp_s, events, *_ = msgspec.msgpack.decode(payload)
        told = [_decode_event(_by_name(event)) for event in events]
    except (msgspec.DecodeError, ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise ArgumentError(f"message {sequence} is no batch of KV-cache events: {error!r}") from error
    return WireBatch(sequence, timestamp_s, tuple(event for event, _ in told), tuple(found for _, found in told))


def _by_name(event: Any) -> dict[str, Any]:
    if isinstance(event, dict):
        return event
    return dict(zip(_FIELDS[event[0]], event, strict=False))


def _decode_event(fields: dict[str, Any]) -> tuple[OffloadingEvent, tuple[ChunkMetadata | None, ...]]:
    medium = fields.get("medium") or "GPU"
    tier = fields.get("ownership") or str(medium).lower()
    if not (isinstance(medium, str) and isinstance(tier, str)):
        raise TypeError(f"a medium and an owner are names, got {medium!r} and {tier!r}")
    reason = RemovalReason(fields["reason"]) if fields.get("reason") else None
    if fields["type"] == "AllBlocksCleared":
        return OffloadingEvent(EventKind.CLEARED, (), medium, tier, reason), ()
    group_idx = fields.get("group_idx") or 0
    keys = tuple(make_offload_key(_hash_bytes(each), group_idx) for each in fields["block_hashes"])
    if fields["type"] == "BlockRemoved":
        return OffloadingEvent(EventKind.REMOVED, keys, medium, tier, reason), ()
    return OffloadingEvent(EventKind.STORED, keys, medium, tier), _decode_metadata(fields, keys)


def _decode_metadata(fields: dict[str, Any], keys: Sequence[OffloadKey]) -> tuple[ChunkMetadata | None, ...]:
    """Of each key its share of the tokens; a chunk follows the one before it."""
    tokens, block_size = fields["token_ids"], fields["block_size"]
    if not tokens and not block_size:
        return ()
    share = len(tokens) // max(1, len(keys))
    parent = fields["parent_block_hash"]
    parents = [None if parent is None else _hash_bytes(parent), *map(get_offload_block_hash, keys)]
    return tuple(
        ChunkMetadata(
            token_ids=tuple(tokens[index * share : (index + 1) * share]),
            block_size=block_size,
            parent_hash=parents[index],
            lora_id=fields.get("lora_id"),
            lora_name=fields.get("lora_name"),
        )
        for index in range(len(keys))
    )


def _hash_bytes(block_hash: bytes | int) -> bytes:
    return (block_hash & _HASH_MASK).to_bytes(8, "big") if isinstance(block_hash, int) else block_hash


def _chains(
    keys: Sequence[OffloadKey], metadata: Sequence[ChunkMetadata | None]
) -> Iterator[list[tuple[OffloadKey, ChunkMetadata | None]]]:
    """Runs of keys that one event can tell of: each follows the one before it, in blocks of one size.

    A key without metadata says nothing of where it stands, so it only goes with others like it.
    """
    pairs = list(zip(keys, metadata, strict=True))
    numbers, number = [], 0
    for index, (_, now) in enumerate(pairs):
        if index and not _continues(pairs[index - 1], now):
            number += 1
        numbers.append(number)
    for _, run in groupby(zip(numbers, pairs, strict=True), lambda each: each[0]):
        yield [pair for _, pair in run]


def _continues(before: tuple[OffloadKey, ChunkMetadata | None], now: ChunkMetadata | None) -> bool:
    key, previous = before
    if previous is None or now is None:
        return previous is now
    same = (previous.block_size, len(previous.token_ids), previous.lora_id, previous.lora_name)
    return now.parent_hash == get_offload_block_hash(key) and same == (
        now.block_size,
        len(now.token_ids),
        now.lora_id,
        now.lora_name,
    )
