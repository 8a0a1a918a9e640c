"""A directory has one owner, for as long as that one wants."""

import os
from pathlib import Path

import pytest

from aiokvoffload.errors import TierError
from aiokvoffload.tiering.disk.directory import OwnedDirectory


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
