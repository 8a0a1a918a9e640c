"""Spans around what takes time, where `opentelemetry-api` is installed; where it is not, `TRACER` is `None`.

Knows OpenTelemetry's API; knows neither its SDK nor what the spans are around. Whatever a tracer does, nothing raises
here (fault 52): a span may be missing, a transfer may not.
"""

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

try:
    from opentelemetry import context as contexts
    from opentelemetry import trace
except ImportError:
    TRACER: "trace.Tracer | None" = None
else:
    TRACER = trace.get_tracer("aiokvoffload")

if TYPE_CHECKING:
    from opentelemetry.context import Context

logger = logging.getLogger(__name__)

MAX_TEXT = 128
"""Characters kept of a text: who names requests may be a stranger."""

Attributes = Mapping[str, str | int]
"""By name, without the prefix. Counts, and short texts; never keys."""


class Span:
    """One span, begun. Its parent was settled when it was begun."""

    __slots__ = ("_span",)

    def __init__(self, span: "trace.Span") -> None:
        self._span = span

    def end(self, attributes: Attributes, *, error: str = "") -> None:
        """End it, as a failure if there is an error."""
        try:
            self._span.set_attributes(_prefixed(attributes))
            if error:
                self._span.set_status(trace.StatusCode.ERROR, error[:MAX_TEXT])
            self._span.end()
        except Exception:  # an exporter or a processor of the user's, called by the end of a transfer
            logger.debug("a span could not be ended", exc_info=True)

    def __repr__(self) -> str:
        return f"Span({self._span!r})"


def begin(name: str, attributes: Attributes) -> Span | None:
    """Begin a span under the caller's current one; `None` where nobody traces."""
    return _begin(name, attributes, lambda: None)


def begin_under(parent: Span | None, name: str, attributes: Attributes) -> Span | None:
    """Begin a span under `parent`, or at the root without one: what runs now may be anybody's task."""
    return _begin(name, attributes, lambda: _context_of(parent))


def current() -> Span | None:
    """The caller's current span, to begin others under; it is the caller's to end. `None` where nobody traces."""
    if TRACER is None:
        return None
    return _traced(trace.get_current_span())


def _begin(name: str, attributes: Attributes, context: "Callable[[], Context | None]") -> Span | None:
    if TRACER is None:
        return None
    try:
        span = TRACER.start_span(f"aiokvoffload.{name}", context(), attributes=_prefixed(attributes))
    except Exception:  # a sampler or a processor of the user's, called by a load or a store
        logger.debug("the span %s could not be begun", name, exc_info=True)
        return None
    return _traced(span)


def _traced(span: "trace.Span") -> Span | None:
    # One that is not sampled is kept: what is begun under it is not sampled either.
    return Span(span) if span.get_span_context().is_valid else None


def _context_of(parent: Span | None) -> "Context":
    empty = contexts.Context()
    return empty if parent is None else trace.set_span_in_context(parent._span, empty)


def _prefixed(attributes: Attributes) -> dict[str, str | int]:
    return {
        f"aiokvoffload.{name}": value[:MAX_TEXT] if isinstance(value, str) else value
        for name, value in attributes.items()
    }
