import pytest

from aiokvoffload.base import CachePolicy
from aiokvoffload.cache.policies.lru import LRUPolicy
from aiokvoffload.testing.policy import CachePolicyContract, make_keys


class TestLRUPolicy(CachePolicyContract):
    def make_policy(self, capacity: int) -> CachePolicy:
        return LRUPolicy(capacity)

    def test_the_key_used_longest_ago_leaves_first(self) -> None:
        policy = LRUPolicy(3)
        for number in (1, 2, 3):
            policy.admit(make_keys(number), 1, (), number)
        policy.access(make_keys(1), 4)
        assert policy.admit(make_keys(4, 5), 0, (), 5) == (2, make_keys(2, 3))

    def test_using_an_absent_key_leaves_no_trace(self) -> None:
        policy = LRUPolicy(3)
        policy.access(make_keys(1, 2), 1)
        assert len(policy) == 0

    def test_a_store_larger_than_the_cache_is_cut_to_its_head(self) -> None:
        policy = LRUPolicy(3)
        assert policy.admit(make_keys(1, 2, 3, 4, 5), 3, (), 1) == (3, [])
        assert list(policy.export()) == make_keys(3, 2, 1)

    @pytest.mark.parametrize("num_keys", [10, 5000])
    def test_the_order_holds_however_many_keys_there_are(self, num_keys: int) -> None:
        policy = LRUPolicy(num_keys)
        keys = make_keys(*range(num_keys))
        policy.admit(keys, num_keys, (), 0)
        policy.access(keys[num_keys // 2 :], 1)
        expected = keys[: num_keys // 2][::-1] + keys[num_keys // 2 :][::-1]
        victims = [policy.admit(make_keys(num_keys + i), 0, (), 2 + i) for i in range(num_keys)]
        assert [victim for admission in victims if admission for victim in admission.victims] == expected

    def test_a_pinned_key_that_was_passed_over_leaves_first_once_unpinned(self) -> None:
        policy = LRUPolicy(4)
        keys = make_keys(1, 2, 3, 4)
        policy.admit(keys, 4, (), 1)
        policy.pin(keys[2:])
        assert policy.admit(make_keys(5), 0, (), 2) == (1, keys[1:2])
        policy.unpin(keys[2:])
        assert list(policy.export()) == [keys[3], keys[2], keys[0], *make_keys(5)]

    def test_a_pinned_key_that_was_passed_over_can_still_be_used_again(self) -> None:
        policy = LRUPolicy(2)
        keys = make_keys(1, 2)
        policy.admit(keys, 2, (), 1)
        policy.pin(keys[1:])
        policy.admit(make_keys(3), 0, (), 2)
        policy.access(keys[1:], 3)
        policy.unpin(keys[1:])
        assert policy.admit(make_keys(4), 0, (), 4) == (1, make_keys(3))
