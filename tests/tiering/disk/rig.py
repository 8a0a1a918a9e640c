"""A small disk tier for tests."""

from pathlib import Path
from typing import Any

from aiokvoffload.base import TierShape
from aiokvoffload.testing.tier import TierRig
from aiokvoffload.tiering.disk.calls import DiskCalls
from aiokvoffload.tiering.disk.config import DiskConfig
from aiokvoffload.tiering.disk.tier import DiskTier

CHUNK_BYTES = 8192


def disk_rig(
    *directories: Path,
    num_slots: int = 40,
    chunk_bytes: int = CHUNK_BYTES,
    num_workers: int = 1,
    calls: DiskCalls | None = None,
    **fields: Any,
) -> "DiskRig":
    """A tier of one group that is not open yet."""
    row_bytes = -(-chunk_bytes // 4096) * 4096
    defaults: dict[str, Any] = {"namespace": "tests", "threads": 2, "retry_s": 0.02, "close_timeout_s": 20.0}
    config = DiskConfig(directories=directories, disk_bytes=num_slots * row_bytes * num_workers, **defaults | fields)
    tier = DiskTier(config, TierShape((chunk_bytes,), num_workers), calls=calls)
    return DiskRig(tier, chunk_bytes, num_workers)


class DiskRig(TierRig):
    """The rig of a disk tier."""

    tier: DiskTier

    async def __aenter__(self) -> "DiskRig":
        await self.tier.open()
        await self.tier.wait_recovered()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.tier.check_integrity()
        await self.tier.aclose()
        self.tier.check_integrity()
