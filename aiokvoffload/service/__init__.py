"""The front door: the manager as an async service."""

from aiokvoffload.service.handle import Handle
from aiokvoffload.service.parts import Parts, ServiceLimits, TierParts
from aiokvoffload.service.request import Request
from aiokvoffload.service.results import LoadResult, ResetResult, ServiceStatistics, StoreResult
from aiokvoffload.service.service import OffloadingService

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
    "TierParts",
]
