"""The disk tier keeps the contract of tiers, in all the shapes that chunks and directories have."""

from pathlib import Path

import pytest

from aiokvoffload.testing.tier import SecondaryTierContract, TierRig
from tests.tiering.disk.rig import disk_rig


class TestDiskTier(SecondaryTierContract):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.path = tmp_path

    async def make_rig(self) -> TierRig:
        return disk_rig(self.path / "disk")


class TestDiskTierOfSeveralWorkersAndDirectories(SecondaryTierContract):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.path = tmp_path

    async def make_rig(self) -> TierRig:
        directories = [self.path / name for name in "abc"]
        return disk_rig(*directories, chunk_bytes=5000, num_workers=2, policy="arc")
