"""Records in files: checksummed frames in segments, of which the oldest goes when there is no room. Blocks.

A segment begins with a magic number; each frame has a head (length of the payload, number of the record, checksum over
number and payload) and a msgpack payload. What follows a frame that is torn or wrong is not read: a kill tears the last
one at most. Knows no thread and no loop.
"""

import fcntl
import os
import struct
from collections.abc import Iterator, Sequence
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from aiokvoffload.base import EventKind, OffloadingEvent, RemovalReason
from aiokvoffload.errors import ArgumentError, BusyError
from aiokvoffload.events.records import ChunkMetadata, EventRecord

try:
    import msgspec
    import xxhash
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"a durable history of events needs {error.name}: pip install 'aiokvoffload[events]'", name=error.name
    ) from error

MAGIC = b"akvevt01"
_HEAD = struct.Struct(">IQQ")
_MAX_PAYLOAD_BYTES = 64 << 20
_SEGMENTS = 8
"""A segment is so much of the room: so much of it is given up at a time."""
_LOCK_NAME = "lock"
_MOST_SEGMENTS = 256
"""Each process begins one of its own."""


class Place(NamedTuple):
    """Where the frame of a record begins, or where it would."""

    segment: int
    offset: int


def encode_frame(record: EventRecord) -> bytes:
    """One record as a frame."""
    event = record.event
    metadata = [
        None if each is None else (each.token_ids, each.block_size, each.parent_hash, each.lora_id, each.lora_name)
        for each in record.metadata
    ]
    reason = None if event.reason is None else event.reason.value
    fields = (event.kind.value, event.medium, event.tier, reason, event.keys)
    try:
        payload = msgspec.msgpack.encode([*fields, metadata])
    except (TypeError, ValueError, OverflowError, RecursionError):
        # The metadata are the caller's: the keys must be kept (fault 27).
        payload = msgspec.msgpack.encode([*fields, ()])
    return _HEAD.pack(len(payload), record.sequence, _checksum(record.sequence, payload)) + payload


def decode_payload(sequence: int, payload: bytes) -> EventRecord:
    """The record in a frame whose checksum was right."""
    kind, medium, tier, reason, keys, metadata = msgspec.msgpack.decode(payload)
    event = OffloadingEvent(
        EventKind(kind), tuple(keys), medium, tier, None if reason is None else RemovalReason(reason)
    )
    return EventRecord(sequence, event, tuple(map(_metadata_of, metadata)))


def _metadata_of(fields: Any) -> ChunkMetadata | None:
    if fields is None:
        return None
    token_ids, block_size, parent_hash, lora_id, lora_name = fields
    return ChunkMetadata(
        token_ids=tuple(token_ids),
        block_size=block_size,
        parent_hash=parent_hash,
        lora_id=lora_id,
        lora_name=lora_name,
    )


def _checksum(sequence: int, payload: bytes) -> int:
    return xxhash.xxh3_64_intdigest(payload, seed=sequence)


class HistoryFiles:
    """The segments in one directory, of which this process is the only owner.

    Args:
        directory: is made if it is not there.
        max_bytes: most bytes of all segments.

    Attributes:
        last: number of the latest record on disk; -1 if there is none.

    Raises:
        ArgumentError: something in it is named like a file of ours and is none: a pipe, say, or a link to nothing.
        BusyError: somebody has it open, in this process or another.
        OSError: the directory cannot be used.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._directory, self._max_bytes = directory, max_bytes
        self._segment_bytes = max(1, max_bytes // _SEGMENTS)
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(directory)
        self._writing: FileIO | None = None
        self._size = 0
        try:
            _require_no_pipe(directory)
            self._segments = self._find_segments()
            self.last = self._find_last()
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def first(self) -> int:
        """Number of the oldest record on disk; one more than `last` if there is none."""
        return self._segments[0] if self._segments else self.last + 1

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(map(self._size_of, self._segments))

    def append(self, records: Sequence[EventRecord]) -> None:
        """Write records behind the others; they are the operating system's when this returns.

        Raises:
            OSError: they cannot be written, or not all of them.
        """
        frames = bytearray()
        for record in records:
            frame = encode_frame(record)
            if self._writing is None or self._size + len(frames) + len(frame) > self._segment_bytes:
                self._write(frames)
                frames.clear()
                self._begin_segment(record.sequence)
            frames += frame
        self._write(frames)
        self.last = records[-1].sequence

    def read(self, first: int, before: int, max_records: int, place: Place | None) -> tuple[list[EventRecord], Place]:
        """Records from number `first` to `before`, exclusively, at most so many, and where the next one begins.

        Args:
            first: number of the first one wanted.
            before: number of the first one not wanted.
            max_records: most records.
            place: where to begin to look, as an earlier call said for this number; `None` if that is not known.
        """
        records: list[EventRecord] = []
        place = place or Place(max((each for each in self._segments if each <= first), default=self.first), len(MAGIC))
        for segment in [each for each in self._segments if each >= place.segment]:
            offset = place.offset if segment == place.segment else len(MAGIC)
            for sequence, payload, end in self._frames(segment, offset):
                if sequence >= before:
                    return records, place
                if sequence >= first:
                    records.append(decode_payload(sequence, payload))
                place = Place(segment, end)
                if len(records) == max_records:
                    return records, place
        return records, place

    def close(self) -> None:
        """Let go of the directory."""
        self._end_segment()
        os.close(self._lock)

    def __repr__(self) -> str:
        return f"HistoryFiles({self._directory}, {len(self._segments)} segments, {self.first} to {self.last})"

    def _write(self, frames: bytes | bytearray) -> None:
        file, rest = self._writing, memoryview(frames)
        try:
            while file is not None and rest:
                rest = rest[file.write(rest) :]
        except OSError:
            self._end_segment()  # what follows a torn frame could not be read
            raise
        self._size += len(frames)

    def _begin_segment(self, first: int) -> None:
        self._end_segment()
        path = self._path(first)
        try:
            self._writing = FileIO(path, "wb", opener=_open_at_once)
            self._size = 0
            self._write(MAGIC)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        self._segments.append(first)
        self._make_room()

    def _end_segment(self) -> None:
        if self._writing is not None:
            self._writing.close()
            self._writing = None

    def _make_room(self) -> None:
        """Give up the oldest segments, so that the newest one can become as big as one may."""
        room = self._max_bytes - self._segment_bytes
        while len(self._segments) > 1 and (self.size_bytes > room or len(self._segments) > _MOST_SEGMENTS):
            self._path(self._segments.pop(0)).unlink(missing_ok=True)

    def _size_of(self, segment: int) -> int:
        try:
            return self._path(segment).stat().st_size
        except FileNotFoundError:  # somebody made room himself, and what comes now must be written all the same
            return 0

    def _find_segments(self) -> list[int]:
        numbers = {int(path.stem) for path in self._directory.glob("*.events") if path.stem.isdecimal()}
        return sorted(number for number in numbers if self._path(number).is_file())

    def _find_last(self) -> int:
        """Number of the last sound record; segments without one are of no use."""
        last = -1
        for segment in list(self._segments):
            numbers = [sequence for sequence, _, _ in self._frames(segment, len(MAGIC))]
            if numbers:
                last = numbers[-1]
            else:
                self._segments.remove(segment)
                self._path(segment).unlink(missing_ok=True)
        return last

    def _frames(self, segment: int, offset: int) -> Iterator[tuple[int, bytes, int]]:
        """Number, payload and end of each sound frame from `offset` on."""
        try:
            with BufferedReader(FileIO(self._path(segment), "rb", opener=_open_at_once)) as file:
                if file.read(len(MAGIC)) != MAGIC:
                    return
                file.seek(offset)
                yield from _sound_frames(file, offset)
        except FileNotFoundError:  # given up for room meanwhile
            return

    def _path(self, segment: int) -> Path:
        return self._directory / f"{segment:020d}.events"


def _sound_frames(file: BinaryIO, offset: int) -> Iterator[tuple[int, bytes, int]]:
    while len(head := file.read(_HEAD.size)) == _HEAD.size:
        length, sequence, checksum = _HEAD.unpack(head)
        payload = file.read(length) if length <= _MAX_PAYLOAD_BYTES else b""
        if len(payload) != length or _checksum(sequence, payload) != checksum:
            return
        offset += _HEAD.size + length
        yield sequence, payload, offset


def _require_no_pipe(directory: Path) -> None:
    """Whoever opens a pipe waits for somebody at its other end, and a link to nothing may lead to one at any time."""
    for path in (directory / _LOCK_NAME, *directory.glob("*.events")):
        if not (path.is_file() or path.is_dir()):
            raise ArgumentError(f"{path} is neither a file nor a folder: remove it, or name another directory")


def _open_at_once(path: str, flags: int) -> int:
    """An opener that does not wait if a pipe was put there since the opening; for files it is the usual one."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)


def _lock(directory: Path) -> int:
    descriptor = _open_at_once(str(directory / _LOCK_NAME), os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise BusyError(
            f"{directory} is in use by another history of events, of this process or another: name another directory"
        ) from error
    return descriptor
