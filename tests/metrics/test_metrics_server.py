"""The endpoint as a scraper sees it, on a real service."""

import asyncio
import contextlib

import pytest

from aiokvoffload.errors import ArgumentError, ClosedError
from aiokvoffload.metrics import serve_metrics
from aiokvoffload.metrics import server as server_module
from tests.metrics.scene import BLOCK_BYTES, get, make_service, scraped, used_service, value


async def test_a_scrape_tells_what_the_service_did() -> None:
    async with used_service() as service, serve_metrics(service, port=0) as server:
        families = await scraped(server)
    assert value(families, "open") == 1
    moved = 4 * BLOCK_BYTES
    assert value(families, "transfer_bytes_total", tier="cpu", direction="store") == moved
    assert value(families, "transfer_bytes_total", tier="cpu", direction="load") == moved
    assert value(families, "transfer_bytes_total", tier="memory", direction="cascade") == moved
    assert value(families, "transfer_bytes_total", tier="memory", direction="promotion") == moved
    assert value(families, "transfer_seconds_total", tier="cpu", direction="store") > 0
    assert value(families, "lookup_keys_total", result="hit") == 4
    assert value(families, "lookup_keys_total", result="miss") == 1
    assert value(families, "hits_total", tier="memory") == 4
    assert value(families, "hits_total", tier="cpu") == 0
    assert value(families, "misses_total", tier="cpu") == 5
    assert value(families, "promotion_latency_seconds_count", tier="memory") >= 1
    assert value(families, "wake_up_lag_seconds_count") >= 2
    assert value(families, "cleared_keys_total", tier="cpu") == 4


async def test_the_slots_of_each_pool_add_up_to_its_capacity() -> None:
    """Fault 51: resident, pinned, writing and free are separate gauges, and none is negative."""
    async with used_service() as service, serve_metrics(service, port=0) as server:
        families = await scraped(server)
    slots = families["aiokvoffload_slots"].samples
    assert {sample.labels["state"] for sample in slots} == {"free", "writing", "pinned", "evictable", "quarantined"}
    assert all(sample.value >= 0 for sample in slots)
    for tier, capacity in (("cpu", 8), ("memory", 64)):
        assert sum(sample.value for sample in slots if sample.labels["tier"] == tier) == capacity
        assert value(families, "slot_capacity", tier=tier, pool="0") == capacity


async def test_a_closed_service_is_scraped_for_its_last_counts() -> None:
    async with contextlib.AsyncExitStack() as stack:
        service = make_service()
        server = await stack.enter_async_context(serve_metrics(service, port=0))
        families = await scraped(server)
        assert not families["aiokvoffload_requests"].samples  # not open yet: no values, and no error
        async with service:
            assert value(await scraped(server), "open") == 1
        families = await scraped(server)
        assert value(families, "open") == 0
        assert value(families, "requests") == 0


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/metrics?name=x", "GET", 200), ("/metrics", "POST", 405), ("/", "GET", 404), ("/metrics", "HEAD", 200)],
)
async def test_other_paths_and_methods_are_refused_politely(path: str, method: str, status: int) -> None:
    async with make_service() as service, serve_metrics(service, port=0) as server:
        answer = await get(server.url.removesuffix("/metrics") + path, method=method)
        assert answer[0] == status
        assert (answer[1] == "") is (method == "HEAD")
        assert server.statistics().scrapes == (status == 200)
        assert server.statistics().refused == (status != 200)


@pytest.mark.parametrize("garbage", [b"\r\n\r\n", b"GET\r\n\r\n", b"GET / SPDY/9\r\n\r\n", b"x" * 100_000, b""])
async def test_what_is_no_http_is_refused_and_changes_nothing(garbage: bytes) -> None:
    async with make_service() as service, serve_metrics(service, port=0) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(garbage)
        writer.write_eof()
        with contextlib.suppress(ConnectionError):
            assert not (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
        assert (await get(server.url))[0] == 200


async def test_a_silent_connection_ends_with_the_server() -> None:
    async with make_service() as service:
        async with serve_metrics(service, port=0) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            await get(server.url)
            assert server.statistics().connections >= 1
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


async def test_too_many_connections_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant I11."""
    monkeypatch.setattr(server_module, "_MAX_CONNECTIONS", 1)
    async with make_service() as service, serve_metrics(service, port=0) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert (await get(server.url))[0] == 503
        writer.close()


async def test_a_port_in_use_is_an_error_that_names_it_and_leaves_nothing() -> None:
    async with make_service() as service, serve_metrics(service, port=0) as server:
        with pytest.raises(OSError, match="in use"):
            async with serve_metrics(service, port=server.port):
                pass


async def test_a_server_is_entered_once_and_closed_as_often_as_one_likes() -> None:
    async with make_service() as service:
        async with serve_metrics(service, port=0) as server:
            assert "listening at http://127.0.0.1:" in repr(server)
        await server.aclose()
        assert "closed" in repr(server)
        with pytest.raises(ClosedError, match="once"):
            await server.__aenter__()


@pytest.mark.parametrize(("name", "value"), [("port", 65_536), ("port", -1), ("port", "9464"), ("host", 5)])
def test_an_address_that_is_none_is_named(name: str, value: object) -> None:
    service = make_service()
    with pytest.raises(ArgumentError, match=f"{name} must be .*, got {value!r}"):
        serve_metrics(service, **{name: value})  # type: ignore[arg-type]
