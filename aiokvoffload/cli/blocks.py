"""What an engine would bring along: paged KV memory and an allocator of its blocks.

Knows shapes and who waits for blocks; knows nothing of what the blocks hold or when they may be freed.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from aiokvoffload.base import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor
from aiokvoffload.cli.waiting_line import WaitingLine
from aiokvoffload.errors import ArgumentError, ConfigError, InternalError

WORD_BYTES = 8


def make_pool(device: torch.device, *, num_tensors: int, num_blocks: int, chunk_bytes: int) -> torch.Tensor:
    """KV memory of `num_tensors` layers, uninitialised.

    Returns:
        int64 words of shape (num_tensors, num_blocks, words); layer `t` is `pool[t]`, and `pool[:, b]` is block `b`.

    Raises:
        ArgumentError: a chunk does not divide into whole words of every layer.
        ConfigError: there is not as much memory.
    """
    row_bytes = num_tensors * WORD_BYTES
    if chunk_bytes <= 0 or chunk_bytes % row_bytes:
        raise ArgumentError(
            f"chunk_bytes must be a positive multiple of {row_bytes} "
            f"({num_tensors} layers of {WORD_BYTES}-byte words), got {chunk_bytes}"
        )
    shape = (num_tensors, num_blocks, chunk_bytes // row_bytes)
    with allocating(f"{num_blocks:,} GPU blocks of {chunk_bytes:,} bytes"):
        return torch.empty(shape, dtype=torch.int64, device=device)


@contextlib.contextmanager
def allocating(what: str) -> Iterator[None]:
    """Turn what torch raises for lack of memory into one line about `what` was asked for.

    Raises:
        ConfigError: there is not as much memory.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError
        raise ConfigError(f"{what} do not fit into memory") from error


def in_short(error: RuntimeError) -> str:
    """What torch says for people of a lack of memory: one sentence, without the place in its source."""
    first_line = str(error).partition("\n")[0]
    return re.sub(r"^\[enforce fail at [^]]*\][^.]*\. ", "", first_line).partition(". ")[0]


def as_kv_caches(pool: torch.Tensor) -> CanonicalKVCaches:
    """The pool as the library wants to see it: one tensor per layer, all in one KV-cache group."""
    page_bytes = pool.shape[2] * WORD_BYTES
    return CanonicalKVCaches(
        tensors=[CanonicalKVCacheTensor(layer, page_bytes) for layer in pool],
        group_data_refs=[[CanonicalKVCacheRef(index, page_bytes) for index in range(len(pool))]],
    )


@dataclass(frozen=True, slots=True)
class AllocatorStatistics:
    """Counts of a `BlockAllocator`: blocks free and in use, and requests that wait for blocks."""

    free: int
    in_use: int
    waiting: int


class BlockAllocator:
    """Hands out block ids, all that a request needs or none, first come first served.

    A small request never overtakes a large one, so none starves. The ids freed last are given out first: a block that
    is reused while something still touches it shows soonest that way.

    Args:
        num_blocks: blocks in the pool; their ids are `range(num_blocks)`.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        # The two are the state: ids nobody has, and who waits for some.
        self._free = list(reversed(range(num_blocks)))
        self._line: WaitingLine[list[int]] = WaitingLine(self.free)
        self._in_use: set[int] = set()

    def __repr__(self) -> str:
        return f"BlockAllocator({len(self._free)} free of {self.num_blocks}, {len(self._line)} waiting)"

    def statistics(self) -> AllocatorStatistics:
        """How many blocks are free and in use, and how many requests wait."""
        return AllocatorStatistics(len(self._free), len(self._in_use), len(self._line))

    async def allocate(self, count: int) -> list[int]:
        """Wait until `count` blocks are free and nobody came earlier; a cancelled wait takes none.

        Raises:
            ArgumentError: more blocks are asked for than there are.
        """
        if count > self.num_blocks:
            raise ArgumentError(f"{count} blocks are asked for, the pool has {self.num_blocks}")
        return await self._line.wait(lambda: self._take(count))

    def free(self, block_ids: Sequence[int]) -> None:
        """Give blocks back and serve who waits.

        Raises:
            InternalError: a block is not in use.
        """
        if not self._in_use.issuperset(block_ids) or len(set(block_ids)) != len(block_ids):
            raise InternalError(f"blocks are freed that are not in use: {sorted(set(block_ids) - self._in_use)}")
        self._in_use.difference_update(block_ids)
        self._free.extend(block_ids)
        self._line.serve()

    def _take(self, count: int) -> list[int] | None:
        if count > len(self._free):
            return None
        taken = [self._free.pop() for _ in range(count)]
        self._in_use.update(taken)
        return taken
