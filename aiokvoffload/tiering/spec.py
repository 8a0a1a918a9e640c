"""GPU, pinned CPU memory and the tiers below it, from one configuration."""

from collections.abc import Callable, Sequence

from aiokvoffload.base import CanonicalKVCaches, OffloadingManager, OffloadingSpec, SecondaryTier, TierShape
from aiokvoffload.clock import Clock, SystemClock
from aiokvoffload.cpu.common import CPU_TIER, PoolShape
from aiokvoffload.cpu.gpu_worker import CPUOffloadingWorker
from aiokvoffload.cpu.manager import CPUOffloadingManager
from aiokvoffload.cpu.spec import CPUOffloadingSpec
from aiokvoffload.errors import ConfigError, ModeError
from aiokvoffload.service.parts import TierParts
from aiokvoffload.service.service import OffloadingService
from aiokvoffload.tiering.config import TierConfig, TieringOffloadingConfig
from aiokvoffload.tiering.manager import TieringOffloadingManager
from aiokvoffload.tiering.rules import SlotShares, TierRules


class TieringOffloadingSpec(OffloadingSpec):
    """Chains GPU, CPU memory and secondary tiers: `async with spec.open(kv_caches) as offload`.

    Secondary tiers are asynchronous, so there is no stepped use.

    Args:
        config: what to build.
        clock: measures the deadlines of the tiers.

    Raises:
        ConfigError: `config` is something else.
    """

    def __init__(self, config: TieringOffloadingConfig, *, clock: Clock | None = None) -> None:
        if not isinstance(config, TieringOffloadingConfig):
            raise ConfigError(f"config must be a TieringOffloadingConfig, got {config!r}")
        self.config = config
        self._cpu = CPUOffloadingSpec(config.cpu)
        self._clock = clock or SystemClock()

    def get_manager(self, kv_caches: CanonicalKVCaches) -> OffloadingManager:
        """Not without a loop.

        Raises:
            ModeError: always.
        """
        raise ModeError("get_manager: secondary tiers need an event loop; use open, or a CPUOffloadingSpec")

    def get_worker(self, kv_caches: CanonicalKVCaches) -> CPUOffloadingWorker:
        """Not without a loop.

        Raises:
            ModeError: always.
        """
        raise ModeError("get_worker: secondary tiers need an event loop; use open, or a CPUOffloadingSpec")

    def open(
        self,
        kv_caches: CanonicalKVCaches | Sequence[CanonicalKVCaches],
        *,
        wrap_manager: Callable[[OffloadingManager], OffloadingManager] | None = None,
    ) -> OffloadingService:
        """The service, to be entered with `async with`.

        Entering it raises `TierError` when a tier cannot be used, and `ConfigError` when a `make` returns no tier.

        Args:
            kv_caches: the GPU memory; several entries make one worker each, in rank order.
            wrap_manager: replaces the manager by what it returns, to observe its calls.

        Raises:
            ModeError: the configuration is for stepped use.
            ConfigError: `kv_caches` is something else, or the workers' differ in shape.
        """
        return self._cpu.open(kv_caches, wrap_manager=wrap_manager, make_tiers=self._make_tiers)

    def _make_tiers(self, primary: CPUOffloadingManager, pools: Sequence[PoolShape], shape: TierShape) -> TierParts:
        config = self.config
        tiers = [(_make_tier(each, shape), each) for each in config.tiers]
        _require_names([tier for tier, _ in tiers])
        manager = TieringOffloadingManager(
            primary,
            [TierRules(tier, each.cascade, _max_call_keys(each, shape)) for tier, each in tiers],
            pools=pools,
            groups=config.cpu.groups,
            shares=SlotShares(
                promotion=config.promotion_share, head_room=config.head_room_share, cascade=config.cascade_share
            ),
        )
        return TierParts(
            manager=manager,
            tiers=tiers,
            room_timeout_s=config.room_timeout_s,
            close_timeout_s=config.cpu.close_timeout_s,
            clock=self._clock,
        )

    def __repr__(self) -> str:
        return f"TieringOffloadingSpec({len(self.config.tiers)} tiers below {self.config.cpu.cpu_bytes} bytes)"


def _make_tier(config: TierConfig, shape: TierShape) -> SecondaryTier:
    tier = config.make(shape)
    if not isinstance(tier, SecondaryTier):
        raise ConfigError(f"TierConfig.make must return a SecondaryTier, got {tier!r} of {config.make!r}")
    return tier


def _require_names(tiers: Sequence[SecondaryTier]) -> None:
    names = [CPU_TIER, *(tier.name for tier in tiers)]
    if len(set(names)) < len(names):
        raise ConfigError(f"tiers must have names of their own, got {names}")


def _max_call_keys(config: TierConfig, shape: TierShape) -> list[int]:
    """For each group the most chunks of one call."""
    return [
        max(1, min(config.max_call_keys, config.max_call_bytes // (size * shape.num_workers)))
        for size in shape.chunk_bytes
    ]
