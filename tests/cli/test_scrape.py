import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from aiokvoffload.cli import scrape as scrape_module
from aiokvoffload.cli.scrape import NoAnswerError, endpoint, parse, scrape
from aiokvoffload.errors import ArgumentError
from tests.loopback import kept_port

OURS = """
# TYPE aiokvoffload_build_info gauge
aiokvoffload_build_info{version="1"} 1
# TYPE aiokvoffload_hits_total counter
aiokvoffload_hits_total{tier="cpu"} 3
aiokvoffload_hits_total{tier="disk"} 4
# TYPE aiokvoffload_lag_seconds histogram
aiokvoffload_lag_seconds_bucket{tier="a",le="1"} 1
aiokvoffload_lag_seconds_bucket{tier="a",le="+Inf"} 3
aiokvoffload_lag_seconds_count{tier="a"} 3
aiokvoffload_lag_seconds_sum{tier="a"} 9
aiokvoffload_lag_seconds_bucket{tier="b",le="1"} 2
aiokvoffload_lag_seconds_bucket{tier="b",le="+Inf"} 2
aiokvoffload_lag_seconds_count{tier="b"} 2
aiokvoffload_lag_seconds_sum{tier="b"} 1
# TYPE python_info gauge
python_info 1
"""


@contextmanager
def answering(status: int, body: str) -> Iterator[str]:
    """The URL of something else than a metrics endpoint."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/metrics"
        thread.join()


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("127.0.0.1:9464", "http://127.0.0.1:9464/metrics"),
        ("http://host:80/", "http://host:80/metrics"),
        ("https://host/custom/path", "https://host/custom/path"),
        ("[::1]:9464", "http://[::1]:9464/metrics"),
    ],
)
def test_a_scheme_and_a_path_may_be_left_out(text: str, url: str) -> None:
    assert endpoint(text) == url


@pytest.mark.parametrize(
    "text", ["", "ftp://host/metrics", "http://", "host:port", "file:///etc/passwd", "host:0", "[::1"]
)
def test_what_is_no_address_over_http_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="URL must be like http://"):
        endpoint(text)


def test_samples_are_asked_for_by_name_and_labels() -> None:
    found = parse("url", OURS)
    assert (found.sum("hits_total"), found.sum("hits_total", tier="disk"), found.sum("nothing")) == (7, 4, 0)
    assert "info" not in found.samples
    lag = found.histogram("lag_seconds")
    assert (lag.bounds, lag.counts, lag.total) == ((1.0,), (3, 2), 10.0)
    assert found.histogram("nothing").count == 0


def test_nothing_that_listens_is_said_in_a_line() -> None:
    refused = "no answer: .*refused; is a server there"
    with kept_port() as port, pytest.raises(NoAnswerError, match=f"{port}/metrics: {refused}"):
        scrape(f"http://127.0.0.1:{port}/metrics")


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (404, "no such page", "it answers 404 Not Found"),
        (200, "<html><body>A web site</body></html>", "what it answers are no metrics"),
        (200, "python_info 1\n", "its metrics are not those of this library"),
        (200, "", "its metrics are not those of this library"),
    ],
)
def test_an_answer_that_is_not_ours_says_so_and_what_to_give(status: int, body: str, reason: str) -> None:
    with answering(status, body) as url, pytest.raises(NoAnswerError, match=f"{url}: {reason}; give the URL"):
        scrape(url)


def dripping(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection, contextlib.suppress(OSError):
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"#")
            time.sleep(0.01)


def test_an_answer_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time: the time-out of a connection does not see it."""
    monkeypatch.setattr(scrape_module, "_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=dripping, args=(listener,))
        thread.start()
        with pytest.raises(NoAnswerError, match=r"no answer: it took more than 0.2 s"):
            scrape(f"http://127.0.0.1:{listener.getsockname()[1]}/metrics")
        thread.join()
