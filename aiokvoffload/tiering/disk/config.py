"""Frozen configuration of the disk tier, validated once, when it is made."""

import os
from dataclasses import dataclass

from aiokvoffload.config import require_positive
from aiokvoffload.errors import ConfigError


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
        threads: reads and writes at a time.
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
        require_positive(self, "disk_bytes", "threads", "max_pending_stores", "max_pending_events")
        require_positive(self, "close_timeout_s", "retry_s", whole=False)
        if isinstance(self.directories, str | os.PathLike) or not self.directories:
            raise ConfigError(f"directories must be a tuple of at least one path, got {self.directories!r}")
        paths = [os.path.normpath(directory) for directory in self.directories]
        if len(set(paths)) < len(paths):
            raise ConfigError(f"directories must be distinct, got {self.directories!r}")
        if not isinstance(self.namespace, str) or not self.namespace:
            raise ConfigError(f"namespace must be text that names model, dtype and layout, got {self.namespace!r}")
        if not isinstance(self.verify, bool):
            raise ConfigError(f"verify must be True or False, got {self.verify!r}")
