import numpy as np
import pytest
import torch

from aiokvoffload.base import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor
from aiokvoffload.copy.layout import lay_out
from aiokvoffload.errors import ConfigError
from tests.copy.memory import CPU, caches_of


def test_a_group_lies_in_its_tensors_in_layer_order() -> None:
    kv_caches = caches_of([8, 8], [64, 128], [[(1, 100), (0, 64)]])
    layout = lay_out(kv_caches, CPU)
    group = layout.groups[0]
    assert group.base_ptrs.tolist() == [entry.tensor.data_ptr() for entry in reversed(kv_caches.tensors)]
    assert group.row_bytes.tolist() == [128, 64]
    assert group.fragment_bytes.tolist() == [100, 64]
    assert group.fragment_offsets.tolist() == [0, 100]
    assert (group.block_bytes, group.num_blocks) == (164, 8)


def test_only_groups_that_share_a_tensor_share_blocks() -> None:
    """Equal ids of groups 0 and 1 are the same memory in tensor 1 only."""
    layout = lay_out(caches_of([8] * 4, [64] * 4, [[(0, 64), (1, 64)], [(1, 64), (2, 64)], [(3, 64)]]), CPU)
    spaces = [set(group.spaces) for group in layout.groups]
    assert len(spaces[0] & spaces[1]) == 1
    assert not spaces[2] & (spaces[0] | spaces[1])
    assert layout.num_physical_blocks == 8 * 4


def test_layers_of_one_group_are_one_space() -> None:
    layout = lay_out(caches_of([8] * 3, [64] * 3, [[(0, 64), (1, 64), (2, 64)]]), CPU)
    assert (layout.groups[0].spaces, layout.num_physical_blocks) == ((0,), 8)


def one(tensor: torch.Tensor, page_size_bytes: int) -> CanonicalKVCaches:
    return CanonicalKVCaches([CanonicalKVCacheTensor(tensor, page_size_bytes)], [[CanonicalKVCacheRef(0, 64)]])


def of_entry(entry: object) -> CanonicalKVCaches:
    return CanonicalKVCaches([entry], [[CanonicalKVCacheRef(0, 64)]])  # type: ignore[list-item] # what users pass


def of_ref(ref: object) -> CanonicalKVCaches:
    entry = CanonicalKVCacheTensor(torch.zeros((8, 64), dtype=torch.uint8), 64)
    return CanonicalKVCaches([entry], [[ref]])  # type: ignore[list-item] # what users pass


def overlapping() -> CanonicalKVCaches:
    whole = torch.zeros((9, 64), dtype=torch.uint8)
    entries = [CanonicalKVCacheTensor(whole[:8], 64), CanonicalKVCacheTensor(whole[1:], 64)]
    return CanonicalKVCaches(entries, [[CanonicalKVCacheRef(0, 64), CanonicalKVCacheRef(1, 64)]])


@pytest.mark.parametrize(
    ("kv_caches", "message"),
    [
        (one(torch.zeros((8, 64), dtype=torch.uint8).t(), 64), "contiguous"),
        (one(torch.zeros((0, 64), dtype=torch.uint8), 64), "at least one row"),
        (one(torch.zeros((8, 64), dtype=torch.uint8, device="meta"), 64), "must be on cpu"),
        (one(torch.zeros((8, 64), dtype=torch.float16), 64), "128 bytes, got 64"),
        (overlapping(), "overlap"),
        (one(np.zeros((8, 64)), 64), r"tensors\[0\] must be .* of a torch.Tensor, got one of a ndarray"),  # type: ignore[arg-type]
        (of_entry(torch.zeros((8, 64))), r"tensors\[0\] must be a CanonicalKVCacheTensor.*, got Tensor"),
        (of_ref(0), r"group_data_refs\[0\] must hold CanonicalKVCacheRef records, got 0"),
        (caches_of([8], [64], []), "at least one group"),
        (caches_of([8], [64], [[]]), "at least one tensor"),
        (caches_of([8], [64], [[(0, 64), (0, 64)]]), "each once"),
        (caches_of([8], [64], [[(1, 64)]]), "tensor_idx must be below 1, got 1"),
        (caches_of([8], [64], [[(0, 65)]]), r"in \[1, 64\].*got 65"),
        (caches_of([8, 9], [64, 64], [[(0, 64), (1, 64)]]), r"as many rows, got \[8, 9\]"),
    ],
)
def test_memory_that_does_not_fit_is_refused_with_the_reason(kv_caches: CanonicalKVCaches, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        lay_out(kv_caches, CPU)
