"""OpenAI's own client talks to the endpoint over a real socket, and leaves when it likes."""

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import openai
import pytest
import uvicorn
from starlette.types import Message

import aiokvoffload as kv
from aiokvoffload.cli.demo.checkpoints import Text
from aiokvoffload.cli.demo.engine import Engine, EngineConfig
from aiokvoffload.cli.replay import count_slots_and_transfers
from aiokvoffload.cli.serve import endpoint
from aiokvoffload.cli.serve.endpoint import Served, make_endpoint
from tests.cli.demo.tiny import PIECE_TOKENS, VOCABULARY, cpu_config, paged

STREAMS, LEAVING = 200, 0.3
BLOCKS = 200
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Nothing is encrypted here, and to load the authorities for each client takes longer than most tests."""


class Letters(Text):
    """A token is a letter."""

    stop = ()

    def encode(self, messages: object) -> list[int]:
        return [ord(letter) % VOCABULARY for letter in str(messages)]

    def decode(self, tokens: object) -> str:
        return "".join(chr(32 + token) for token in tokens)  # type: ignore[attr-defined]


@dataclass
class Rig:
    url: str
    engine: Engine
    offload: kv.OffloadingService
    client: openai.AsyncOpenAI


@contextlib.asynccontextmanager
async def listening(application: object) -> AsyncIterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(application, lifespan="off", log_level="warning"))  # type: ignore[arg-type]
        serving = asyncio.create_task(server.serve([listener]))
        while not server.started:
            await asyncio.sleep(0)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


@contextlib.asynccontextmanager
async def serving(*, max_requests: int = 1000) -> AsyncIterator[Rig]:
    model = await paged(BLOCKS, exact=False)
    config = EngineConfig(piece_tokens=PIECE_TOKENS, max_rows=16, exact=False, max_requests=max_requests)
    async with (
        kv.CPUOffloadingSpec(cpu_config(2 << 20)).open(model.kv_caches) as offload,
        Engine(model, config, offload=offload) as engine,
        listening(make_endpoint(Served("tiny", Letters(), engine, offload))) as url,
        openai.DefaultAsyncHttpxClient(verify=NO_TLS) as http_client,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http_client) as client,
    ):
        yield Rig(url, engine, offload, client)


def question(number: int = 0) -> "list[openai.types.chat.ChatCompletionMessageParam]":
    return [{"role": "user", "content": f"question {number % 20}"}]


async def idle(engine: Engine) -> None:
    """The server hears of a closed connection a moment later, and a step holds its blocks until it ends."""
    while (statistics := engine.statistics()).open_requests or statistics.pages.in_use:
        await asyncio.sleep(0)


async def test_the_official_client_streams_an_answer_and_gets_the_same_in_one_piece() -> None:
    async with serving() as rig:
        whole = await rig.client.chat.completions.create(model="tiny", messages=question(), max_tokens=8)
        assert whole.choices[0].finish_reason == "length"
        stream = await rig.client.chat.completions.create(
            model="tiny", messages=question(), max_tokens=8, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content
        assert len(chunks) > 8
        usage = chunks[-1].usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        assert usage.completion_tokens == 8
        assert usage.prompt_tokens_details.cached_tokens == (usage.prompt_tokens - 1) // 8 * 8
        models = await rig.client.models.list()
        assert [model.id for model in models.data] == ["tiny"]
        assert (await rig.client.models.retrieve("tiny")).id == "tiny"
        with pytest.raises(openai.NotFoundError, match="model must be"):
            await rig.client.models.retrieve("large")


async def test_two_hundred_streams_of_which_a_third_leaves_end_with_clean_books() -> None:
    async with serving() as rig:

        async def one(number: int) -> int:
            stream = await rig.client.chat.completions.create(
                model="tiny", messages=question(number), max_tokens=12, stream=True
            )
            async with stream:
                count = 0
                async for _ in stream:
                    count += 1
                    if number % 10 < LEAVING * 10 and count > number % 7:
                        break
                return count

        counts = await asyncio.gather(*(one(number) for number in range(STREAMS)))
        stayed = [count for number, count in enumerate(counts) if number % 10 >= LEAVING * 10]
        assert (len(stayed), set(stayed)) == (140, {14})
        await idle(rig.engine)
        assert rig.engine.statistics().requests == STREAMS
        rig.offload.check_integrity()
    assert count_slots_and_transfers(rig.offload.statistics()) == 0


async def test_a_client_that_leaves_before_its_first_token_aborts_its_request() -> None:
    """Sending alone would not notice it: there is nothing to send before blocks are free."""
    async with serving() as rig, httpx.AsyncClient(verify=NO_TLS) as client:
        body = {"model": "tiny", "messages": question(), "max_tokens": 1500, "stream": True}
        async with client.stream("POST", f"{rig.url}/v1/chat/completions", json=body) as first:
            events = first.aiter_bytes()  # kept: when it is collected, the connection is closed
            await anext(events)
            waiting = asyncio.create_task(client.post(f"{rig.url}/v1/chat/completions", json=body))
            while rig.engine.statistics().open_requests < 2:
                await asyncio.sleep(0)
            waiting.cancel()
            while rig.engine.statistics().open_requests > 1:
                await asyncio.sleep(0)
            assert rig.engine.statistics().pages.waiting == 0
        await idle(rig.engine)


async def test_a_server_that_ends_gives_a_client_up_that_takes_nothing() -> None:
    """uvicorn cancels it then, and would log a traceback for a cancellation that comes out."""
    async with serving() as rig:
        sending = asyncio.Event()

        async def receive() -> Message:
            if sending.is_set():
                await asyncio.Event().wait()
            body = {"model": "tiny", "messages": question(), "max_tokens": 500, "stream": True}
            return {"type": "http.request", "body": json.dumps(body).encode()}

        async def send(_: Message) -> None:
            sending.set()
            await asyncio.Event().wait()

        endpoint = make_endpoint(Served("tiny", Letters(), rig.engine, rig.offload))
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [], "query_string": b""}
        answering = asyncio.create_task(endpoint(scope, receive, send))
        await sending.wait()
        answering.cancel()
        await answering
        await idle(rig.engine)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "the body must be JSON"),
        (b"[]", "must be a JSON object, got list"),
        (b"[" * 100_000, "the body must be JSON"),
        (
            b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}',
            "must be text that has an encoding",
        ),
        (b'{"model": "tiny", "messages": [{"role": "\\ud800", "content": ""}]}', "messages[0].role must be one of"),
        (b'{"model": "tiny"}', "one message at least"),
        (b'{"model": "tiny", "messages": [{"role": 1}]}', "messages[0] must have a role"),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": 1}]}', "messages[0].content must be text"),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": [1]}]}', "parts that are text"),
        (
            b'{"model": "tiny", "messages": [{"role": "tool", "content": "?"}]}',
            "messages[0].role must be one of system",
        ),
        (b'{"model": "tiny", "messages": [{"role": "wizard", "content": "?"}]}', "user, assistant, got 'wizard'"),
        (b'{"model": "tiny", "messages": 5}', "messages must be a list, got 5"),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": "?"}], "n": 2}', "n must be 1"),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": "?"}], "logprobs": true}', "logprobs is not"),
        (b'{"model": "tiny", "messages": [], "functions": [{"name": "f"}]}', "functions is not supported"),
        (b'{"model": "tiny", "messages": [], "response_format": {"type": "json_object"}}', "must be text"),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": "?"}], "max_tokens": 0}', "at least 1, got 0"),
        (
            b'{"model": "tiny", "messages": [{"role": "user", "content": "?"}], "max_tokens": true}',
            "must be a whole number",
        ),
        (
            b'{"model": "tiny", "messages": [{"role": "user", "content": "?"}], "max_tokens": 9999}',
            "must fit the 1600 tokens of KV",
        ),
    ],
)
async def test_what_cannot_be_answered_is_status_400_and_says_why(body: bytes, reason: str) -> None:
    async with serving() as rig, httpx.AsyncClient(verify=NO_TLS) as client:
        response = await client.post(f"{rig.url}/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert reason in response.json()["error"]["message"]


async def test_a_model_that_there_is_not_is_status_404_as_openais() -> None:
    async with serving() as rig:
        with pytest.raises(openai.NotFoundError, match="model must be 'tiny', got 'large'") as caught:
            await rig.client.chat.completions.create(model="large", messages=question())
    assert caught.value.code == "model_not_found"


async def test_what_is_not_served_is_said_in_the_clients_terms() -> None:
    async with serving() as rig, httpx.AsyncClient(verify=NO_TLS) as client:
        with pytest.raises(openai.NotFoundError, match="POST /v1/completions: Not Found"):
            await rig.client.completions.create(model="tiny", prompt="?")
        response = await client.get(f"{rig.url}/v1/chat/completions")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert "Method Not Allowed" in response.json()["error"]["message"]


async def test_more_requests_than_are_allowed_get_status_429() -> None:
    async with serving(max_requests=1) as rig:
        stream = await rig.client.chat.completions.create(
            model="tiny", messages=question(), max_tokens=500, stream=True
        )
        async with stream:
            await anext(stream)
            with pytest.raises(openai.RateLimitError, match="the limit is 1"):
                await rig.client.chat.completions.create(model="tiny", messages=question())


async def test_a_body_that_is_too_long_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MAX_BODY_BYTES", 1000)
    async with serving() as rig, httpx.AsyncClient(verify=NO_TLS) as client:
        response = await client.post(f"{rig.url}/v1/chat/completions", content=b" " * 2000)
    assert response.status_code == 400
    assert "at most 1000 bytes" in response.json()["error"]["message"]


async def test_health_follows_the_engine_and_metrics_are_prometheuss() -> None:
    async with serving() as rig, httpx.AsyncClient(verify=NO_TLS) as client:
        assert (await client.get(f"{rig.url}/health")).json() == {"status": "ok"}
        metrics = await client.get(f"{rig.url}/metrics")
        assert metrics.text.startswith("# HELP aiokvoffload_")
        await rig.engine.__aexit__(None, None, None)
        assert (await client.get(f"{rig.url}/health")).status_code == 503
        with pytest.raises(openai.InternalServerError, match="not open"):
            await rig.client.chat.completions.create(model="tiny", messages=question())
