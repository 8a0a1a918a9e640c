"""The index as it is kept on disk: a row for each chunk, in SQLite. Knows statements, and no chunk's bytes.

A row says that a slot holds a key's bytes, and what their checksum is. Which slots are free follows from the rows and
is stored nowhere. The journal is a write-ahead log, synchronized at checkpoints only: a commit survives the death of
the process; after a power loss the last ones may be gone, and rows may be there whose bytes are not, which their
checksums tell.
"""

import contextlib
import os
import sqlite3
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby, repeat
from operator import itemgetter, lt
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from aiokvoffload.base import OffloadKey
from aiokvoffload.cache.chains import group_suffix
from aiokvoffload.errors import TierError
from aiokvoffload.tiering.disk.damage import DAMAGE_ERRORS, is_damage, unreadable
from aiokvoffload.tiering.disk.description import Description, read_description
from aiokvoffload.tiering.disk.directory import FILE_MODE
from aiokvoffload.tiering.disk.layout import DiskPool
from aiokvoffload.tiering.disk.ranks import POSITION_BITS

INDEX_NAME = "index.sqlite3"
FORMAT_VERSION = 1
MAX_KEY_BYTES = 256
ROW_BOUND_BYTES = 512
"""Room for one row in the index at its bound, with the longest key; one with a key of 36 bytes takes some 100."""
_APPLICATION_ID = 0x6B766F66
_PAGE_BYTES = 4096
_WAL_PAGES = 8000
"""After so many the log is copied into the file and both are synchronized, for which all commits wait."""
_STATEMENT_ROWS = 64
_SCHEMA = """
CREATE TABLE store (description TEXT NOT NULL, store_id TEXT NOT NULL, created_s INTEGER NOT NULL);
CREATE TABLE chunks (
    pool INTEGER NOT NULL, slot INTEGER NOT NULL, key BLOB NOT NULL, rank INTEGER NOT NULL, checksum BLOB NOT NULL,
    PRIMARY KEY (pool, slot)
) WITHOUT ROWID;
"""
_SENSE = f"""
typeof(pool) = 'integer' AND typeof(slot) = 'integer' AND typeof(rank) = 'integer' AND rank BETWEEN 0 AND ?
AND typeof(key) = 'blob' AND length(key) <= {MAX_KEY_BYTES} AND typeof(checksum) = 'blob' AND length(checksum) = 16
"""


class Row(NamedTuple):
    """A slot of a pool holds a key's bytes; rows of higher rank were stored later."""

    pool: int
    slot: int
    key: OffloadKey
    rank: int
    checksum: bytes


class RowColumns(NamedTuple):
    """Rows of one pool, column by column: so they come, and an object for each would be for nothing."""

    slots: Sequence[int] = ()
    keys: Sequence[OffloadKey] = ()
    ranks: Sequence[int] = ()
    checksums: Sequence[bytes] = ()


class ChainRun(NamedTuple):
    """Rows of one chain that lie in one pool, or some of them, head first; `chain` is its number among ranks."""

    pool: int
    chain: int
    keys: Sequence[OffloadKey]
    slots: Sequence[int]
    checksums: Sequence[bytes]


class ForeignIndexError(TierError):
    """Raised when an index belongs to something else, or to another version of this library."""


class RowStore:
    """The rows in one file, for one thread at a time.

    Args:
        path: of the file, which is made unless it exists.
        description: what it must agree about.
        max_slots: most rows there can be, which bounds the file.
        now_s: the time, in seconds since 1970.
        store_id: what to call a new one; without it a name is made up.

    Attributes:
        path: as given.
        store_id: which no other index has.
        created_s: when it was made, in seconds since 1970.

    Raises:
        ForeignIndexError: the file is something else.
        TierError: it was filled under another description, or cannot be written.
        sqlite3.DatabaseError: it is damaged.
    """

    def __init__(
        self, path: Path, description: Description, *, max_slots: int, now_s: int, store_id: str | None = None
    ) -> None:
        self.path = path
        with contextlib.ExitStack() as undo:
            self._connection = connect(path)
            undo.callback(self._connection.close)
            is_new = _is_new(self._connection, path)
            max_bytes = ROW_BOUND_BYTES * max_slots + (1 << 20)
            self._connection.execute(f"PRAGMA max_page_count = {max_bytes // _PAGE_BYTES}")
            if is_new:
                self._create(description, store_id or uuid.uuid4().hex, now_s)
            found, self.store_id, self.created_s = read_description(self._connection)
            found.require(description, path.parent)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
            self._connection.execute(f"PRAGMA journal_size_limit = {_WAL_PAGES * _PAGE_BYTES}")
            undo.pop_all()

    def open_reader(self) -> sqlite3.Connection:
        """Another connection, for a thread that reads while this one writes; it has opened all that it needs for that.

        Raises:
            TierError: it cannot be opened, for want of file descriptors say.
        """
        connection = connect(self.path)
        try:
            connection.execute("SELECT COUNT(*) FROM store").fetchone()
        except sqlite3.Error as error:
            connection.close()
            raise unreadable(self.path, error) from error
        return connection

    def drop_senseless(self, pools: Sequence[DiskPool], max_rank: int) -> None:
        """Delete rows that are not such as are written here, or are of slots that their pool has not, or no more.

        It reads every page of the file that has rows.

        Args:
            pools: of the tier.
            max_rank: the highest that can have been given.
        """
        of_pools = " OR ".join(map(_of_pool, pools))
        self._connection.execute(f"DELETE FROM chunks WHERE NOT ({_SENSE}) OR NOT ({of_pools})", (max_rank,))  # noqa: S608

    def keep_latest(self, pool: int, count: int) -> None:
        """Delete the rows of a pool that were stored before the `count` latest ones."""
        (found,) = self._connection.execute("SELECT COUNT(*) FROM chunks WHERE pool = ?", (pool,)).fetchone()
        if found <= count:
            return
        earlier = "SELECT slot FROM chunks WHERE pool = ? ORDER BY rank DESC LIMIT -1 OFFSET ?"
        slots = self._connection.execute(earlier, (pool, count)).fetchall()
        with self.changing(deletes={pool: [slot for (slot,) in slots]}):
            pass

    def slots(self, pool: DiskPool, batch_rows: int) -> Iterator[list[int]]:
        """The slots that have rows, in increasing order, in batches.

        Raises:
            sqlite3.DatabaseError: a damaged index has them twice, out of order, or of another pool.
        """
        cursor = self._connection.execute("SELECT slot FROM chunks WHERE pool = ? ORDER BY slot", (pool.index,))
        last = -1
        while batch := cursor.fetchmany(batch_rows):
            slots = [slot for (slot,) in batch]
            # SQLite takes the order from the tree, and a damaged one has another.
            if not _increase([last, *slots]) or slots[-1] >= pool.num_slots:
                raise sqlite3.DatabaseError("slots are there twice, or out of order")
            last = slots[-1]
            yield slots

    def last_rank(self) -> int:
        """The highest rank of all rows, or 0.

        Raises:
            sqlite3.DatabaseError: a damaged index has one that is none.
        """
        (rank,) = self._connection.execute("SELECT MAX(rank) FROM chunks").fetchone()
        if not isinstance(rank, int | None):
            raise sqlite3.DatabaseError(f"the highest rank is {rank!r}")
        return rank or 0

    @contextlib.contextmanager
    def changing(
        self,
        *,
        clear: bool = False,
        inserts: Mapping[int, RowColumns] = MappingProxyType({}),
        deletes: Mapping[int, Sequence[int]] = MappingProxyType({}),
    ) -> Iterator[None]:
        """Change rows in one transaction, and commit unless the block raises.

        Args:
            clear: whether all are deleted first.
            inserts: rows for each of several pools.
            deletes: likewise slots that have no row any more; these go last.
        """
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            if clear:
                connection.execute("DELETE FROM chunks")
            for pool, rows in inserts.items():
                _insert(connection, pool, rows)
            for pool, slots in deletes.items():
                _delete(connection, pool, sorted(slots))
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # SQLite itself has rolled back after some errors
                connection.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Write everything into the file itself, and close it."""
        self._connection.close()

    def _create(self, description: Description, store_id: str, now_s: int) -> None:
        connection = self._connection
        connection.executescript(f"BEGIN; {_SCHEMA}")
        connection.execute("INSERT INTO store VALUES (?, ?, ?)", (description.to_json(), store_id, now_s))
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        connection.execute("COMMIT")


def connect(path: Path, *, read_only: bool = False, immutable: bool = False) -> sqlite3.Connection:
    """A connection of which any one thread at a time may make use.

    Args:
        path: of the index.
        read_only: whether nothing is changed; beside the index SQLite may still make files, for its log.
        immutable: whether nobody else does either, for as long as the connection is open. No log is read then, and no
            file is made.

    Raises:
        TierError: the file cannot be opened.
    """
    try:
        if not read_only:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
        uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}"
        if immutable:
            uri += "&immutable=1"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.OperationalError) as error:
        raise TierError(f"{path} cannot be opened: {error}") from error
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")  # damaged text is no failing disk
    return connection


def read_rows(connection: sqlite3.Connection, batch_rows: int) -> Iterator[list[Row]]:
    """All rows, the earliest stored first, in batches."""
    cursor = connection.execute("SELECT pool, slot, key, rank, checksum FROM chunks ORDER BY rank")
    while rows := cursor.fetchmany(batch_rows):
        yield list(map(Row._make, rows))


def read_runs(connection: sqlite3.Connection, batch_rows: int) -> Iterator[list[ChainRun]]:
    """The same rows, which make sense, as runs."""
    cursor = connection.execute(
        f"SELECT pool, rank >> {POSITION_BITS}, key, slot, checksum FROM chunks ORDER BY rank"  # noqa: S608
    )
    while rows := cursor.fetchmany(batch_rows):
        yield [
            ChainRun(pool, chain_number, *list(zip(*run, strict=True))[2:])
            for (pool, chain_number), run in groupby(rows, itemgetter(0, 1))
        ]


def require_own(connection: sqlite3.Connection, path: Path) -> None:
    """Check that an index that is not empty is one of this version.

    Raises:
        ForeignIndexError: it is not.
        TierError: it cannot be read, since its disk is full or failing.
    """
    try:
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    except DAMAGE_ERRORS as error:
        if not is_damage(error):
            raise unreadable(path, error) from error
        raise ForeignIndexError(f"{path} is no index of this library ({error}): remove it") from error
    if application_id != _APPLICATION_ID:
        raise ForeignIndexError(f"{path} is another program's: remove it, or name another directory")
    if version != FORMAT_VERSION:
        raise ForeignIndexError(
            f"{path} has format {version}, this version reads {FORMAT_VERSION}: remove the directory"
        )


# One statement for many rows: each lets go of the GIL and takes it again, among threads that all want it.
def _insert(connection: sqlite3.Connection, pool: int, rows: RowColumns) -> None:
    for start in range(0, len(rows.slots), _STATEMENT_ROWS):
        slots, keys, ranks, checksums = (column[start : start + _STATEMENT_ROWS] for column in rows)
        placeholders = ", ".join(["(?, ?, ?, ?, ?)"] * len(slots))
        # Not as bytes: for each of these sqlite3 looks for an adapter, which takes as long as the rest.
        values = zip(repeat(pool), slots, map(bytearray, keys), ranks, map(bytearray, checksums), strict=False)
        connection.execute(f"INSERT OR REPLACE INTO chunks VALUES {placeholders}", tuple(chain.from_iterable(values)))  # noqa: S608


def _delete(connection: sqlite3.Connection, pool: int, slots: Sequence[int]) -> None:
    for start in range(0, len(slots), _STATEMENT_ROWS):
        part = slots[start : start + _STATEMENT_ROWS]
        placeholders = ", ".join("?" * len(part))
        connection.execute(f"DELETE FROM chunks WHERE pool = ? AND slot IN ({placeholders})", (pool, *part))  # noqa: S608


def _increase(slots: Sequence[int]) -> bool:
    return set(map(type, slots)) <= {int} and all(map(lt, slots, slots[1:]))


def _of_pool(pool: DiskPool) -> str:
    suffixes = ", ".join(f"x'{group_suffix(group_idx).hex()}'" for group_idx in pool.groups)
    return f"(pool = {pool.index} AND slot BETWEEN 0 AND {pool.num_slots - 1} AND substr(key, -4) IN ({suffixes}))"


def _is_new(connection: sqlite3.Connection, path: Path) -> bool:
    try:
        (num_tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    except DAMAGE_ERRORS as error:
        if not is_damage(error):
            raise unreadable(path, error) from error
        if "malformed" in str(error) or isinstance(error, sqlite3.OperationalError | UnicodeDecodeError):
            raise
        raise ForeignIndexError(f"{path} is no index of this library ({error}): remove it") from error
    if not num_tables and not application_id:
        return True
    require_own(connection, path)
    return False
