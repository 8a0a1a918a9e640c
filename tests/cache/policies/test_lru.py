import pytest

from aiokvoffload.base import CachePolicy, Residents
from aiokvoffload.cache.policies.lru import LRUPolicy
from aiokvoffload.testing.policy import CachePolicyContract, make_keys


class TestLRUPolicy(CachePolicyContract):
    def make_policy(self, residents: Residents) -> CachePolicy:
        return LRUPolicy(residents)

    def test_the_key_used_longest_ago_leaves_first(self) -> None:
        model = self.make_model(3)
        for number in (1, 2, 3):
            model.admit(make_keys(number))
        model.act("access", make_keys(1))
        assert model.admit(make_keys(4, 5)) == make_keys(2, 3)

    def test_using_an_absent_key_leaves_no_trace(self) -> None:
        model = self.make_model(3)
        model.act("access", make_keys(1, 2))
        assert len(model.policy) == 0

    def test_a_chain_whose_absent_keys_are_asked_for_is_the_most_recent(self) -> None:
        policy, (one, two, three) = self.make_model(3).policy, make_keys(1, 2, 3)
        policy.place([one], [0], 0)
        policy.place([two], [1], 1)
        policy.access((), (), [three], 0)
        assert list(policy.export().values()) == [two, one]
        policy.access((), (), [three], 7)  # of which nothing is here
        assert list(policy.export().values()) == [two, one]

    def test_a_store_larger_than_the_cache_is_cut_to_its_head(self) -> None:
        model = self.make_model(3)
        assert model.admit(make_keys(1, 2, 3, 4, 5)) == []
        assert model.export() == make_keys(3, 2, 1)

    @pytest.mark.parametrize("num_keys", [10, 1000])
    def test_the_order_holds_however_many_keys_there_are(self, num_keys: int) -> None:
        model = self.make_model(num_keys)
        keys = make_keys(*range(num_keys))
        model.admit(keys)
        model.act("access", keys[num_keys // 2 :])
        expected = keys[: num_keys // 2][::-1] + keys[num_keys // 2 :][::-1]
        left = [model.admit(make_keys(*range(start, start + 5))) for start in range(num_keys, 2 * num_keys, 5)]
        assert [key for some in left if some for key in some] == expected

    def test_a_held_key_that_was_passed_over_leaves_first_once_it_is_released(self) -> None:
        model = self.make_model(4)
        keys = make_keys(1, 2, 3, 4)
        model.admit(keys)
        model.act("pin", keys[2:])
        assert model.admit(make_keys(5)) == keys[1:2]
        model.act("unpin", keys[2:])
        assert model.export() == [keys[3], keys[2], keys[0], *make_keys(5)]

    def test_a_held_key_that_was_passed_over_can_still_be_used_again(self) -> None:
        model = self.make_model(2)
        keys = make_keys(1, 2)
        model.admit(keys)
        model.act("pin", keys[1:])
        model.admit(make_keys(3))
        model.act("access", keys[1:])
        model.act("unpin", keys[1:])
        assert model.admit(make_keys(4)) == make_keys(3)
