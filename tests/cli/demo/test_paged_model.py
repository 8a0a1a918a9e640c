"""Attention over pages is attention: the same tokens as a model with a cache of its own, in whatever pieces."""

import pytest
import torch

from aiokvoffload.cli.demo.model import PagedModel, Row
from aiokvoffload.errors import ArgumentError
from tests.cli.demo.tiny import BLOCK_TOKENS, random_tokens, tiny_llama

PROMPT = random_tokens("a prompt", 60)
SCATTERED = [11, 3, 7, 0, 9, 5, 2, 8]


def make(decode_rows: int | None = None) -> PagedModel:
    return PagedModel(tiny_llama(), num_blocks=12, block_tokens=BLOCK_TOKENS, decode_rows=decode_rows)


def prefill(model: PagedModel, piece: int, width: int | None = None) -> int:
    token = -1
    for start in range(0, len(PROMPT), piece):
        tokens = PROMPT[start : start + piece]
        token = model.prefill(tokens, SCATTERED, start=start, width=width or len(tokens))
    return token


def test_pieces_of_any_length_come_to_the_same_token() -> None:
    with torch.inference_mode():
        expected = int(tiny_llama()(torch.tensor([PROMPT])).logits[0, -1].argmax())
    assert {prefill(make(), piece) for piece in (8, 16, 24, 60)} == {expected}
    assert prefill(make(), 32, width=32) == expected


@pytest.mark.parametrize("decode_rows", [None, 4])
def test_a_row_does_not_depend_on_its_neighbours_and_padding_touches_no_block(decode_rows: int | None) -> None:
    model = make(decode_rows)
    first = prefill(model, 16)
    pages = [layer.clone() for layer in model._pages]
    alone = model.decode([Row(first, 60, SCATTERED)])
    other = Row(5, 3, [1])
    assert model.decode([other, Row(first, 60, SCATTERED)])[1:] == alone
    untouched = [block for block in range(model.num_blocks) if block not in {SCATTERED[7], 1}]
    for before, after in zip(pages, model._pages, strict=True):
        assert after[untouched].equal(before[untouched])
        assert after[SCATTERED[7], :, 4].ne(before[SCATTERED[7], :, 4]).any()


def test_fixed_shapes_give_the_same_bits_and_others_need_not() -> None:
    """Why hits are used in whole pieces: this test says what would differ otherwise."""
    whole, padded = make(), make()
    whole.prefill(PROMPT[:32], SCATTERED, start=0, width=32)
    padded.prefill(PROMPT[:20], SCATTERED, start=0, width=32)
    for left, right in zip(whole._pages, padded._pages, strict=True):
        assert left[SCATTERED[:2]].equal(right[SCATTERED[:2]])


def test_the_library_sees_one_row_for_each_block_with_all_its_layers_and_not_the_padding() -> None:
    model = make()
    (entry,), ((ref,),) = model.kv_caches.tensors, model.kv_caches.group_data_refs
    assert len(entry.tensor) == model.num_blocks == 12
    assert entry.tensor.is_contiguous()
    assert model.block_bytes == entry.page_size_bytes == ref.page_size_bytes == entry.tensor[0].nbytes
    model.prefill([5] * BLOCK_TOKENS, [3], start=0, width=BLOCK_TOKENS)
    assert all(layer.any() for layer in entry.tensor[3])
    assert not entry.tensor[:3].any()


def test_more_blocks_than_there_is_memory_for_are_the_callers_fault() -> None:
    with pytest.raises(ArgumentError, match="1099511627776 blocks of 8 tokens do not fit cpu memory"):
        PagedModel(tiny_llama(), num_blocks=1 << 40, block_tokens=BLOCK_TOKENS)
