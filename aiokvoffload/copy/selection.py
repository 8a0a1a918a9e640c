"""From what a caller asked to ids that can be trusted: every check of a submission, before anything moves.

Knows the limits of blocks and slots and how chunks cut up a group's blocks. Knows no addresses' contents and no order
between jobs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aiokvoffload.base import GPULoadStoreSpec, Ids, highest
from aiokvoffload.base.ids import SHORT, zero_table
from aiokvoffload.copy.direction import Direction
from aiokvoffload.copy.routes import Route
from aiokvoffload.errors import ArgumentError

_POSITIONS = np.arange(4096, dtype=np.int32)
"""To be cut from, since making such an array gives up the interpreter (see `base.ids`)."""


class GroupPart(NamedTuple):
    """One group's share of a selection: ranges of its blocks and chunks, and leading blocks left out of the first."""

    route: Route
    blocks: slice
    chunks: slice
    skipped_blocks: int


@dataclass(frozen=True, slots=True)
class Selection:
    """A checked job. Owns its arrays: nothing that the caller changes afterwards reaches them (fault 39).

    Attributes:
        block_ids: all blocks, groups in order.
        chunk_ids: all slots, groups in order.
        parts: one entry for each group that has blocks.
        physical_blocks: the blocks as positions in the table of `KVCacheLayout`.
        slots: the slots as positions in the table of all slots.
        size_bytes: bytes that the job moves.
    """

    block_ids: Ids
    chunk_ids: Ids
    parts: tuple[GroupPart, ...]
    physical_blocks: Ids
    slots: Ids
    size_bytes: int

    @property
    def num_fragments(self) -> int:
        """Pieces of blocks that it moves; adjacent ones may still be merged."""
        return sum((part.blocks.stop - part.blocks.start) * len(part.route.layout.base_ptrs) for part in self.parts)


class Selector:
    """Checks submissions against one worker's memory.

    Args:
        routes: one for each group.
        num_physical_blocks: size of the table of physical blocks.
        num_slots: size of the table of all slots.
    """

    def __init__(self, routes: Sequence[Route], num_physical_blocks: int, num_slots: int) -> None:
        self._routes = tuple(routes)
        self._block_marks = zero_table(num_physical_blocks, dtype=np.int32)
        self._slot_marks = zero_table(num_slots, dtype=np.int32)

    def fragments_per_chunk(self, group_idx: int) -> int:
        """Blocks of a chunk times tensors of a block.

        Raises:
            ArgumentError: there is no such group.
        """
        if not 0 <= group_idx < len(self._routes):
            raise ArgumentError(f"group_idx must be in [0, {len(self._routes)}), got {group_idx}")
        route = self._routes[group_idx]
        return route.blocks_per_chunk * len(route.layout.base_ptrs)

    def select(self, direction: Direction, blocks: GPULoadStoreSpec, chunk_ids: Ids) -> Selection:
        """Check one job and copy its ids.

        Raises:
            ArgumentError: the message names the argument, the value and the limit.
        """
        block_name, chunk_name = ("src", "dst") if direction is Direction.STORE else ("dst", "src")
        physical_blocks = self.check_blocks(blocks, block_name)
        parts = self._parts(direction, blocks, block_name)
        num_chunks = parts[-1].chunks.stop if parts else 0
        if num_chunks != len(chunk_ids):
            raise ArgumentError(
                f"{chunk_name}.chunk_ids must hold the {num_chunks} chunks that the blocks of {block_name} lie in, "
                f"got {len(chunk_ids)}"
            )
        slots = self._check_slots(direction, parts, chunk_ids, f"{chunk_name}.chunk_ids")
        return Selection(
            block_ids=blocks.block_ids.copy(),
            chunk_ids=chunk_ids.copy(),
            parts=parts,
            physical_blocks=physical_blocks,
            slots=slots,
            size_bytes=sum((part.blocks.stop - part.blocks.start) * part.route.layout.block_bytes for part in parts),
        )

    def check_blocks(self, blocks: GPULoadStoreSpec, name: str) -> Ids:
        """The blocks as positions in the table of physical blocks.

        Raises:
            ArgumentError: an id is out of range or repeated, there is another number of groups, or it is something
                else altogether.
        """
        if not isinstance(blocks, GPULoadStoreSpec):
            raise ArgumentError(f"{name} must be a GPULoadStoreSpec, got {blocks!r}")
        if len(blocks.group_sizes) != len(self._routes):
            raise ArgumentError(
                f"{name}.group_sizes must give one size for each of {len(self._routes)} groups, "
                f"got {blocks.group_sizes}"
            )
        table_parts, start = [], 0
        for group_idx, (route, size) in enumerate(zip(self._routes, blocks.group_sizes, strict=True)):
            ids = blocks.block_ids[start : start + size]
            start += size
            _check_range(f"{name}.block_ids of group {group_idx}", ids, route.layout.num_blocks)
            table_parts += [ids + space if space else ids for space in route.layout.spaces]
        # A copy, also of a single part: the ids are the caller's.
        physical_blocks = np.concatenate(table_parts) if len(table_parts) != 1 else table_parts[0].copy()
        if (position := _first_repeat(physical_blocks, self._block_marks)) is not None:
            raise ArgumentError(
                f"{name}.block_ids must not name a block twice, got {self._block_id(int(physical_blocks[position]))}"
            )
        return physical_blocks

    def _block_id(self, physical_block: int) -> int:
        starts = {space for route in self._routes for space in route.layout.spaces}
        return physical_block - max(start for start in starts if start <= physical_block)

    def _parts(self, direction: Direction, blocks: GPULoadStoreSpec, name: str) -> tuple[GroupPart, ...]:
        parts, block_start, chunk_start = [], 0, 0
        for group_idx, (route, size) in enumerate(zip(self._routes, blocks.group_sizes, strict=True)):
            skipped = blocks.block_indices[group_idx] % route.blocks_per_chunk
            if direction is Direction.STORE and (skipped or size % route.blocks_per_chunk):
                raise ArgumentError(
                    f"{name} must cover whole chunks of {route.blocks_per_chunk} blocks in group {group_idx}, "
                    f"got {size} blocks from index {blocks.block_indices[group_idx]}"
                )
            if size:
                num_chunks = -(-(skipped + size) // route.blocks_per_chunk)
                block_range = slice(block_start, block_start + size)
                parts.append(GroupPart(route, block_range, slice(chunk_start, chunk_start + num_chunks), skipped))
                block_start, chunk_start = block_range.stop, chunk_start + num_chunks
        return tuple(parts)

    def _check_slots(self, direction: Direction, parts: Sequence[GroupPart], chunk_ids: Ids, name: str) -> Ids:
        if not parts:
            return np.empty(0, dtype=np.int64)
        per_part = []
        for part in parts:
            ids = chunk_ids[part.chunks]
            _check_range(name, ids, part.route.num_slots)
            per_part.append(ids + part.route.first_slot)
        slots = np.concatenate(per_part) if len(per_part) != 1 else per_part[0]
        # A store writes its slots, so none may repeat; a load reads, and groups of one pool may read the same slot.
        for checked in [slots] if direction is Direction.STORE else per_part:
            if (position := _first_repeat(checked, self._slot_marks)) is not None:
                raise ArgumentError(
                    f"{name} must not name a slot twice, got {self._slot_id(parts, int(checked[position]))}"
                )
        return slots

    @staticmethod
    def _slot_id(parts: Sequence[GroupPart], slot: int) -> int:
        return slot - max(part.route.first_slot for part in parts if part.route.first_slot <= slot)


def _check_range(name: str, ids: Ids, limit: int) -> None:
    # Seen as unsigned, a negative number is a large one: one pass instead of two.
    if len(ids) and highest(ids.view(np.uint64)) >= limit:
        position = int(((ids < 0) | (ids >= limit)).argmax())
        raise ArgumentError(f"{name} must be in [0, {limit}), got {int(ids[position])} at index {position}")


def _first_repeat(indices: Ids, marks: npt.NDArray[np.int32]) -> int | None:
    """Position of an entry that occurs again later; of many, found by writing positions through them: no sort."""
    if len(indices) <= SHORT and len(set(indices.tolist())) == len(indices):
        return None
    positions = (
        _POSITIONS[: len(indices)] if len(indices) <= len(_POSITIONS) else np.arange(len(indices), dtype=np.int32)
    )
    marks[indices] = positions
    found = marks[indices]
    if found.tobytes() == positions.tobytes():  # an array of answers, and counting them, takes twice as long
        return None
    return int((found != positions).argmax())
