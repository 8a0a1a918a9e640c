"""Request traces in the format that Mooncake publishes: one JSON object a line.

Knows the format and what an id means; knows nothing of replaying.
Source: Qin et al., "Mooncake", FAST '25; https://github.com/kvcache-ai/Mooncake, folder FAST25-release/traces.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from aiokvoffload.base import OffloadKey, make_offload_key
from aiokvoffload.errors import ArgumentError

_MAX_HASH_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    Attributes:
        line: its line in the file, from 1.
        hash_ids: one id per block of the prompt, head first; an id stands for the block and all before it.
    """

    line: int
    hash_ids: tuple[int, ...]

    @property
    def name(self) -> str:
        """Unique within its trace."""
        return f"line {self.line}"

    def keys(self, salt: bytes = b"") -> list[OffloadKey]:
        """One offload key per block, whose id is a chained hash already; another salt names the same blocks anew."""
        return [make_offload_key(salt + hash_id.to_bytes(8, "big"), 0) for hash_id in self.hash_ids]


def read_trace(path: Path, *, limit: int | None = None) -> list[TraceRequest]:
    """The first `limit` requests of a trace file, or all; blank lines are skipped.

    Raises:
        ArgumentError: the file cannot be read, holds no request, only empty prompts or a garbled line, which is named.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            requests = list(islice(_parse_lines(path, lines), limit))
    except OSError as error:
        raise ArgumentError(f"trace {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ArgumentError(f"trace {path} is not UTF-8 text: {error}") from error
    if not requests:
        raise ArgumentError(f"trace {path} holds no request")
    if not any(request.hash_ids for request in requests):
        raise ArgumentError(f"trace {path} holds only empty prompts")
    return requests


def _parse_lines(path: Path, lines: Iterable[str]) -> Iterator[TraceRequest]:
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            yield TraceRequest(number, _parse_hash_ids(text))
        except ValueError as error:
            raise ArgumentError(f"trace {path}, line {number}: {error}") from error


def _parse_hash_ids(text: str) -> tuple[int, ...]:
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("not a request: nested too deeply") from error
    hash_ids = record.get("hash_ids") if isinstance(record, dict) else None
    if type(hash_ids) is not list:
        raise ValueError('not a request: a JSON object with a list "hash_ids" is expected')
    for hash_id in hash_ids:
        # JSON's true is an int in Python; an id is a number.
        if type(hash_id) is not int or not 0 <= hash_id <= _MAX_HASH_ID:
            raise ValueError(f"hash_ids must be whole numbers in [0, 2**63), got {hash_id!r}")
    if len(set(hash_ids)) != len(hash_ids):
        raise ValueError("hash_ids repeats an id: ids stand for prefixes, which cannot repeat within a request")
    return tuple(hash_ids)
