"""The front door: the manager as an async service."""

from aiokvoffload.service.handle import Handle
from aiokvoffload.service.request import Request
from aiokvoffload.service.results import LoadResult, ResetResult, ServiceStatistics, StoreResult
from aiokvoffload.service.service import OffloadingService, Parts, ServiceLimits

__all__ = [
    "Handle",
    "LoadResult",
    "OffloadingService",
    "Parts",
    "Request",
    "ResetResult",
    "ServiceLimits",
    "ServiceStatistics",
    "StoreResult",
]
