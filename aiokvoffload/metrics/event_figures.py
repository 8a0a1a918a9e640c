"""What subscribers of events were told, what was lost, and how far each is behind."""

from collections.abc import Iterator

from aiokvoffload.events import EventBusStatistics
from aiokvoffload.metrics.figure import Sample, counter, gauge, only
from aiokvoffload.service.results import ServiceStatistics

MAX_SUBSCRIBERS = 32
"""The label's values are bounded: of more subscribers, those furthest behind are told."""


def subscriber_lags(events: EventBusStatistics) -> list[tuple[str, int]]:
    """For each subscriber of the bus its name, or its number, and how many records it has not read."""
    subscribers = getattr(events, "subscriptions", ())
    return [(getattr(each, "name", "") or str(index), each.pending) for index, each in enumerate(subscribers)]


def _lags(service: ServiceStatistics) -> Iterator[Sample]:
    lags = sorted(subscriber_lags(service.events), key=lambda lag: -lag[1])
    return (((name,), pending) for name, pending in lags[:MAX_SUBSCRIBERS])


def _dropped(service: ServiceStatistics) -> Iterator[Sample]:
    yield ("slow_subscriber",), service.events.dropped
    yield ("not_taken",), service.manager.dropped_events


EVENT_FIGURES = (
    counter("events_total", "Events published.", only(lambda s: s.events.published)),
    gauge("event_subscribers", "Subscriptions of events.", only(lambda s: s.events.subscribers)),
    gauge("event_lag", "Records that a subscriber has not read.", _lags, labels=("subscriber",)),
    counter(
        "dropped_events_total",
        "Events lost: a subscriber was too slow, each of them counted; or nobody took them from the manager in time.",
        _dropped,
        labels=("reason",),
    ),
)
