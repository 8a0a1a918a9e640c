"""Bytes and the time they took, by direction and tier, and how their ends were noticed."""

from collections.abc import Callable, Iterable, Iterator

from aiokvoffload.copy.direction import Direction
from aiokvoffload.cpu.common import CPU_TIER
from aiokvoffload.cpu.worker_statistics import DirectionStatistics
from aiokvoffload.histogram import NO_VALUES, HistogramStatistics
from aiokvoffload.metrics.figure import Sample, counter, histogram, only
from aiokvoffload.service.results import ServiceStatistics
from aiokvoffload.tiering.chain.statistics import CallStatistics


def _moved(
    of_stream: Callable[[DirectionStatistics], float], of_calls: Callable[[CallStatistics], float]
) -> Callable[[ServiceStatistics], Iterator[Sample]]:
    def read(service: ServiceStatistics) -> Iterator[Sample]:
        for direction in Direction:
            streams = (stream for worker in service.workers for stream in worker.streams)
            total = sum(of_stream(stream) for stream in streams if stream.direction is direction)
            yield (CPU_TIER, direction.value), total
        for tier in service.tiers:
            yield (tier.name, "cascade"), of_calls(tier.cascades)
            yield (tier.name, "promotion"), of_calls(tier.promotions)

    return read


def _failed(service: ServiceStatistics) -> Iterator[Sample]:
    for direction in Direction:
        streams = (stream for worker in service.workers for stream in worker.streams)
        yield (direction.value,), sum(stream.jobs_failed for stream in streams if stream.direction is direction)


def added(histograms: Iterable[HistogramStatistics]) -> HistogramStatistics:
    """One histogram of all values; all have the same classes, or none."""
    filled = [each for each in histograms if each.bounds]
    if not filled:
        return NO_VALUES
    counts = tuple(map(sum, zip(*(each.counts for each in filled), strict=True)))
    return HistogramStatistics(filled[0].bounds, counts, sum(each.total for each in filled))


TRANSFER_FIGURES = (
    counter(
        "transfer_bytes_total",
        "Bytes that arrived. In cpu, store is GPU to CPU and load is CPU to GPU; in a tier below, cascade is CPU to "
        "the tier and promotion is the tier to CPU.",
        _moved(lambda stream: stream.moved_bytes, lambda calls: calls.moved_bytes),
        labels=("tier", "direction"),
    ),
    counter(
        "transfer_seconds_total",
        "Seconds that the transfers took, one after the other: of the device in cpu, of calls in a tier below. Bytes "
        "over these seconds are the throughput of one transfer.",
        _moved(lambda stream: stream.busy_s, lambda calls: calls.busy_s),
        labels=("tier", "direction"),
    ),
    counter(
        "transfers_total",
        "Copies that ended in cpu, calls that returned in a tier below, failed ones included.",
        _moved(lambda stream: stream.jobs_ended, lambda calls: calls.calls),
        labels=("tier", "direction"),
    ),
    counter("failed_transfers_total", "Copies between GPU and CPU memory that failed.", _failed, labels=("direction",)),
    histogram(
        "wake_up_lag_seconds",
        "From a copy's end on the device to the event loop knowing of it.",
        only(lambda s: added(worker.poller.lag.histogram for worker in s.workers)),
    ),
    counter(
        "polling_seconds_total",
        "Processor time on the loop spent on asking for ends.",
        only(lambda s: sum(worker.poller.polling_s for worker in s.workers)),
    ),
    counter("polls_total", "Rounds of asking for ends.", only(lambda s: sum(w.poller.polls for w in s.workers))),
)
