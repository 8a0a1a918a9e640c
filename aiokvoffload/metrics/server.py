"""`GET /metrics` on the service's own loop: a few lines of HTTP, so that a server without one can be scraped.

Knows HTTP/1.1 as far as a scraper speaks it. Each answer is rendered figure by figure, with a pass of the loop between
two (I10); in a thread, it would hold the interpreter lock for as long.
"""

import asyncio
from dataclasses import dataclass
from typing import Self

from aiokvoffload.config import METRICS_PORT
from aiokvoffload.errors import ArgumentError, ClosedError
from aiokvoffload.metrics.catalogue import FIGURES
from aiokvoffload.metrics.collector import MetricsCollector
from aiokvoffload.metrics.families import CONTENT_TYPE, family_of, text_of
from aiokvoffload.service.service import OffloadingService

DEFAULT_PORT = METRICS_PORT
PATH = "/metrics"
_MAX_PORT = 65_535
_MAX_CONNECTIONS = 16
_MAX_HEAD_BYTES = 16 * 1024
_CONNECTION_TIMEOUT_S = 10.0
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


@dataclass(frozen=True, slots=True)
class MetricsServerStatistics:
    """Counts of a metrics server: answers with figures, other answers, and connections open now."""

    scrapes: int
    refused: int
    connections: int


def serve_metrics(service: OffloadingService, *, host: str = "127.0.0.1", port: int = DEFAULT_PORT) -> "MetricsServer":
    """An HTTP endpoint for a service's figures, to be entered with `async with` on the service's loop.

    Args:
        service: whose figures they are; it may be opened later, and closed sooner.
        host: address to listen on. There is no password: what can reach it can read the figures.
        port: 0 takes a free one.

    Raises:
        ArgumentError: the port is none, or the host no text.
    """
    if not (isinstance(port, int) and 0 <= port <= _MAX_PORT):
        raise ArgumentError(f"port must be a whole number from 0 to {_MAX_PORT}, got {port!r}")
    if not isinstance(host, str):
        raise ArgumentError(f"host must be an address or a name, as text, got {host!r}")
    return MetricsServer(service, host=host, port=port)


class MetricsServer:
    """An HTTP endpoint on the running loop; made by `serve_metrics`.

    Args:
        service: whose figures they are.
        host: address to listen on.
        port: 0 takes a free one.
    """

    def __init__(self, service: OffloadingService, *, host: str, port: int) -> None:
        self._service, self._host, self._port = service, host, port
        self._collector: MetricsCollector | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._scrapes = self._refused = 0
        self._entered = False

    @property
    def port(self) -> int:
        """The port it listens on; once it is entered, never 0."""
        return self._port

    @property
    def url(self) -> str:
        """What a scraper asks for."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}{PATH}"

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            ClosedError: it was entered before.
            OSError: the address cannot be listened on; the message names it.
        """
        if self._entered:
            raise ClosedError("a metrics server is entered once")
        self._entered = True
        self._collector = MetricsCollector(self._service)
        self._server = await asyncio.start_server(
            self._connected, self._host, self._port, limit=_MAX_HEAD_BYTES, reuse_address=True
        )
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Listen no more and end the connections; repeating it does nothing."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)
        await server.wait_closed()

    def statistics(self) -> MetricsServerStatistics:
        """Counts so far."""
        return MetricsServerStatistics(self._scrapes, self._refused, len(self._connections))

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer), name="aiokvoffload-metrics")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_CONNECTION_TIMEOUT_S):
                writer.write(await self._answer(reader))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, asyncio.LimitOverrunError):  # gone, silent (a time-out is an OSError) or no HTTP
            self._refused += 1
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        if len(self._connections) > _MAX_CONNECTIONS:
            return self._refusal(503, "too many connections")
        head = await reader.readuntil(b"\r\n\r\n")
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split()
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return self._refusal(400, "this is HTTP/1.1")
        method, target, _ = words
        if target.partition("?")[0] != PATH:
            return self._refusal(404, f"the figures are at {PATH}")
        if method not in {"GET", "HEAD"}:
            return self._refusal(405, "GET it")
        body = await self._render()
        self._scrapes += 1
        return _response(200, CONTENT_TYPE, body, with_body=method == "GET")

    async def _render(self) -> bytes:
        statistics = self._collector.snapshot() if self._collector is not None else None
        parts: list[bytes] = []
        for figure in FIGURES:
            parts.append(text_of(family_of(figure, statistics)))
            await asyncio.sleep(0)
        return b"".join(parts)

    def _refusal(self, status: int, text: str) -> bytes:
        self._refused += 1
        return _response(status, "text/plain; charset=utf-8", f"{text}\n".encode())

    def __repr__(self) -> str:
        state = "listening" if self._server is not None else "closed" if self._entered else "new"
        return f"<MetricsServer {state} at {self.url}, {self._scrapes} scrapes>"


def _response(status: int, content_type: str, body: bytes, *, with_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (body if with_body else b"")
