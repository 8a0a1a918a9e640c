"""The contract of an offloading spec: one configuration, the parts that belong together."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from aiokvoffload.base.manager import OffloadingManager
from aiokvoffload.base.memory import CanonicalKVCaches
from aiokvoffload.base.worker import OffloadingWorker


class OffloadingSpec(ABC):
    """Builds the parts that belong together from one configuration."""

    @abstractmethod
    def get_manager(self, kv_caches: CanonicalKVCaches) -> OffloadingManager:
        """The manager that knows the slots of this configuration."""

    @abstractmethod
    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """A worker for one process's GPU tensors, slot for slot in step with the manager."""

    @abstractmethod
    def open(self, kv_caches: CanonicalKVCaches | Sequence[CanonicalKVCaches]) -> AbstractAsyncContextManager[Any]:
        """The whole service on the running loop; one worker per entry when given several."""
