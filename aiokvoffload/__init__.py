"""KV-cache offloading for LLM servers written on asyncio: GPU to pinned CPU memory, to disk, and back, awaited.

Each name is imported when it is first used: keys, configurations and errors do without torch, and so does the command
until it has something to do. A server calls `preload` before its loop runs.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiokvoffload.base import (
        Admission,
        CachePolicy,
        CanonicalKVCacheRef,
        CanonicalKVCaches,
        CanonicalKVCacheTensor,
        Event,
        EventKind,
        GPULoadStoreSpec,
        LoadOutcome,
        LoadStoreSpec,
        LookupResult,
        OffloadingEvent,
        OffloadingManager,
        OffloadingSpec,
        OffloadingWorker,
        OffloadKey,
        PoolFile,
        PoolGrowth,
        PrepareLoadOutput,
        PrepareStoreOutput,
        RemovalReason,
        ReqContext,
        ResidentPart,
        Residents,
        SecondaryTier,
        StoreOutcome,
        Stream,
        TierFactory,
        TierShape,
        Transfer,
        TransferResult,
        get_offload_block_hash,
        get_offload_group_idx,
        make_offload_key,
    )
    from aiokvoffload.config import CopyConfig, CPUOffloadingConfig, GroupConfig, HostMemory, Mode
    from aiokvoffload.cpu.common import CPULoadStoreSpec
    from aiokvoffload.cpu.gpu_worker import CPUOffloadingWorker
    from aiokvoffload.cpu.manager import CPUOffloadingManager
    from aiokvoffload.cpu.spec import CPUOffloadingSpec
    from aiokvoffload.device import Device, open_device
    from aiokvoffload.errors import (
        AbandonedError,
        ArgumentError,
        BrokenError,
        BusyError,
        ClosedError,
        ConfigError,
        InternalError,
        LaggedError,
        ModeError,
        OffloadError,
        TierError,
        TransferError,
    )
    from aiokvoffload.events import (
        ChunkMetadata,
        EventBus,
        EventBusStatistics,
        EventRecord,
        GapRecord,
        ResidentKeys,
        SlowPolicy,
        Snapshot,
        Subscription,
        SubscriptionStatistics,
        TierSnapshot,
    )
    from aiokvoffload.service import (
        Handle,
        LoadResult,
        OffloadingService,
        Request,
        ResetResult,
        ServiceStatistics,
        StoreResult,
    )
    from aiokvoffload.service.thread import OffloadingThread, open_in_thread
    from aiokvoffload.service.thread_calls import (
        CallOutcome,
        CallStage,
        FinishCall,
        LoadCall,
        LookupCall,
        StoreCall,
        ThreadCall,
    )
    from aiokvoffload.tiering.chain.statistics import TierStatistics
    from aiokvoffload.tiering.config import CascadeMode, TierConfig, TieringOffloadingConfig
    from aiokvoffload.tiering.disk.config import DiskConfig
    from aiokvoffload.tiering.disk.statistics import DiskStatistics
    from aiokvoffload.tiering.disk.tier import DiskTier
    from aiokvoffload.tiering.manager import TieringOffloadingManager
    from aiokvoffload.tiering.spec import TieringOffloadingSpec

__version__ = "0.1.0"

__all__ = [
    # open it
    "preload",
    "CPUOffloadingSpec",
    "CPUOffloadingConfig",
    "CopyConfig",
    "GroupConfig",
    "HostMemory",
    "Mode",
    "CanonicalKVCaches",
    "CanonicalKVCacheTensor",
    "CanonicalKVCacheRef",
    "TieringOffloadingSpec",
    "TieringOffloadingConfig",
    "TierConfig",
    "CascadeMode",
    "DiskConfig",
    # use it, awaited
    "OffloadingService",
    "Request",
    "Handle",
    "LoadResult",
    "StoreResult",
    "ResetResult",
    "ServiceStatistics",
    "TierStatistics",
    "PoolGrowth",
    "PoolFile",
    # name and place chunks
    "OffloadKey",
    "make_offload_key",
    "get_offload_block_hash",
    "get_offload_group_idx",
    "GPULoadStoreSpec",
    "CPULoadStoreSpec",
    "LoadStoreSpec",
    # watch it
    "EventBus",
    "Subscription",
    "SlowPolicy",
    "EventRecord",
    "GapRecord",
    "Snapshot",
    "TierSnapshot",
    "ResidentKeys",
    "ChunkMetadata",
    "EventBusStatistics",
    "SubscriptionStatistics",
    "OffloadingEvent",
    "EventKind",
    "RemovalReason",
    # use it from a thread without a loop
    "open_in_thread",
    "OffloadingThread",
    "ThreadCall",
    "LookupCall",
    "LoadCall",
    "StoreCall",
    "FinishCall",
    "CallOutcome",
    "CallStage",
    # step it, or extend it
    "OffloadingSpec",
    "OffloadingManager",
    "CPUOffloadingManager",
    "TieringOffloadingManager",
    "ReqContext",
    "ResidentPart",
    "Residents",
    "LookupResult",
    "PrepareLoadOutput",
    "PrepareStoreOutput",
    "CachePolicy",
    "Admission",
    "OffloadingWorker",
    "CPUOffloadingWorker",
    "SecondaryTier",
    "TierFactory",
    "TierShape",
    "StoreOutcome",
    "LoadOutcome",
    "DiskTier",
    "DiskStatistics",
    "Transfer",
    "TransferResult",
    "Device",
    "open_device",
    "Stream",
    "Event",
    # errors
    "OffloadError",
    "ConfigError",
    "ArgumentError",
    "ModeError",
    "ClosedError",
    "AbandonedError",
    "BusyError",
    "BrokenError",
    "LaggedError",
    "TransferError",
    "TierError",
    "InternalError",
]

_HOMES = (
    "errors",
    "base",
    "config",
    "cpu.common",
    "cpu.manager",
    "events",
    "tiering.config",
    "tiering.chain.statistics",
    "tiering.manager",
    "tiering.disk.config",
    "tiering.disk.statistics",
    "device",
    "cpu.gpu_worker",
    "service",
    "service.thread_calls",
    "service.thread",
    "cpu.spec",
    "tiering.spec",
    "tiering.disk.tier",
)
"""Modules that the names come from, those without torch first, and last those that need an extra."""


def preload() -> None:
    """Import now what is else imported when it is first used, so that nothing of it is imported while a loop runs.

    It takes a third of a second beside torch, which it imports as well. What needs an extra that is not installed is
    left out; whoever uses it later is told.
    """
    for home in _HOMES:
        try:
            importlib.import_module(f"{__name__}.{home}")
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == __name__:
                raise


# Type checkers read the imports above; this function would let them take any name for a public one.
if not TYPE_CHECKING:

    def __getattr__(name):
        if name in __all__:
            for home in _HOMES:
                module = importlib.import_module(f"aiokvoffload.{home}")
                if hasattr(module, name):
                    return globals().setdefault(name, getattr(module, name))
        raise AttributeError(f"module 'aiokvoffload' has no attribute {name!r}")

    def __dir__():
        return [*globals(), *__all__]
