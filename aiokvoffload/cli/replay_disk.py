"""The disk below a replay's CPU memory. Knows options and what the tier says of itself; serves nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from aiokvoffload import registry
from aiokvoffload.base import CanonicalKVCaches, OffloadingManager, TierShape
from aiokvoffload.config import CPUOffloadingConfig
from aiokvoffload.cpu.spec import CPUOffloadingSpec
from aiokvoffload.errors import ArgumentError
from aiokvoffload.service.results import ServiceStatistics
from aiokvoffload.service.service import OffloadingService
from aiokvoffload.tiering.config import TierConfig, TieringOffloadingConfig
from aiokvoffload.tiering.disk.config import DiskConfig
from aiokvoffload.tiering.spec import TieringOffloadingSpec

if TYPE_CHECKING:
    from aiokvoffload.tiering.disk.tier import DiskTier

NAMESPACE = "aiokvoffload replay"
"""What a block holds is a function of its id and of where in it a byte is: the same in every replay."""


@dataclass(frozen=True, slots=True)
class DiskFigures:
    """What the disk did in one replay.

    Attributes:
        bytes: what it has room for.
        warm_chunks: chunks that it had from an earlier run.
        chunks: chunks that it has at the end.
        stored: chunks written.
        loaded: chunks read.
        dropped: chunks that it was not given, because it did not keep up.
        corrupt: chunks read that were not what was stored.
        failed: chunks that could not be written or read.
    """

    bytes: int
    warm_chunks: int
    chunks: int
    stored: int
    loaded: int
    dropped: int
    corrupt: int
    failed: int


class ReplayDisk:
    """Opens a service with or without a disk tier.

    Args:
        directory: where the tier lies; without one there is none.
        disk_bytes: what it has room for.

    Raises:
        ArgumentError: there is one of them without the other.
    """

    def __init__(self, directory: Path | None, disk_bytes: int | None) -> None:
        if (directory is None) is not (disk_bytes is None):
            raise ArgumentError("--disk-dir and --disk-bytes belong together: where, and how much")
        self._directory, self._disk_bytes = directory, disk_bytes or 0
        self._tier: DiskTier | None = None
        self._warm_chunks = 0

    def open(
        self,
        config: CPUOffloadingConfig,
        kv_caches: CanonicalKVCaches,
        wrap_manager: Callable[[OffloadingManager], OffloadingManager],
    ) -> OffloadingService:
        """The service, not yet entered."""
        if self._directory is None:
            return CPUOffloadingSpec(config).open(kv_caches, wrap_manager=wrap_manager)
        tiering = TieringOffloadingConfig(cpu=config, tiers=(TierConfig(make=self._make),))
        return TieringOffloadingSpec(tiering).open(kv_caches, wrap_manager=wrap_manager)

    def _make(self, shape: TierShape) -> "DiskTier":
        directories = () if self._directory is None else (self._directory,)
        config = DiskConfig(directories=directories, disk_bytes=self._disk_bytes, namespace=NAMESPACE)
        # By its name, since a replay without a disk does without what the tier needs.
        self._tier = tier = cast("DiskTier", registry.resolve("tiers", "disk")(config, shape))
        return tier

    async def wait_recovered(self) -> None:
        """Return once all that the disk has from an earlier run is known."""
        if self._tier is not None:
            await self._tier.wait_recovered()
            self._warm_chunks = _resident(self._tier)

    def figures(self, statistics: ServiceStatistics) -> DiskFigures | None:
        """What the disk did; `None` without one."""
        if self._tier is None:
            return None
        tier = statistics.tiers[0]
        return DiskFigures(
            bytes=self._disk_bytes,
            warm_chunks=self._warm_chunks,
            chunks=_resident(self._tier),
            stored=tier.cascaded,
            loaded=tier.promoted,
            dropped=tier.dropped + tier.refused,
            corrupt=tier.corrupt,
            failed=tier.failed_stores + tier.failed_loads,
        )


def _resident(tier: "DiskTier") -> int:
    return sum(pool.pinned + pool.evictable for pool in tier.statistics().pools)
