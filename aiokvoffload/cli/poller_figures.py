"""The figures of the poller's benchmark, as records and as tables. Measures nothing."""

import json
from dataclasses import asdict, dataclass

from rich.table import Table

from aiokvoffload.cli.probe import Percentiles

TRANSFER_BYTES = (64 << 10, 2 << 20, 16 << 20, 128 << 20)
"""Of the transfers whose lag is measured, unless others are asked for."""


@dataclass(frozen=True, slots=True)
class LagFigures:
    """Transfers of one size and direction.

    Attributes:
        direction: store or load.
        transfer_bytes: of each.
        transfers: how many.
        copy_us: median of their time on the device.
        lag_us: from the end on the device until who awaited it went on.
    """

    direction: str
    transfer_bytes: int
    transfers: int
    copy_us: float
    lag_us: Percentiles


@dataclass(frozen=True, slots=True)
class ShareFigures:
    """What one phase took of the loop's core; all shares are of one core, and without what an idle loop takes.

    Attributes:
        phase: what went on.
        transfers_per_s: how many transfers ended.
        loop_share: the loop's thread in all.
        submitting_share: the part of it inside `submit_store` and `submit_load`.
        polling_share: the part of it for asking and waiting: the poller's turns, and what the loop itself takes for the
            alarms and turns that the poller asks it for.
        lag_us: from the end on the device until who awaited it went on.
    """

    phase: str
    transfers_per_s: float
    loop_share: float
    submitting_share: float
    polling_share: float
    lag_us: Percentiles


@dataclass(frozen=True, slots=True)
class LoadedFigures:
    """Lags while jobs of many fragments are submitted and threads are busy, and how long one such submission blocks."""

    fragments: int
    threads: int
    submit_us: Percentiles
    lag: LagFigures


@dataclass(frozen=True, slots=True)
class PollerBenchmark:
    """One run of `poller_benchmark`.

    Attributes:
        device: its name.
        loop: the event loop's module.
        seconds: of each phase.
        clock_error_us: how wrong the ends' times may be.
        handover_us: from a thread's posting to an idle loop until the loop makes the call, with nothing else to do:
            what the system takes to hand a job over that a thread has enqueued.
        lags: on an idle loop.
        shares: of one core.
        loaded: on a loop that is not idle, if that was asked for.
    """

    device: str
    loop: str
    seconds: float
    clock_error_us: float
    handover_us: Percentiles
    lags: tuple[LagFigures, ...]
    shares: tuple[ShareFigures, ...]
    loaded: LoadedFigures | None

    def to_json(self) -> str:
        """The record as one JSON object."""
        return json.dumps(asdict(self), indent=2)


def poller_tables(benchmark: PollerBenchmark) -> list[Table]:
    """The figures for people."""
    where = f"{benchmark.device}, {benchmark.loop}"
    lags = Table(title=f"Wake-up lag: {where}, ends dated to ±{benchmark.clock_error_us:.1f} µs")
    for column in ("", "bytes", "transfers", "copy µs", "lag µs: p50", "p99", "max"):
        lags.add_column(column, justify="right" if column else "left")
    lags.add_row("a bare callback from a thread", "", "", "", *_cells(benchmark.handover_us))
    for figures in benchmark.lags:
        _add_lag(lags, figures.direction, figures)
    if (loaded := benchmark.loaded) is not None:
        _add_lag(lags, f"load, beside jobs of {loaded.fragments:,} fragments", loaded.lag)
        submit = loaded.submit_us
        lags.caption = (
            f"Submitting such a job takes the loop {submit.p50:,.0f} µs (p50), {submit.max:,.0f} µs (max); "
            f"{loaded.threads} threads hash meanwhile."
        )
    shares = Table(title=f"Shares of one core: {where}")
    for column in ("", "transfers/s", "loop", "of it submitting", "of it polling", "lag µs: p50", "p99", "max"):
        shares.add_column(column, justify="right" if column else "left")
    for share in benchmark.shares:
        percents = (f"{value:.1%}" for value in (share.loop_share, share.submitting_share, share.polling_share))
        shares.add_row(share.phase, f"{share.transfers_per_s:,.0f}", *percents, *_cells(share.lag_us))
    return [lags, shares]


def _add_lag(table: Table, name: str, figures: LagFigures) -> None:
    counts = (f"{value:,.0f}" for value in (figures.transfer_bytes, figures.transfers, figures.copy_us))
    table.add_row(name, *counts, *_cells(figures.lag_us))


def _cells(percentiles: Percentiles) -> list[str]:
    return [f"{value:,.0f}" for value in (percentiles.p50, percentiles.p99, percentiles.max)]
