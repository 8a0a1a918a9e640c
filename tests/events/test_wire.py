"""The protocol as others read it: strict decoders declared from its description, and what others have sent."""

from typing import Any

import msgspec
import pytest

from aiokvoffload.base import EventKind, OffloadingEvent, RemovalReason, make_offload_key
from aiokvoffload.errors import ArgumentError
from aiokvoffload.events import ChunkMetadata, EventRecord
from aiokvoffload.events.wire import (
    HashFormat,
    WireEncoder,
    WireFormat,
    decode,
    pack_sequence,
    unpack_sequence,
)


class ArrayEvent(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    """What subscribers declared until the middle of 2026."""


class ArrayStored(ArrayEvent, tag="BlockStored"):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class ArrayRemoved(ArrayEvent, tag="BlockRemoved"):
    block_hashes: list[bytes | int]
    medium: str | None


class ArrayCleared(ArrayEvent, tag="AllBlocksCleared"):
    pass


class ArrayBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[ArrayStored | ArrayRemoved | ArrayCleared]
    data_parallel_rank: int | None = None


class MapEvent(msgspec.Struct, omit_defaults=True, tag=True):
    """What they declare since."""


class MapStored(MapEvent, tag="BlockStored"):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class MapRemoved(MapEvent, tag="BlockRemoved"):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None


class MapCleared(MapEvent, tag="AllBlocksCleared"):
    pass


class MapBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[MapStored | MapRemoved | MapCleared]
    data_parallel_rank: int | None = None


KEYS = tuple(make_offload_key(bytes([number]) * 32, 2) for number in range(3))
ABOUT = tuple(
    ChunkMetadata(token_ids=(number, number), block_size=2, parent_hash=KEYS[number - 1][:-4] if number else None)
    for number in range(3)
)
RECORDS = [
    EventRecord(5, OffloadingEvent(EventKind.STORED, KEYS, "CPU", "cpu"), ABOUT),
    EventRecord(5, OffloadingEvent(EventKind.REMOVED, KEYS[:1], "DISK", "disk", RemovalReason.EVICTED)),
    EventRecord(5, OffloadingEvent(EventKind.CLEARED, (), "DISK", "disk", RemovalReason.RESET)),
]


@pytest.mark.parametrize(("wire_format", "batch"), [(WireFormat.ARRAY, ArrayBatch), (WireFormat.MAP, MapBatch)])
def test_strict_readers_of_both_forms_understand_every_event(wire_format: WireFormat, batch: Any) -> None:
    payload = WireEncoder(wire_format, data_parallel_rank=1).encode(RECORDS, 1.5)
    read = msgspec.msgpack.decode(payload, type=batch)
    stored, removed, cleared = read.events
    assert (read.ts, read.data_parallel_rank) == (1.5, 1)
    assert (stored.block_hashes, stored.parent_block_hash) == ([key[:-4] for key in KEYS], None)
    assert (stored.token_ids, stored.block_size, stored.medium) == ([0, 0, 1, 1, 2, 2], 2, "CPU")
    assert (removed.block_hashes, removed.medium) == ([KEYS[0][:-4]], "DISK")
    assert type(cleared).__name__ in {"ArrayCleared", "MapCleared"}


@pytest.mark.parametrize("wire_format", WireFormat)
def test_what_is_written_is_read_again(wire_format: WireFormat) -> None:
    read = decode(5, WireEncoder(wire_format).encode(RECORDS, 1.5))
    assert list(read.records) == RECORDS


def test_hashes_as_numbers_are_their_last_8_bytes() -> None:
    payload = WireEncoder(hash_format=HashFormat.INT64).encode(RECORDS[:1], 0.0)
    assert msgspec.msgpack.decode(payload)[1][0][1][1] == int.from_bytes(bytes([1]) * 8, "big")
    assert decode(0, payload).events[0].keys[1] == make_offload_key(bytes([1]) * 8, 2)


def test_what_vllm_sends_is_read() -> None:
    """An event of version 0.26, as its users have reported it; and one of the first, with fewer fields."""
    event = {
        "type": "BlockStored",
        "block_hashes": [15760518052499183552],
        "parent_block_hash": None,
        "token_ids": list(range(16)),
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    (read,) = decode(0, msgspec.msgpack.encode([1789095808.8, [event], 0])).records
    assert (read.event.medium, read.event.tier, len(read.event.keys)) == ("GPU", "gpu", 1)
    assert read.metadata == (ChunkMetadata(token_ids=tuple(range(16)), block_size=16),)
    early = [1.0, [["BlockStored", [-7, 7], 3, [1, 2], 1, None], ["BlockRemoved", [7]], ["AllBlocksCleared"]]]
    stored, removed, cleared = decode(1, msgspec.msgpack.encode(early)).events
    assert (len(stored.keys), removed.keys, cleared.kind) == (2, stored.keys[1:], EventKind.CLEARED)


@pytest.mark.parametrize(
    "payload",
    [
        *(b"", b"\xc1", b"\x01", msgspec.msgpack.encode([1.0, [["Unknown", 1]]]), msgspec.msgpack.encode([1.0, [{}]])),
        msgspec.msgpack.encode([1.0, [["BlockRemoved", [7], "CPU", 0, "LOCAL", ["cpu"]]]]),
        msgspec.msgpack.encode([1.0, [["AllBlocksCleared", b"CPU"]]]),
        b"\x91" * 200_000,
    ],
    ids=["empty", "invalid", "number", "unknown", "nameless", "owner", "medium", "nested"],
)
def test_what_is_no_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(ArgumentError, match="message 3 is no batch of KV-cache events"):
        decode(3, payload)


def test_a_number_is_8_bytes_and_the_end_is_minus_one() -> None:
    assert (pack_sequence(258), pack_sequence(-1)) == (b"\0\0\0\0\0\0\x01\x02", b"\xff" * 8)
    assert unpack_sequence(b"\xff" * 8) == -1
    with pytest.raises(ArgumentError, match=f"at most {(1 << 63) - 1}, got {1 << 63}"):
        pack_sequence(1 << 63)
    with pytest.raises(ArgumentError, match="a sequence number is 8 bytes, got 3"):
        unpack_sequence(b"abc")
