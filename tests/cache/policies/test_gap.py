import pytest

from aiokvoffload.base import CachePolicy, Residents
from aiokvoffload.cache.policies.gap import GAPPolicy
from aiokvoffload.cache.policies.gittins import NUM_BUCKETS
from aiokvoffload.cli.workloads import make_workload
from aiokvoffload.testing.policy import CachePolicyContract, PlainResidents, PolicyModel, make_keys


class TestGAPPolicy(CachePolicyContract):
    admits_selectively = True

    def make_policy(self, residents: Residents) -> CachePolicy:
        return GAPPolicy(residents)

    def test_before_anything_is_known_the_oldest_leaves_first(self) -> None:
        model = self.make_model(32)
        for number in range(32):
            model.admit(make_keys(number))
        assert model.admit(make_keys(100, 101)) == make_keys(0, 1)

    def test_of_two_levels_the_one_with_the_less_valuable_oldest_key_gives_the_victim(self) -> None:
        residents = PlainResidents(32)
        policy = GAPPolicy(residents)
        model = PolicyModel(policy, residents)
        for number in range(32):
            model.admit(make_keys(number))
        model.act("access", make_keys(*range(8)))
        policy._model.values = [[0.2] * NUM_BUCKETS, [0.1] * NUM_BUCKETS, *policy._model.values[2:]]
        assert model.admit(make_keys(100)) == make_keys(7)
        policy._model.values = [[0.1] * NUM_BUCKETS, [0.2] * NUM_BUCKETS, *policy._model.values[2:]]
        model.act("access", make_keys(101))  # values are looked up anew
        assert model.admit(make_keys(101)) == make_keys(8)

    def test_a_key_worth_less_than_the_least_valuable_one_is_refused_and_nothing_leaves(self) -> None:
        """I6, fault 17."""
        residents = PlainResidents(32)
        policy = GAPPolicy(residents)
        model = PolicyModel(policy, residents)
        model.admit(make_keys(*range(32)))
        model.act("access", make_keys(*range(32)))
        policy._model.values = [[0.1] * NUM_BUCKETS, [0.2] * NUM_BUCKETS, *policy._model.values[2:]]
        assert model.admit(make_keys(100)) is None
        assert len(model.slots) == 32

    def test_what_was_not_admitted_is_not_placed_with_what_is_known_of_other_keys(self) -> None:
        policy = GAPPolicy(PlainResidents(32))
        policy.admit(make_keys(1, 2), 32, frozenset(), 0)
        policy.place(make_keys(1, 2), [0, 1], 0)
        with pytest.raises(ValueError, match="shorter"):
            policy.place(make_keys(3, 4), [2, 3], 1)
        assert list(policy.export().values()) == make_keys(2, 1)

    def test_a_missing_head_is_worth_what_lies_behind_it_and_goes_before_it(self) -> None:
        residents = PlainResidents(32)
        policy = GAPPolicy(residents)
        model = PolicyModel(policy, residents)
        chain = make_keys(*range(8))
        model.admit(chain, chain=1)
        model.admit(make_keys(*range(100, 124)), chain=2)
        model.act("remove", chain[:2])
        model.act("access", chain, 3)
        model.admit(chain[:2], chain=3)
        assert model.export()[-8:] == chain[::-1]

    def test_a_loop_larger_than_the_cache_is_served_in_part(self) -> None:
        """What LRU serves nothing of: keys that are kept through a round are worth more than those that come."""
        model = self.make_model(64)
        hits = 0
        for number in range(12_000):
            keys = make_keys(number % 100)
            hits += keys[0] in model.slots
            model.act("access", keys)
            model.admit(keys, set(keys))
        assert hits > 0.5 * 12_000 * 64 / 100

    def test_it_does_the_same_again_under_the_same_seed(self) -> None:
        orders = []
        for _ in range(2):
            model = self.make_model(64)
            for request in make_workload("chat", seed=3, blocks=5_000):
                model.act("access", request.keys())
                model.admit(request.keys(), set(request.keys()))
            orders.append(model.export())
        assert orders[0] == orders[1]
