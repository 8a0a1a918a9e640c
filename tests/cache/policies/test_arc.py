from hypothesis import given, settings
from hypothesis import strategies as st

from aiokvoffload.base import CachePolicy
from aiokvoffload.cache.policies.arc import ARCPolicy
from aiokvoffload.testing.policy import CachePolicyContract, make_keys


class TestARCPolicy(CachePolicyContract):
    def make_policy(self, capacity: int) -> CachePolicy:
        return ARCPolicy(capacity)

    def test_keys_used_again_outlive_a_scan(self) -> None:
        policy = ARCPolicy(4)
        policy.admit(make_keys(1, 2), 4, (), 1)
        policy.access(make_keys(1, 2), 2)
        for number in range(10, 30):
            policy.access(make_keys(number), number)
            policy.admit(make_keys(number), 4 - len(policy), (), number)
        assert set(make_keys(1, 2)) <= set(policy.export())

    def test_a_ghost_comes_back_as_frequent_and_makes_its_list_longer(self) -> None:
        """Case II: what left the recent keys too early raises the target."""
        policy = ARCPolicy(2)
        policy.admit(make_keys(1, 2), 2, (), 1)
        policy.access(make_keys(1), 2)
        policy.admit(make_keys(3), 0, (), 3)
        assert "target 0" in repr(policy)
        policy.access(make_keys(2), 2)
        assert "target 1" in repr(policy)
        assert policy.admit(make_keys(2), 0, (), 4) == (1, make_keys(1))
        assert "1 recent, 1 frequent" in repr(policy)

    def test_the_other_list_gives_a_victim_when_the_preferred_one_is_pinned(self) -> None:
        """Fault 20, for either list."""
        for pinned, left in ((make_keys(1, 2), make_keys(4)), (make_keys(3, 4), make_keys(2))):
            policy = ARCPolicy(4)
            policy.admit(make_keys(1, 2, 3, 4), 4, (), 1)
            policy.access(make_keys(3, 4), 2)
            policy.pin(pinned)
            assert policy.admit(make_keys(5), 0, (), 3) == (1, left)

    @settings(deadline=None, max_examples=50)
    @given(st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=12, unique=True), max_size=40))
    def test_there_are_never_more_ghosts_than_the_papers_bounds_allow(self, chains: list[list[int]]) -> None:
        """I11: recent keys and their ghosts up to the capacity, all together up to twice that."""
        capacity = 8
        policy = ARCPolicy(capacity)
        for chain, numbers in enumerate(chains):
            keys = make_keys(*numbers)
            policy.access(keys, chain)
            resident = set(policy.export())
            absent = [key for key in keys if key not in resident]
            policy.admit(absent, capacity - len(policy), resident & set(keys), chain)
            sizes = [len(keys) for keys in (policy._recent, policy._recent_ghosts)]
            assert sum(sizes) <= capacity
            assert len(policy) + len(policy._recent_ghosts) + len(policy._frequent_ghosts) <= 2 * capacity
            assert 0 <= policy._target <= capacity
