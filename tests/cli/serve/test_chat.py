import json

from aiokvoffload.cli.serve.chat import Completion, TextPieces, Usage, parse_chat


def test_a_character_is_sent_when_its_last_byte_is_there() -> None:
    pieces = TextPieces(lambda tokens: bytes(tokens).decode(errors="replace"))
    sent = [pieces.add(token) for token in "aé→".encode()]
    assert sent == ["a", "", "é", "", "", "→"]
    assert (pieces.end(), pieces.count) == ("", 6)


def test_what_was_held_back_is_sent_at_the_end() -> None:
    pieces = TextPieces(lambda tokens: bytes(tokens).decode(errors="replace"))
    assert [pieces.add(token) for token in b"a\xc3"] == ["a", ""]
    assert pieces.end() == "\ufffd"


def test_a_token_late_in_an_answer_takes_no_longer_than_an_early_one() -> None:
    lengths: set[int] = set()

    def decode(tokens: list[int]) -> str:
        lengths.add(len(tokens))
        return bytes(tokens).decode(errors="replace")

    pieces, text = TextPieces(decode), "aé→🙂" * 100
    assert "".join([*map(pieces.add, text.encode()), pieces.end()]) == text
    assert (max(lengths), pieces.count) == (3 + 4, len(text.encode()))


def test_the_newer_name_of_the_limit_counts_and_sampling_is_ignored() -> None:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]}],
        "max_tokens": 5,
        "max_completion_tokens": 7,
        "temperature": 0.7,
        "stream_options": {"include_usage": True},
    }
    chat = parse_chat(json.dumps(body).encode())
    assert (chat.max_tokens, chat.stream, chat.include_usage) == (7, False, True)
    assert chat.messages == [{"role": "user", "content": "one two"}]


def test_a_field_that_is_null_is_as_good_as_missing() -> None:
    names = ("n", "stop", "tools", "max_tokens", "max_completion_tokens", "stream", "stream_options")
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    assert parse_chat(json.dumps({**body, **dict.fromkeys(names)}).encode()) == parse_chat(json.dumps(body).encode())


def test_an_event_is_one_line_of_json() -> None:
    chunk = Completion("request-1", "m").piece("two\nlines")
    assert chunk.startswith(b"data: {")
    assert chunk.count(b"\n") == 2
    assert json.loads(chunk[6:])["choices"][0]["delta"] == {"content": "two\nlines"}
    usage = json.loads(Completion("request-1", "m").usage(Usage(5, 2, 4))[6:])["usage"]
    assert usage["total_tokens"] == 7
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}
