"""What subscribers of events were told, what was lost, and how far each is behind."""

from collections.abc import Callable, Iterator

from aiokvoffload.events import EventBusStatistics
from aiokvoffload.metrics.figure import Sample, counter, gauge, only
from aiokvoffload.service.results import ServiceStatistics

MAX_SUBSCRIBERS = 32
"""The label's values are bounded: of more subscribers, those furthest behind are told."""
MAX_NAME = 64


def subscriber_lags(events: EventBusStatistics) -> dict[str, int]:
    """For each name of subscribers, or their number where they have none, how many records the last has not read."""
    lags: dict[str, int] = {}
    for index, each in enumerate(getattr(events, "subscriptions", ())):
        name = (getattr(each, "name", "") or str(index))[:MAX_NAME]
        lags[name] = max(lags.get(name, 0), each.lag)
    return lags


def _lags(service: ServiceStatistics) -> Iterator[Sample]:
    lags = sorted(subscriber_lags(service.events).items(), key=lambda lag: -lag[1])
    return (((name,), lag) for name, lag in lags[:MAX_SUBSCRIBERS])


def _dropped(service: ServiceStatistics) -> Iterator[Sample]:
    yield ("slow_subscriber",), service.events.dropped
    yield ("not_taken",), service.manager.dropped_events


def _counted(name: str) -> Callable[[ServiceStatistics], float]:
    return lambda service: getattr(service.events, name, 0)


EVENT_FIGURES = (
    counter("events_total", "Events published.", only(lambda s: s.events.published)),
    gauge("event_subscribers", "Subscriptions of events.", only(lambda s: s.events.subscribers)),
    gauge(
        "event_lag",
        "Records that a subscriber has not read; of several of one name, the last. Not more than 32 of them.",
        _lags,
        labels=("subscriber",),
    ),
    counter(
        "dropped_events_total",
        "Events lost: a subscriber was too slow, each of them counted; or nobody took them from the manager in time.",
        _dropped,
        labels=("reason",),
    ),
    counter(
        "disconnected_subscribers_total",
        "Subscribers that were ended because they were slow.",
        only(_counted("disconnected")),
    ),
    counter(
        "congested_waits_total",
        "Times that new transfers have waited for a subscriber.",
        only(_counted("congested_waits")),
    ),
)
