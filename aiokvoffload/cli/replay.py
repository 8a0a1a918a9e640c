"""Replays a trace as an async server would: what the scheduler of an engine does with the library.

Knows the order of one request's steps and what is counted; knows nothing of the terminal.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat

from aiokvoffload.base import OffloadKey
from aiokvoffload.cli.blocks import BlockAllocator
from aiokvoffload.cli.pattern import Pattern
from aiokvoffload.cli.trace import TraceRequest
from aiokvoffload.device import Device
from aiokvoffload.errors import TransferError
from aiokvoffload.service import OffloadingService, Request, StoreResult


@dataclass(slots=True)
class Tally:
    """What a replay counts as it goes."""

    served_blocks: int = 0
    short_loads: int = 0
    failed_loads: int = 0
    loaded_bytes: int = 0
    stored_bytes: int = 0
    refused_blocks: int = 0
    failed_store_blocks: int = 0

    def count_store(self, result: StoreResult) -> None:
        """Add one store's outcome."""
        self.stored_bytes += result.stored_bytes
        self.refused_blocks += len(result.refused_keys)
        self.failed_store_blocks += len(result.failed_keys)


@dataclass(slots=True)
class Server:
    """Serves requests of a trace through an offloading service, several at a time.

    Attributes:
        offload: the service.
        device: where the blocks lie; runs the model's stand-in on `compute`.
        compute: the stream that an engine's kernels would run on.
        allocator: the GPU blocks.
        pattern: what blocks hold.
        verify: whether loaded blocks are compared.
    """

    offload: OffloadingService
    device: Device
    compute: Stream
    allocator: BlockAllocator
    pattern: Pattern
    verify: bool
    tally: Tally = field(default_factory=Tally)
    verified_from: list[tuple[int, TraceRequest]] = field(default_factory=list)
    """For each load that was verified, the ordinal of its first block."""
