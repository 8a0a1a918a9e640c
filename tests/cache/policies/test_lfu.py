from aiokvoffload.base import CachePolicy, Residents
from aiokvoffload.cache.policies.lfu import LFUPolicy
from aiokvoffload.testing.policy import CachePolicyContract, make_keys


class TestLFUPolicy(CachePolicyContract):
    admits_selectively = False

    def make_policy(self, residents: Residents) -> CachePolicy:
        return LFUPolicy(residents)

    def test_the_least_used_leaves_first_and_of_those_the_oldest(self) -> None:
        model = self.make_model(4)
        for number in (1, 2, 3, 4):
            model.admit(make_keys(number))
        model.act("access", make_keys(1))
        model.act("access", make_keys(1, 3))
        assert model.export() == make_keys(2, 4, 3, 1)
        assert model.admit(make_keys(5)) == make_keys(2)

    def test_what_was_popular_once_ages_out(self) -> None:
        """New keys begin at the priority of what left last, so ten uses are worth ten rounds, not eternity."""
        model = self.make_model(3)
        model.admit(make_keys(1))
        for _ in range(10):
            model.act("access", make_keys(1))
        for number in range(10, 60):
            model.admit(make_keys(number))
            model.act("access", make_keys(number))
        assert make_keys(1)[0] not in model.slots

    def test_priorities_that_wrap_around_keep_their_order(self) -> None:
        model = self.make_model(2)
        model.admit(make_keys(0, 1))
        for number in range(2, 900):
            left = model.admit(make_keys(number)) or []
            assert len(left) == 1
            model.act("access", make_keys(number))
        assert model.export()[-1] == make_keys(899)[0]
