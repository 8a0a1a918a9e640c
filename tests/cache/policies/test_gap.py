from aiokvoffload.base import CachePolicy, Residents
from aiokvoffload.cache.policies.gap import GAPPolicy
from aiokvoffload.testing.policy import CachePolicyContract


class TestGAPPolicy(CachePolicyContract):
    admits_selectively = True

    def make_policy(self, residents: Residents) -> CachePolicy:
        return GAPPolicy(residents)
