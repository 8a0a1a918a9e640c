import numpy as np
import pytest
import torch

from aiokvoffload.cli.blocks import make_pool
from aiokvoffload.cli.pattern import Mismatch, Pattern, mix64

BLOCKS, HASH_IDS = [5, 0, 3], [11, 12, 2**63 - 1]


@pytest.fixture(params=[128, 1 << 20], ids=["small chunks", "one block a piece"])
def pool(request: pytest.FixtureRequest) -> torch.Tensor:
    pool = make_pool(torch.device("cpu"), num_tensors=4, num_blocks=6, chunk_bytes=request.param)
    return pool.fill_(0)


@pytest.fixture
def pattern(pool: torch.Tensor) -> Pattern:
    pattern = Pattern(pool, max_verified=8)
    pattern.fill(BLOCKS, HASH_IDS)
    return pattern


def verified(pattern: Pattern) -> list[Mismatch]:
    pattern.verify(BLOCKS, HASH_IDS, ordinal=pattern.reserve(3))
    return pattern.mismatches()


def test_what_was_filled_verifies(pattern: Pattern) -> None:
    assert verified(pattern) == []
    assert pattern.verified == 3


def test_no_two_words_of_all_blocks_are_equal(pattern: Pattern, pool: torch.Tensor) -> None:
    words = pool[:, BLOCKS].reshape(-1)
    assert len(torch.unique(words)) == len(words)


def test_other_blocks_are_not_touched(pattern: Pattern, pool: torch.Tensor) -> None:
    assert not pool[:, [1, 2, 4]].any()


def test_two_fragments_swapped_between_blocks_are_found(pattern: Pattern, pool: torch.Tensor) -> None:
    pool[2, [0, 3]] = pool[2, [3, 0]]
    words = pool.shape[2]
    assert verified(pattern) == [Mismatch(1, 2, words), Mismatch(2, 2, words)]


def test_two_fragments_swapped_between_tensors_are_found(pattern: Pattern, pool: torch.Tensor) -> None:
    pool[[0, 1], 5] = pool[[1, 0], 5]
    assert [(wrong.ordinal, wrong.tensor) for wrong in verified(pattern)] == [(0, 0), (0, 1)]


def test_a_fragment_shifted_by_one_word_is_found(pattern: Pattern, pool: torch.Tensor) -> None:
    pool[0, 5] = pool[0, 5].roll(1)
    assert verified(pattern) == [Mismatch(0, 0, pool.shape[2])]


@pytest.mark.parametrize("byte", range(8))
def test_a_single_stale_byte_is_found(pattern: Pattern, pool: torch.Tensor, byte: int) -> None:
    pool[3, 0].view(torch.uint8)[-8 + byte] ^= 1
    assert verified(pattern) == [Mismatch(1, 3, 1)]


def test_a_block_that_nothing_was_loaded_into_is_found(pattern: Pattern, pool: torch.Tensor) -> None:
    pattern.poison([3])
    assert {wrong.ordinal for wrong in verified(pattern)} == {2}
    assert len(torch.unique(pool[:, 3])) == 1


def test_a_block_left_from_another_prefix_is_found(pattern: Pattern) -> None:
    pattern.fill([0], [99])
    assert {wrong.ordinal for wrong in verified(pattern)} == {1}


def test_later_verifications_keep_what_earlier_ones_found(pattern: Pattern) -> None:
    pattern.poison([0])
    assert verified(pattern)
    pattern.fill([0], [12])
    assert {wrong.ordinal for wrong in verified(pattern)} == {1}
    assert repr(pattern) == "Pattern(6 blocks verified of at most 8)"


def test_mixing_is_one_to_one_and_matches_splitmix64() -> None:
    assert int(mix64(np.array([0], dtype=np.uint64))[0]) == 0xE220A8397B1DCDAF
    assert len(np.unique(mix64(np.arange(10_000, dtype=np.uint64)))) == 10_000
