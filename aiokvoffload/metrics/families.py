"""Figures in the words of `prometheus_client`. Knows that library; knows no service and no thread."""

import logging
from itertools import accumulate

from aiokvoffload.histogram import HistogramStatistics
from aiokvoffload.metrics.figure import Figure, Kind, Sample
from aiokvoffload.metrics.prometheus import (
    Collector,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    generate_latest,
)
from aiokvoffload.service.results import ServiceStatistics

logger = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def family_of(figure: Figure, statistics: ServiceStatistics | None) -> Metric:
    """A figure with its values, or with none where there is no snapshot, or a part of it is not what it should be."""
    family = _empty(figure)
    if statistics is None:
        return family
    try:
        for sample in figure.read(statistics):
            _add(family, sample)
    except Exception:  # a plug-in's record may be anything, and the other figures are wanted all the same (fault 52)
        logger.warning("the figure %s could not be read", figure.name, exc_info=True)
        return _empty(figure)
    return family


def _empty(figure: Figure) -> Metric:
    make = {
        Kind.COUNTER: CounterMetricFamily,
        Kind.GAUGE: GaugeMetricFamily,
        Kind.HISTOGRAM: HistogramMetricFamily,
    }[figure.kind]
    family: Metric = make(figure.name, figure.meaning, labels=figure.labels)
    return family


def _add(family: Metric, sample: Sample) -> None:
    # Names may come from a plug-in: what UTF-8 cannot say would make the whole exposition fail.
    labels = [str(label).encode("utf-8", "replace").decode() for label in sample[0]]
    value = sample[1]
    if isinstance(family, HistogramMetricFamily):
        if isinstance(value, HistogramStatistics):
            family.add_metric(labels, _buckets(value), value.total)
    elif isinstance(family, CounterMetricFamily | GaugeMetricFamily) and not isinstance(value, HistogramStatistics):
        family.add_metric(labels, float(value))


def _buckets(value: HistogramStatistics) -> list[tuple[str, float]]:
    """Classes as Prometheus counts them: each with all below it."""
    bounds = [*(f"{bound:g}" for bound in value.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(value.counts)), strict=True))


class _One(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> list[Metric]:
        return [self._family]


def text_of(family: Metric) -> bytes:
    """One family in Prometheus's text format."""
    return generate_latest(_One(family))
