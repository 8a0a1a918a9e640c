"""Where the endpoint listens. Knows sockets, and imports nothing that takes long: a port in use is said at once."""

import socket

from aiokvoffload.errors import ArgumentError


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; 0 takes a free port.

    Raises:
        ArgumentError: the address cannot be listened on.
    """
    if not host:  # a socket takes that for every address of the machine
        raise ArgumentError("--host must have a name: 127.0.0.1 for this machine alone, 0.0.0.0 for all that reach it")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]  # the address follows once more
        raise ArgumentError(f"--host {host} --port {port} cannot be listened on: {reason}") from error


def address(listener: socket.socket) -> str:
    """Where it listens, as a URL wants it."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
