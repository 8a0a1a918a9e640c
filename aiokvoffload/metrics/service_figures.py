"""What requests asked for and were given, and how free the loop was."""

from collections.abc import Iterator

import aiokvoffload
from aiokvoffload.cpu.common import CPU_TIER
from aiokvoffload.metrics.figure import Sample, counter, gauge, histogram, only
from aiokvoffload.service.results import ServiceStatistics


def _lookup_keys(service: ServiceStatistics) -> Iterator[Sample]:
    yield ("hit",), service.keys.found
    yield ("miss",), service.keys.looked_up - service.keys.found


def _hits(service: ServiceStatistics) -> Iterator[Sample]:
    served = dict(service.keys.served_by_tier)
    for tier in (CPU_TIER, *(tier.name for tier in service.tiers)):
        yield (tier,), served.get(tier, 0)


def _misses(service: ServiceStatistics) -> Iterator[Sample]:
    from_below = sum(keys for tier, keys in service.keys.served_by_tier if tier != CPU_TIER)
    yield (CPU_TIER,), from_below + service.keys.unserved
    for tier in service.tiers:
        yield (tier.name,), tier.missed


def _transfers(service: ServiceStatistics) -> Iterator[Sample]:
    yield ("load",), service.loads
    yield ("store",), service.stores


SERVICE_FIGURES = (
    gauge(
        "build_info",
        "Always 1; the label is the version of the library.",
        lambda _: [((aiokvoffload.__version__,), 1)],
        labels=("version",),
    ),
    gauge("open", "1 while the service takes requests, 0 once it is closed or broken.", only(lambda s: s.is_open)),
    gauge("requests", "Requests open now.", only(lambda s: s.requests)),
    counter("requested_transfers_total", "Loads and stores accepted.", _transfers, labels=("direction",)),
    gauge(
        "waiting_transfers",
        "Loads and stores that have not submitted all they have: the length of the queue.",
        only(lambda s: s.waiting_flows),
    ),
    gauge("jobs_in_flight", "Copies submitted to the device and not ended.", only(lambda s: s.jobs_in_flight)),
    counter("lookup_keys_total", "Keys that lookups asked for, by what they found.", _lookup_keys, labels=("result",)),
    counter("hits_total", "Keys that loads were served, by the tier they were found in.", _hits, labels=("tier",)),
    counter(
        "misses_total",
        "Keys that loads asked a tier for in vain: of CPU memory, those that came from below or not at all.",
        _misses,
        labels=("tier",),
    ),
    histogram(
        "loop_blocked_seconds",
        "How late a timer of the event loop was, twenty times a second; whoever blocked it.",
        only(lambda s: s.loop_blocked),
    ),
)
