"""Ports of this machine that a test needs to know before anything listens there."""

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def kept_port() -> Iterator[int]:
    """A port where nothing answers until somebody listens there by its number.

    It stays bound meanwhile, since the system would give a free one to whoever asks next, another worker of the tests
    for one. Linux lets others share it as long as both say that they would.
    """
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]
