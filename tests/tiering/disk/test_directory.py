"""A directory has one owner, for as long as that one wants."""

import errno
import os
import threading
from pathlib import Path

import pytest

from aiokvoffload.errors import TierError
from aiokvoffload.tiering.disk.directory import InUseError, OwnedDirectory, _require_no_pipe, unowned


def test_a_directory_has_one_owner_at_a_time(tmp_path: Path) -> None:
    owner = OwnedDirectory(tmp_path)
    with pytest.raises(TierError, match=f"in use by process {os.getpid()}"):
        OwnedDirectory(tmp_path)
    owner.release()
    OwnedDirectory(tmp_path).release()


def test_what_a_forked_child_still_has_open_keeps_no_released_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child shares the lock's open file; here a duplicate of its descriptor does."""
    kept: list[int] = []
    close = os.close

    def keep_one(descriptor: int) -> None:
        kept.append(os.dup(descriptor))
        close(descriptor)

    owner = OwnedDirectory(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", keep_one)
        owner.release()
    try:
        OwnedDirectory(tmp_path).release()
    finally:
        close(*kept)


def test_a_full_disk_that_has_no_room_for_the_owners_number_keeps_nobody_from_owning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 42: nor does an owner that failed stay one, of which nobody knows."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    owner = OwnedDirectory(tmp_path)
    with pytest.raises(InUseError, match="in use by another process"):
        OwnedDirectory(tmp_path)
    owner.release()
    OwnedDirectory(tmp_path).release()


def test_a_directory_that_may_not_be_written_is_nobodys_though_its_lock_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 42: SQLite would find out, and what it says is no advice. The superuser is spared, so it is pretended."""
    OwnedDirectory(tmp_path).release()
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda _, mode: not mode & os.W_OK)
        with pytest.raises(TierError, match="cannot be used: Permission denied; name one that may be written"):
            OwnedDirectory(tmp_path)
    OwnedDirectory(tmp_path).release()


def test_nobody_can_own_a_directory_while_somebody_reads_it(tmp_path: Path) -> None:
    OwnedDirectory(tmp_path).release()
    with unowned(tmp_path), unowned(tmp_path), pytest.raises(InUseError, match="in use by another process"):
        OwnedDirectory(tmp_path)
    owner = OwnedDirectory(tmp_path)
    with pytest.raises(InUseError, match=f"in use by process {os.getpid()}: close that first"), unowned(tmp_path):
        pass
    owner.release()


def test_whoever_was_killed_is_not_named_as_the_owner(tmp_path: Path) -> None:
    OwnedDirectory(tmp_path).release()
    (tmp_path / "lock").write_text("999999999\n")
    with unowned(tmp_path), pytest.raises(InUseError, match="in use by another process"):
        OwnedDirectory(tmp_path)


def test_reading_a_directory_makes_none_and_no_lock_in_one(tmp_path: Path) -> None:
    with unowned(tmp_path):
        assert not list(tmp_path.iterdir())
    with pytest.raises(TierError, match="there is no directory"), unowned(tmp_path / "missing"):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["lock", "index.sqlite3", "chunks-0.data"])
def test_a_pipe_is_refused_before_anything_waits_for_its_other_end(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(TierError, match=f"{name} is neither a file nor a folder"):
        OwnedDirectory(tmp_path)
    with pytest.raises(TierError, match=f"{name} is neither a file nor a folder"), unowned(tmp_path):
        pass


def test_a_file_that_vanishes_meanwhile_is_no_pipe(tmp_path: Path) -> None:
    """Whoever closes a tier removes the log of its index, while another waits for the directory."""
    log, ended = tmp_path / "index.sqlite3-wal", threading.Event()

    def come_and_go() -> None:
        while not ended.is_set():
            log.touch()
            log.unlink()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(2000):
            _require_no_pipe(tmp_path)
    finally:
        ended.set()
        thread.join()
