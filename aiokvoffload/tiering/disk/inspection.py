"""What is in a directory, for whoever only wants to look. Reads the index and the chunks; changes neither."""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiokvoffload.errors import TierError
from aiokvoffload.tiering.disk.checksum import CHECKSUM_BYTES, Checksummer
from aiokvoffload.tiering.disk.damage import DAMAGE_ERRORS, is_damage, unreadable
from aiokvoffload.tiering.disk.description import Description, read_description
from aiokvoffload.tiering.disk.directory import unowned
from aiokvoffload.tiering.disk.layout import HEADER_BYTES, DiskPool
from aiokvoffload.tiering.disk.ranks import chain_of, highest_rank
from aiokvoffload.tiering.disk.reading import read_index
from aiokvoffload.tiering.disk.room import size_of
from aiokvoffload.tiering.disk.rows import FORMAT_VERSION, INDEX_NAME, MAX_KEY_BYTES, Row, read_rows, require_own

_BATCH_ROWS = 256
_MOST_BYTES = 1 << 62
"""No file is so long, and beyond it an offset is none to the operating system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolInspection:
    """One pool: its groups, the payload of a chunk on one worker, its chunks, and the slots its files have room for."""

    groups: tuple[int, ...]
    chunk_bytes: int
    chunks: int
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What a directory's index says.

    Attributes:
        directory: the first one of the tier.
        format_version: of what lies there.
        namespace: that it was filled under.
        num_workers: rows of a slot.
        num_directories: over which chunks are striped.
        created_s: when it was made, in seconds since 1970.
        first_stored_s: when the earliest chunk was stored that is still there; `None` if there is none.
        last_stored_s: when the latest was.
        payload_bytes: of all chunks, padding left out.
        index_bytes: size of the index and its log.
        pools: one entry per pool.
    """

    directory: str
    format_version: int
    namespace: str
    num_workers: int
    num_directories: int
    created_s: int
    first_stored_s: float | None
    last_stored_s: float | None
    payload_bytes: int
    index_bytes: int
    pools: tuple[PoolInspection, ...]

    @property
    def chunks(self) -> int:
        """In all pools."""
        return sum(pool.chunks for pool in self.pools)


def inspect_directory(path: Path) -> Inspection:
    """Look at what lies in the first directory of a tier, in use or not.

    Raises:
        TierError: there is no index, or none of this library that can be read.
    """
    index = path / INDEX_NAME
    if not index.is_file():
        raise TierError(f"{path} holds no disk tier: there is no {INDEX_NAME}; name a tier's first directory")

    def look(connection: sqlite3.Connection) -> Inspection:
        require_own(connection, index)
        return _inspect(connection, path)

    try:
        return read_index(index, look)
    except DAMAGE_ERRORS as error:
        raise _explained(index, error) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """How reading everything ended: chunks that are right, that are not what was stored, that cannot be read."""

    right: int
    corrupt: int
    unreadable: int

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.corrupt or self.unreadable)


def verify_directories(paths: Sequence[Path], *, on_checked: Callable[[], None] = lambda: None) -> Verification:
    """Read and check every chunk; wrong ones stay where they are, and are misses when they are loaded.

    The directories may be read-only; nothing is written.

    Args:
        paths: all directories of the tier, in the order in which they are configured.
        on_checked: called after each chunk.

    Raises:
        TierError: the tier is in use, its index cannot be read, or it lies in another number of directories.
    """
    index = paths[0] / INDEX_NAME

    def check(connection: sqlite3.Connection) -> Verification:
        require_own(connection, index)
        description, _, _ = read_description(connection)
        if len(paths) != description.num_directories:
            raise TierError(f"{paths[0]} is one of {description.num_directories} directories: name all, in order")
        return _verify(connection, description, paths, on_checked)

    with contextlib.ExitStack() as undo:
        for path in paths:
            undo.enter_context(unowned(path))
        try:
            return read_index(index, check)
        except DAMAGE_ERRORS as error:
            raise _explained(index, error) from error


def _explained(index: Path, error: Exception) -> TierError:
    if not is_damage(error):
        return unreadable(index, error)
    return TierError(f"{index} is damaged: {error}; a tier that is opened there begins empty")


def _verify(
    connection: sqlite3.Connection, description: Description, paths: Sequence[Path], on_checked: Callable[[], None]
) -> Verification:
    checker = _Checker(description, paths)
    right = corrupt = unreadable_rows = 0
    for rows in read_rows(connection, _BATCH_ROWS):
        for row in rows:
            try:
                is_right = checker.is_right(row)
                right += is_right
                corrupt += not is_right
            except OSError:
                unreadable_rows += 1
            on_checked()
    return Verification(right=right, corrupt=corrupt, unreadable=unreadable_rows)


class _Checker:
    """Reads the chunks of rows, into buffers of its own.

    Raises:
        sqlite3.DatabaseError: chunks are said to be so big that there is no memory for one.
    """

    def __init__(self, description: Description, paths: Sequence[Path]) -> None:
        self._paths, self._checksummer = paths, Checksummer(description.namespace)
        self._pools = [_layout_of(description, index) for index in range(len(set(description.chunk_bytes)))]
        try:
            self._buffers = [_buffers_of(pool) for pool in self._pools]
        except MemoryError as error:
            raise sqlite3.DatabaseError(f"no memory for chunks of {description.chunk_bytes} bytes") from error

    def is_right(self, row: Row) -> bool:
        """Whether a row makes sense, and what its slot holds is what was stored.

        Raises:
            OSError: it cannot be read.
        """
        if not self._makes_sense(row):
            return False
        pool, views = self._pools[row.pool], self._buffers[row.pool]
        _read(self._paths[row.slot % len(self._paths)] / pool.file_name, pool.offset_of(row.slot), views)
        return self._checksummer.digest(row.key, [view[: pool.chunk_bytes] for view in views]) == row.checksum

    def _makes_sense(self, row: Row) -> bool:
        return (
            all(isinstance(number, int) for number in (row.pool, row.slot, row.rank))
            and all(isinstance(text, bytes) for text in (row.key, row.checksum))
            and 0 <= row.pool < len(self._pools)
            and row.slot >= 0
            and self._pools[row.pool].offset_of(row.slot) < _MOST_BYTES
            and 0 <= row.rank <= highest_rank()
            and len(row.key) <= MAX_KEY_BYTES
            and len(row.checksum) == CHECKSUM_BYTES
        )


def _layout_of(description: Description, index: int) -> DiskPool:
    chunk_bytes = list(dict.fromkeys(description.chunk_bytes))[index]
    return DiskPool(index, (), chunk_bytes, description.num_workers, 0, description.num_directories)


def _buffers_of(pool: DiskPool) -> list[memoryview]:
    """A buffer for each row of one slot, padding included."""
    return [memoryview(bytearray(pool.row_bytes)) for _ in range(pool.num_workers)]


def _read(path: Path, offset: int, views: Sequence[memoryview]) -> None:
    with path.open("rb", buffering=0) as file:
        os.preadv(file.fileno(), views, offset)  # what a short read leaves as it was has another checksum


def _inspect(connection: sqlite3.Connection, path: Path) -> Inspection:
    description, _, created_s = read_description(connection)
    counts = dict(connection.execute("SELECT pool, COUNT(*) FROM chunks GROUP BY pool"))
    ranks = "SELECT MIN(rank), MAX(rank) FROM chunks WHERE typeof(rank) = 'integer' AND rank BETWEEN 0 AND ?"
    first, last = connection.execute(ranks, (highest_rank(),)).fetchone()
    pools = tuple(
        PoolInspection(
            groups=tuple(group for group, size in enumerate(description.chunk_bytes) if size == chunk_bytes),
            chunk_bytes=chunk_bytes,
            chunks=counts.get(index, 0),
            slots=_count_slots(path, _layout_of(description, index)),
        )
        for index, chunk_bytes in enumerate(dict.fromkeys(description.chunk_bytes))
    )
    return Inspection(
        directory=str(path),
        format_version=FORMAT_VERSION,
        namespace=description.namespace,
        num_workers=description.num_workers,
        num_directories=description.num_directories,
        created_s=created_s,
        first_stored_s=None if first is None else chain_of(first) / 1000,
        last_stored_s=None if last is None else chain_of(last) / 1000,
        payload_bytes=sum(pool.chunks * pool.chunk_bytes for pool in pools) * description.num_workers,
        index_bytes=sum(map(size_of, path.glob(f"{INDEX_NAME}*"))),
        pools=pools,
    )


def _count_slots(path: Path, pool: DiskPool) -> int:
    """In all directories, as far as the first one tells: their files differ by a slot at most."""
    payload_bytes = size_of(path / pool.file_name) - HEADER_BYTES
    return max(0, payload_bytes) // pool.slot_bytes * pool.num_stripes
