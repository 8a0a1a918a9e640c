"""All figures, in the order in which they are exposed."""

from aiokvoffload.metrics.event_figures import EVENT_FIGURES
from aiokvoffload.metrics.figure import Figure
from aiokvoffload.metrics.memory_figures import MEMORY_FIGURES
from aiokvoffload.metrics.service_figures import SERVICE_FIGURES
from aiokvoffload.metrics.tier_figures import TIER_FIGURES
from aiokvoffload.metrics.transfer_figures import TRANSFER_FIGURES

FIGURES: tuple[Figure, ...] = (*SERVICE_FIGURES, *TRANSFER_FIGURES, *MEMORY_FIGURES, *TIER_FIGURES, *EVENT_FIGURES)
