"""The engine's KV blocks: who uses them, and what those that nobody uses still hold.

Knows ids, keys and counts; knows nothing of tensors, of copies, or of when a user has ended.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aiokvoffload.base import OffloadKey, get_offload_block_hash, make_offload_key
from aiokvoffload.cli.waiting_line import WaitingLine
from aiokvoffload.errors import ArgumentError, InternalError


def chain_keys(tokens: Sequence[int], block_tokens: int, *, parent: OffloadKey | None = None) -> list[OffloadKey]:
    """One key for each whole block of `tokens`: the SHA-256 of the block's tokens and of the key before it.

    So equal keys mean equal prefixes, in every process.

    Args:
        tokens: from a block's start on.
        block_tokens: tokens of a block.
        parent: the key of the block before the first, if there is one.
    """
    data, block_bytes = np.asarray(tokens, dtype=np.int32).tobytes(), block_tokens * 4
    digest = b"" if parent is None else get_offload_block_hash(parent)
    keys = []
    for end in range(block_bytes, len(data) + 1, block_bytes):
        digest = hashlib.sha256(digest + data[end - block_bytes : end]).digest()
        keys.append(make_offload_key(digest, 0))
    return keys


class Lease:
    """The blocks of one request. They go back when the last of its users has released them.

    Attributes:
        block_ids: in sequence order.
        table: the same, as steps take them.
        num_cached: leading blocks that already hold what their keys say.
    """

    def __init__(self, pool: "PagePool", block_ids: list[int], num_cached: int) -> None:
        self.block_ids = block_ids
        self.table = np.array(block_ids, dtype=np.int32)
        self.num_cached = num_cached
        self._pool = pool
        self._users = 1

    def hold(self) -> None:
        """One user more: a step of the model, say, which goes on when the request is cancelled."""
        self._users += 1

    def release(self) -> None:
        """One user less.

        Raises:
            InternalError: it has been released by all.
        """
        if self._users == 0:
            raise InternalError("a lease was released more often than it was held")
        self._users -= 1
        if self._users == 0:
            self._pool._give_back(self.block_ids)

    def __repr__(self) -> str:
        return f"Lease({len(self.block_ids)} blocks, {self._users} users)"


@dataclass(frozen=True, slots=True)
class PagePoolStatistics:
    """Counts of a `PagePool`: blocks in use, blocks that nobody uses but hold a key, and requests that wait."""

    in_use: int
    cached: int
    waiting: int


class PagePool:
    """Hands out blocks, first come first served, and finds those that already hold a prefix.

    A request gets all its blocks at once, so two that grow cannot wait for each other.

    Args:
        num_blocks: their ids are `range(num_blocks)`.
        unit: cached blocks are used in multiples of this many.
    """

    def __init__(self, num_blocks: int, *, unit: int = 1) -> None:
        self.num_blocks = num_blocks
        self._unit = unit
        # These are the state. Idle blocks stand in the order in which they are taken.
        self._users = [0] * num_blocks
        self._idle: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._block_of: dict[OffloadKey, int] = {}
        self._key_of: dict[int, OffloadKey] = {}
        self._line = WaitingLine(Lease.release)

    async def lease(self, keys: Sequence[OffloadKey], num_blocks: int) -> Lease:
        """Wait until `num_blocks` blocks can be had, those included that hold the leading ones of `keys`.

        Raises:
            ArgumentError: there are not so many.
        """
        if num_blocks > self.num_blocks:
            raise ArgumentError(f"num_blocks must be at most {self.num_blocks}, all there are, got {num_blocks}")
        return await self._line.wait(lambda: self._grant(keys, num_blocks))

    def publish(self, keys: Sequence[OffloadKey], block_ids: Sequence[int]) -> None:
        """These blocks hold what their keys say, from now until they are handed out anew."""
        for key, block_id in zip(keys, block_ids, strict=True):
            if key not in self._block_of and block_id not in self._key_of:
                self._block_of[key], self._key_of[block_id] = block_id, key

    def forget_idle(self) -> None:
        """What nobody uses is not found any more, as if others had needed the blocks."""
        for block_id in self._idle:
            self._forget(block_id)

    def statistics(self) -> PagePoolStatistics:
        """Counts as they are now."""
        cached = sum(block_id in self._key_of for block_id in self._idle)
        return PagePoolStatistics(self.num_blocks - len(self._idle), cached, len(self._line))

    def _grant(self, keys: Sequence[OffloadKey], num_blocks: int) -> Lease | None:
        cached = self._match(keys)
        needed = num_blocks - len(cached)
        if needed > len(self._idle) - sum(block_id in self._idle for block_id in cached):
            return None
        return self._take(cached, needed)

    def _match(self, keys: Sequence[OffloadKey]) -> list[int]:
        blocks: list[int] = []
        for key in keys:
            if (block_id := self._block_of.get(key)) is None:
                break
            blocks.append(block_id)
        return blocks[: len(blocks) - len(blocks) % self._unit]

    def _take(self, cached: list[int], needed: int) -> Lease:
        for block_id in cached:
            self._users[block_id] += 1
            self._idle.pop(block_id, None)
        fresh = [self._idle.popitem(last=False)[0] for _ in range(needed)]
        for block_id in fresh:
            self._users[block_id] = 1
            self._forget(block_id)
        return Lease(self, cached + fresh, len(cached))

    def _give_back(self, block_ids: Sequence[int]) -> None:
        # The tail first: without its head it is of no use to anyone.
        for block_id in reversed(block_ids):
            self._users[block_id] -= 1
            if self._users[block_id] == 0:
                self._idle[block_id] = None
                self._idle.move_to_end(block_id, last=block_id in self._key_of)
        self._line.serve()

    def _forget(self, block_id: int) -> None:
        if (key := self._key_of.pop(block_id, None)) is not None:
            del self._block_of[key]

    def __repr__(self) -> str:
        return f"<PagePool {len(self._idle)} idle of {self.num_blocks}, {len(self._line)} waiting>"
