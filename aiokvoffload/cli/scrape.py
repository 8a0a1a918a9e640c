"""What a metrics endpoint answers, as numbers that can be asked for by name and labels.

Knows HTTP and Prometheus's text format; knows nothing of what the figures mean.
"""

import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse

from prometheus_client.parser import text_string_to_metric_families

from aiokvoffload.errors import ArgumentError, OffloadError
from aiokvoffload.histogram import HistogramStatistics

PREFIX = "aiokvoffload_"
_MAX_BYTES = 8 << 20
_PART_BYTES = 64 << 10
_TIMEOUT_S = 5.0


class NoAnswerError(OffloadError):
    """Raised when nothing answers at a URL, or something that is no metrics endpoint of this library."""


Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Scrape:
    """One answer.

    Attributes:
        taken_s: when, in seconds of `time.monotonic`.
        samples: name, labels and value of each sample, without the prefix of all our names.
    """

    taken_s: float
    samples: Mapping[str, tuple[tuple[Labels, float], ...]]

    def each(self, name: str, **labels: str) -> Iterator[tuple[Labels, float]]:
        """The samples of this name that have these labels."""
        for sample in self.samples.get(name, ()):
            if labels.items() <= sample[0].items():
                yield sample

    def sum(self, name: str, **labels: str) -> float:
        """The sum of these samples; 0 if there are none."""
        return sum(value for _, value in self.each(name, **labels))

    def histogram(self, name: str, **labels: str) -> HistogramStatistics:
        """A histogram, added up over all other labels."""
        by_bound: dict[float, float] = {}
        for own, value in self.each(f"{name}_bucket", **labels):
            bound = float(own["le"])
            by_bound[bound] = by_bound.get(bound, 0.0) + value
        below, counts = 0.0, []
        for bound in sorted(by_bound):
            counts.append(round(by_bound[bound] - below))
            below = by_bound[bound]
        return HistogramStatistics(
            tuple(sorted(by_bound)[:-1]), tuple(counts) or (0,), self.sum(f"{name}_sum", **labels)
        )


def endpoint(text: str) -> str:
    """The URL that is meant: a scheme and a path may be left out.

    Raises:
        ArgumentError: it is no address over HTTP.
    """
    try:
        url = urllib.parse.urlsplit(text if "://" in text else f"http://{text}")
        is_address = url.scheme in {"http", "https"} and bool(url.hostname) and url.port != 0
    except ValueError:  # the port is no number, or the host no address
        is_address = False
    if not is_address:
        raise ArgumentError(f"URL must be like http://127.0.0.1:9464/metrics, got {text!r}")
    return urllib.parse.urlunsplit(url._replace(path=url.path.rstrip("/") or "/metrics"))


def scrape(url: str) -> Scrape:
    """Ask once; blocks for some seconds at most.

    Raises:
        NoAnswerError: nothing answers there, or something else.
    """
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - `endpoint` has checked it
            text = _read(answer).decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        error.close()
        raise not_ours(url, f"it answers {error.code} {error.reason}") from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise NoAnswerError(f"{url}: no answer: {reason}; is a server there that serves its metrics?") from None
    return parse(url, text)


def _read(answer: HTTPResponse) -> bytes:
    """All of an answer; the time-out of a connection is one between two bytes of it."""
    deadline_s, parts, size = time.monotonic() + _TIMEOUT_S, list[bytes](), 0
    while size < _MAX_BYTES and (part := answer.read1(_PART_BYTES)):
        parts.append(part)
        size += len(part)
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"it took more than {_TIMEOUT_S} s")
    return b"".join(parts)


def parse(url: str, text: str) -> Scrape:
    """Read an answer from `url`.

    Raises:
        NoAnswerError: it has no figures of this library.
    """
    samples: dict[str, list[tuple[Labels, float]]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith(PREFIX):
                    samples.setdefault(sample.name.removeprefix(PREFIX), []).append((sample.labels, sample.value))
    except (ValueError, IndexError, KeyError):  # what the parser raises for other things than metrics
        raise not_ours(url, "what it answers are no metrics") from None
    if "build_info" not in samples:
        raise not_ours(url, "its metrics are not those of this library")
    return Scrape(time.monotonic(), {name: tuple(found) for name, found in samples.items()})


def not_ours(url: str, reason: str) -> NoAnswerError:
    """What to say of something else, and what to do."""
    return NoAnswerError(f"{url}: {reason}; give the URL of `serve_metrics`, or where a MetricsCollector is exposed")
