import pytest
import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from aiokvoffload.cli.demo.split_attention import MULTIPLE, can_split, merge, split_attention

SCALE = 0.25


def test_two_attentions_merge_into_the_one_over_both() -> None:
    torch.manual_seed(0)
    query = torch.randn(1, 4, 16, 32)
    keys, values = torch.randn(1, 4, 64, 32), torch.randn(1, 4, 64, 32)
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    past = attend(query, keys[:, :, :48], values[:, :, :48], 0.0, False, scale=SCALE)
    own = attend(query, keys[:, :, 48:], values[:, :, 48:], 0.0, True, scale=SCALE)
    mask = causal_lower_right(16, 64)
    expected = scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=SCALE)
    torch.testing.assert_close(merge(past, own), expected)


def test_only_cuda_splits() -> None:
    query = torch.zeros(1, 4, MULTIPLE, 32)
    assert not can_split(query, torch.zeros(1, 2, 2 * MULTIPLE, 32))


@pytest.mark.gpu
def test_a_split_attention_is_the_same_up_to_rounding() -> None:
    torch.manual_seed(0)
    query = torch.randn(1, 8, 1024, 128, device="cuda", dtype=torch.bfloat16)
    keys, values = (torch.randn(1, 2, 3072, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    if not can_split(query, keys):
        pytest.skip("cuDNN has no such attention here")
    mask = causal_lower_right(1024, 3072)
    expected = scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=SCALE, enable_gqa=True)
    torch.testing.assert_close(split_attention(query, keys, values, scale=SCALE), expected, atol=2e-2, rtol=2e-2)


@pytest.mark.gpu
def test_odd_lengths_are_not_split() -> None:
    query = torch.zeros(1, 8, MULTIPLE, 128, device="cuda", dtype=torch.bfloat16)
    assert not can_split(query, torch.zeros(1, 2, MULTIPLE, 128, device="cuda", dtype=torch.bfloat16))
    assert not can_split(query, torch.zeros(1, 2, 2 * MULTIPLE + 16, 128, device="cuda", dtype=torch.bfloat16))
