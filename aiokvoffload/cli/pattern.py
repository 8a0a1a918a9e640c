"""What a computed block holds, so that every byte that comes back can be checked.

Each 8-byte word is a function of its block's hash id, its tensor and its offset: a fragment that lands in another
block, tensor or offset, or that is stale, differs in nearly every word. Knows words; knows nothing of requests, of
streams or of the library. All operations run where the pool is and read nothing back, so that a stream can run them.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

POISON = 0x5A5A_5A5A_5A5A_5A5A
"""Destinations of a load hold this first: bytes that never arrived differ as well."""

_HOST_PIECE_BYTES = 1 << 20
_GPU_PIECE_BYTES = 64 << 20
_GOLDEN_GAMMA = 0x9E37_79B9_7F4A_7C15


class Mismatch(NamedTuple):
    """A fragment that did not hold what it should.

    Attributes:
        ordinal: position of its block among all verified blocks, from 0.
        tensor: index of its tensor.
        wrong_words: how many of its words differ.
    """

    ordinal: int
    tensor: int
    wrong_words: int


class Pattern:
    """Fills and verifies blocks of one pool.

    The word is `mix(tensor, offset) ^ mix(hash_id, tensor)`: one pass of exclusive-or over memory, on any device.

    Args:
        pool: int64 words of shape (num_tensors, num_blocks, words).
        max_verified: blocks that can be verified in all; 16 bytes of memory each at four tensors.
    """

    def __init__(self, pool: torch.Tensor, *, max_verified: int) -> None:
        self._pool = pool
        self._verified = 0
        num_tensors, _, num_words = pool.shape
        self._tensors = np.arange(num_tensors, dtype=np.uint64)[:, None]
        offsets = np.arange(num_words, dtype=np.uint64)[None, :]
        base = mix64(mix64(self._tensors + np.uint64(1)) + offsets)
        self._base = self._to_device(base[:, None, :])
        self._wrong_words = torch.zeros((num_tensors, max_verified), dtype=torch.int32, device=pool.device)
        piece_bytes = _HOST_PIECE_BYTES if pool.device.type == "cpu" else _GPU_PIECE_BYTES
        self._piece_blocks = max(1, piece_bytes // (num_tensors * num_words * pool.element_size()))

    def __repr__(self) -> str:
        return f"Pattern({self._verified} blocks verified of at most {self._wrong_words.shape[1]})"

    @property
    def verified(self) -> int:
        """Blocks given to `verify` so far; the ordinal of the next one."""
        return self._verified

    def fill(self, block_ids: Sequence[int], hash_ids: Sequence[int]) -> None:
        """Write the content of `hash_ids` into the blocks; to be run on the compute stream."""
        for piece in self._pieces(len(block_ids)):
            seeds, ids = self._seeds(hash_ids[piece]), self._ids(block_ids[piece])
            self._pool.index_copy_(1, ids, self._base ^ seeds)

    def poison(self, block_ids: Sequence[int]) -> None:
        """Overwrite the blocks with what no computed block holds; to be run on the compute stream."""
        self._pool.index_fill_(1, self._ids(block_ids), POISON)

    def verify(self, block_ids: Sequence[int], hash_ids: Sequence[int], *, ordinal: int) -> None:
        """Compare the blocks with the content of `hash_ids`; to be run on the compute stream.

        Args:
            block_ids: blocks to compare.
            hash_ids: what each should hold.
            ordinal: what `reserve` returned for these blocks.
        """
        for piece in self._pieces(len(block_ids)):
            words = self._pool.index_select(1, self._ids(block_ids[piece]))
            words ^= self._base
            found = torch.count_nonzero(words != self._seeds(hash_ids[piece]), dim=2)
            self._wrong_words[:, ordinal + piece.start : ordinal + piece.stop] = found

    def reserve(self, count: int) -> int:
        """Number the next `count` blocks to verify; returns the ordinal of the first."""
        ordinal = self._verified
        self._verified += count
        return ordinal

    def mismatches(self) -> list[Mismatch]:
        """The wrong fragments, in the order of verification; waits for the device, so not for an event loop."""
        wrong_words = self._wrong_words.T.cpu().numpy()
        return [
            Mismatch(int(ordinal), int(tensor), int(wrong_words[ordinal, tensor]))
            for ordinal, tensor in np.argwhere(wrong_words)
        ]

    def _pieces(self, count: int) -> Iterator[slice]:
        # Temporaries of a piece stay in the cache, and a request of any length needs the same memory.
        for start in range(0, count, self._piece_blocks):
            yield slice(start, min(start + self._piece_blocks, count))

    def _seeds(self, hash_ids: Sequence[int]) -> torch.Tensor:
        ids = np.array(hash_ids, dtype=np.uint64)[None, :]
        return self._to_device(mix64(mix64(ids) + self._tensors * np.uint64(_GOLDEN_GAMMA))[:, :, None])

    def _ids(self, block_ids: Sequence[int]) -> torch.Tensor:
        return self._to_device(np.array(block_ids, dtype=np.uint64))

    def _to_device(self, words: npt.NDArray[np.uint64]) -> torch.Tensor:
        host_words = torch.from_numpy(words.view(np.int64))
        if self._pool.device.type == "cpu":
            return host_words
        # From pageable memory, or without `non_blocking`, the host might wait for the whole stream, on the event loop.
        return host_words.pin_memory().to(self._pool.device, non_blocking=True)


def mix64(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Scatter 64-bit words, one to one; the output function of SplitMix64 (Steele et al., OOPSLA '14)."""
    values = values + np.uint64(_GOLDEN_GAMMA)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return values ^ (values >> np.uint64(31))
