"""Offload keys: bytes in, bytes out."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokvoffload.base import get_offload_block_hash, get_offload_group_idx, make_offload_key
from aiokvoffload.base.keys import OffloadKey
from aiokvoffload.errors import ArgumentError


@given(block_hash=st.binary(min_size=1, max_size=64), group_idx=st.integers(0, 2**32 - 1))
def test_a_key_gives_back_what_it_was_made_of(block_hash: bytes, group_idx: int) -> None:
    """Fault 45: plain bytes, the same in every process."""
    key = make_offload_key(block_hash, group_idx)
    assert key == block_hash + group_idx.to_bytes(4, "big")
    assert (get_offload_block_hash(key), get_offload_group_idx(key)) == (block_hash, group_idx)


@pytest.mark.parametrize(("block_hash", "group_idx"), [(b"", 0), ("text", 0), (b"hash", -1), (b"hash", 2**32)])
def test_what_cannot_be_a_key_is_refused(block_hash: bytes, group_idx: int) -> None:
    with pytest.raises(ArgumentError):
        make_offload_key(block_hash, group_idx)


@pytest.mark.parametrize("group_idx", [1.0, "1", None])
def test_a_group_is_a_whole_number(group_idx: Any) -> None:
    with pytest.raises(ArgumentError, match="whole number"):
        make_offload_key(b"hash", group_idx)
    assert make_offload_key(b"hash", np.int64(1)) == make_offload_key(b"hash", 1)  # type: ignore[arg-type]


def test_bytes_too_short_for_a_group_are_no_key() -> None:
    with pytest.raises(ArgumentError, match="4 bytes of group index"):
        get_offload_group_idx(OffloadKey(b"abcd"))
