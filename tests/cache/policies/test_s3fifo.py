from aiokvoffload.base import CachePolicy, Residents
from aiokvoffload.cache.policies.s3fifo import S3FIFOPolicy
from aiokvoffload.testing.policy import CachePolicyContract, make_keys


class TestS3FIFOPolicy(CachePolicyContract):
    admits_selectively = False

    def make_policy(self, residents: Residents) -> CachePolicy:
        return S3FIFOPolicy(residents)

    def test_what_is_not_used_in_the_small_queue_leaves_before_what_was_used_in_it_twice(self) -> None:
        model = self.make_model(10)
        for number in range(10):
            model.admit(make_keys(number))
        for _ in range(2):
            model.act("access", make_keys(0, 1))
        left = [key for number in range(20, 30) for key in model.admit(make_keys(number)) or ()]
        assert left == make_keys(2, 3, 4, 5, 6, 7, 8, 9, 20, 21)
        assert "1 small, 9 main" not in repr(model.policy)
        assert "8 small, 2 main" in repr(model.policy)

    def test_a_ghost_comes_back_into_the_main_queue_and_outlives_a_scan(self) -> None:
        model = self.make_model(10)
        for number in range(11):
            model.admit(make_keys(number))
        assert make_keys(0)[0] not in model.slots
        model.admit(make_keys(0))
        assert "9 small, 1 main" in repr(model.policy)
        for number in range(20, 60):
            model.admit(make_keys(number))
        assert make_keys(0)[0] in model.slots

    def test_a_use_in_the_main_queue_is_worth_one_more_round(self) -> None:
        model = self.make_model(4)
        for number in range(4):
            model.admit(make_keys(number))
        for _ in range(3):
            model.act("access", make_keys(0, 1, 2, 3))
        left = [key for number in range(10, 14) for key in model.admit(make_keys(number)) or ()]
        assert left[0] == make_keys(0)[0]

    def test_a_call_looks_at_a_bounded_number_of_keys(self) -> None:
        """I10: where everything is in use, one call does not go through all of it."""
        model = self.make_model(4000)
        keys = make_keys(*range(4000))
        model.admit(keys)
        for _ in range(3):
            model.act("access", keys)
        assert len(model.admit(make_keys(5000)) or ()) == 1
        assert "main" in repr(model.policy)
        model.check()
