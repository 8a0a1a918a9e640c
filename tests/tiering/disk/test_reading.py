"""An index that is read by whoever only looks, while others open, change and close it."""

import errno
import shutil
import sqlite3
from pathlib import Path

import pytest

from aiokvoffload.errors import TierError
from aiokvoffload.tiering.disk.reading import read_index
from aiokvoffload.tiering.disk.rows import INDEX_NAME


@pytest.fixture
def index(tmp_path: Path) -> Path:
    path = tmp_path / INDEX_NAME
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE rows (number)")
    connection.close()
    return path


def add_row(index: Path) -> None:
    """As a tier does that is opened, and closed again."""
    with sqlite3.connect(index) as connection:
        connection.execute("INSERT INTO rows VALUES (1)")
    connection.close()


def count_rows(connection: sqlite3.Connection) -> int:
    (count,) = connection.execute("SELECT COUNT(*) FROM rows").fetchone()
    return int(count)


def test_a_change_during_a_look_is_looked_at_again(index: Path) -> None:
    """What was read of a changing index may be of two ages."""
    seen: list[int] = []

    def look(connection: sqlite3.Connection) -> int:
        if not seen:
            add_row(index)
        seen.append(count_rows(connection))
        return seen[-1]

    assert read_index(index, look) == 1
    assert len(seen) == 2


def test_an_error_from_a_change_during_a_look_is_none(index: Path) -> None:
    looks: list[int] = []

    def look(connection: sqlite3.Connection) -> int:
        looks.append(count_rows(connection))
        if len(looks) == 1:
            add_row(index)
            raise sqlite3.DatabaseError("database disk image is malformed")
        return looks[-1]

    assert read_index(index, look) == 1


def test_an_error_without_a_change_is_one(index: Path) -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        read_index(index, lambda connection: connection.execute("SELECT * FROM nowhere"))


def test_an_index_that_never_stays_as_it_is_is_given_up(index: Path) -> None:
    """I11."""
    with pytest.raises(TierError, match="changed during each of 10 looks"):
        read_index(index, lambda _: add_row(index))


def test_a_log_without_room_for_a_copy_says_where_there_must_be_some(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 42."""

    def copy(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    index.with_name(f"{INDEX_NAME}-wal").write_bytes(b"log")
    monkeypatch.setattr(shutil, "copyfile", copy)
    with pytest.raises(TierError, match="No space left on device; name a folder with room in TMPDIR"):
        read_index(index, count_rows)
