"""Who is asked for what: offload keys, requests, and what a lookup says."""

import enum
import operator
from dataclasses import dataclass
from typing import NewType

from aiokvoffload.errors import ArgumentError

OffloadKey = NewType("OffloadKey", bytes)
"""Names one chunk: the chained hash of its last block (equal keys mean equal prefixes), then 4 bytes of group index,
big-endian. Plain bytes: they hash once, compare fast and mean the same in every process."""

_GROUP_BYTES = 4


def make_offload_key(block_hash: bytes, group_idx: int) -> OffloadKey:
    """Pack the chained hash of a chunk's last block and its group index into a key.

    Raises:
        ArgumentError: the hash is empty or not bytes, or the group index does not fit 4 unsigned bytes.
    """
    if not isinstance(block_hash, bytes) or not block_hash:
        raise ArgumentError(f"block_hash must be non-empty bytes, got {block_hash!r}")
    try:
        return OffloadKey(block_hash + operator.index(group_idx).to_bytes(_GROUP_BYTES, "big"))
    except (TypeError, OverflowError) as error:
        raise ArgumentError(f"group_idx must be a whole number in [0, 2**32), got {group_idx!r}") from error


def get_offload_block_hash(key: OffloadKey) -> bytes:
    """The chained block hash inside `key`."""
    return key[:-_GROUP_BYTES]


def get_offload_group_idx(key: OffloadKey) -> int:
    """The KV-cache group index inside `key`.

    Raises:
        ArgumentError: it is too short to hold one.
    """
    if len(key) <= _GROUP_BYTES:
        raise ArgumentError(f"key must be a hash and {_GROUP_BYTES} bytes of group index, got {key!r}")
    return int.from_bytes(key[-_GROUP_BYTES:], "big")


@dataclass(frozen=True, slots=True)
class ReqContext:
    """Who asks: one request, from its first lookup to its end. `req_id` is unique among live requests."""

    req_id: str


class LookupResult(enum.Enum):
    """What a lookup says. It is advice: until `prepare_load` pins a key, anything may be evicted (I3)."""

    HIT = "hit"
    HIT_PENDING = "hit_pending"
    """Being written or promoted; a load of it is accepted and waits for the bytes."""
    MISS = "miss"
