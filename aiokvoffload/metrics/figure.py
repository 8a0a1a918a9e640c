"""What a figure is: a name, what it means, and how it is read from a snapshot. Knows no exposition format."""

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aiokvoffload.histogram import HistogramStatistics
from aiokvoffload.service.results import ServiceStatistics


class Kind(enum.Enum):
    """How a figure moves."""

    COUNTER = "counter"
    """It only grows, from the opening of the service."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


Sample = tuple[tuple[str, ...], float | HistogramStatistics]
"""The values of the labels, and the figure."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure, with one value for each combination of its labels.

    Attributes:
        name: as it is exposed; that of a counter ends in `_total`.
        kind: how it moves.
        meaning: a sentence for people.
        labels: their names. Their values are names of tiers, numbers of pools and words of our own: a few.
        read: gives the values.
    """

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...]
    read: Callable[[ServiceStatistics], Iterable[Sample]]


def counter(
    name: str, meaning: str, read: Callable[[ServiceStatistics], Iterable[Sample]], *, labels: tuple[str, ...] = ()
) -> Figure:
    """A figure that only grows."""
    return Figure(f"aiokvoffload_{name}", Kind.COUNTER, meaning, labels, read)


def gauge(
    name: str, meaning: str, read: Callable[[ServiceStatistics], Iterable[Sample]], *, labels: tuple[str, ...] = ()
) -> Figure:
    """A figure that rises and falls."""
    return Figure(f"aiokvoffload_{name}", Kind.GAUGE, meaning, labels, read)


def histogram(
    name: str, meaning: str, read: Callable[[ServiceStatistics], Iterable[Sample]], *, labels: tuple[str, ...] = ()
) -> Figure:
    """A figure with a count for each class of values."""
    return Figure(f"aiokvoffload_{name}", Kind.HISTOGRAM, meaning, labels, read)


def only(
    value: Callable[[ServiceStatistics], float | HistogramStatistics],
) -> Callable[[ServiceStatistics], list[Sample]]:
    """The one value of a figure without labels."""
    return lambda service: [((), value(service))]
