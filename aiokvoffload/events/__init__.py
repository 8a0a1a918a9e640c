"""Events: one order of what became resident and what left, and who listens to it."""

from aiokvoffload.events.bus import EventBus
from aiokvoffload.events.records import (
    ChunkMetadata,
    EventBusStatistics,
    EventRecord,
    GapRecord,
    SlowPolicy,
    Snapshot,
    SubscriptionStatistics,
    TierSnapshot,
)
from aiokvoffload.events.subscription import Subscription
from aiokvoffload.events.view import ResidentKeys

__all__ = [
    "ChunkMetadata",
    "EventBus",
    "EventBusStatistics",
    "EventRecord",
    "GapRecord",
    "ResidentKeys",
    "SlowPolicy",
    "Snapshot",
    "Subscription",
    "SubscriptionStatistics",
    "TierSnapshot",
]
