"""What an index says about itself, so that nobody takes one tier's chunks for another's. Knows no rows."""

import json
import sqlite3
from dataclasses import asdict, dataclass
from pathlib import Path

from aiokvoffload.errors import TierError

_MOST = 1 << 40
"""What no size, count or time in a description reaches."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a directory must agree about with whoever opens it; the order of fields is that of the messages.

    Attributes:
        namespace: as configured.
        chunk_bytes: payload of a chunk of each group on one worker.
        num_workers: rows of a slot.
        num_directories: over which chunks are striped.
    """

    namespace: str
    chunk_bytes: tuple[int, ...]
    num_workers: int
    num_directories: int

    @classmethod
    def from_json(cls, text: str) -> "Description":
        """What `to_json` has written.

        Raises:
            KeyError: it is something else.
            TypeError: likewise.
            ValueError: likewise.
        """
        fields = json.loads(text)
        found = cls(**fields | {"chunk_bytes": tuple(fields["chunk_bytes"])})
        numbers = (*found.chunk_bytes, found.num_workers, found.num_directories)
        if not found.chunk_bytes or not all(type(number) is int and 0 < number < _MOST for number in numbers):
            raise ValueError(f"sizes and counts that cannot be: {numbers}")
        if not found.namespace.encode():  # which also refuses what is no text
            raise ValueError("no namespace")
        return found

    def to_json(self) -> str:
        """As it is kept in the index."""
        return json.dumps(asdict(self))

    def require(self, wanted: "Description", path: Path) -> None:
        """Check that an index described so serves who wants another one (fault 7).

        Raises:
            TierError: it does not; the message names what differs.
        """
        for name in self.__slots__:
            if (here := getattr(self, name)) != (asked := getattr(wanted, name)):
                raise TierError(
                    f"{path} was filled with {name} {here!r}, not {asked!r}: name another directory for that"
                )


def read_description(connection: sqlite3.Connection) -> tuple[Description, str, int]:
    """What the index says about itself: its description, its name, and when it was made.

    Raises:
        sqlite3.DatabaseError: it says nothing that makes sense.
    """
    row = connection.execute("SELECT description, store_id, created_s FROM store").fetchone()
    try:
        description, store_id, created_s = Description.from_json(row[0]), str(row[1]), int(row[2])
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise sqlite3.DatabaseError(f"the index does not describe itself: {error!r}") from error
    if not 0 <= created_s < _MOST:
        raise sqlite3.DatabaseError(f"the index says that it was made at {created_s}")
    return description, store_id, created_s
