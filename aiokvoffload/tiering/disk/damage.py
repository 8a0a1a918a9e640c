"""Whether an error of SQLite speaks of a damaged index, or of a disk that is full or failing. Knows no rows."""

import sqlite3
from pathlib import Path

from aiokvoffload.errors import TierError

DAMAGE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What reading a damaged index raises; the second where SQLite's own message quotes bytes that are no text."""


def is_damage(error: Exception) -> bool:
    """Whether the index itself is to blame, rather than its disk, or whoever else has it open."""
    if not isinstance(error, sqlite3.OperationalError):
        return True
    # Statements here are right, so a generic error speaks of the schema.
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    return code == sqlite3.SQLITE_ERROR


def unreadable(path: Path, error: Exception) -> TierError:
    """What to raise where the index may be all right, and its disk is full or failing."""
    advice = "make room on its disk, or check that disk: the chunks may be all right"
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_CANTOPEN:
        advice = (
            "its log could not be opened, for which its directory must be one that may be written, and this process "
            "have file descriptors left (ulimit -n)"
        )
    return TierError(f"{path} cannot be read: {error}; {advice}")
