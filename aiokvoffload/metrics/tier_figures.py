"""What lies below CPU memory: in service or not, who waits, and how long a way up takes."""

from collections.abc import Callable, Iterator
from typing import Any

from aiokvoffload.metrics.figure import Sample, counter, gauge, histogram, only
from aiokvoffload.service.results import ServiceStatistics
from aiokvoffload.tiering.chain.statistics import TierStatistics
from aiokvoffload.tiering.disk.statistics import DiskStatistics


def _of_tier(value: Callable[[TierStatistics], Any]) -> Callable[[ServiceStatistics], Iterator[Sample]]:
    return lambda service: (((tier.name,), value(tier)) for tier in service.tiers)


def _serving(service: ServiceStatistics) -> Iterator[Sample]:
    for tier in service.tiers:
        yield (tier.name, "promotion"), tier.serving
        yield (tier.name, "cascade"), tier.storing


def _queues(service: ServiceStatistics) -> Iterator[Sample]:
    for tier in service.tiers:
        yield (tier.name, "promotion"), tier.loads_waiting
        yield (tier.name, "cascade"), tier.stores_waiting


def _of_disk(*values: tuple[str, Callable[[DiskStatistics], int]]) -> Callable[[ServiceStatistics], Iterator[Sample]]:
    def read(service: ServiceStatistics) -> Iterator[Sample]:
        for tier in service.tiers:
            if isinstance(tier.tier, DiskStatistics):
                for label, value in values:
                    yield ((tier.name, label) if label else (tier.name,)), value(tier.tier)

    return read


TIER_FIGURES = (
    gauge("tier_serving", "1 while calls of this direction are in service.", _serving, labels=("tier", "direction")),
    counter(
        "tier_outages_total",
        "How often promotions were taken out of service.",
        _of_tier(lambda t: t.outages),
        labels=("tier",),
    ),
    gauge("tier_queue_length", "Calls that wait for their turn.", _queues, labels=("tier", "direction")),
    gauge(
        "tier_calls_in_flight",
        "Calls that have not returned, late ones included.",
        _of_tier(lambda t: t.calls_in_flight),
        labels=("tier",),
    ),
    gauge(
        "tier_late_calls",
        "Calls whose deadline has passed: their slots are quarantined.",
        _of_tier(lambda t: t.calls_late),
        labels=("tier",),
    ),
    gauge(
        "tier_store_delay_seconds",
        "How long a cascade that came now would wait.",
        _of_tier(lambda t: t.store_delay_s),
        labels=("tier",),
    ),
    histogram(
        "promotion_latency_seconds",
        "From the slots of a batch being reserved to its keys being readable, or not: queue, reading and checking.",
        _of_tier(lambda t: t.promotion_latency),
        labels=("tier",),
    ),
    gauge(
        "waiting_promotions",
        "Chains that wait for room in CPU memory to come up into.",
        only(lambda s: s.waiting_promotions),
    ),
    counter(
        "promotion_room_timeouts_total", "Chains that waited for that room in vain.", only(lambda s: s.room_timeouts)
    ),
    gauge(
        "disk_queue_length",
        "What waits inside a disk tier: jobs of its I/O threads, and changes of the index's rows.",
        _of_disk(
            ("load", lambda d: d.waiting_loads),
            ("store", lambda d: d.waiting_stores),
            ("row", lambda d: d.waiting_rows),
        ),
        labels=("tier", "queue"),
    ),
    counter(
        "disk_commits_total",
        "Transactions of a disk tier's index.",
        _of_disk(("ok", lambda d: d.commits), ("failed", lambda d: d.failed_commits)),
        labels=("tier", "result"),
    ),
    gauge(
        "disk_recovering",
        "1 while rows of an earlier run are still being read.",
        _of_disk(("", lambda d: d.recovering)),
        labels=("tier",),
    ),
)
