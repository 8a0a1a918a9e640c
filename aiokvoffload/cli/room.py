"""Whether a benchmark's directory is there and has room for it, asked before anything is written. Knows sizes only."""

import shutil
from pathlib import Path

from aiokvoffload.errors import ArgumentError


def require_directory(directory: Path) -> None:
    """Check that what `--dir` names is there.

    Raises:
        ArgumentError: it is no directory.
    """
    if directory.is_dir():
        return
    if directory.exists():
        raise ArgumentError(f"--dir {directory}: that is a file: name a directory")
    raise ArgumentError(f"--dir {directory}: there is no such directory: make it, or name another")


def require_room(directory: Path, needed_bytes: int, *, option: str) -> None:
    """Check that a directory's disk has so many bytes free.

    Args:
        directory: which is there.
        needed_bytes: of its disk.
        option: as it was given, that asks for so many.

    Raises:
        ArgumentError: there are fewer.
    """
    free_bytes = shutil.disk_usage(directory).free
    if needed_bytes > free_bytes:
        raise ArgumentError(f"{option} takes {needed_bytes} bytes in {directory}, {free_bytes} are free")
