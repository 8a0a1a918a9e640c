"""Does the disk tier survive kill -9? `python -m aiokvoffload.testing.kill` kills and looks, 200 times.

In each round a child process stores, evicts and loads in one and the same directory until it is killed: at a random
moment, in the middle of a write, or at a step between the data and its row. Then this process opens the directory and
looks at everything. Neither imports torch.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from aiokvoffload.base import LoadOutcome, OffloadKey, TierShape, make_offload_key
from aiokvoffload.testing.pages import fill, holds, page_buffers
from aiokvoffload.tiering.disk.calls import DiskCalls, QueuedCalls, Step
from aiokvoffload.tiering.disk.config import DiskConfig
from aiokvoffload.tiering.disk.kernel_queue import Piece
from aiokvoffload.tiering.disk.tier import DiskTier

CHUNK_BYTES, NUM_SLOTS, NUM_KEYS = 8192, 96, 400
MAX_LIFE_S = 0.2
WAYS: tuple[Step | str, ...] = (*Step, "torn write", "random moment")
"""How a child dies."""
KNOWN_FILES = {"chunks-0.data", "lock", "index.sqlite3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRound:
    """What was found after one kill.

    Attributes:
        way: how the child died.
        was_killed: whether it did, rather than end in another way.
        open_s: from opening the directory until every row was known.
        recovered: chunks that were there.
        wrong: of these, chunks that came back with other bytes than they were stored with.
        corrupt: of these, chunks whose checksum differed: rows over foreign bytes.
        lost_slots: slots that are neither free nor a chunk's.
        left_over: files after a clean close that do not belong there.
    """

    way: str
    was_killed: bool
    open_s: float
    recovered: int
    wrong: int
    corrupt: int
    lost_slots: int
    left_over: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong."""
        return self.was_killed and not (self.wrong or self.corrupt or self.lost_slots or self.left_over)


class DeadlyCalls(QueuedCalls):
    """The operating system's calls, one of which is the last.

    Args:
        way: how to die.
        after: so many times that step is survived.
    """

    def __init__(self, way: Step | str, after: int) -> None:
        super().__init__()
        self._way, self._left = way, after

    def write(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Write, or write half of it and die."""
        self._tear(Piece(descriptor, buffers, offset))
        return super().write(descriptor, buffers, offset)

    def write_many(self, pieces: Sequence[Piece]) -> Sequence[bool]:
        """Write all, or half of one and die."""
        self._tear(pieces[-1])
        return super().write_many(pieces)

    def reached(self, step: Step) -> None:
        """Go on, or die."""
        if step is self._way and self._is_time():
            die()

    def _tear(self, piece: Piece) -> None:
        if self._way == "torn write" and self._is_time():
            os.pwrite(piece.descriptor, piece.buffers[0][: len(piece.buffers[0]) // 2], piece.offset)
            die()

    def _is_time(self) -> bool:
        self._left -= 1
        return self._left < 0


def die() -> None:
    """End this process as kill -9 does."""
    os.kill(os.getpid(), signal.SIGKILL)


def make_tier(directory: Path, calls: DiskCalls | None = None) -> DiskTier:
    """The tier that is killed, and the one that looks."""
    config = DiskConfig(
        directories=(directory,), disk_bytes=NUM_SLOTS * CHUNK_BYTES, namespace="kill", threads=3, retry_s=0.05
    )
    return DiskTier(config, TierShape((CHUNK_BYTES,), 1), calls=calls)


def keys_of(numbers: Sequence[int]) -> list[OffloadKey]:
    """Keys of chunks whose bytes follow from their numbers."""
    return [make_offload_key(b"%08d" % number, 0) for number in numbers]


async def live_dangerously(directory: Path, seed: int) -> None:
    """Store, evict and load until killed."""
    dice = random.Random(seed)  # noqa: S311 - no secret
    way = WAYS[seed % len(WAYS)]
    if way == "random moment":
        threading.Timer(dice.uniform(0, MAX_LIFE_S), die).start()
    tier = make_tier(directory, DeadlyCalls(way, dice.randrange(1, 40)))
    await tier.open()
    await asyncio.gather(*(_keep_busy(tier, random.Random(seed + lane)) for lane in range(4)))  # noqa: S311


async def _keep_busy(tier: DiskTier, dice: random.Random) -> None:
    while True:
        first, count = dice.randrange(NUM_KEYS), dice.randrange(1, 12)
        numbers = range(first, first + count)
        views = page_buffers(count, CHUNK_BYTES)
        if dice.random() < 0.6:
            fill(views, *numbers)
            await tier.store(keys_of(numbers), views)
        else:
            await tier.load(keys_of(numbers), views)
        if dice.random() < 0.01:
            await tier.reset()


async def look(directory: Path, way: str, *, was_killed: bool) -> KillRound:
    """Open the directory and compare all that is in it with what it should be; `left_over` is not looked at."""
    numbers = list(range(NUM_KEYS + 12))
    tier = make_tier(directory)
    started_s = time.perf_counter()
    await tier.open()
    await tier.wait_recovered()
    open_s = time.perf_counter() - started_s
    there = [number for number, has in zip(numbers, tier.contains(keys_of(numbers)), strict=True) if has]
    views = page_buffers(len(there), CHUNK_BYTES)
    outcomes = await tier.load(keys_of(there), views)
    right = holds(views, *there)
    await tier.store(keys_of([NUM_KEYS + 100]), page_buffers(1, CHUNK_BYTES))  # behind it all deletions are committed
    tier.check_integrity()
    await tier.aclose()
    (pool,) = tier.statistics().pools
    return KillRound(
        way=way,
        was_killed=was_killed,
        open_s=open_s,
        recovered=len(there),
        wrong=sum(outcome is LoadOutcome.LOADED and not ok for outcome, ok in zip(outcomes, right, strict=True)),
        corrupt=outcomes.count(LoadOutcome.CORRUPT),
        lost_slots=pool.capacity - pool.free - pool.evictable,
        left_over=(),
    )


def kill_rounds(directory: Path, seeds: Sequence[int]) -> Iterator[KillRound]:
    """One round for each seed, all in one directory."""
    for seed in seeds:
        child = subprocess.run(  # noqa: S603 - this module itself
            [sys.executable, "-m", "aiokvoffload.testing.kill", "--victim", str(directory), str(seed)], check=False
        )
        way = WAYS[seed % len(WAYS)]
        name = way.value if isinstance(way, Step) else way
        found = asyncio.run(look(directory, name, was_killed=child.returncode == -signal.SIGKILL))
        yield replace(found, left_over=tuple(sorted({path.name for path in directory.iterdir()} - KNOWN_FILES)))


def main() -> int:
    """The command; returns its exit status: 0 if nothing was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="how often to kill (200)")
    parser.add_argument("--seed", type=int, default=0, help="where to begin (0)")
    parser.add_argument("--dir", type=Path, help="an empty directory on the disk to be tried (a temporary one)")
    parser.add_argument("--victim", nargs=2, metavar=("DIR", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.victim:
        asyncio.run(live_dangerously(Path(options.victim[0]), int(options.victim[1])))
        return 1
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.dir or Path(temporary) / "disk"
        rounds = []
        for done in kill_rounds(directory, range(options.seed, options.seed + options.rounds)):
            rounds.append(done)
            if not done.is_right:
                print(json.dumps(asdict(done)), file=sys.stderr)
    print(json.dumps(summary(rounds), indent=2))
    return 0 if all(done.is_right for done in rounds) else 1


def summary(rounds: Sequence[KillRound]) -> dict[str, float | int | dict[str, int]]:
    """The figures of many rounds."""
    ways = [done.way for done in rounds]
    return {
        "rounds": len(rounds),
        "killed": sum(done.was_killed for done in rounds),
        "ways": {way: ways.count(way) for way in dict.fromkeys(ways)},
        "recovered": sum(done.recovered for done in rounds),
        "wrong": sum(done.wrong for done in rounds),
        "corrupt": sum(done.corrupt for done in rounds),
        "lost_slots": sum(done.lost_slots for done in rounds),
        "left_over": sum(map(len, (done.left_over for done in rounds))),
        "slowest_open_s": max((done.open_s for done in rounds), default=0.0),
    }


if __name__ == "__main__":
    sys.exit(main())
