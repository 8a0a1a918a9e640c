"""What makes bytes provably those that were stored: over namespace, key, length and payload (I5).

XXH3 (https://xxhash.com) with 128 bits is no protection against somebody who wants to deceive; it is one against torn,
stale, foreign and flipped bytes, at 9 to 15 GB/s a core. It lets go of the GIL for buffers of more than some 100 KB.
"""

import contextlib
import struct
import threading
from collections.abc import Sequence

from aiokvoffload.base import OffloadKey

try:
    import xxhash
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("the disk tier needs xxhash: pip install 'aiokvoffload[disk]'", name="xxhash") from error

CHECKSUM_BYTES = 16
_LENGTHS = struct.Struct(">IQ")
_GIL_FREE_BYTES = 128 << 10


class Checksummer:
    """Checksums of one namespace.

    Args:
        namespace: as configured.
    """

    __slots__ = ("_namespace_digest", "_turn")

    def __init__(self, namespace: str) -> None:
        self._turn = threading.Lock()
        self._namespace_digest = xxhash.xxh3_128_digest(namespace.encode())

    def digest(self, key: OffloadKey, payload: Sequence[memoryview]) -> bytes:
        """The checksum of one chunk, whose payload is these buffers, in this order."""
        return self.digests([key], [payload])[0]

    def digests(self, keys: Sequence[OffloadKey], payloads: Sequence[Sequence[memoryview]]) -> list[bytes]:
        """The checksum of each of several chunks of equal size."""
        checksum, size_bytes = xxhash.xxh3_128_digest, sum(map(len, payloads[0]))
        heads = {length: self._namespace_digest + _LENGTHS.pack(length, size_bytes) for length in set(map(len, keys))}
        # Threads that hold the GIL all the while gain nothing by each other, and the loop would wait for all of them.
        turn = self._turn if len(payloads[0][0]) < _GIL_FREE_BYTES else contextlib.nullcontext()
        with turn:
            # Of digests, since that takes one call for each buffer: with chunks of 64 KiB the calls count.
            return [
                checksum(b"".join((heads[len(key)], key, *map(checksum, payload))))
                for key, payload in zip(keys, payloads, strict=True)
            ]
