"""Figures for operators: a service's statistics as Prometheus reads them. Needs the extra `metrics`.

Everything is pulled: nothing of it runs unless somebody asks.
"""

from aiokvoffload.metrics.collector import MetricsCollector
from aiokvoffload.metrics.server import DEFAULT_PORT, MetricsServer, MetricsServerStatistics, serve_metrics

__all__ = ["DEFAULT_PORT", "MetricsCollector", "MetricsServer", "MetricsServerStatistics", "serve_metrics"]
