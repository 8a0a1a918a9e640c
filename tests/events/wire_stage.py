"""A reader of the wire written from the protocol's description: plain msgpack, no code of the library."""

from typing import Any, NamedTuple

import msgspec
import zmq
import zmq.asyncio


class Message(NamedTuple):
    topic: bytes
    sequence: int
    timestamp: float
    events: list[Any]
    rank: int | None


def read_message(frames: list[bytes]) -> Message:
    """`(topic, 8 bytes big-endian, msgpack [ts, events, rank?])`."""
    topic, sequence, payload = frames
    batch = msgspec.msgpack.decode(payload)
    assert isinstance(batch, list)
    return Message(topic, int.from_bytes(sequence, "big", signed=True), batch[0], batch[1], (*batch, None)[2])


class Follower:
    """Keeps the hashes of each (medium, group), as a router would that reads arrays."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, int], set[bytes]] = {}

    def apply(self, event: list[Any]) -> None:
        kind, *fields = event
        if kind == "BlockStored":
            hashes, parent, tokens, block_size, _lora_id, medium, _lora_name, _extra, group = fields[:9]
            assert parent is None or isinstance(parent, bytes)
            assert isinstance(tokens, list)
            assert isinstance(block_size, int)
            self.held.setdefault((medium, group), set()).update(hashes)
        elif kind == "BlockRemoved":
            hashes, medium, group = fields[:3]
            self.held.setdefault((medium, group), set()).difference_update(hashes)
        else:
            assert kind == "AllBlocksCleared"
            for place in self.held:
                if place[0] == fields[0]:
                    self.held[place] = set()


async def listen(context: zmq.asyncio.Context, endpoint: str, topic: bytes = b"") -> zmq.asyncio.Socket:
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SUBSCRIBE, topic)
    socket.connect(endpoint)
    return socket


async def ask(context: zmq.asyncio.Context, endpoint: str, request: bytes) -> list[list[bytes]]:
    """All answers to one request, without the delimiter, the last one excluded."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(endpoint)
    try:
        await socket.send_multipart([b"", request])
        answers: list[list[bytes]] = []
        while True:
            delimiter, *frames = await socket.recv_multipart()
            assert delimiter == b""
            if not frames[-1]:
                assert frames[-2] == b"\xff" * 8
                return answers
            answers.append(frames)
    finally:
        socket.close()


def nested_deeply() -> list[Any]:
    """More lists in lists than an interpreter follows."""
    nested: list[Any] = []
    for _ in range(10_000):
        nested = [nested]
    return nested
