"""One tier of the chain: its lane, and what has become of the keys that were to go down or come up. Decides nothing."""

from collections.abc import Sequence
from dataclasses import asdict

from aiokvoffload.base.tier import LoadOutcome, StoreOutcome
from aiokvoffload.histogram import Histogram
from aiokvoffload.tiering.actions import DroppedKeys
from aiokvoffload.tiering.chain.lane import TierLane
from aiokvoffload.tiering.chain.statistics import TierCounts, TierStatistics


class Link:
    """A lane and its counts.

    Args:
        lane: performs the calls.
        max_calls_ahead: batches that one walk may have under way.

    Attributes:
        lane: as given.
        max_calls_ahead: as given.
        counts: keys by fate.
        latency: seconds of promotions, from their beginning to their end.
    """

    __slots__ = ("counts", "lane", "latency", "max_calls_ahead")

    def __init__(self, lane: TierLane, *, max_calls_ahead: int) -> None:
        self.lane, self.max_calls_ahead = lane, max_calls_ahead
        self.counts = TierCounts()
        self.latency = Histogram()

    def count_loads(self, outcomes: Sequence[LoadOutcome], seconds: float) -> None:
        """Count a promotion that ended after so long."""
        counts = self.counts
        counts.promoted += outcomes.count(LoadOutcome.LOADED)
        counts.missed += outcomes.count(LoadOutcome.MISS)
        counts.corrupt += outcomes.count(LoadOutcome.CORRUPT)
        counts.failed_loads += outcomes.count(LoadOutcome.FAILED)
        self.latency.add(seconds)

    def count_stores(self, outcomes: Sequence[StoreOutcome]) -> None:
        """Count a cascade."""
        counts = self.counts
        counts.cascaded += outcomes.count(StoreOutcome.STORED)
        counts.present += outcomes.count(StoreOutcome.PRESENT)
        counts.refused += outcomes.count(StoreOutcome.REFUSED)
        counts.failed_stores += outcomes.count(StoreOutcome.FAILED)

    def count_refused(self, num_keys: int) -> None:
        """Count a cascade that never began."""
        self.counts.dropped += num_keys
        if self.lane.closed:
            self.counts.dropped_at_close += num_keys

    def statistics(self, owed: DroppedKeys) -> TierStatistics:
        """A frozen record of counts; those of `owed` were dropped before they came here."""
        lane, queues = self.lane, self.lane.queues
        fates = asdict(self.counts)
        return TierStatistics(
            **fates
            | {
                "dropped": self.counts.dropped + sum(owed),
                "dropped_at_close": self.counts.dropped_at_close + owed.at_close,
            },
            name=lane.tier.name,
            serving=lane.serving,
            storing=lane.storing.serving,
            reason=lane.loading.reason or lane.storing.reason,
            outages=lane.loading.outages,
            dropped_slow=queues.refused_store_keys,
            dropped_held=owed.held,
            loads_waiting=len(queues.loads),
            stores_waiting=len(queues.stores),
            calls_in_flight=queues.running_loads + queues.running_stores,
            calls_late=lane.late,
            store_delay_s=queues.store_delay_s,
            tier=lane.tier.statistics(),
            promotions=lane.loaded.statistics(),
            cascades=lane.stored.statistics(),
            promotion_latency=self.latency.statistics(),
        )

    def __repr__(self) -> str:
        return f"<Link to {self.lane!r}, {self.counts.cascaded} keys went down, {self.counts.promoted} came up>"
