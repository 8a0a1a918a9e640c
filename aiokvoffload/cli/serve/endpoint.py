"""The routes. Knows HTTP and when a client has left; what is said is in `chat`, who answers is the engine."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from aiokvoffload.cli.demo.checkpoints import Text
from aiokvoffload.cli.demo.engine import Engine
from aiokvoffload.cli.demo.generation import Generation
from aiokvoffload.cli.serve.chat import (
    DONE,
    ChatRequest,
    Completion,
    TextPieces,
    Usage,
    error_record,
    event,
    parse_chat,
)
from aiokvoffload.errors import ArgumentError, BusyError, ClosedError, OffloadError
from aiokvoffload.metrics import MetricsCollector
from aiokvoffload.service.service import OffloadingService

MAX_BODY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Served:
    """What stands behind the endpoint.

    Attributes:
        name: of the model, as clients name it.
        text: of the model.
        engine: open.
        offload: open, the engine's.
    """

    name: str
    text: Text
    engine: Engine
    offload: OffloadingService


def make_endpoint(served: Served) -> Starlette:
    """The application, for any ASGI server on the engine's loop."""
    routes = [
        Route("/v1/chat/completions", _Chat(served), methods=["POST"]),
        Route("/v1/models", _models(served)),
        Route("/v1/models/{name:path}", _model(served)),
        Route("/health", _health(served)),
        Route("/metrics", _metrics(served)),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _no_route})


class _Chat:
    """`POST /v1/chat/completions`; a client that leaves aborts its request."""

    def __init__(self, served: Served) -> None:
        self._served = served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            chat = parse_chat(await _body(Request(scope, receive)))
            if chat.model != self._served.name:
                await _no_model(self._served, chat.model)(scope, receive, send)
                return
            prompt = await asyncio.to_thread(self._served.text.encode, chat.messages)
            generation = self._served.engine.generate(prompt, max_tokens=chat.max_tokens, stop=self._served.text.stop)
        except ClientDisconnect:
            return
        except OffloadError as error:
            await _refusal(error)(scope, receive, send)
            return
        answer = self._stream if chat.stream else self._whole
        # Only a server that ends cancels this, when a client takes nothing: raised, that would be logged as our fault.
        with contextlib.suppress(asyncio.CancelledError):
            async with generation:  # however the answer ends, its request does too
                await _until_disconnect(receive, answer(chat, generation, scope, receive, send))

    async def _whole(
        self, chat: ChatRequest, generation: Generation, scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            tokens = [token async for token in generation]
        except OffloadError as error:
            await _refusal(error)(scope, receive, send)
            return
        text = self._served.text.decode(tokens)
        usage = _usage(generation, len(tokens))
        record = Completion(generation.req_id, chat.model).whole(text, _reason(chat, len(tokens)), usage)
        await JSONResponse(record)(scope, receive, send)

    async def _stream(
        self, chat: ChatRequest, generation: Generation, _scope: Scope, _receive: Receive, send: Send
    ) -> None:
        completion, pieces = Completion(generation.req_id, chat.model), TextPieces(self._served.text.decode)
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send(_part(completion.first()))
        try:
            async for token in generation:
                if text := pieces.add(token):
                    await send(_part(completion.piece(text)))
        except OffloadError as error:  # too late for a status
            await send(_part(event(error_record(str(error), kind="server_error")), last=True))
            return
        if text := pieces.end():
            await send(_part(completion.piece(text)))
        await send(_part(completion.last(_reason(chat, pieces.count))))
        if chat.include_usage:
            await send(_part(completion.usage(_usage(generation, pieces.count))))
        await send(_part(DONE, last=True))


async def _no_route(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    there_are = "POST /v1/chat/completions, GET /v1/models, /health and /metrics"
    message = f"{request.method} {request.url.path}: {error.detail}; there are {there_are}"
    return JSONResponse(error_record(message, kind="invalid_request_error"), error.status_code, headers=error.headers)


def _models(served: Served) -> Callable[[Request], Awaitable[Response]]:
    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_record(served)]})

    return models


def _model(served: Served) -> Callable[[Request], Awaitable[Response]]:
    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        return JSONResponse(_record(served)) if name == served.name else _no_model(served, name)

    return model


def _no_model(served: Served, name: str) -> Response:
    message = f"model must be {served.name!r}, {f'got {name!r:.100}' if name else 'and none is named'}"
    return JSONResponse(error_record(message, kind="invalid_request_error", code="model_not_found"), 404)


def _record(served: Served) -> dict[str, object]:
    return {"id": served.name, "object": "model", "created": 0, "owned_by": "aiokvoffload"}


def _health(served: Served) -> Callable[[Request], Awaitable[Response]]:
    async def health(_: Request) -> Response:
        if served.offload.closed or not served.engine.is_open:
            return JSONResponse({"status": "closed"}, 503)
        return JSONResponse({"status": "ok"})

    return health


def _metrics(served: Served) -> Callable[[Request], Awaitable[Response]]:
    """The library's figures, for Prometheus."""
    registry = CollectorRegistry()
    registry.register(MetricsCollector(served.offload))

    async def figures(_: Request) -> Response:
        # On a thread, which asks the loop for one snapshot: rendering takes longer than a loop should be held.
        return Response(await asyncio.to_thread(generate_latest, registry), media_type=CONTENT_TYPE_LATEST)

    return figures


async def _body(request: Request) -> bytes:
    parts: list[bytes] = []
    async for part in request.stream():
        parts.append(part)
        if sum(map(len, parts)) > MAX_BODY_BYTES:
            raise ArgumentError(f"the body must be at most {MAX_BODY_BYTES} bytes")
    return b"".join(parts)


async def _until_disconnect(receive: Receive, answer: Awaitable[None]) -> None:
    """Await `answer`, but not for a client that has left. Sending alone would notice that only with the next token."""
    answering = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(_disconnected(receive))
    both: Sequence[asyncio.Future[None]] = (answering, leaving)
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in both:
            each.cancel()
        await asyncio.wait(both)
    if not answering.cancelled() and (error := answering.exception()) is not None and not isinstance(error, OSError):
        raise error


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _part(body: bytes, *, last: bool = False) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": not last}


def _refusal(error: OffloadError) -> Response:
    if isinstance(error, BusyError):
        return JSONResponse(error_record(str(error), kind="overloaded"), 429, headers={"retry-after": "1"})
    if isinstance(error, ClosedError):
        return JSONResponse(error_record(str(error), kind="closed"), 503)
    status = 400 if isinstance(error, ArgumentError) else 500
    kind = "invalid_request_error" if status == 400 else "server_error"
    return JSONResponse(error_record(str(error), kind=kind), status)


def _reason(chat: ChatRequest, tokens: int) -> str:
    return "length" if tokens == chat.max_tokens else "stop"


def _usage(generation: Generation, completion_tokens: int) -> Usage:
    figures = generation.figures
    cached = max(0, figures.prompt_tokens - figures.computed_tokens) if completion_tokens else 0
    return Usage(figures.prompt_tokens, completion_tokens, cached)
