import pytest
from opentelemetry.trace import INVALID_SPAN

from aiokvoffload.base import make_offload_key
from aiokvoffload.tiering.chain import spans
from aiokvoffload.tiering.chain.spans import Causes
from aiokvoffload.tracing import Span

KEYS = [make_offload_key(b"%04d" % number, 0) for number in range(6)]


def span() -> Span:
    return Span(INVALID_SPAN)


def test_keys_lead_to_the_span_of_their_latest_store() -> None:
    book, first, second = Causes(), span(), span()
    book.note(KEYS[:4], first)
    book.note(KEYS[2:4], second)
    assert (book.of(KEYS[:2]), book.of(KEYS[2:]), book.of(KEYS[4:])) == (first, second, None)


def test_only_so_many_keys_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant I11."""
    monkeypatch.setattr(spans, "MAX_KEYS", 3)
    book, only = Causes(), span()
    book.note(KEYS[:2], only)
    book.note(KEYS[2:6], only)
    assert len(book) == 3
    assert (book.of(KEYS[:1]), book.of(KEYS[2:3]), book.of(KEYS[3:4])) == (None, None, only)
