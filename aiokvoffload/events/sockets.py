"""ZeroMQ for one loop: the sockets that this library needs, all bounded. Knows no event."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiokvoffload.errors import ArgumentError, BrokenError

try:
    import zmq
    import zmq.asyncio
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("the wire needs pyzmq: pip install 'aiokvoffload[events]'", name="zmq") from error

Context = zmq.asyncio.Context
Socket = zmq.asyncio.Socket
"""Received from, and sent to, on the loop."""
PubSocket = zmq.Socket[bytes]
"""Drops what a peer has no room for, so sending makes nobody wait, and needs no loop."""


_MOST_MESSAGES = (1 << 31) - 1
_MOST_PORT = 65535


def check_arguments(owner: str, *, texts: Mapping[str, object], high_water_mark: int) -> None:
    """Refuse what ZeroMQ would: a socket that fails half-made belongs to nobody, and its context never ends.

    Raises:
        ArgumentError: a text is none, or the bound is none that ZeroMQ takes.
    """
    for name, text in texts.items():
        if not isinstance(text, str):
            raise ArgumentError(f"{owner}.{name} must be text, got {text!r}")
    if not (isinstance(high_water_mark, int) and 0 < high_water_mark <= _MOST_MESSAGES):
        raise ArgumentError(
            f"{owner}.high_water_mark must be a whole number above 0, at most {_MOST_MESSAGES}, got {high_water_mark!r}"
        )


def open_pub_socket(context: Context, *, high_water_mark: int) -> PubSocket:
    """What publishes."""
    socket: PubSocket = zmq.Context(context).socket(zmq.PUB)
    _bound(socket, high_water_mark)
    return socket


def open_router_socket(context: Context, *, high_water_mark: int) -> Socket:
    """What answers many; it drops what a peer has no room for, so sending never waits for long."""
    return _open(context, zmq.ROUTER, high_water_mark)


def open_sub_socket(context: Context, *, topic: bytes, high_water_mark: int) -> Socket:
    """What listens to messages whose first frame begins with `topic`."""
    socket = _open(context, zmq.SUB, high_water_mark)
    socket.setsockopt(zmq.SUBSCRIBE, topic)
    return socket


def open_dealer_socket(context: Context, *, high_water_mark: int) -> Socket:
    """What asks, and is answered with as many messages as it takes; a REQ socket takes one."""
    return _open(context, zmq.DEALER, high_water_mark)


def _open(context: Context, kind: int, high_water_mark: int) -> Socket:
    socket = context.socket(kind)
    _bound(socket, high_water_mark)
    return socket


def _bound(socket: Socket | PubSocket, high_water_mark: int) -> None:
    """Bound what waits in it (I11); what has not been sent when it is closed is dropped."""
    socket.set_hwm(high_water_mark)
    socket.setsockopt(zmq.LINGER, 0)


def _check_port(endpoint: str) -> None:
    """ZeroMQ takes what remains of a port that is too large for another one."""
    transport, _, address = endpoint.partition("://")
    port = address.rpartition(":")[2]
    if transport == "tcp" and port.isdecimal() and (len(port) > 5 or int(port) > _MOST_PORT):
        raise ArgumentError(f"endpoint {endpoint!r} must have a port of at most {_MOST_PORT}, got {port:.20}")


def bind(socket: Socket | PubSocket, endpoint: str) -> str:
    """Bind a socket; returns the address, with the port that was chosen where the endpoint leaves that open.

    Raises:
        ArgumentError: the endpoint cannot be bound.
    """
    _check_port(endpoint)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise ArgumentError(f"endpoint {endpoint!r} cannot be bound: {error}") from error
    bound: Any = socket.getsockopt(zmq.LAST_ENDPOINT)
    return str(bound.rstrip(b"\0").decode())


def connect(socket: Socket, endpoint: str) -> None:
    """Connect a socket; nobody need be there yet.

    Raises:
        ArgumentError: the endpoint is none.
    """
    _check_port(endpoint)
    try:
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        raise ArgumentError(f"endpoint {endpoint!r} cannot be connected to: {error}") from error


def publish_now(socket: PubSocket, frames: Sequence[bytes]) -> None:
    """Send to whoever listens and has room.

    Raises:
        BrokenError: ZeroMQ refuses.
    """
    try:
        socket.send_multipart(frames, zmq.NOBLOCK)
    except zmq.ZMQError as error:
        raise BrokenError(f"a message could not be sent: {error}") from error


async def close_all(context: Context, sockets: Iterable[Socket | PubSocket | None]) -> None:
    """Close sockets, here on their loop, and then the context; whoever is cancelled meanwhile leaves no thread."""
    for socket in sockets:
        if socket is not None:
            socket.close()
    # Waits for ZeroMQ's own thread.
    await asyncio.shield(asyncio.to_thread(context.term))
