from hypothesis import given, settings
from hypothesis import strategies as st

from aiokvoffload.base import CachePolicy, Residents
from aiokvoffload.cache.policies.arc import ARCPolicy
from aiokvoffload.testing.policy import CachePolicyContract, PlainResidents, PolicyModel, make_keys


class TestARCPolicy(CachePolicyContract):
    def make_policy(self, residents: Residents) -> CachePolicy:
        return ARCPolicy(residents)

    def test_keys_used_again_outlive_a_scan(self) -> None:
        model = self.make_model(4)
        model.admit(make_keys(1, 2))
        model.act("access", make_keys(1, 2))
        for number in range(10, 30):
            model.act("access", make_keys(number))
            model.admit(make_keys(number))
        assert set(make_keys(1, 2)) <= set(model.export())

    def test_a_ghost_comes_back_as_frequent_and_makes_its_list_longer(self) -> None:
        """Case II: what left the recent keys too early raises the target."""
        model = self.make_model(2)
        model.admit(make_keys(1, 2))
        model.act("access", make_keys(1))
        model.admit(make_keys(3))
        assert "target 0" in repr(model.policy)
        model.act("access", make_keys(2))
        assert "target 1" in repr(model.policy)
        assert model.admit(make_keys(2)) == make_keys(1)
        assert "1 recent, 1 frequent" in repr(model.policy)

    def test_the_other_list_gives_a_victim_when_the_preferred_one_is_held(self) -> None:
        """Fault 20, for either list."""
        for pinned, left in ((make_keys(1, 2), make_keys(4)), (make_keys(3, 4), make_keys(2))):
            model = self.make_model(4)
            model.admit(make_keys(1, 2, 3, 4))
            model.act("access", make_keys(3, 4))
            model.act("pin", pinned)
            assert model.admit(make_keys(5)) == left

    @settings(max_examples=50)
    @given(st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=12, unique=True), max_size=40))
    def test_there_are_never_more_ghosts_than_the_papers_bounds_allow(self, chains: list[list[int]]) -> None:
        """I11: recent keys and their ghosts up to the capacity, all together up to twice that."""
        residents = PlainResidents(8)
        policy = ARCPolicy(residents)
        model = PolicyModel(policy, residents)
        for numbers in chains:
            keys = make_keys(*numbers)
            model.act("access", keys)
            model.admit(keys, model.slots.keys() & set(keys))
            sizes = [len(keys) for keys in (policy._recent, policy._recent_ghosts)]
            assert sum(sizes) <= residents.capacity
            assert len(policy) + len(policy._recent_ghosts) + len(policy._frequent_ghosts) <= 2 * residents.capacity
            assert 0 <= policy._target <= residents.capacity
