import pytest

from aiokvoffload.base import CachePolicy, OffloadKey, ReqContext, Residents
from aiokvoffload.cache.policies.adaptive import AdaptivePolicy
from aiokvoffload.cli.manager_bench import make_manager, manager_benchmark, serve
from aiokvoffload.cli.workloads import make_workload
from aiokvoffload.testing.policy import CachePolicyContract, PlainResidents, PolicyModel, make_keys


class TestAdaptivePolicy(CachePolicyContract):
    admits_selectively = True

    def make_policy(self, residents: Residents) -> CachePolicy:
        return AdaptivePolicy(residents)

    def test_a_recency_pattern_hands_over_to_lru_and_nothing_leaves_for_it(self) -> None:
        """Keys that are used again soon or never: what was learned of their popularity is of no use."""
        policy, model = self.make_policy_and_model()
        policy._lead, policy._variance, policy._served = 50.0, 100.0, 1000.0
        before = model.export()
        policy._judge()
        assert policy.is_lru
        assert "LRU rules" in repr(policy)
        assert model.export() == before

    def test_a_lead_that_chance_explains_changes_nothing(self) -> None:
        policy, _ = self.make_policy_and_model()
        policy._lead, policy._variance, policy._served = 19.0, 100.0, 500.0
        policy._judge()
        assert not policy.is_lru

    def test_lru_stays_twice_as_long_when_it_takes_over_again(self) -> None:
        policy, _ = self.make_policy_and_model()
        terms = []
        for _ in range(3):
            policy._lead, policy._variance, policy._served = 50.0, 100.0, 1000.0
            policy._judge()
            terms.append(policy._until_epoch - policy._epoch)
            policy._epoch = policy._until_epoch
            policy._judge()
            assert not policy.is_lru
        assert terms == [terms[0], 2 * terms[0], 4 * terms[0]]

    def test_under_lru_the_oldest_leaves_first_however_popular(self) -> None:
        policy, model = self.make_policy_and_model()
        model.act("access", make_keys(*range(32)))
        policy.is_lru, policy._until_epoch = True, 1 << 30
        model.act("access", make_keys(*range(8, 32)))
        assert model.admit(make_keys(100)) == make_keys(7)

    def make_policy_and_model(self) -> tuple[AdaptivePolicy, PolicyModel]:
        residents = PlainResidents(32)
        policy = AdaptivePolicy(residents)
        model = PolicyModel(policy, residents)
        model.admit(make_keys(*range(32)))
        policy._epoch = 1000
        return policy, model


PHASES = [("scan", "chat"), ("loop", "agents")]
FOLLOWED_WITHIN_TURNOVERS = 20


@pytest.mark.parametrize(("before", "after"), PHASES)
def test_it_follows_a_change_of_traffic_within_twenty_turnovers(before: str, after: str) -> None:
    """After 20 times the capacity of references it serves nearly what it serves when it never saw anything else."""
    capacity = 100
    first = [request.keys(b"first") for request in make_workload(before, seed=1, blocks=20_000)]
    second = [request.keys(b"second") for request in make_workload(after, seed=1, blocks=15_000)]
    counted_from = FOLLOWED_WITHIN_TURNOVERS * capacity
    changed = served_ratio([*first, *second], capacity, sum(map(len, first)) + counted_from)
    unchanged = served_ratio(second, capacity, counted_from)
    assert changed > 0.95 * unchanged


def served_ratio(chains: list[list[OffloadKey]], capacity: int, counted_from: int) -> float:
    manager = make_manager("adaptive", capacity)
    seen = counted = hits = 0
    for number, keys in enumerate(chains):
        served = serve(manager, keys, ReqContext(str(number)))
        if seen >= counted_from:
            counted += len(keys)
            hits += served
        seen += len(keys)
    manager.check_integrity()
    return hits / counted


@pytest.mark.parametrize("workload", ["scan", "drift", "chat", "agents"])
def test_it_keeps_up_with_the_best_of_the_others(workload: str) -> None:
    requests = make_workload(workload, seed=7, blocks=30_000)
    ratios = {
        policy: manager_benchmark(requests, policy=policy, cpu_chunks=500).hit_ratio
        for policy in ("lru", "arc", "s3fifo", "adaptive")
    }
    assert ratios["adaptive"] >= 0.95 * max(ratios.values())


def test_a_small_pool_follows_popularity_that_drifts() -> None:
    """Most keys are unknown, so the clock is slow: with coarse epochs all that is resident would be of one age."""
    requests = make_workload("drift", seed=3, blocks=30_000)
    ratios = {
        policy: manager_benchmark(requests, policy=policy, cpu_chunks=100).hit_ratio for policy in ("lru", "adaptive")
    }
    assert ratios["adaptive"] >= 0.95 * ratios["lru"]
