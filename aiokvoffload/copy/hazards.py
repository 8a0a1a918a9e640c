"""Which earlier jobs a job must wait for: those in flight that share a slot or a GPU block with it (I8).

Knows who touched what last, per stream; within a stream the device keeps the order anyway. Knows nothing of events.
"""

from collections.abc import Sequence

import numpy as np

from aiokvoffload.base import highest
from aiokvoffload.base.ids import zero_table
from aiokvoffload.copy.direction import Direction
from aiokvoffload.copy.selection import Selection


class HazardTable:
    """Remembers, for each stream, the latest job that touched each slot and each physical block.

    Jobs are numbered from 1 in order of submission. As each stream ends its jobs in order, waiting for the latest one
    that conflicts is waiting for all of that stream that do.

    Args:
        directions: of each stream.
        num_slots: size of the table of all slots.
        num_physical_blocks: size of the table of physical blocks.
    """

    def __init__(self, directions: Sequence[Direction], *, num_slots: int, num_physical_blocks: int) -> None:
        self._directions = tuple(directions)
        self._slots = zero_table(len(directions), num_slots, dtype=np.int64)
        self._blocks = zero_table(len(directions), num_physical_blocks, dtype=np.int64)
        self._latest = [0] * len(directions)

    def enter(self, number: int, stream: int, selection: Selection, ended: Sequence[int]) -> list[int]:
        """Note job `number` and say which jobs it must wait for.

        Args:
            number: above all earlier ones.
            stream: index of the stream it runs on.
            selection: what it touches.
            ended: for each stream, the number of the latest job that has ended there.

        Returns:
            At most one job number for each other stream.
        """
        waits_for = []
        for other, latest in enumerate(self._latest):
            if other == stream or latest <= ended[other]:
                continue
            newest = self._newest_conflict(stream, other, selection)
            if newest > ended[other]:
                waits_for.append(newest)
        self._slots[stream][selection.slots] = number
        self._blocks[stream][selection.physical_blocks] = number
        self._latest[stream] = number
        return waits_for

    def _newest_conflict(self, stream: int, other: int, selection: Selection) -> int:
        """Stores write slots and read blocks, loads the other way round; two that only read do not conflict."""
        directions = {self._directions[stream], self._directions[other]}
        newest = 0
        if directions != {Direction.LOAD} and len(selection.slots):
            newest = highest(self._slots[other][selection.slots])
        if directions != {Direction.STORE} and len(selection.physical_blocks):
            newest = max(newest, highest(self._blocks[other][selection.physical_blocks]))
        return newest
