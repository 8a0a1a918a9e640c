"""Frozen configuration of the disk tier, validated once, when it is made."""

import os
from dataclasses import dataclass

from aiokvoffload.config import is_path, require_positive
from aiokvoffload.errors import ConfigError

MAX_THREADS = 1024
"""Many more than any device needs, and few enough that an opening takes no machine's threads away from all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskConfig:
    """One tier on local disks.

    Attributes:
        directories: where it lies; chunks are striped over several, one for each device. The first has the index too.
            Nobody else uses them.
        disk_bytes: most bytes of slots in all directories together, reserved when it is opened; slots are rows padded
            to whole pages. The index in the first directory has a bound of its own: see `aiokvoffload inspect`.
        namespace: what makes bytes of equal key and size the same bytes: model and its revision, dtype, layout,
            parallel shape. A directory that was filled under another one is refused.
        policy: name of the cache policy (see `aiokvoffload.registry`).
        threads: that read and write, each 1 to 2 MiB at a time; 1024 at most.
        verify: whether every loaded chunk is checked; to be turned off for measuring only.
        close_timeout_s: how long a close waits for reads and writes before it abandons them, in seconds.
        retry_s: seconds between attempts to write an index that cannot be written, to a full disk say.
        max_pending_stores: chunks that may wait to be stored; more are refused and counted.
        max_pending_events: events that are kept until they are taken.
        name: of the tier, in events and results.

    Raises:
        ConfigError: a field is out of its range; the message names the field, the value and the limit.
    """

    directories: tuple[str | os.PathLike[str], ...]
    disk_bytes: int
    namespace: str
    policy: str = "lru"
    threads: int = 8
    verify: bool = True
    close_timeout_s: float = 30.0
    retry_s: float = 1.0
    max_pending_stores: int = 4096
    max_pending_events: int = 10_000
    name: str = "disk"

    def __post_init__(self) -> None:
        require_positive(self, "disk_bytes", "max_pending_stores", "max_pending_events")
        require_positive(self, "threads", most=MAX_THREADS)
        require_positive(self, "close_timeout_s", "retry_s", whole=False)
        _require_directories(self.directories)
        _require_text("namespace", self.namespace, "text that names model, dtype and layout")
        _require_text("policy", self.policy, "the name of a cache policy")
        _require_text("name", self.name, "text that is not empty")
        if not isinstance(self.verify, bool):
            raise ConfigError(f"verify must be True or False, got {self.verify!r}")


def _require_directories(directories: object) -> None:
    if not isinstance(directories, tuple) or not directories:
        raise ConfigError(f"directories must be a tuple of at least one path, got {directories!r}")
    if wrong := [directory for directory in directories if not is_path(directory)]:
        raise ConfigError(f"directories must be paths, neither empty nor with a NUL in them, got {wrong[0]!r}")
    if len(set(map(os.path.normpath, directories))) < len(directories):
        raise ConfigError(f"directories must be distinct, got {directories!r}")


def _require_text(name: str, value: object, meaning: str) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name} must be {meaning}, got {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{name} must be text that UTF-8 can say, got {value!r}") from error
