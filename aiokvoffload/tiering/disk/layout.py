"""Where on which disk a slot lies. Knows sizes and files' names, opens nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aiokvoffload.base import TierShape
from aiokvoffload.cpu.common import PAGE_BYTES
from aiokvoffload.errors import ConfigError

HEADER_BYTES = 64 << 10
"""Before the first slot of a file: its identity, and a multiple of every device's block."""
MIN_SLOTS = 2
"""One holds a chunk; another is needed so that a slot is rewritten only when the row of what it held is gone."""


@dataclass(frozen=True, slots=True)
class DiskPool:
    """All slots of one size, spread over the directories like the stripes of a RAID 0.

    Attributes:
        index: of this pool; part of its files' names and rows.
        groups: KV-cache groups whose chunks it keeps.
        chunk_bytes: payload of one chunk on one worker.
        num_workers: rows of a slot.
        num_slots: in all directories together.
        num_stripes: number of directories; slot i lies in directory `i % num_stripes`.
    """

    index: int
    groups: tuple[int, ...]
    chunk_bytes: int
    num_workers: int
    num_slots: int
    num_stripes: int

    @property
    def row_bytes(self) -> int:
        """One worker's part of a slot: its payload, padded to whole pages."""
        return padded(self.chunk_bytes)

    @property
    def slot_bytes(self) -> int:
        """Bytes from one slot to the next."""
        return self.row_bytes * self.num_workers

    @property
    def file_name(self) -> str:
        """Of the file that each directory has."""
        return f"chunks-{self.index}.data"

    def offset_of(self, slot: int) -> int:
        """Where in its directory's file a slot begins."""
        return HEADER_BYTES + slot // self.num_stripes * self.slot_bytes

    def offsets_of(self, slots: Sequence[int]) -> list[int]:
        """The same for each of several slots."""
        slot_bytes, num_stripes = self.slot_bytes, self.num_stripes
        return [HEADER_BYTES + slot // num_stripes * slot_bytes for slot in slots]

    def file_bytes(self, stripe: int) -> int:
        """Size of one directory's file."""
        return HEADER_BYTES + -(-(self.num_slots - stripe) // self.num_stripes) * self.slot_bytes

    def runs(self, slots: Sequence[int], positions: Iterable[int], max_slots: int) -> list[list[int]]:
        """Positions in `slots` of those that one call can move: adjacent in one file, `max_slots` at most."""
        stripes = self.num_stripes
        ordered = sorted(positions, key=slots.__getitem__)
        if stripes > 1:
            ordered.sort(key=lambda position: slots[position] % stripes)
        runs: list[list[int]] = []
        follower = -1
        for position in ordered:
            slot = slots[position]
            if slot != follower or len(runs[-1]) == max_slots:
                runs.append([])
            runs[-1].append(position)
            follower = slot + stripes
        return runs


def padded(size_bytes: int) -> int:
    """The bytes of whole pages that hold so many."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def plan_disk_pools(disk_bytes: int, shape: TierShape, num_stripes: int) -> tuple[DiskPool, ...]:
    """One pool per distinct chunk size; every group has room for as many chunks as every other.

    Raises:
        ConfigError: a pool would get fewer than `MIN_SLOTS` slots; the message says how many bytes are needed.
    """
    chunk_bytes, num_workers = shape.chunk_bytes, shape.num_workers
    chunks_per_group = disk_bytes // (sum(map(padded, chunk_bytes)) * num_workers)
    pools = []
    for index, size in enumerate(dict.fromkeys(chunk_bytes)):
        groups = tuple(group_idx for group_idx, group_bytes in enumerate(chunk_bytes) if group_bytes == size)
        num_slots = chunks_per_group * len(groups)
        if num_slots < MIN_SLOTS:
            needed_bytes = MIN_SLOTS * sum(map(padded, chunk_bytes)) * num_workers
            raise ConfigError(
                f"disk_bytes={disk_bytes} leaves {num_slots} slots for groups {groups}, {MIN_SLOTS} are needed: "
                f"give at least {needed_bytes} bytes"
            )
        pools.append(DiskPool(index, groups, size, num_workers, num_slots, num_stripes))
    return tuple(pools)
