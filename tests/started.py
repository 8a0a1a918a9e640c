"""A program in a process started from nothing, which is gone when its test is, whatever becomes of either."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def started(*arguments: str, cwd: Path | None = None) -> Iterator["subprocess.Popen[str]"]:
    """Run Python with these arguments; at the end it is killed, as waiting for what does not end would hang."""
    command = [sys.executable, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=cwd) as process:  # noqa: S603
        try:
            yield process
        finally:
            process.kill()
