"""Attention of a long piece in the middle of a prompt, as two attentions whose results are merged.

The fastest kernel on recent NVIDIA GPUs (cuDNN's) has no mask for such a piece: it knows a square causal one, and none.
So the piece attends to all before it, where nothing is masked, then to itself, and the two are weighted by their sums
of exponentials, as ring attention does (Liu et al. 2023, https://arxiv.org/abs/2310.01889).
"""

import torch
from torch.backends.cuda import SDPAParams, can_use_cudnn_attention

MULTIPLE = 512
"""Of tokens, before the piece and in it. cuDNN makes a plan for each shape, in milliseconds, so there must be few."""


def can_split(query: torch.Tensor, keys: torch.Tensor) -> bool:
    """Whether `split_attention` can be used, and pays.

    Args:
        query: of the piece, shape (1, heads, tokens, size).
        keys: of all before it and of itself, shape (1, key-value heads, tokens, size).
    """
    before = keys.shape[2] - query.shape[2]
    if query.device.type != "cuda" or before == 0 or before % MULTIPLE or query.shape[2] % MULTIPLE:
        return False
    own = keys[:, :, before:]
    return can_use_cudnn_attention(SDPAParams(query, own, own, None, 0.0, True, True))


def split_attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, scale: float) -> torch.Tensor:
    """The same as attention with a lower-right causal mask, up to rounding.

    Args:
        query: shape (1, heads, tokens, size).
        keys: shape (1, key-value heads, tokens before and in the piece, size).
        values: as `keys`.
        scale: of the scores.

    Returns:
        Shape of `query`.
    """
    before = keys.shape[2] - query.shape[2]
    past = _attend(query, keys[:, :, :before], values[:, :, :before], scale=scale, causal=False)
    own = _attend(query, keys[:, :, before:], values[:, :, before:], scale=scale, causal=True)
    return merge(past, own)


def merge(first: tuple[torch.Tensor, torch.Tensor], second: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """One attention over the keys of two.

    Args:
        first: its result, shape (1, heads, tokens, size), and logarithms of its sums of exponentials, one for each
            head and token.
        second: the other one's.
    """
    (one, one_log_sum), (other, other_log_sum) = first, second
    weight = torch.sigmoid(other_log_sum - one_log_sum).reshape(*one.shape[:3], 1)
    return torch.lerp(one.float(), other.float(), weight).to(one.dtype)


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, scale: float, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    result, log_sums, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        query, keys, values, None, True, 0.0, causal, False, scale=scale
    )
    return result, log_sums
