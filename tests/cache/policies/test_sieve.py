from aiokvoffload.base import CachePolicy, Residents
from aiokvoffload.cache.policies.sieve import SIEVEPolicy
from aiokvoffload.testing.policy import CachePolicyContract


class TestSIEVEPolicy(CachePolicyContract):
    admits_selectively = False

    def make_policy(self, residents: Residents) -> CachePolicy:
        return SIEVEPolicy(residents)
