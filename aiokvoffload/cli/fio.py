"""The same device's ceiling, as fio sees it: https://fio.readthedocs.io. Knows how to ask it, where it is installed."""

import json
import shutil
import subprocess
from pathlib import Path

from aiokvoffload.errors import OffloadError

RANDOM_READS, RANDOM_WRITES, RANDOM_BOTH = "randread", "randwrite", "randrw"


class FioError(OffloadError):
    """Raised when fio is installed, and fails."""


class Fio:
    """Random direct I/O of one block size over one file that is wholly written, with one call per thread at a time.

    Args:
        path: of the file, which is made and written; the caller removes it.
        size_bytes: of the file.
        block_bytes: of each read or write.
        num_jobs: threads, on the `psync` engine: the same calls as the disk tier's.

    Raises:
        FioError: it fails.
    """

    def __init__(self, path: Path, size_bytes: int, block_bytes: int, *, num_jobs: int) -> None:
        self._options = [
            *("--name=ceiling", f"--filename={path}", f"--size={size_bytes}", f"--bs={block_bytes}", "--direct=1"),
            *("--ioengine=psync", "--thread", "--group_reporting", "--randrepeat=0", "--output-format=json"),
        ]
        self._num_jobs = num_jobs
        self._run("write", 1, size_bytes)

    @staticmethod
    def is_installed() -> bool:
        """Whether there is an fio to ask."""
        return shutil.which("fio") is not None

    def bytes_per_s(self, kind: str, size_bytes: int) -> float:
        """Move so many bytes, each thread its part of them; bytes per second, reads and writes together."""
        return self._run(kind, self._num_jobs, size_bytes)

    def _run(self, kind: str, num_jobs: int, size_bytes: int) -> float:
        more = [f"--rw={kind}", f"--numjobs={num_jobs}", f"--io_size={max(1, size_bytes // num_jobs)}"]
        done = subprocess.run(["fio", *self._options, *more], capture_output=True, text=True, check=False)  # noqa: S603, S607
        if done.returncode:
            raise FioError(f"fio {kind} failed: {(done.stderr or done.stdout).strip()}")
        (job,) = json.loads(done.stdout)["jobs"]
        return float(job["read"]["bw_bytes"] + job["write"]["bw_bytes"])
