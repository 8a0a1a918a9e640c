"""How an index is read by whoever only looks, so that its directory is afterwards what it was before.

Through SQLite alone it would not be: what reads a write-ahead log makes files beside it, and one that may not write
leaves them there. Knows whose log there is; knows no rows.
"""

import contextlib
import enum
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from aiokvoffload.errors import TierError
from aiokvoffload.tiering.disk.damage import DAMAGE_ERRORS
from aiokvoffload.tiering.disk.directory import InUseError, unowned
from aiokvoffload.tiering.disk.rows import connect

T = TypeVar("T")

_MOST_LOOKS = 10


class _Log(enum.Enum):
    """Where the commits are that the index itself may lack."""

    NONE = enum.auto()
    """There are none: the tier is closed, or in use and nothing was written yet."""
    LEFT = enum.auto()
    """In a log that a crash has left."""
    IN_USE = enum.auto()
    """In the log of a tier that is open: the files to read it with are there."""


def read_index(index: Path, read: Callable[[sqlite3.Connection], T]) -> T:
    """What `read` makes of an index, in use or not; it is called again if the tier was opened or closed meanwhile.

    Nobody is kept from opening the tier for it: a server's restart must not fail because somebody looks.

    Raises:
        TierError: the index cannot be opened, or there is no room for a copy of it, or it never stays as it is.
    """
    for _ in range(_MOST_LOOKS):
        log, before = _log_of(index), _stamps_of(index)
        try:
            with _connection(index, log) as connection:
                found = read(connection)
        except (TierError, *DAMAGE_ERRORS):
            if _stamps_of(index) == before:
                raise
        else:
            if log is _Log.IN_USE or _stamps_of(index) == before:
                return found
    raise TierError(f"{index} was changed during each of {_MOST_LOOKS} looks at it: try again")


@contextlib.contextmanager
def _connection(index: Path, log: _Log) -> Iterator[sqlite3.Connection]:
    with contextlib.ExitStack() as undo:
        if log is _Log.LEFT:
            index = _copied(index, Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="aiokvoffload-"))))
        yield undo.enter_context(contextlib.closing(connect(index, read_only=True, immutable=log is _Log.NONE)))


def _copied(index: Path, folder: Path) -> Path:
    """The index and its log, in a folder where files may be made; nobody has them open."""
    try:
        for path in (index, _log_path(index)):
            shutil.copyfile(path, folder / path.name)
    except OSError as error:
        raise TierError(
            f"{index} has a log, left by a crash, and cannot be copied into {folder.parent} to read that: "
            f"{error.strerror}; name a folder with room in TMPDIR"
        ) from error
    return folder / index.name


def _log_of(index: Path) -> _Log:
    try:
        if not _log_path(index).stat().st_size:
            return _Log.NONE
        with unowned(index.parent):  # for a moment: whoever opens the tier just then is told that it is in use
            return _Log.LEFT
    except FileNotFoundError:
        return _Log.NONE
    except InUseError:
        return _Log.IN_USE


def _stamps_of(index: Path) -> list[tuple[int, int, int]]:
    """What differs once anybody else has written to the index or its log."""
    stamps = []
    for path in (index, _log_path(index)):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            stamps.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return stamps


def _log_path(index: Path) -> Path:
    return index.with_name(f"{index.name}-wal")
