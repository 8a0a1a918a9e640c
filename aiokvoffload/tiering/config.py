"""Frozen configuration records of the chain of tiers, validated once, when they are made."""

import enum
from dataclasses import dataclass

from aiokvoffload.base import TierFactory
from aiokvoffload.config import CPUOffloadingConfig, are_all, require_positive
from aiokvoffload.errors import ConfigError


class CascadeMode(enum.Enum):
    """When a chunk goes from CPU memory to a secondary tier."""

    WRITE_THROUGH = "write_through"
    """As soon as it is readable in CPU memory."""
    WRITE_BACK = "write_back"
    """When it is about to be evicted from CPU memory. What is only in CPU memory at a close is not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierConfig:
    """One secondary tier, and what the chain may ask of it.

    Attributes:
        make: makes the tier.
        cascade: when chunks go there.
        load_timeout_s: a load that takes longer has failed, and the tier is taken out of service.
        store_timeout_s: the same for a store, or a reset.
        probe_interval_s: how often a tier that is out of service is asked whether it answers again.
        max_failures: so many calls in a row that fail take it out of service; one that hangs does so at once.
        max_loads_in_flight: calls of `load` at a time.
        max_stores_in_flight: calls of `store` at a time; they begin only while no load waits.
        max_call_keys: chunks of one call.
        max_call_bytes: bytes of one call, over all workers, but at least one chunk.
        max_store_delay_s: a chunk that would wait longer than this for its store, as stores go now, is not stored.

    Raises:
        ConfigError: a field is out of its range.
    """

    make: TierFactory
    cascade: CascadeMode = CascadeMode.WRITE_THROUGH
    load_timeout_s: float = 10.0
    store_timeout_s: float = 30.0
    probe_interval_s: float = 5.0
    max_failures: int = 3
    max_loads_in_flight: int = 4
    max_stores_in_flight: int = 2
    max_call_keys: int = 128
    max_call_bytes: int = 16 << 20
    max_store_delay_s: float = 5.0

    def __post_init__(self) -> None:
        if not callable(self.make):
            raise ConfigError(f"TierConfig.make must make a tier for a TierShape, got {self.make!r}")
        if not isinstance(self.cascade, CascadeMode):
            raise ConfigError(f"TierConfig.cascade must be a CascadeMode, got {self.cascade!r}")
        timeouts = ("load_timeout_s", "store_timeout_s", "probe_interval_s", "max_store_delay_s")
        require_positive(self, *timeouts, whole=False)
        require_positive(self, "max_failures", "max_loads_in_flight", "max_stores_in_flight", "max_call_keys")
        require_positive(self, "max_call_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class TieringOffloadingConfig:
    """GPU, pinned CPU memory, and tiers below it.

    Attributes:
        cpu: the primary tier, and everything that is not about the others.
        tiers: the secondary ones, the one to be asked first in front.
        promotion_share: part of each pool's slots that may be under promotion at a time.
        head_room_share: part of each pool's slots that promotions leave to stores: so many must be free or evictable.
        cascade_share: part of each pool's slots that may be held for tiers that have not read them yet.
        room_timeout_s: how long a load waits for CPU memory to promote into before it ends at what was served.

    Raises:
        ConfigError: a field is out of its range.
    """

    cpu: CPUOffloadingConfig
    tiers: tuple[TierConfig, ...]
    promotion_share: float = 0.5
    head_room_share: float = 0.1
    cascade_share: float = 0.25
    room_timeout_s: float = 2.0

    def __post_init__(self) -> None:
        if not isinstance(self.cpu, CPUOffloadingConfig):
            raise ConfigError(f"cpu must be a CPUOffloadingConfig, got {self.cpu!r}")
        if not are_all(self.tiers, TierConfig):
            raise ConfigError(f"tiers must be TierConfig records, at least one, got {self.tiers!r}")
        require_positive(self, "promotion_share", "head_room_share", "cascade_share", "room_timeout_s", whole=False)
        for name in ("promotion_share", "head_room_share", "cascade_share"):
            if getattr(self, name) > 1:
                raise ConfigError(f"TieringOffloadingConfig.{name} must be at most 1, got {getattr(self, name)!r}")
