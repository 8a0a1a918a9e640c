"""What of `prometheus_client` is used here, and what to install where it is missing."""

try:
    from prometheus_client import generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    message = "metrics need prometheus-client: pip install 'aiokvoffload[metrics]'"
    raise ModuleNotFoundError(message, name="prometheus_client") from error

__all__ = [
    "Collector",
    "CounterMetricFamily",
    "GaugeMetricFamily",
    "HistogramMetricFamily",
    "Metric",
    "generate_latest",
]
