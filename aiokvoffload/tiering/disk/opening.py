"""Everything that blocks while a tier is opened: directories, files, the index. Runs on a thread of its own."""

import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiokvoffload.base import CachePolicy, Residents, TierShape
from aiokvoffload.cache.making import policy_maker
from aiokvoffload.errors import TierError
from aiokvoffload.tiering.disk.batches import PoolStorage
from aiokvoffload.tiering.disk.calls import DiskCalls
from aiokvoffload.tiering.disk.checksum import Checksummer
from aiokvoffload.tiering.disk.config import DiskConfig
from aiokvoffload.tiering.disk.damage import DAMAGE_ERRORS, is_damage, unreadable
from aiokvoffload.tiering.disk.description import Description
from aiokvoffload.tiering.disk.directory import OwnedDirectory
from aiokvoffload.tiering.disk.layout import DiskPool, plan_disk_pools
from aiokvoffload.tiering.disk.ranks import highest_rank
from aiokvoffload.tiering.disk.room import require_room
from aiokvoffload.tiering.disk.rows import FORMAT_VERSION, INDEX_NAME, RowStore
from aiokvoffload.tiering.disk.slot_cache import SlotCache, spare_slots
from aiokvoffload.tiering.disk.slot_file import SlotFile

logger = logging.getLogger(__name__)

PolicyMaker = Callable[[Residents], CachePolicy]

PAUSE_S = 0.00005
"""Between slices of work in Python: from a thread that never waits the loop gets the GIL only every 5 ms (I10)."""
_SLICE_ROWS = 1024
_IDENTITY = "aiokvoffload chunks, format {}\nstore {}\ndirectory {} of {}\npool {}\n"


@dataclass(frozen=True, slots=True)
class OpenedDisk:
    """A tier's directories, theirs alone.

    Attributes:
        storages: for each pool.
        caches: for each pool, all of whose slots with rows are unread.
        rows: the index.
        reader: the same, for who reads all of it beside that.
        last_rank: the highest in it.
        lost_indexes: damaged indexes that were thrown away.
        resources: closes the files and lets go of the directories; neither `rows` nor `reader` is among them.
    """

    storages: tuple[PoolStorage, ...]
    caches: tuple[SlotCache, ...]
    rows: RowStore
    reader: sqlite3.Connection
    last_rank: int
    lost_indexes: int
    resources: contextlib.ExitStack


def open_disk(config: DiskConfig, shape: TierShape, calls: DiskCalls) -> OpenedDisk:
    """Open what there is, or make it.

    Raises:
        ConfigError: the budget is too small, or there is no such policy.
        TierError: a directory cannot be used, is in use, was filled for something else, or has not enough room.
    """
    paths = [Path(directory) for directory in config.directories]
    pools = plan_disk_pools(config.disk_bytes, shape, len(paths))
    make_policy = policy_maker(config.policy)
    description = Description(config.namespace, shape.chunk_bytes, shape.num_workers, len(paths))
    with contextlib.ExitStack() as undo:
        resources = undo.enter_context(contextlib.ExitStack())
        calls.open()
        resources.callback(calls.close)
        for path in paths:
            resources.callback(OwnedDirectory(path).release)
        require_room(paths, pools)
        rows, caches, last_rank, lost_indexes = _open_rows(paths[0], description, pools, make_policy)
        undo.callback(rows.close)
        reader = rows.open_reader()  # here, where nothing is lost if it cannot be opened
        undo.callback(reader.close)
        storages = []
        for pool in pools:
            storages.append(_open_files(paths, pool, rows.store_id, config, calls))
            for file in storages[-1].files:  # at once: the next pool's may be refused
                resources.callback(file.close)
        opened = OpenedDisk(tuple(storages), caches, rows, reader, last_rank, lost_indexes, resources)
        undo.pop_all()
        return opened


def _open_rows(
    path: Path, description: Description, pools: Sequence[DiskPool], make_policy: PolicyMaker
) -> tuple[RowStore, tuple[SlotCache, ...], int, int]:
    """The index, the slots that have rows in it, its last rank, and how many damaged ones were thrown away for it."""
    for lost_indexes in range(2):
        store_id = _find_store_id(path / pools[0].file_name)
        try:
            rows, caches, last_rank = _read_rows(path / INDEX_NAME, description, pools, make_policy, store_id)
        except DAMAGE_ERRORS as error:
            if not is_damage(error):
                raise unreadable(path / INDEX_NAME, error) from error
            # As text: whoever keeps the record would keep the error, its frames, and so the file open.
            logger.warning("%s is damaged (%s): what it knew is forgotten", path / INDEX_NAME, str(error))
            for name in (INDEX_NAME, f"{INDEX_NAME}-wal", f"{INDEX_NAME}-shm"):
                (path / name).unlink(missing_ok=True)
            continue
        return rows, caches, last_rank, lost_indexes
    raise TierError(f"{path / INDEX_NAME} is damaged, and so is a new one: the disk may be failing")


def _read_rows(
    path: Path,
    description: Description,
    pools: Sequence[DiskPool],
    make_policy: PolicyMaker,
    store_id: str | None,
) -> tuple[RowStore, tuple[SlotCache, ...], int]:
    max_slots = sum(pool.num_slots for pool in pools)
    rows = RowStore(path, description, max_slots=max_slots, now_s=int(time.time()), store_id=store_id)
    with contextlib.ExitStack() as undo:
        undo.callback(rows.close)
        rows.drop_senseless(pools, highest_rank())
        for pool in pools:  # spare slots must be free: a store that evicts is given others
            rows.keep_latest(pool.index, pool.num_slots - spare_slots(pool.num_slots))
        caches = tuple(_read_slots(rows, pool, make_policy) for pool in pools)
        last_rank = rows.last_rank()  # here, where damage is still forgiven
        undo.pop_all()
    return rows, caches, last_rank


def _find_store_id(path: Path) -> str | None:
    """The store that a file of slots belongs to; its index may be gone."""
    with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
        lines = file.read(512).rstrip(b"\0").decode().splitlines()
        if lines[:1] == [_IDENTITY.splitlines()[0].format(FORMAT_VERSION)]:
            return lines[1].removeprefix("store ")
    return None


def _open_files(
    paths: Sequence[Path], pool: DiskPool, store_id: str, config: DiskConfig, calls: DiskCalls
) -> PoolStorage:
    with contextlib.ExitStack() as undo:
        files = []
        for stripe, path in enumerate(paths):
            identity = _IDENTITY.format(FORMAT_VERSION, store_id, stripe, len(paths), pool.index)
            files.append(SlotFile(path / pool.file_name, pool.file_bytes(stripe), identity, calls))
            undo.callback(files[-1].close)
        undo.pop_all()
    return PoolStorage(pool, files, Checksummer(config.namespace), calls)


def _read_slots(rows: RowStore, pool: DiskPool, make_policy: PolicyMaker) -> SlotCache:
    cache = SlotCache(pool.num_slots, make_policy)
    for slots in rows.slots(pool, _SLICE_ROWS):
        cache.hold_unread(slots)
        time.sleep(PAUSE_S)
    return cache
