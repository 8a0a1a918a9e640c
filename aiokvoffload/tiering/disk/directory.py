"""Who owns a directory. Knows locks and modes, and nothing of what lies in it."""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from aiokvoffload.errors import TierError

LOCK_NAME = "lock"
DIRECTORY_MODE, FILE_MODE = 0o700, 0o600


class InUseError(TierError):
    """Raised when another process, or another tier of this one, owns a directory."""


class OwnedDirectory:
    """A directory that is this process's own until `release`; the kernel releases it when the process dies.

    Args:
        path: of the directory, which is made unless it exists.

    Attributes:
        path: as given.

    Raises:
        InUseError: it is somebody else's.
        TierError: it cannot be made or used.
    """

    __slots__ = ("_lock", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            if not os.access(path, os.W_OK | os.X_OK):  # of a tier that is there, all files might open
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            _require_no_pipe(path)
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
            raise InUseError(f"directory {path} is in use by {owner}: close that, or name another directory") from error
        with contextlib.suppress(OSError):  # on a full disk there is no room for a name, and the lock needs none
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let others have it."""
        # A close alone would not: a child that was forked meanwhile has the same lock open.
        with contextlib.suppress(OSError):
            os.ftruncate(self._lock, 0)
            fcntl.flock(self._lock, fcntl.LOCK_UN)
        os.close(self._lock)

    def __repr__(self) -> str:
        return f"OwnedDirectory({self.path})"


@contextlib.contextmanager
def unowned(path: Path) -> Iterator[None]:
    """Keep others from owning a directory for the time of the block; nothing is written, so it may be read-only.

    Raises:
        InUseError: somebody owns it.
        TierError: it is none, or cannot be used.
    """
    try:
        if path.is_dir():
            _require_no_pipe(path)
        lock = os.open(path / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if not path.is_dir():
            raise TierError(f"there is no directory {path}") from None
        yield  # a copy without the lock, or one that nobody has owned yet
        return
    except OSError as error:
        raise TierError(f"directory {path} cannot be used: {error.strerror}") from error
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InUseError(f"directory {path} is in use by {_owner_of(lock)}: close that first") from error
        except OSError as error:
            raise TierError(f"directory {path} cannot be locked: {error.strerror}") from error
        yield


def _require_no_pipe(path: Path) -> None:
    """Opening a pipe waits for somebody at its other end, maybe for ever."""
    for entry in path.iterdir():
        try:
            mode = entry.stat().st_mode  # once: whoever closes here meanwhile takes the index's log away
        except OSError:
            continue
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise TierError(f"{entry} is neither a file nor a folder: remove it, or name another directory")


def _owner_of(lock: int) -> str:
    with contextlib.suppress(OSError, ValueError):
        number = int(os.pread(lock, 32, 0))
        if Path(f"/proc/{number}").exists():  # whoever was killed has left its number there
            return f"process {number}"
    return "another process"
