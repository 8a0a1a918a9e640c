"""The core words and contracts of KV-cache offloading, in one place.

A *block* is one page of keys and values of one KV-cache group in GPU memory; the engine owns it. A *chunk* is
`blocks_per_chunk` consecutive blocks of one group: what is offloaded, named by one `OffloadKey`, kept in one *slot*.
*Store* is GPU to CPU, *load* is CPU to GPU. These modules know the words and who promises what; they move no byte and
keep no state.
"""

from aiokvoffload.base.events import EventKind, OffloadingEvent, RemovalReason, ResidentPart
from aiokvoffload.base.ids import Ids, as_ids, count_up, highest, lowest
from aiokvoffload.base.keys import (
    LookupResult,
    OffloadKey,
    ReqContext,
    get_offload_block_hash,
    get_offload_group_idx,
    make_offload_key,
)
from aiokvoffload.base.manager import OffloadingManager, PrepareLoadOutput, PrepareStoreOutput
from aiokvoffload.base.memory import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
    LoadStoreSpec,
)
from aiokvoffload.base.policy import Admission, CachePolicy, Residents
from aiokvoffload.base.spec import OffloadingSpec
from aiokvoffload.base.tier import ChunkViews, LoadOutcome, SecondaryTier, StoreOutcome, TierFactory, TierShape
from aiokvoffload.base.transfer import Event, Stream, Transfer, TransferResult
from aiokvoffload.base.worker import OffloadingWorker, PoolFile, PoolGrowth

__all__ = [
    "Admission",
    "CachePolicy",
    "CanonicalKVCacheRef",
    "CanonicalKVCacheTensor",
    "CanonicalKVCaches",
    "ChunkViews",
    "Event",
    "EventKind",
    "GPULoadStoreSpec",
    "Ids",
    "LoadOutcome",
    "LoadStoreSpec",
    "LookupResult",
    "OffloadKey",
    "OffloadingEvent",
    "OffloadingManager",
    "OffloadingSpec",
    "OffloadingWorker",
    "PoolFile",
    "PoolGrowth",
    "PrepareLoadOutput",
    "PrepareStoreOutput",
    "RemovalReason",
    "ReqContext",
    "ResidentPart",
    "Residents",
    "SecondaryTier",
    "StoreOutcome",
    "Stream",
    "TierFactory",
    "TierShape",
    "Transfer",
    "TransferResult",
    "as_ids",
    "count_up",
    "get_offload_block_hash",
    "get_offload_group_idx",
    "highest",
    "lowest",
    "make_offload_key",
]
