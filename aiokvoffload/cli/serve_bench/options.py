"""What is asked of the serving benchmark, checked once. Knows sizes; measures nothing."""

from dataclasses import dataclass, field
from pathlib import Path

from aiokvoffload.config import CopyConfig
from aiokvoffload.errors import ArgumentError

HIT_PERCENTS = (50, 80, 100)
"""Of a prompt, from its start; 0 is measured too, and is always computed."""
LAST_TOKENS = 16
"""What is computed of a prompt that is a hit as a whole."""


def whole_blocks(lengths: str, block_tokens: int) -> str:
    """Default lengths, each as so many blocks, two at least, as come next to it."""
    blocks = (max(2, round(int(length) / block_tokens)) for length in lengths.split(","))
    return ",".join(str(count * block_tokens) for count in dict.fromkeys(blocks))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeBenchOptions:
    """One run of the benchmark; the options of `aiokvoffload bench serve`, which docs/cli.md describes.

    Attributes:
        model: name of a model configuration.
        device: `cuda` or `host`.
        prompt_tokens: lengths of prompts, ascending.
        block_tokens: tokens of a block, which is a chunk.
        piece_tokens: of a prompt that are computed in one step.
        repeat: measurements of one figure, of which the median is taken.
        patience_s: a figure that has taken so long is not measured again.
        cpu_bytes: CPU memory for KV; `None` is three times the longest prompt's.
        disk_dir: where a disk tier may lie; `None` has none.
        disk_max_tokens: prompts up to this length are measured from disk.
        decode_rows: answers that are continued while others load and store; 0 leaves that out.
        decode_context_tokens: of each of their prompts.
        window_s: seconds of one measurement of their throughput.
        storing_prompts: prompts at a time when throughput with and without storing is measured; 0 leaves that out.
        storing_tokens: of each of these.
        ceiling_bytes: of one contiguous copy.
        copy: how the service copies.
        eager: launch decode steps operation by operation, without CUDA graphs.

    Raises:
        ArgumentError: a number is out of its range, or lengths are not whole blocks in ascending order.
    """

    model: str
    device: str
    prompt_tokens: tuple[int, ...]
    block_tokens: int = 16
    piece_tokens: int = 4096
    repeat: int = 3
    patience_s: float = 6.0
    cpu_bytes: int | None = None
    disk_dir: Path | None = None
    disk_max_tokens: int = 16_384
    decode_rows: int = 64
    decode_context_tokens: int = 512
    window_s: float = 0.4
    storing_prompts: int = 12
    storing_tokens: int = 2048
    ceiling_bytes: int = 256 << 20
    copy: CopyConfig = field(default_factory=CopyConfig)
    eager: bool = False

    def __post_init__(self) -> None:
        lengths = self.prompt_tokens
        if not lengths or list(lengths) != sorted(set(lengths)):
            raise ArgumentError(f"prompt_tokens must be distinct lengths in ascending order, got {lengths}")
        for length in lengths:
            if length < 2 * self.block_tokens or length % self.block_tokens:
                raise ArgumentError(
                    f"prompt_tokens must be multiples of a block's {self.block_tokens}, two at least, got {length}"
                )
        if self.piece_tokens % self.block_tokens:
            raise ArgumentError(
                f"piece_tokens must be a multiple of a block's {self.block_tokens}, got {self.piece_tokens}"
            )

    @property
    def disk_tokens(self) -> tuple[int, ...]:
        """Lengths that are measured from disk."""
        if self.disk_dir is None:
            return ()
        return tuple(length for length in self.prompt_tokens if length <= self.disk_max_tokens)

    @property
    def answer_tokens(self) -> int:
        """Most tokens of an answer whose throughput is measured."""
        return 1536

    @property
    def traffic_blocks(self) -> int:
        """Blocks that one load or store of the traffic moves."""
        return max(1, min(256, self.prompt_tokens[-1] // self.block_tokens // 8))

    @property
    def gpu_blocks(self) -> int:
        """Blocks of KV in GPU memory: two of the longest prompts, or a full batch beside the traffic's."""
        prompts = 2 * (self.prompt_tokens[-1] // self.block_tokens + 1)
        rows = max(self.decode_rows, 1) * self._blocks(self.decode_context_tokens + self.answer_tokens)
        storing = self.storing_prompts * self._blocks(self.storing_tokens + self.block_tokens * 2)
        return max(prompts, rows + 8 * self.traffic_blocks, storing)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def stored_bytes(self, block_bytes: int, lengths: tuple[int, ...]) -> int:
        """Room in CPU memory for the longest of `lengths` and for two more of them that push it out if it is unused."""
        longest = 3 * lengths[-1] // self.block_tokens
        return max(longest, 16 * self.traffic_blocks, 64) * block_bytes
