from aiokvoffload.base import CachePolicy, Residents
from aiokvoffload.cache.policies.sieve import SIEVEPolicy
from aiokvoffload.testing.policy import CachePolicyContract, make_keys


class TestSIEVEPolicy(CachePolicyContract):
    admits_selectively = False

    def make_policy(self, residents: Residents) -> CachePolicy:
        return SIEVEPolicy(residents)

    def test_the_hand_takes_what_was_not_used_since_it_came_by(self) -> None:
        """Used keys keep their place in the queue, and one use saves them once."""
        model = self.make_model(4)
        for number in (1, 2, 3, 4):
            model.admit(make_keys(number))
        model.act("access", make_keys(1, 2))
        assert model.admit(make_keys(5)) == make_keys(3)
        assert model.admit(make_keys(6)) == make_keys(4)
        assert "2 ahead of the hand, 2 behind" in repr(model.policy)
        assert model.admit(make_keys(7, 8)) == make_keys(5, 6)
        assert model.admit(make_keys(9)) == make_keys(1)

    def test_a_call_looks_at_a_bounded_number_of_keys(self) -> None:
        """I10: where everything is in use, one call does not go through all of it."""
        model = self.make_model(4000)
        keys = make_keys(*range(4000))
        model.admit(keys)
        model.act("access", keys)
        left = model.admit(make_keys(5000)) or []
        assert len(left) == 1
        assert left[0] != keys[-1]
        assert "ahead of the hand, " in repr(model.policy)
        model.check()
