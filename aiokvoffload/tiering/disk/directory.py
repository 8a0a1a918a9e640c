"""Who owns a directory. Knows locks and modes, and nothing of what lies in it."""

import contextlib
import fcntl
import os
from pathlib import Path

from aiokvoffload.errors import TierError

LOCK_NAME = "lock"
DIRECTORY_MODE, FILE_MODE = 0o700, 0o600


class OwnedDirectory:
    """A directory that is this process's own until `release`; the kernel releases it when the process dies.

    Args:
        path: of the directory, which is made unless it exists.

    Attributes:
        path: as given.

    Raises:
        TierError: it cannot be made or used, or another process, or another tier of this one, owns it.
    """

    __slots__ = ("_lock", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            self._lock = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise TierError(
                f"directory {path} cannot be used: {error.strerror}; name one that may be written"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = _owner_of(self._lock)
            os.close(self._lock)
            raise TierError(f"directory {path} is in use by {owner}: close that, or name another directory") from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let others have it."""
        os.close(self._lock)

    def __repr__(self) -> str:
        return f"OwnedDirectory({self.path})"


def _owner_of(lock: int) -> str:
    with contextlib.suppress(OSError, ValueError):
        return f"process {int(os.pread(lock, 32, 0))}"
    return "another process"
