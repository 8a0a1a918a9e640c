"""All keys that are resident at one moment, gathered over many passes of the loop.

The tiers' indexes are the truth, and a copy of them that is kept up to date would cost every event its time and every
key its memory, for nobody most of the time. So they are read when somebody asks: part by part, since a million keys at
once would block the loop (I10). A part is true when it is read. What happens to its keys until the last part has been
read is put right from the events published meanwhile: the latest of them that names a key says what it is.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterator

from aiokvoffload.base import EventKind, OffloadKey, ResidentPart
from aiokvoffload.errors import BusyError
from aiokvoffload.events.records import EventRecord, Snapshot, TierSnapshot
from aiokvoffload.events.timeline import Timeline

ResidentSource = Callable[[], Iterator[ResidentPart]]
"""Gives the resident keys part by part. Asking for a part publishes first whatever has become true by then."""

_ATTEMPTS = 3
_APPLIED_PER_PASS = 64


class _Changes:
    """What happened in one tier since the first part was read."""

    __slots__ = ("cleared_at", "is_resident")

    def __init__(self) -> None:
        self.cleared_at = -1
        self.is_resident: dict[OffloadKey, bool] = {}

    def apply(self, record: EventRecord) -> None:
        if record.event.kind is EventKind.CLEARED:
            self.cleared_at, self.is_resident = record.sequence, {}
        else:
            self.is_resident.update(dict.fromkeys(record.event.keys, record.event.kind is EventKind.STORED))


class _Gathering:
    """One attempt."""

    def __init__(self, timeline: Timeline, media: Collection[str] | None) -> None:
        self._timeline, self._media = timeline, media
        self._next = timeline.next
        self._parts: dict[tuple[str, str], deque[tuple[int, ResidentPart]]] = {}
        self._changes: dict[str, _Changes] = {}

    async def read(self, source: ResidentSource) -> bool:
        """Read all parts; `False` if more was published meanwhile than is kept."""
        for part in source():
            if self._media is None or part.medium in self._media:
                self._parts.setdefault((part.medium, part.tier), deque()).append((self._timeline.latest, part))
            if self._next < self._timeline.first:
                return False
            self._apply(_APPLIED_PER_PASS)
            await asyncio.sleep(0)
        # It ends at a moment, between two passes: somebody may publish in every one.
        while self._timeline.next - self._next > _APPLIED_PER_PASS:
            if self._next < self._timeline.first:
                return False
            self._apply(_APPLIED_PER_PASS)
            await asyncio.sleep(0)
        if self._next < self._timeline.first:
            return False
        self._apply(_APPLIED_PER_PASS)
        return True

    def _apply(self, max_records: int) -> None:
        last = min(self._timeline.next, self._next + max_records)
        for number in range(self._next, last):
            record = self._timeline.get(number)
            event = record.event
            if self._media is None or event.medium in self._media:
                self._changes.setdefault(event.tier, _Changes()).apply(record)
        self._next = last

    async def result(self) -> Snapshot:
        """The snapshot as of now; later events do not matter to it."""
        sequence = self._next - 1
        tiers = []
        for (medium, tier), parts in self._parts.items():
            tiers.append(TierSnapshot(medium, tier, await self._exact(parts, self._changes.get(tier, _Changes()))))
        return Snapshot(sequence, tuple(tiers))

    async def _exact(
        self, parts: deque[tuple[int, ResidentPart]], changes: _Changes
    ) -> tuple[tuple[OffloadKey, ...], ...]:
        changed, exact = changes.is_resident, []
        while parts:  # and not all at once in the end: letting go of a million takes ten milliseconds
            read_at, part = parts.popleft()
            if read_at >= changes.cleared_at:
                exact.append(tuple(key for key in part.keys if key not in changed) if changed else tuple(part.keys))
                await asyncio.sleep(0)
        exact.append(tuple(key for key, is_resident in changed.items() if is_resident))
        return tuple(part for part in exact if part)


async def gather_snapshot(timeline: Timeline, source: ResidentSource, media: Collection[str] | None) -> Snapshot:
    """Say which keys are resident.

    Raises:
        BusyError: each time, more was published meanwhile than the history holds.
    """
    for _ in range(_ATTEMPTS):
        gathering = _Gathering(timeline, media)
        if await gathering.read(source):
            return await gathering.result()
    raise BusyError(
        f"snapshot: {_ATTEMPTS} times more than {timeline.max_records} records were published while it was taken: "
        "keep more of them (max_pending_events)"
    )
