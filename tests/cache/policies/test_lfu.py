from aiokvoffload.base import CachePolicy, Residents
from aiokvoffload.cache.policies.lfu import LFUPolicy
from aiokvoffload.testing.policy import CachePolicyContract


class TestLFUPolicy(CachePolicyContract):
    admits_selectively = False

    def make_policy(self, residents: Residents) -> CachePolicy:
        return LFUPolicy(residents)
