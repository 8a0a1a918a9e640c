"""What a running service does now: the difference of two scrapes of its metrics endpoint.

Knows our metrics' names, and what is shown of them; how it looks is in `top_view`.
"""

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass

from aiokvoffload.cli.scrape import NoAnswerError, Scrape, not_ours, scrape
from aiokvoffload.histogram import HistogramStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class TierFigures:
    """One tier: slots by state now, and keys each second."""

    tier: str
    policy: str
    capacity: int
    free: int
    writing: int
    pinned: int
    evictable: int
    quarantined: int
    hits_per_s: float
    misses_per_s: float
    stored_per_s: float
    evicted_per_s: float
    refused_per_s: float
    failed_per_s: float
    in_service: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficFigures:
    """One direction of one tier. `busy_gb_per_s` is bytes over the seconds that the transfers took; 0 without any."""

    tier: str
    direction: str
    total_bytes: int
    bytes_per_s: float
    busy_gb_per_s: float
    queue_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopFigures:
    """What `aiokvoffload top` shows; rates and latencies are of the seconds between two scrapes.

    Attributes:
        url: the endpoint.
        version: of the library there.
        open: whether the service takes requests.
        seconds: between the scrapes.
        requests: open now.
        waiting_transfers: loads and stores that wait for their turn.
        jobs_in_flight: copies on the device.
        transfers_per_s: loads and stores accepted.
        found_ratio: of the keys looked up, the share that was found; `None` without lookups.
        wake_up_lag_p99_s: upper end of the class that the 99th percentile is in.
        loop_blocked_p99_s: the same of how late a timer on the loop was.
        promotion_p99_s: the same of promotions, over all tiers.
        events_per_s: published.
        event_lag: records that the slowest subscriber has not read.
        lost_events_per_s: over all subscribers.
        tiers: one entry for each.
        traffic: one entry for each tier and direction.
    """

    url: str
    version: str
    open: bool
    seconds: float
    requests: int
    waiting_transfers: int
    jobs_in_flight: int
    transfers_per_s: float
    found_ratio: float | None
    wake_up_lag_p99_s: float
    loop_blocked_p99_s: float
    promotion_p99_s: float
    events_per_s: float
    event_lag: int
    lost_events_per_s: float
    tiers: tuple[TierFigures, ...]
    traffic: tuple[TrafficFigures, ...]

    def to_json(self) -> str:
        """One JSON object; what has no bound is `null`."""
        finite = {name: None if value == float("inf") else value for name, value in asdict(self).items()}
        return json.dumps(finite, indent=2)


_TIERS = "evicted_keys_total"


class _Change:
    """Two scrapes, and what happened between them."""

    def __init__(self, before: Scrape, now: Scrape) -> None:
        self.before, self.now = before, now
        self.seconds = max(now.taken_s - before.taken_s, 1e-9)

    def grown(self, name: str, **labels: str) -> float:
        """By how much a counter has grown; one that is smaller than before began anew, with another process."""
        before, now = self.before.sum(name, **labels), self.now.sum(name, **labels)
        return now - before if now >= before else now

    def per_s(self, name: str, **labels: str) -> float:
        return self.grown(name, **labels) / self.seconds

    def gauge(self, name: str, **labels: str) -> int:
        return int(self.now.sum(name, **labels))

    def p99_s(self, name: str) -> float:
        before, now = self.before.histogram(name), self.now.histogram(name)
        if before.bounds != now.bounds or before.count > now.count:
            return now.quantile(0.99)
        counts = tuple(new - old for new, old in zip(now.counts, before.counts, strict=True))
        return HistogramStatistics(now.bounds, counts, 0.0).quantile(0.99)


def figures(url: str, before: Scrape, now: Scrape) -> TopFigures:
    """What happened between two scrapes of `url`.

    Raises:
        NoAnswerError: the figures have our names and are not ours.
    """
    try:
        return _figures(url, _Change(before, now))
    except (KeyError, TypeError, ValueError, OverflowError):
        raise not_ours(url, "its metrics are not those of this library") from None


def _figures(url: str, change: _Change) -> TopFigures:
    now = change.now
    looked_up = change.grown("lookup_keys_total")
    lags = [value for _, value in now.each("event_lag")]
    return TopFigures(
        url=url,
        version=next((labels["version"] for labels, _ in now.each("build_info")), ""),
        open=bool(now.sum("open")),
        seconds=change.seconds,
        requests=change.gauge("requests"),
        waiting_transfers=change.gauge("waiting_transfers"),
        jobs_in_flight=change.gauge("jobs_in_flight"),
        transfers_per_s=change.per_s("requested_transfers_total"),
        found_ratio=change.grown("lookup_keys_total", result="hit") / looked_up if looked_up else None,
        wake_up_lag_p99_s=change.p99_s("wake_up_lag_seconds"),
        loop_blocked_p99_s=change.p99_s("loop_blocked_seconds"),
        promotion_p99_s=change.p99_s("promotion_latency_seconds"),
        events_per_s=change.per_s("events_total"),
        event_lag=int(max(lags, default=0)),
        lost_events_per_s=change.per_s("dropped_events_total"),
        tiers=tuple(_tier(change, tier=tier, policy=policy) for tier, policy in _labels(now, _TIERS, "tier", "policy")),
        traffic=tuple(
            _traffic(change, tier=tier, direction=direction)
            for tier, direction in _labels(now, "transfer_bytes_total", "tier", "direction")
        ),
    )


def _labels(now: Scrape, name: str, first: str, second: str) -> dict[tuple[str, str], None]:
    """The pairs that there are, in order; who scrapes us and is scraped in turn adds labels of its own."""
    return dict.fromkeys((labels[first], labels[second]) for labels, _ in now.each(name))


def _tier(change: _Change, *, tier: str, policy: str) -> TierFigures:
    return TierFigures(
        tier=tier,
        policy=policy,
        capacity=change.gauge("slot_capacity", tier=tier),
        free=change.gauge("slots", tier=tier, state="free"),
        writing=change.gauge("slots", tier=tier, state="writing"),
        pinned=change.gauge("slots", tier=tier, state="pinned"),
        evictable=change.gauge("slots", tier=tier, state="evictable"),
        quarantined=change.gauge("slots", tier=tier, state="quarantined"),
        hits_per_s=change.per_s("hits_total", tier=tier),
        misses_per_s=change.per_s("misses_total", tier=tier),
        stored_per_s=change.per_s("stored_keys_total", tier=tier),
        evicted_per_s=change.per_s("evicted_keys_total", tier=tier),
        refused_per_s=change.per_s("refused_keys_total", tier=tier),
        failed_per_s=change.per_s("failed_keys_total", tier=tier) + change.per_s("corrupt_keys_total", tier=tier),
        in_service=all(value for _, value in change.now.each("tier_serving", tier=tier)),
    )


def _traffic(change: _Change, *, tier: str, direction: str) -> TrafficFigures:
    moved = change.grown("transfer_bytes_total", tier=tier, direction=direction)
    busy_s = change.grown("transfer_seconds_total", tier=tier, direction=direction)
    return TrafficFigures(
        tier=tier,
        direction=direction,
        total_bytes=change.gauge("transfer_bytes_total", tier=tier, direction=direction),
        bytes_per_s=moved / change.seconds,
        busy_gb_per_s=moved / busy_s / 1e9 if busy_s > 0 else 0.0,
        queue_length=change.gauge("tier_queue_length", tier=tier, direction=direction),
    )


async def _ask(url: str) -> Scrape:
    """Ask on a thread that nobody waits for in the end: a server that is slow to answer must not hold Ctrl-C up."""
    asked: Future[Scrape] = Future()
    asked.set_running_or_notify_cancel()

    def ask() -> None:
        try:
            asked.set_result(scrape(url))
        except Exception as error:  # noqa: BLE001 - it is raised where it is awaited
            asked.set_exception(error)

    threading.Thread(target=ask, name="aiokvoffload-top", daemon=True).start()
    return await asyncio.wrap_future(asked)


async def look_once(url: str, interval_s: float) -> TopFigures:
    """Two scrapes and what happened between them.

    Raises:
        NoAnswerError: nothing answers there, or something else.
    """
    before = await _ask(url)
    await asyncio.sleep(interval_s)
    return figures(url, before, await _ask(url))


async def watch(url: str, interval_s: float, show: Callable[[TopFigures | None, str], None]) -> None:
    """Look again and again, until it is cancelled.

    Args:
        url: the endpoint.
        interval_s: between two scrapes.
        show: is given the latest figures, if there are any, and what is wrong now, if anything.

    Raises:
        NoAnswerError: nothing answers the first time. Later that is shown, and asked again: servers are restarted.
    """
    before = await _ask(url)
    latest: TopFigures | None = None
    show(latest, "")
    while True:
        await asyncio.sleep(interval_s)
        try:
            now = await _ask(url)
            latest, before = figures(url, before, now), now
        except NoAnswerError as error:
            show(latest, str(error))
            continue
        show(latest, "")
