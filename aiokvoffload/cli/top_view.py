"""How the figures of `top` look in a terminal. Knows figures and tables; asks nobody."""

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from aiokvoffload.cli.top import TierFigures, TopFigures, TrafficFigures


def view(figures: TopFigures | None, trouble: str, *, url: str) -> Group:
    """Everything, for a terminal of 80 columns or more."""
    remarks = [Text(trouble, style="bold red")] if trouble else []
    if figures is None:
        return Group(Text(f"{url}: waiting for a second look"), *remarks)
    return Group(_head(figures), _tiers(figures), _traffic(figures), _latencies(figures), *remarks)


def _head(figures: TopFigures) -> Text:
    state = "open" if figures.open else "closed"
    found = "no lookups" if figures.found_ratio is None else f"{figures.found_ratio:.1%} of keys found"
    return Text(
        f"{figures.url}  aiokvoffload {figures.version}, {state}\n"
        f"{figures.requests:,} requests, {figures.transfers_per_s:,.1f} transfers/s, "
        f"{figures.waiting_transfers:,} waiting, {figures.jobs_in_flight:,} copies in flight, {found}"
    )


def _table(title: str, *columns: str, names: int) -> Table:
    """Narrow, so that ten columns fit; the first `names` columns are text."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, show_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < names else "right", no_wrap=True)
    return table


def _tiers(figures: TopFigures) -> Table:
    columns = ("tier", "slots", "readable", "pinned", "busy", "hit/s", "miss/s", "evict/s", "refuse/s", "fail/s")
    table = _table("keys", *columns, names=1)
    for tier in figures.tiers:
        table.add_row(*_tier_cells(tier))
    return table


def _tier_cells(tier: TierFigures) -> tuple[str | Text, ...]:
    readable = (tier.pinned + tier.evictable) / tier.capacity if tier.capacity else 0.0
    rates = (tier.hits_per_s, tier.misses_per_s, tier.evicted_per_s, tier.refused_per_s)
    failed = _short(tier.failed_per_s)
    return (
        _name(tier.tier) if tier.in_service else Text(f"{_name(tier.tier)} (out)", style="bold red"),
        _short(tier.capacity),
        f"{readable:.0%}",
        _short(tier.pinned),
        _short(tier.writing + tier.quarantined),
        *map(_short, rates),
        f"[bold red]{failed}[/]" if tier.failed_per_s else failed,
    )


def _name(name: str) -> Text:
    """As it is: a name comes from a plug-in, or over the network, and what it has in brackets is no style."""
    return Text(name if name.isprintable() else repr(name))


def _short(number: float) -> str:
    """Three or four digits."""
    for unit in ("", "k", "M"):
        if number < 9999.5:
            return f"{number:.0f}{unit}"
        number /= 1000
    return f"{number:,.0f}G"


def _traffic(figures: TopFigures) -> Table:
    table = _table("bytes", "tier", "direction", "MB/s", "GB/s while busy", "total GB", "queue", names=2)
    for each in figures.traffic:
        table.add_row(*_traffic_cells(each))
    return table


def _traffic_cells(each: TrafficFigures) -> tuple[str | Text, ...]:
    return (
        _name(each.tier),
        _name(each.direction),
        f"{each.bytes_per_s / 1e6:,.1f}",
        f"{each.busy_gb_per_s:,.2f}",
        f"{each.total_bytes / 1e9:,.2f}",
        f"{each.queue_length:,}",
    )


def _latencies(figures: TopFigures) -> Text:
    lost = f", {figures.lost_events_per_s:,.0f} lost/s" if figures.lost_events_per_s else ""
    return Text(
        f"p99: wake-up lag {_at_most(figures.wake_up_lag_p99_s)}, loop blocked {_at_most(figures.loop_blocked_p99_s)}, "
        f"promotion {_at_most(figures.promotion_p99_s)}\n"
        f"events: {figures.events_per_s:,.0f}/s, slowest subscriber {figures.event_lag:,} behind{lost}"
    )


def _at_most(seconds: float) -> str:
    """A class of a histogram, by its upper end."""
    if seconds == 0:
        return "none"
    return "above 5 s" if seconds == float("inf") else f"≤ {seconds * 1e3:g} ms"
