"""A causal LM of Hugging Face that keeps its keys and values in pages.

Knows tensors and block ids; knows nothing of requests, of keys, or of who owns a block. Every method runs on the
model's own stream, and returns when its tokens are known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
import transformers
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from aiokvoffload.base import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor
from aiokvoffload.cli.blocks import in_short
from aiokvoffload.cli.demo.graphs import DecodeGraphs, Size, graph_size
from aiokvoffload.cli.demo.split_attention import can_split, split_attention
from aiokvoffload.errors import ArgumentError

_ATTENTION = "aiokvoffload_pages"
BlockIds = Sequence[int] | npt.NDArray[np.int32]
_FIELDS = 4
"""Of a decode step's row, before its blocks."""


class Row(NamedTuple):
    """One sequence's part in a decode step.

    Attributes:
        token: the last one, whose key and value are not in the pages yet.
        position: of that token.
        block_ids: of the sequence; best as an array, which is copied faster than a list.
    """

    token: int
    position: int
    block_ids: BlockIds


class PagedModel:
    """The model and its pages.

    Args:
        model: any causal LM whose attention goes through transformers' attention interface.
        num_blocks: blocks of KV memory.
        block_tokens: tokens of a block.
        decode_rows: if given, a decode step always computes so many rows, and each row attends by itself.
        decode_graphs: make CUDA graphs of decode steps, padded to a few sizes.

    Attributes:
        block_tokens, num_blocks, decode_rows: as given.

    Raises:
        ArgumentError: graphs are wanted without CUDA, or of steps that are not to be padded, or there is not the memory
            for so many blocks.
    """

    def __init__(
        self,
        model: Any,
        *,
        num_blocks: int,
        block_tokens: int,
        decode_rows: int | None = None,
        decode_graphs: bool = False,
    ) -> None:
        if decode_graphs and (model.device.type != "cuda" or decode_rows is not None):
            raise ArgumentError(
                f"decode_graphs need a CUDA device and no decode_rows, got {model.device.type} and {decode_rows}"
            )
        model.set_attn_implementation(_ATTENTION)
        self.block_tokens = block_tokens
        self.num_blocks = num_blocks
        self.decode_rows = decode_rows
        self._body, self._head = model.base_model, model.get_output_embeddings()
        self._device: torch.device = model.device
        config = model.config
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._graphs = DecodeGraphs(self._decode_all) if decode_graphs else None
        # The block behind the last is nobody's: padding reads it. Zeros, because a NaN would survive its weight of 0.
        # All layers of a block beside each other: it moves in one piece, and no kernel gathers it from under the model.
        layers, heads = config.num_hidden_layers, config.num_key_value_heads
        shape = (num_blocks + 1, layers, 2, block_tokens, heads, head_size)
        try:
            self._blocks = torch.zeros(shape, dtype=model.dtype, device=self._device)
        except RuntimeError as error:  # torch has no other for CPU memory
            raise ArgumentError(
                f"{num_blocks} blocks of {block_tokens} tokens do not fit {self._device.type} memory: {in_short(error)}"
            ) from error
        self._pages = self._blocks.unbind(1)  # a view for each layer

    @property
    def kv_caches(self) -> CanonicalKVCaches:
        """The blocks as the library wants to see them: one tensor, whose rows hold a block's layers, in one group."""
        tensor = CanonicalKVCacheTensor(self._blocks[: self.num_blocks], self.block_bytes)
        return CanonicalKVCaches([tensor], [[CanonicalKVCacheRef(0, self.block_bytes)]])

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers."""
        return self._blocks[0].nbytes

    @torch.inference_mode()
    def prefill(self, tokens: Sequence[int], block_ids: BlockIds, *, start: int, width: int) -> int:
        """Compute a piece of a prompt; returns the token that follows it.

        The step computes exactly `width` rows over `start + width` positions, whatever is real of them: what comes out
        is then a function of the tokens alone, to the last bit.

        Args:
            tokens: the piece, at most `width`.
            block_ids: of the sequence, from its start on.
            start: position of the piece's first token; what is before it is in the pages.
            width: rows to compute.
        """
        positions = torch.arange(start, start + width)
        real = len(tokens)
        padded = [*tokens, *[0] * (width - real)]
        read = np.full(-(-(start + width) // self.block_tokens), self.num_blocks)
        read[: len(block_ids)] = block_ids[: len(read)]
        ids = torch.from_numpy(read)
        step = _Prefill(
            self._pages,
            write_ids=self._to_device(ids[positions[:real] // self.block_tokens]),
            write_offsets=self._to_device(positions[:real] % self.block_tokens),
            read_ids=self._to_device(ids),
            width=width,
            end=start + width,
        )
        hidden = self._forward(torch.tensor([padded]), positions[None], step)
        return self._read(self._head(hidden[:, real - 1]).argmax(-1))[0]

    @torch.inference_mode()
    def decode(self, rows: Sequence[Row]) -> list[int]:
        """Compute the last token of each row; returns the tokens that follow."""
        longest = max(row.position for row in rows) // self.block_tokens + 1
        size = None if self._graphs is None else graph_size(len(rows), longest)
        if self._graphs is not None and size is not None:
            chosen = self._graphs.run(self._decode_inputs(rows, size))
        else:
            inputs = self._decode_inputs(rows, Size(self.decode_rows or len(rows), longest))
            chosen = self._decode(self._to_device(inputs), [row.position + 1 for row in rows])
        return self._read(chosen)[: len(rows)]

    @torch.inference_mode()
    def prepare_decode(self, rows: int, *, first_tokens: int, last_tokens: int) -> None:
        """Make the graphs that steps of so many rows need while their sequences grow; else it is done on the way.

        Args:
            rows: of a step.
            first_tokens: of the longest sequence, when it begins to grow.
            last_tokens: when it ends.
        """
        if self._graphs is None:
            return
        blocks = range(first_tokens // self.block_tokens, last_tokens // self.block_tokens + 2)
        for size in sorted({size for each in blocks if (size := graph_size(rows, each)) is not None}):
            # Waited for, since the next step may be in another stream.
            self._read(self._graphs.run(self._decode_inputs([], size)))

    def _decode_inputs(self, rows: Sequence[Row], size: Size) -> torch.Tensor:
        """For each row its token, its position, block and offset to write to, and its blocks, padded."""
        inputs, real = np.full((size.rows, _FIELDS + size.blocks), self.num_blocks), len(rows)
        tokens, positions, write_ids, write_offsets = inputs[:, :_FIELDS].T
        tokens[:], positions[:], write_offsets[:] = 0, 0, 0
        tokens[:real], positions[:real] = [row.token for row in rows], [row.position for row in rows]
        blocks, write_offsets[:real] = np.divmod(positions[:real], self.block_tokens)
        table = inputs[:real, _FIELDS:]
        for fields, row, block in zip(table, rows, blocks.tolist(), strict=True):
            fields[: block + 1] = row.block_ids[: block + 1]
        write_ids[:real] = table[np.arange(real), blocks]
        return torch.from_numpy(inputs)

    def _decode_all(self, inputs: torch.Tensor) -> torch.Tensor:
        """A step whose padding is computed like all else; it is written to the block that is nobody's."""
        return self._decode(inputs, [1] * len(inputs))

    def _decode(self, inputs: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        real = len(lengths)
        tokens, positions, write_ids, write_offsets = inputs[:, :_FIELDS].unbind(1)
        table = inputs[:real, _FIELDS:]
        seen = torch.arange(table.shape[1] * self.block_tokens, device=table.device)
        kind = _DecodeTogether if self.decode_rows is None else _DecodeEach
        step = kind(
            self._pages,
            write_ids=write_ids[:real],
            write_offsets=write_offsets[:real],
            table=table,
            lengths=lengths,
            mask=(seen <= positions[:real, None])[:, None, None],
        )
        hidden = self._forward(tokens[:, None], positions[:, None], step)
        return self._head(hidden[:, 0]).argmax(-1)  # type: ignore[no-any-return]

    def _forward(self, tokens: torch.Tensor, positions: torch.Tensor, step: "_Step") -> torch.Tensor:
        # No cache object: the step travels through the model to the attention function as an argument of its own.
        output = self._body(
            input_ids=self._to_device(tokens), position_ids=self._to_device(positions), use_cache=False, paged_step=step
        )
        hidden: torch.Tensor = output.last_hidden_state
        return hidden

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._pinned(tensor).to(self._device, non_blocking=True)

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        # A copy out of pageable memory holds this thread up until the stream has come to it: while the stream waits for
        # a load, the step's thousand launches could not be prepared.
        return tensor if tensor.device == self._device else tensor.pin_memory()

    def _read(self, chosen: torch.Tensor) -> list[int]:
        """Wait for a step's tokens."""
        if self._device.type != "cpu":
            if chosen.device.type != "cpu":
                # On its way to pageable memory the driver waits for the stream inside its lock, and every copy that
                # another thread would enqueue waits with it.
                chosen = torch.empty_like(chosen, device="cpu", pin_memory=True).copy_(chosen, non_blocking=True)
            torch.accelerator.current_stream(self._device).synchronize()
        tokens: list[int] = chosen.tolist()
        return tokens

    def __repr__(self) -> str:
        return f"PagedModel({self.num_blocks} blocks of {self.block_tokens} tokens, {self.block_bytes:,} bytes each)"


class _Step(Protocol):
    """One forward pass: where its keys and values go, and what its queries see.

    Shapes in `attend`: query (batch, heads, width, size); key and value with the key-value heads; the result is
    (batch, width, heads, size), as the attention interface wants it.
    """

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor: ...


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    paged_step: _Step,
    **_: object,
) -> tuple[torch.Tensor, None]:
    return paged_step.attend(module.layer_idx, query, key, value, scaling), None


# No mask of that name is registered, so that transformers makes none: a 64k prompt's would be 4 GiB.
transformers.AttentionInterface.register(_ATTENTION, _attend)


@dataclass(frozen=True, slots=True, eq=False)
class _Prefill:
    """A piece of one prompt: it sees all before it, and itself up to each query."""

    pages: Sequence[torch.Tensor]
    write_ids: torch.Tensor
    write_offsets: torch.Tensor
    read_ids: torch.Tensor
    width: int
    end: int

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        pages, real = self.pages[layer], len(self.write_ids)
        pages[self.write_ids, 0, self.write_offsets] = key[0, :, :real].transpose(0, 1)
        pages[self.write_ids, 1, self.write_offsets] = value[0, :, :real].transpose(0, 1)
        keys, values = (_gather(pages, which, self.read_ids)[None, :, : self.end] for which in (0, 1))
        if can_split(query, keys):
            return split_attention(query, keys, values, scale=scale).transpose(1, 2)
        mask = causal_lower_right(self.width, self.end)
        result = scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale, enable_gqa=True)
        return result.transpose(1, 2)


def _gather(pages: torch.Tensor, which: int, block_ids: torch.Tensor) -> torch.Tensor:
    """Keys (0) or values (1) of consecutive blocks, as (key-value heads, tokens, size)."""
    return pages[:, which].index_select(0, block_ids).flatten(0, 1).transpose(0, 1)


@dataclass(frozen=True, slots=True, eq=False)
class _Decode:
    """One new token for each of several sequences."""

    pages: Sequence[torch.Tensor]
    write_ids: torch.Tensor
    write_offsets: torch.Tensor
    table: torch.Tensor
    lengths: Sequence[int]
    mask: torch.Tensor

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Put the new tokens' keys and values into the layer's pages, and return those."""
        pages, real = self.pages[layer], len(self.lengths)
        pages[self.write_ids, 0, self.write_offsets] = key[:real, :, 0]
        pages[self.write_ids, 1, self.write_offsets] = value[:real, :, 0]
        return pages


class _DecodeEach(_Decode):
    """Each row attends by itself: its result does not depend on how long the others are."""

    __slots__ = ()

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        pages = self.write(layer, key, value)
        result = torch.zeros_like(query)
        for row, length in enumerate(self.lengths):
            blocks = self.table[row, : -(-length // pages.shape[2])]
            keys, values = (_gather(pages, which, blocks)[None, :, :length] for which in (0, 1))
            packed = _pack(query[row : row + 1], keys.shape[1])
            result[row] = scaled_dot_product_attention(packed, keys, values, scale=scale).flatten(1, 2)[0, :, None]
        return result.transpose(1, 2)


class _DecodeTogether(_Decode):
    """All rows in one call, padded to the longest."""

    __slots__ = ()

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        pages = self.write(layer, key, value)
        heads, size = pages.shape[3:]
        both = (_gather(pages, which, self.table.flatten()) for which in (0, 1))
        keys, values = (each.reshape(heads, len(self.table), -1, size).transpose(0, 1) for each in both)
        packed = _pack(query, keys.shape[1])
        result = scaled_dot_product_attention(packed, keys, values, attn_mask=self.mask, scale=scale)
        return result.flatten(1, 2)[:, None]


def _pack(query: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    """Query heads that share a key-value head, as rows of it: (batch, key-value heads, heads of each, size)."""
    batch, _, _, size = query.shape
    return query.reshape(batch, num_kv_heads, -1, size)
