"""Steps in shapes of a few sizes: what a graph computes is what the step would, and padding touches nobody's block."""

import pytest
import torch

from aiokvoffload.cli.demo.graphs import MAX_BLOCKS, Size, graph_size
from aiokvoffload.cli.demo.model import PagedModel, Row
from aiokvoffload.errors import ArgumentError
from tests.cli.demo.tiny import BLOCK_TOKENS, random_tokens, tiny_llama

BLOCKS = [[11, 3, 7, 0], [9, 5, 2, 8], [1, 4, 6, 10]]


def filled(model: PagedModel) -> list[Row]:
    """Three sequences of different lengths, and the next token of each."""
    rows = []
    for number, block_ids in enumerate(BLOCKS):
        length = 9 + 7 * number
        token = model.prefill(random_tokens(number, length), block_ids, start=0, width=length)
        rows.append(Row(token, length, block_ids))
    return rows


@pytest.mark.parametrize(
    ("rows", "blocks", "expected"),
    [(1, 1, (1, 6)), (1, 7, (1, 8)), (2, 9, (4, 12)), (5, 13, (16, 16)), (64, 64, (64, 64)), (64, 65, (64, 96))],
)
def test_sizes_are_padded_to_a_few(rows: int, blocks: int, expected: tuple[int, int]) -> None:
    assert graph_size(rows, blocks) == expected


def test_a_step_that_would_cost_more_to_pad_has_no_graph() -> None:
    assert graph_size(1, MAX_BLOCKS) == (1, MAX_BLOCKS)
    assert graph_size(1, MAX_BLOCKS + 1) is None
    assert graph_size(65, MAX_BLOCKS // 64) is None


@torch.inference_mode()
def test_a_padded_step_chooses_the_same_tokens_and_writes_the_same_bytes() -> None:
    plain, padded = (PagedModel(tiny_llama(), num_blocks=12, block_tokens=BLOCK_TOKENS) for _ in range(2))
    rows = filled(plain)
    assert filled(padded) == rows
    expected = plain.decode(rows)
    chosen = padded._decode_all(padded._decode_inputs(rows, Size(4, 6)))
    assert chosen[:3].tolist() == expected
    for left, right in zip(plain._pages, padded._pages, strict=True):
        torch.testing.assert_close(left[:12], right[:12])
        assert right.isfinite().all()


def test_graphs_need_cuda() -> None:
    with pytest.raises(ArgumentError, match="decode_graphs need a CUDA device and no decode_rows, got cpu and None"):
        PagedModel(tiny_llama(), num_blocks=12, block_tokens=BLOCK_TOKENS, decode_graphs=True)


def test_without_graphs_there_is_nothing_to_prepare() -> None:
    model = PagedModel(tiny_llama(), num_blocks=12, block_tokens=BLOCK_TOKENS)
    before = [layer.clone() for layer in model._pages]
    model.prepare_decode(4, first_tokens=8, last_tokens=64)
    assert all(left.equal(right) for left, right in zip(before, model._pages, strict=True))


@pytest.mark.gpu
def test_a_graph_chooses_the_same_tokens_every_time() -> None:
    plain = PagedModel(tiny_llama().cuda(), num_blocks=12, block_tokens=BLOCK_TOKENS)
    graphs = PagedModel(tiny_llama().cuda(), num_blocks=12, block_tokens=BLOCK_TOKENS, decode_graphs=True)
    rows = filled(plain)
    assert filled(graphs) == rows
    graphs.prepare_decode(3, first_tokens=8, last_tokens=32)
    assert graphs.decode(rows) == graphs.decode(rows) == plain.decode(rows)
    assert "1 captured" in repr(graphs._graphs)
