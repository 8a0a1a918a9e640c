"""Whether a tier is in service. Counts failures; asks nobody and waits for nothing."""

import logging

logger = logging.getLogger(__name__)


class TierHealth:
    """The state of one tier's loads, or of its stores: in service, or out of it for a reason.

    Args:
        name: what this is about, for the log.
        max_failures: so many failed calls in a row take it out.

    Attributes:
        reason: why it is out of service; empty while it serves.
        outages: how often it was taken out.
    """

    __slots__ = ("_failures", "_max_failures", "_name", "outages", "reason")

    def __init__(self, name: str, max_failures: int) -> None:
        self._name, self._max_failures = name, max_failures
        self._failures = 0
        self.reason = ""
        self.outages = 0

    @property
    def serving(self) -> bool:
        """Whether it is in service."""
        return not self.reason

    def succeeded(self) -> None:
        """A call came back with something."""
        self._failures = 0

    def failed(self, reason: str) -> None:
        """A call came back with nothing; one too many takes the tier out."""
        self._failures += 1
        if self._failures >= self._max_failures:
            self.take_out(f"{self._failures} calls in a row failed, the last one: {reason}")

    def take_out(self, reason: str) -> None:
        """Out of service at once; the first reason stands."""
        if self.serving:
            self.reason = reason
            self.outages += 1
            logger.warning("tier %s: taken out of service: %s", self._name, reason)

    def take_back(self) -> None:
        """It answers again."""
        if not self.serving:
            logger.warning("tier %s: in service again", self._name)
            self.reason, self._failures = "", 0

    def __repr__(self) -> str:
        return f"TierHealth({self._name!r}, {self.reason or 'serving'}, {self.outages} outages)"
