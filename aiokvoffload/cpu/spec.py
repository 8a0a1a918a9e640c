"""GPU and one tier of pinned CPU memory, from one configuration."""

import contextlib
import os
from collections.abc import Callable, Sequence

from aiokvoffload.base import CanonicalKVCaches, OffloadingManager, OffloadingSpec, TierShape
from aiokvoffload.config import CPUOffloadingConfig, Mode
from aiokvoffload.copy.arena import ArenaOptions
from aiokvoffload.cpu.common import PoolShape, chunk_bytes_by_group, plan_pools
from aiokvoffload.cpu.gpu_worker import CPUOffloadingWorker
from aiokvoffload.cpu.manager import CPUOffloadingManager
from aiokvoffload.device import Device, open_device
from aiokvoffload.errors import ConfigError, ModeError
from aiokvoffload.service.parts import Parts, ServiceLimits, TierParts
from aiokvoffload.service.service import OffloadingService

TiersMaker = Callable[[CPUOffloadingManager, Sequence[PoolShape], TierShape], TierParts]
"""Makes what lies below CPU memory, for its manager, its pools and the shape of chunks."""


class CPUOffloadingSpec(OffloadingSpec):
    """Chains GPU and CPU memory.

    Awaited: `async with spec.open(kv_caches) as offload`. Stepped: `spec.get_manager(kv_caches)` and
    `spec.get_worker(kv_caches)`, driven by the engine's own loop.

    Args:
        config: what to build.

    Raises:
        ConfigError: it is something else.
    """

    def __init__(self, config: CPUOffloadingConfig) -> None:
        if not isinstance(config, CPUOffloadingConfig):
            raise ConfigError(f"config must be a CPUOffloadingConfig, got {config!r}")
        self.config = config

    def get_manager(
        self, kv_caches: CanonicalKVCaches, *, num_workers: int = 1, grows: bool = False
    ) -> CPUOffloadingManager:
        """The manager of the slots that `cpu_bytes` has room for.

        Args:
            kv_caches: one worker's tensors; all workers' are of the same shape.
            num_workers: how many workers share `cpu_bytes`.
            grows: whether there are no slots before the manager is told of them, for workers that grow.

        Raises:
            ConfigError: the memory does not fit the configuration.
        """
        config = self.config
        return CPUOffloadingManager(
            self._pools(kv_caches, num_workers),
            groups=config.groups,
            policy=config.policy,
            store_threshold=config.store_threshold,
            store_tracker_keys=config.store_tracker_keys,
            grows=grows,
        )

    def get_worker(
        self,
        kv_caches: CanonicalKVCaches,
        *,
        num_workers: int = 1,
        device: Device | None = None,
        grows: bool = False,
    ) -> CPUOffloadingWorker:
        """One worker with its pinned memory; it takes as long as pinning `cpu_bytes` takes, unless it grows.

        Args:
            kv_caches: this worker's tensors.
            num_workers: how many workers share `cpu_bytes`.
            device: where the copies run; `None` opens the configured one, and the worker closes it.
            grows: whether it is there with a first piece of its memory, and a thread makes the rest ready; whoever
                passes its `on_growth` on to the manager's `grow` can do that, as the service does.

        Raises:
            ConfigError: the memory does not fit the configuration, or there is no such device.
        """
        config = self.config
        return CPUOffloadingWorker(
            kv_caches,
            self._pools(kv_caches, num_workers),
            blocks_per_chunk=[group.blocks_per_chunk for group in config.groups],
            device=open_device(config.device) if device is None else device,
            mode=config.mode,
            close_timeout_s=config.close_timeout_s,
            copy=config.copy,
            owns_device=device is None,
            options=ArenaOptions(memory=config.host_memory, piece_bytes=config.pin_piece_bytes, grows=grows),
        )

    def open(
        self,
        kv_caches: CanonicalKVCaches | Sequence[CanonicalKVCaches],
        *,
        wrap_manager: Callable[[OffloadingManager], OffloadingManager] | None = None,
        make_tiers: TiersMaker | None = None,
    ) -> OffloadingService:
        """The service, to be entered with `async with`.

        Args:
            kv_caches: the GPU memory; several entries make one worker each, in rank order.
            wrap_manager: replaces the manager by what it returns, to observe its calls.
            make_tiers: makes what lies below CPU memory; called on a thread.

        Raises:
            ModeError: the configuration is for stepped use.
            ConfigError: `kv_caches` is something else, or the workers' differ in shape.
        """
        if self.config.mode is not Mode.AWAITED:
            raise ModeError("open: the configuration's mode is stepped; use get_manager and get_worker")
        ranks = self._ranks(kv_caches)
        config = self.config
        limits = ServiceLimits(
            max_run_keys=config.max_run_keys,
            max_run_fragments=config.max_run_fragments,
            max_jobs_in_flight=config.max_jobs_in_flight,
            max_waiting_transfers=config.max_waiting_transfers,
            max_pending_events=config.max_pending_events,
            event_block_timeout_s=config.event_block_timeout_s,
            max_event_metadata=config.max_event_metadata,
        )

        def build() -> Parts:
            primary = self.get_manager(ranks[0], num_workers=len(ranks), grows=True)
            tiers = None
            if make_tiers is not None:
                shape = TierShape(chunk_bytes_by_group(config, ranks[0]), len(ranks))
                tiers = make_tiers(primary, self._pools(ranks[0], len(ranks)), shape)
            manager: OffloadingManager = primary if tiers is None else tiers.manager
            workers: list[CPUOffloadingWorker] = []
            with contextlib.ExitStack() as undo:
                device = open_device(config.device)
                undo.callback(device.close)
                for rank in ranks:
                    worker = self.get_worker(rank, num_workers=len(ranks), device=device, grows=True)
                    undo.callback(worker.close)
                    workers.append(worker)
                parts = Parts(manager if wrap_manager is None else wrap_manager(manager), workers, device, tiers)
                undo.pop_all()
            return parts

        return OffloadingService(build, groups=config.groups, limits=limits)

    def _ranks(self, kv_caches: CanonicalKVCaches | Sequence[CanonicalKVCaches]) -> list[CanonicalKVCaches]:
        wanted = "kv_caches must be a CanonicalKVCaches, or a sequence with one for each worker"
        if not isinstance(kv_caches, CanonicalKVCaches | Sequence):
            raise ConfigError(f"{wanted}, got a {type(kv_caches).__name__}")
        ranks = [kv_caches] if isinstance(kv_caches, CanonicalKVCaches) else list(kv_caches)
        if not ranks:
            raise ConfigError(f"{wanted}, got an empty {type(kv_caches).__name__}")
        for index, rank in enumerate(ranks):
            if not isinstance(rank, CanonicalKVCaches):
                raise ConfigError(f"{wanted}, got a {type(rank).__name__} at index {index}")
        sizes = {chunk_bytes_by_group(self.config, rank) for rank in ranks}
        if len(sizes) > 1:
            raise ConfigError(f"kv_caches of all workers must have chunks of one size in each group, got {sizes}")
        return ranks

    def _pools(self, kv_caches: CanonicalKVCaches, num_workers: int) -> tuple[PoolShape, ...]:
        # Before the manager is made, whose table of slots would be the first to need more than there is.
        if (limit := memory_bytes()) is not None and self.config.cpu_bytes > limit:
            raise ConfigError(
                f"cpu_bytes must be at most this machine's {limit} bytes of memory, got {self.config.cpu_bytes}"
            )
        return plan_pools(self.config, chunk_bytes_by_group(self.config, kv_caches), num_workers)


def memory_bytes() -> int | None:
    """What the machine has; `None` where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
