"""A service over the real manager and a worker whose transfers end when the test says so."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from aiokvoffload.base import OffloadKey, make_offload_key
from aiokvoffload.config import GroupConfig
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.cpu.manager import CPUOffloadingManager
from aiokvoffload.service import OffloadingService, Parts, ServiceLimits
from aiokvoffload.testing import MockOffloadingWorker

LIMITS = ServiceLimits(
    max_run_keys=512,
    max_run_fragments=1024,
    max_jobs_in_flight=128,
    max_waiting_transfers=4096,
    max_pending_events=1000,
)


def keys_of(count: int, *, name: str = "hash", group_idx: int = 0) -> list[OffloadKey]:
    """A chain of keys."""
    return [make_offload_key(f"{name}-{number:04d}".encode(), group_idx) for number in range(count)]


@dataclass
class Stage:
    """Everything a test of the service looks at."""

    num_slots: int = 8
    groups: Sequence[GroupConfig] = (GroupConfig(),)
    store_threshold: int = 1
    num_workers: int = 1
    max_run_keys: int = 512
    max_jobs_in_flight: int = 128
    workers: list[MockOffloadingWorker] = field(init=False)
    manager: CPUOffloadingManager = field(init=False)
    service: OffloadingService = field(init=False)

    def __post_init__(self) -> None:
        self.workers = [MockOffloadingWorker() for _ in range(self.num_workers)]
        pool = PoolShape(tuple(range(len(self.groups))), 4096, self.num_slots)
        self.manager = CPUOffloadingManager([pool], groups=self.groups, store_threshold=self.store_threshold)
        limits = replace(LIMITS, max_run_keys=self.max_run_keys, max_jobs_in_flight=self.max_jobs_in_flight)
        self.service = OffloadingService(lambda: Parts(self.manager, self.workers), groups=self.groups, limits=limits)

    @property
    def worker(self) -> MockOffloadingWorker:
        return self.workers[0]

    async def fill(self, keys: Sequence[OffloadKey], *, req_id: str = "filler") -> None:
        """Make `keys` resident, through the front door."""
        async with self.service.request(req_id) as request:
            handle = request.store(keys, range(len(keys)))
            for worker in self.workers:
                worker.finish_all()
            result = await handle
        assert result.stored == len(keys)


@pytest.fixture
def stage() -> Stage:
    return Stage()
