"""What is asked over HTTP and what is answered: JSON in and out. Knows the protocol; knows no sockets and no engine.

The records follow https://platform.openai.com/docs/api-reference/chat, as far as an engine that answers greedily can.
"""

import json
import time
from dataclasses import dataclass
from typing import Any

from aiokvoffload.errors import ArgumentError

DEFAULT_MAX_TOKENS = 256
ROLES = ("system", "developer", "user", "assistant")
"""Of messages; the protocol's others belong to tools, which there are none of."""
_KINDS = {int: "a whole number", str: "text", bool: "true or false", list: "a list", dict: "an object"}
_UNSUPPORTED = ("stop", "tools", "functions", "logprobs", "top_logprobs")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A body of `POST /v1/chat/completions`, checked.

    Attributes:
        model: as the client named it.
        messages: `role` and `content` of each, oldest first.
        max_tokens: most tokens of the answer.
        stream: whether the answer is wanted token by token.
        include_usage: whether a stream ends with the counts of tokens.
    """

    model: str
    messages: list[dict[str, str]]
    max_tokens: int
    stream: bool
    include_usage: bool


def parse_chat(body: bytes) -> ChatRequest:
    """The request in `body`. Parameters of sampling are ignored: the engine takes the likeliest token.

    Raises:
        ArgumentError: it is no JSON object, a field is missing or of the wrong kind, or asks for what there is not.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"the body must be JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ArgumentError(f"the body must be a JSON object, got {type(fields).__name__}")
    _refuse_unsupported(fields)
    max_tokens = _field(fields, "max_completion_tokens", int, _field(fields, "max_tokens", int, DEFAULT_MAX_TOKENS))
    if max_tokens < 1:
        raise ArgumentError(f"max_tokens must be at least 1, got {max_tokens}")
    options = _field(fields, "stream_options", dict, {})
    return ChatRequest(
        model=_field(fields, "model", str, ""),
        messages=_messages(_field(fields, "messages", list, [])),
        max_tokens=max_tokens,
        stream=_field(fields, "stream", bool, False),
        include_usage=_field(options, "include_usage", bool, False),
    )


def _refuse_unsupported(fields: dict[str, Any]) -> None:
    """What would change the answer's form or content must not be ignored."""
    if fields.get("n") not in (None, 1):
        raise ArgumentError(f"n must be 1, got {fields['n']!r:.100}")
    for name in _UNSUPPORTED:
        if fields.get(name):
            raise ArgumentError(f"{name} is not supported; leave it out")
    if _field(fields, "response_format", dict, {}).get("type", "text") != "text":
        raise ArgumentError("response_format must be text, or left out")


def _field(fields: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ArgumentError(f"{name} must be {_KINDS[kind]}, got {value!r:.100}")
    return value


def _messages(values: list[Any]) -> list[dict[str, str]]:
    if not values:
        raise ArgumentError("messages must have one message at least")
    return [_message(value, index) for index, value in enumerate(values)]


def _message(value: Any, index: int) -> dict[str, str]:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise ArgumentError(f"messages[{index}] must have a role and content, got {value!r:.100}")
    if value["role"] not in ROLES:
        raise ArgumentError(f"messages[{index}].role must be one of {', '.join(ROLES)}, got {value['role']!r:.100}")
    content = value.get("content")
    if isinstance(content, list):  # parts, of which only text means anything here
        if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
            raise ArgumentError(f"messages[{index}].content must be text, or parts that are text")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise ArgumentError(f"messages[{index}].content must be text, got {content!r:.100}")
    return {"role": value["role"], "content": _encodable(content, index)}


def _encodable(text: str, index: int) -> str:
    """JSON can escape half a character, of which no bytes and so no tokens can be made."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(f"messages[{index}] must be text that has an encoding: {error.reason}") from error
    return text


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a prompt, of its answer, and how many of the prompt's were not computed."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def to_record(self) -> dict[str, Any]:
        """As the protocol wants it."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Completion:
    """One answer's JSON.

    Args:
        request_id: the engine's.
        model: its name.
    """

    def __init__(self, request_id: str, model: str) -> None:
        self._base = {"id": f"chatcmpl-{request_id}", "created": int(time.time()), "model": model}

    def whole(self, text: str, finish_reason: str, usage: Usage) -> dict[str, Any]:
        """The answer in one piece."""
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": finish_reason}
        return {**self._base, "object": "chat.completion", "choices": [choice], "usage": usage.to_record()}

    def first(self) -> bytes:
        """The event that opens a stream."""
        return self._chunk({"role": "assistant", "content": ""}, None)

    def piece(self, text: str) -> bytes:
        """The event with some text."""
        return self._chunk({"content": text}, None)

    def last(self, finish_reason: str) -> bytes:
        """The event that says why the answer has ended."""
        return self._chunk({}, finish_reason)

    def usage(self, usage: Usage) -> bytes:
        """The event with the counts."""
        return event({**self._base, "object": "chat.completion.chunk", "choices": [], "usage": usage.to_record()})

    def _chunk(self, delta: dict[str, str], finish_reason: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return event({**self._base, "object": "chat.completion.chunk", "choices": [choice]})


DONE = b"data: [DONE]\n\n"


def event(record: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(record).encode() + b"\n\n"


def error_record(message: str, *, kind: str, code: str | None = None) -> dict[str, Any]:
    """What clients expect of an answer that is none."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


class TextPieces:
    """Makes text of tokens as they come; a character whose last byte is still to come is held back.

    Args:
        decode: tokens to text.
    """

    def __init__(self, decode: Any) -> None:
        self._decode = decode
        # Decoded again with what follows, because a token's text may depend on the one before; all of them would take
        # milliseconds of the loop for each token of a long answer.
        self._context: list[int] = []
        self._held: list[int] = []
        self._count = 0

    def add(self, token: int) -> str:
        """The text that is certain by now and was not given yet."""
        self._held.append(token)
        self._count += 1
        if self._decode(self._context + self._held).endswith("\ufffd"):
            return ""
        return self.end()

    def end(self) -> str:
        """What was held back."""
        before = len(self._decode(self._context))
        text: str = self._decode(self._context + self._held)[before:]
        if self._held:
            self._context, self._held = self._held, []
        return text

    @property
    def count(self) -> int:
        """Tokens so far."""
        return self._count
